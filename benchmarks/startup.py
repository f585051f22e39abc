"""A hundred peers with a small model: how long until all have shaken hands, and how much memory together.

Run: python -m benchmarks.startup [--peers 100]. The clock runs from the start of the fork server, whose imports are
part of it, to the last peer's `ready`. Memory is the sum of the proportional set sizes (PSS: a page that n processes
share counts 1/n in each) of the peers, of the fork server and of what holds its other end.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks import peers
from benchmarks.measure import machine, verdict
from launcher.processes import ForkServer

GIB = 1 << 30
PATIENCE = 120.0


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


async def all_at(directory: Path, ids: list[str], state: str) -> float:
    """When the last of the peers came to that state, in unix seconds."""
    reached: dict[str, float] = {}
    deadline = time.monotonic() + PATIENCE
    while len(reached) < len(ids):
        for id in ids:
            if id not in reached:
                times = [event["time"] for event in peers.events(directory, id, "state") if event["state"] == state]
                reached |= {id: times[0]} if times else {}
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(ids) - len(reached)} peers are not {state}; see the logs in {directory}")
        await asyncio.sleep(0.2)
    return max(reached.values())


async def start_all(directory: Path, count: int) -> tuple[float, int, int]:
    """Seconds until all are ready; bytes they have then, and while they serve after the last round."""
    spec = {"rounds": 2, "protocol": {"name": "fibfl", "extractor_epochs": 1}, "data": {"name": "digits"}}
    ids = peers.write(directory, count, **spec)
    began = time.time()
    async with ForkServer() as server:
        processes = await peers.start(server, directory, ids)
        seconds = await all_at(directory, ids, "ready") - began
        pids = [os.getpid(), server.pid, *(process.pid for process in processes)]
        ready = proportional_set_size(pids)
        await all_at(directory, ids, "serving")
        serving = proportional_set_size(pids)
        await asyncio.gather(*(process.wait() for process in processes))
    return seconds, ready, serving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=100)
    count = parser.parse_args().peers
    with tempfile.TemporaryDirectory() as place:
        seconds, ready, serving = asyncio.run(start_all(Path(place) / "run", count))
    print(f"{count} peers of fibfl on digits:")
    print(verdict("seconds until all are ready", seconds, 20))
    print(verdict("GiB of memory then", ready / GIB, 3))
    print(f"GiB of memory at the end of round 2: {serving / GIB:.2f}")
    print(machine())


if __name__ == "__main__":
    main()
