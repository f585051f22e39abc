"""A peer dies for good: how long until the others have finished their next round without it. Then it comes back.

Run: python -m benchmarks.losses [--peers 4] [--turns 5] [--absence 3] [--pause 0] [--secured]. A ring of fibfl on
digits, `on_loss: bypass`. Each turn kills another peer and starts it again when the others have finished a round
without it. From the `kill -9`: until every other peer knows that the view without it is decided, and until every one
has finished a round there. From its new start: the same of the view that has it again, its own rounds included.
"""

import argparse
import asyncio
import signal
import statistics
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import peers
from benchmarks.measure import machine
from launcher.engines.local import Child, ForkServer, fork_server

PATIENCE = 180.0
SPEC: dict[str, Any] = {
    "rounds": 100_000,
    "code": str(Path(__file__).parent),
    "model": {"name": "mlp"},
    "data": {"name": "digits"},
    "evaluate_every": 1000,
    "on_loss": "bypass",
}


class Seconds(NamedTuple):
    """Until everybody knew that a view was decided, and had finished a round there."""

    decided: float
    round: float


class Ring:
    """Its peers, while they run."""

    def __init__(self, server: ForkServer, directory: Path, ids: Sequence[str]) -> None:
        self._server, self._directory, self.ids = server, directory, ids
        self._running: dict[str, Child] = {}

    async def start(self, *ids: str) -> float:
        """When, in unix seconds."""
        began = time.time()
        started = await peers.start(self._server, self._directory, ids)
        self._running |= dict(zip(ids, started, strict=True))
        return began

    async def kill(self, *ids: str) -> float:
        began = time.time()
        for id in ids:
            self._running[id].signal(signal.SIGKILL)
        for id in ids:
            await self._running.pop(id).wait()
        return began

    async def lived(self, members: Collection[str], since: float) -> Seconds:
        """Once all of them have finished a round in a view that has them and nobody else."""
        decided, done = dict[str, float](), dict[str, float]()
        async with asyncio.timeout(PATIENCE):
            while len(done) < len(members):
                await asyncio.sleep(0.05)  # another process writes
                for id in members - done.keys():
                    views = [e for e in peers.events(self._directory, id, "view") if e["time"] > since]
                    for known in [e["time"] for e in views if {*e["members"]} == {*members}]:
                        decided[id] = known
                    rounds = [e["time"] for e in peers.events(self._directory, id, "round")]
                    if id in decided and rounds and rounds[-1] > decided[id]:
                        done[id] = next(at for at in rounds if at > decided[id])
        return Seconds(max(decided.values()) - since, max(done.values()) - since)

    async def under_way(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not all(len(peers.events(self._directory, id, "round")) > 3 for id in self.ids):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def measure(
    directory: Path, count: int, turns: int, absence: float, pause: float, secured: bool
) -> tuple[list[Seconds], list[Seconds]]:
    """Return the seconds of each turn: until the run goes on without the peer that died, and with it again."""
    protocol = {"name": "paced:Paced", "pause": pause, "head_epochs": 1, "extractor_epochs": 1}
    ids = peers.write(directory, count, secured=secured, absence=absence, protocol=protocol, **SPEC)
    without, again = list[Seconds](), list[Seconds]()
    async with fork_server() as server:
        ring = Ring(server, directory, ids)
        await ring.start(*ids)
        await ring.under_way()
        for turn in range(turns):
            victim = ids[turn % count]
            without.append(await ring.lived({*ids} - {victim}, await ring.kill(victim)))
            print(f"turn {turn + 1}: without {victim} after {without[-1].round:.1f} s", flush=True)
            again.append(await ring.lived({*ids}, await ring.start(victim)))
            print(f"turn {turn + 1}: with {victim} again after {again[-1].round:.1f} s", flush=True)
        await ring.kill(*ids)
    return without, again


def show(what: str, taken: list[Seconds]) -> None:
    for name, seconds in zip(Seconds._fields, zip(*taken, strict=True), strict=True):
        print(f"{what}, {name}: median {statistics.median(seconds):.1f} s, {min(seconds):.1f} to {max(seconds):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--absence", type=float, default=3)
    pause = "seconds that each peer rests in a round: so a few cores carry many"
    parser.add_argument("--pause", type=float, default=0, help=pause)
    parser.add_argument("--secured", action="store_true", help="with certificates: members sign, and one may lie")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        what = given.peers, given.turns, given.absence, given.pause, given.secured
        without, again = asyncio.run(measure(Path(place) / "run", *what))
    how = ", with certificates" if given.secured else ""
    print(f"{given.peers} peers of fibfl on digits{how}, absence {given.absence:g} s, {given.turns} turns:")
    show("one dies", without)
    show("it comes back", again)
    print(machine())


if __name__ == "__main__":
    main()
