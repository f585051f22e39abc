"""What the process of one cell does: run its federation, on ports that are free, and leave rows and a summary."""

import asyncio
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from socket import AF_INET, SOCK_DGRAM, socket
from typing import Any

from launcher.commands.run import RunOptions, run
from launcher.output import Output
from launcher.page.learning_curves import round_rows
from launcher.page.ring import mixes, orders
from launcher.page.run_data import RunData
from launcher.reports.summary import TimeSpent, summarise, weight_divergence
from launcher.study.dask_worker import commit
from launcher.study.grid import CellFiles, Network
from peer.errors import FailedError, InputError, first_cause
from peer.files import lock
from peer.network.transport.addresses import why_taken
from peer.process import STOPS
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

PORTS = 1 << 16


@contextmanager
def free_ports(first: int, each: int) -> Iterator[int]:
    """The first of `each` ports in a row, from `first` on, that are free for the block: no process of this machine
    listens there, and no other cell has them. FailedError where there are none."""
    for port in range(first, PORTS - each + 1, each):
        with ExitStack() as held:
            if all(_reserved(held, one) for one in range(port, port + each)):
                yield port
                return
    raise FailedError(f"no {each} ports in a row are free from {first} on; give another --port")


def _reserved(held: ExitStack, port: int) -> bool:
    """False where it is taken. Cells tell each other by UDP sockets, of which no peer has any."""
    with suppress(OSError):
        held.enter_context(socket(AF_INET, SOCK_DGRAM)).bind(("127.0.0.1", port))
        return not why_taken(f"127.0.0.1:{port}")
    return False


LOCK_TIMEOUT_S = 60.0
"""Seconds for a cell's process to end after its launcher was killed."""


def work(place: Path, network: Network, port: int, gone: int | None = None) -> None:
    """Compute the cell in `place`; on the network `grpc` its peers take free ports from `port` on. Exits with 1 where
    it fails; the last line of log.txt says why.

    gone: a descriptor that becomes readable when the cell is no longer wanted; None: when the parent process ends.
    """
    if gone is None:
        launcher = parent_process()
        assert launcher is not None
        gone = launcher.sentinel
    os.setsid()  # Ctrl-C is for the launcher to hear
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    threading.Thread(target=end_with_launcher, args=(gone,), daemon=True).start()
    files, held = CellFiles(place), os.open(place, os.O_RDONLY)
    alone = lock(held, LOCK_TIMEOUT_S)
    if alone and files.finished:  # by the process that had it
        return
    if alone:
        files.said.unlink(missing_ok=True)
    with files.said.open("ab") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    if not alone:
        sys.exit("another process computes this cell; end it and start again")
    why = ""
    try:
        compute(files, network, port)
    except* (InputError, FailedError) as errors:
        why = str(first_cause(errors))
    if why:
        sys.exit(why)


def compute(files: CellFiles, network: Network, port: int) -> None:
    spec = load_spec(files.federation)
    begun = time.monotonic()
    if network == "memory":
        shutil.rmtree(files.run, ignore_errors=True)
        files.run.mkdir()
        asyncio.run(run_in_process(spec, files.run))
        summary = summarise(spec, files.run, TimeSpent(time.monotonic() - begun, 0))
    else:
        with free_ports(port, len(spec.ids)) as first:
            ring = [one.model_copy(update={"address": f"127.0.0.1:{first + at}"}) for at, one in enumerate(spec.ring)]
            moved = spec.model_copy(update={"ring": tuple(ring)})
            ended = run(RunOptions(moved, files.run, fresh=True, device="cpu"), Output(quiet=True))
        if ended.summary is None:
            raise FailedError(ended.why or f"its run ended with {ended.code}")
        summary = ended.summary
    data = RunData.read(spec, {id: files.run / id for id in spec.ids}, summary)
    whole = {"commit": commit(), "weight_divergence": weight_divergence(files.run, spec.ids)}
    files.finish({**whole, "rounds": [*round_rows(data)], "ring": ring_before_and_after(data)}, summary)


def ring_before_and_after(data: RunData) -> dict[str, Any] | None:
    """The ring before and after it was ordered, for the figure; None where it was not ordered."""
    if not data.orders:
        return None
    seen = [{"when": when, "order": order, "lines": sorted(pairs)} for when, order, pairs in orders(data)]
    return {"mixes": mixes(data), "orders": seen, "cost": data.ring_cost}


def end_with_launcher(gone: int) -> None:
    """End this process when its launcher is gone."""
    wait([gone])
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":  # as a Dask worker starts it; its stdin ends with that one
    work(Path(sys.argv[1]), "grpc" if sys.argv[2] == "grpc" else "memory", int(sys.argv[3]), sys.stdin.fileno())
