"""A hundred peers with a small model: how long until all have shaken hands, and how much memory together.

Run: python -m benchmarks.startup [--peers 100]. The clock runs from the start of the fork server, whose imports are
part of it, to the last peer's `ready`. Memory is the sum of the proportional set sizes (PSS: a page that n processes
share counts 1/n in each) of the peers, of the fork server and of what holds its other end. Nobody trains before all are
ready: in FedISP a token goes round the ring, and the peer that has it first starts last. The sum is taken once more
when the token has been round some times.
"""

import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks import peers
from benchmarks.measure import machine
from launcher.engines.local import fork_server

GIB = 1 << 30
PATIENCE = 120.0
ROUNDS = 5


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
    parser.add_argument("--peers", type=int, default=100)
    count = parser.parse_args().peers
    with tempfile.TemporaryDirectory() as place:
        seconds, ready, training = asyncio.run(start_all(Path(place) / "run", count))
    print(f"{count} peers of fedisp on digits:")
    print(f"seconds until all are ready: {seconds:.1f} (bar: at most 20)")
    print(f"GiB of memory then: {ready / GIB:.2f} (bar: at most 3)")
    print(f"GiB after {ROUNDS} rounds: {training / GIB:.2f}")
    print(machine())


if __name__ == "__main__":
    main()
