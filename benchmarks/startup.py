"""How long `dfl-launch run` takes before the first training and after the last `done`; and a hundred peers with a small
model: how long until all have shaken hands, and how much memory they have together.

Run: python -m benchmarks.startup [--turns 5] [--peers 100]. The run is four peers of fibfl on digits, its report
included. What comes before the training is mostly the import of torch, so each turn also times such an import.

The hundred start twice. Their clock runs from the start of the fork server, whose imports are part of it, to the last
peer's `ready`. Memory is the sum of the proportional set sizes (PSS: a page that n processes share counts 1/n in each)
of the peers, of the fork server and of what holds its other end. Nobody trains before all are ready: in FedISP a token
goes round the ring, and the peer that has it first starts last. The sum is taken once more when the token has been
round some times.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from benchmarks import peers
from benchmarks.measure import Figure, machine
from launcher.engines.local import fork_server

GIB = 1 << 30
PATIENCE = 120.0
ROUNDS = 5


class Ends(NamedTuple):
    """Seconds of a run from the command to the first training, and from the last `done` to the prompt; and of an import
    of torch."""

    start: float
    end: float
    torch: float


def import_torch() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - began


def run(directory: Path) -> Ends:
    protocol, data = {"name": "fibfl"}, {"name": "digits"}
    ids = peers.write(directory, 4, rounds=3, protocol=protocol, data=data)
    out, torch = directory / "run", import_torch()
    command = [sys.executable, "-m", "launcher.cli", "run", str(directory / "federation.yaml"), "--out", str(out)]
    began = time.time()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    ended = time.time()
    states = [event for id in ids for event in peers.events(out, id, "state")]
    training = min(event["time"] for event in states if event["state"] == "training")
    done = max(event["time"] for event in states if event["state"] == "done")
    return Ends(training - began, ended - done, torch)


def proportional_set_size(pids: Iterable[int]) -> int:
    """Bytes of all these processes together; one that has ended counts nothing."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


async def all_ready(directory: Path, ids: list[str]) -> float:
    """When the last of the peers had shaken hands, in unix seconds."""
    reached: dict[str, float] = {}
    deadline = time.monotonic() + PATIENCE
    while len(reached) < len(ids):
        for id in set(ids) - reached.keys():
            times = [e["time"] for e in peers.events(directory, id, "state") if e["state"] == "ready"]
            reached |= {id: times[0]} if times else {}
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(ids) - len(reached)} peers are not ready; see the logs in {directory}")
        await asyncio.sleep(0.1)
    return max(reached.values())


async def start_all(directory: Path, count: int) -> tuple[float, int, int]:
    """Seconds until all are ready, the bytes they have then, and those they have after some rounds."""
    data, model = {"name": "digits"}, {"name": "mlp"}
    ids = peers.write(directory, count, rounds=100_000, protocol={"name": "fedisp"}, model=model, data=data)
    began = time.time()
    async with fork_server() as server:
        server.call("peer.preloaded:rehearse", str(directory / f"{ids[0]}.yaml"))
        processes = await peers.start(server, directory, ids[::-1])
        seconds = await all_ready(directory, ids) - began
        pids = [os.getpid(), server.pid, *(process.pid for process in processes)]
        ready = proportional_set_size(pids)
        async with asyncio.timeout(PATIENCE):
            while len(peers.events(directory, ids[-1], "round")) < ROUNDS:  # noqa: ASYNC110  another process writes
                await asyncio.sleep(0.1)
        training = proportional_set_size(pids)
        for process in processes:
            process.signal(signal.SIGTERM)
        await asyncio.gather(*(process.wait() for process in processes))
    return seconds, ready, training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--peers", type=int, default=100)
    arguments = parser.parse_args()
    count = arguments.peers
    with tempfile.TemporaryDirectory() as place:
        runs = [run(Path(place) / str(turn)) for turn in range(arguments.turns)]
        torch = import_torch()
        hundreds = [asyncio.run(start_all(Path(place) / f"all{turn}", count)) for turn in range(2)]
        seconds, ready, training = zip(*hundreds, strict=True)
    print(Figure("startup: imports of torch before the first training", [r.start / r.torch for r in runs], 1.6))
    print(Figure("startup: seconds from the last `done` to the prompt", [r.end for r in runs], 0.5))
    print(Figure(f"startup: seconds until {count} peers are ready", seconds, 10))
    print(Figure(f"startup: imports of torch until {count} peers are ready", [one / torch for one in seconds]))
    print(Figure(f"startup: GiB of {count} peers that are ready", [one / GIB for one in ready], 3))
    print(Figure(f"startup: GiB of {count} peers after {ROUNDS} rounds", [one / GIB for one in training]))
    print(machine())


if __name__ == "__main__":
    main()
