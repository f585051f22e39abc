"""What checkpoints and retained messages cost a healthy run: the same federation with saving replaced by nothing.

Run: python -m benchmarks.checkpoints [--turns 11]. Four peers run fibfl as FIRMA has it, with 20 epochs a round. A
round's checkpoint holds the model, two moments for every parameter and the round's messages, and is flushed to the
disk while the next round trains.
"""

import argparse
import tempfile
from itertools import count
from pathlib import Path

from benchmarks import peers
from benchmarks.measure import Cost, Figure, in_turns, machine, median, ratios

PEERS, SHARD, ROUNDS = 4, 300, 8


def spec(data: Path, protocol: str) -> dict[str, object]:
    source = {"name": "npz", "path": str(data)}
    return {"rounds": ROUNDS, "protocol": {"name": protocol}, "data": source, "code": peers.SOURCE}


def compare(turns: int) -> dict[str, list[Cost]]:
    """Costs of "saved" and of "unsaved"."""
    numbers, protocols = count(), {"saved": "fibfl", "unsaved": "benchmarks.unsaved:Unsaved"}
    with tempfile.TemporaryDirectory() as place, peers.fork_server() as (runner, server):
        data = Path(place) / "images.npz"
        peers.images(data, PEERS * SHARD)

        def turn(protocol: str) -> Cost:
            directory = Path(place) / f"run{next(numbers)}"
            return peers.turn(runner, server, directory, PEERS, **spec(data, protocol))

        return in_turns({name: lambda p=p: turn(p) for name, p in protocols.items()}, turns)  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=11)
    taken = compare(parser.parse_args().turns)
    print(f"{PEERS} peers, {ROUNDS} rounds of fibfl, {SHARD} images each:")
    for name, costs in taken.items():
        wall, cpu = median(costs)
        print(f"  {name:8} {wall:6.2f} s, {cpu:6.2f} s of CPU with start-up")
    against = ratios(taken["saved"], taken["unsaved"])
    print(Figure("checkpoints: wall clock of a run that saves nothing", [one.wall for one in against], 1.05))
    print(Figure("checkpoints: CPU of it, start-up included", [one.cpu for one in against]))
    least = {name: min(cost.wall for cost in costs) for name, costs in taken.items()}
    print(f"and of their quickest turns: {least['saved'] / least['unsaved']:.2f}")
    print(machine())


if __name__ == "__main__":
    main()
