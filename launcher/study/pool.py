"""Processes for cells: one each, as many at once as there is room for, until all have ended or the study is to stop.

Ctrl-C, SIGTERM or a closed terminal becomes a descriptor that can be waited for beside the processes.
"""

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from types import FrameType

from launcher.study.grid import Cell
from launcher.study.worker import work
from peer.errors import InputError
from peer.process import STOPS, heard_stops, signals_deferred
from peer.runtime.resources import memory, whole_cores
from peer.spec.blocks import MAX_PORT


class StopSignal:
    """code: of the exit, once a stop is requested. descriptor: can be read from then on."""

    def __init__(self) -> None:
        self.code = 0
        self.descriptor, self._write = os.pipe()

    def _ask(self, number: int, _: FrameType | None) -> None:
        self.code = self.code or STOPS[signal.Signals(number)]
        os.write(self._write, b".")

    @classmethod
    @contextmanager
    def listening(cls) -> Iterator["StopSignal"]:
        made = cls()
        former = {number: signal.signal(number, made._ask) for number in heard_stops()}
        try:
            yield made
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
            os.close(made.descriptor)
            os.close(made._write)


CELL_MEMORY = 1 << 30
"""Bytes that a cell is given room for."""
END_TIMEOUT_S = 20.0
"""Seconds for a cell's process to end when it is told to."""


CellOutcome = tuple[Cell, str]
"""A cell, and why it is not finished; empty if it is."""


def max_parallel_cells(cells: Sequence[Cell]) -> int:
    """How many of these cells this machine carries at once."""
    processes = max((len(cell.spec.ids) for cell in cells if cell.network == "grpc"), default=1)
    free = memory()[1] // (CELL_MEMORY * processes)
    return max(1, min(whole_cores() // processes, free))


def check_port(cells: Sequence[Cell], first: int) -> None:
    """InputError where no cell of real peers finds room from that port on."""
    most = max((len(cell.spec.ids) for cell in cells if cell.network == "grpc"), default=0)
    highest = MAX_PORT + 1 - most
    if most and not 1 <= first <= highest:
        raise InputError(
            f"--port {first}: there is no room from there on for {most} peers; give one from 1 to {highest}"
        )


def compute_cells(
    cells: Sequence[Cell], at_once: int, port: int, stopping: StopSignal
) -> Generator[CellOutcome, None, None]:
    """Each cell when it has ended, until all have or the study is told to stop. port: the first that peers may take."""
    # A process made by fork of one that has torch loaded already begins at once; a Mac's libraries bear no fork.
    context: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")
    if sys.platform == "linux":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["launcher.study.worker"])
    with signals_deferred(STOPS):  # by itself, as it lets signals through when it has started
        resource_tracker.ensure_running()
    waiting, running = deque(cells), dict[BaseProcess, Cell]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                cell = waiting.popleft()
                cell.prepare()
                process = context.Process(target=work, args=(cell.files.path, cell.network, port))
                # Ctrl-C goes to all of a terminal, also to a process not yet in a session of its own.
                with signals_deferred(STOPS):
                    process.start()
                running[process] = cell
            wait([stopping.descriptor, *(process.sentinel for process in running)])
            if stopping.code:
                return
            for ended in [process for process in running if process.exitcode is not None]:
                cell = running.pop(ended)
                yield cell, "" if cell.files.finished else failure_reason(cell, ended.exitcode)
    finally:
        for left in running:
            left.terminate()
        for left in running:
            left.join(END_TIMEOUT_S)
            left.kill()
            left.join()


def failure_reason(cell: Cell, code: int | None) -> str:
    """The last that the process said, or what ended it."""
    if code is not None and code < 0:
        hint = "; the machine may have had no memory left" if code == -9 else ""
        return f"its process was ended by signal {-code}{hint}"
    said = cell.files.said.read_text(errors="replace").splitlines() if cell.files.said.exists() else []
    lines = [line.strip(" |+-") for line in said]
    return next((line for line in reversed(lines) if line), f"its process ended with {code}")
