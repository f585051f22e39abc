"""Cells on the workers of a Dask cluster that is there already, each brought back when it has ended.

First the cluster is checked: is it one, has it workers, and would they come to the same bits? A worker that comes later
is asked the same before it is given a cell.
"""

import asyncio
import shutil
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Self
from uuid import uuid4

from launcher.engines.base import shipped
from launcher.study.dask_worker import RESULT_FILES, CellAnswer, code, compute, differing, who
from launcher.study.grid import Cell
from launcher.study.pool import CellOutcome, StopSignal, failure_reason
from peer.errors import FailedError, InputError
from peer.files import write_atomically
from peer.plugins import describe_error
from peer.text import one_line

CONNECT_TIMEOUT_S, WORKER_TIMEOUT_S, ANSWER_TIMEOUT_S = 15.0, 30.0, 10.0
"""Seconds for the scheduler to answer, for the first worker to be there, and for workers to say what they have."""
POLL_INTERVAL_S = 1.0
"""Seconds between two looks at whether the study is told to stop, and at who has come or gone, while nothing ends."""
FETCH_TIMEOUT_S = 60.0
"""Seconds for an answer to be brought."""


@dataclass
class DaskPool:
    """Cells that are being computed by the workers of a scheduler.

    client: Dask's, of the scheduler at `address`. port: the first that peers may take on a worker's machine. code: what
    workers must have. refused: by a worker's address, why it is given no cell, or nothing.
    """

    client: Any
    address: str
    port: int
    say: Callable[[str], None]
    code: Mapping[str, str] = field(default_factory=code)
    refused: dict[str, str] = field(default_factory=dict, init=False)
    _waiting: deque[Cell] = field(default_factory=deque, init=False)
    _running: dict[Any, Cell] = field(default_factory=dict, init=False)
    _ended: "SimpleQueue[Any]" = field(default_factory=SimpleQueue, init=False)
    _said: set[str] = field(default_factory=set, init=False)

    @classmethod
    @contextmanager
    def connected(cls, address: str, port: int, say: Callable[[str], None]) -> Iterator[Self]:
        """InputError where there is no scheduler, no worker, or one that would come to other bits."""
        with closing(_connect(address)) as client:
            made = cls(client, address, port, say)
            made.check()
            yield made

    def check(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=WORKER_TIMEOUT_S)
        except TimeoutError:
            raise InputError(f"no worker is connected to the scheduler at {self.address}; {self.hint}") from None
        try:
            self.client.run_on_scheduler(who)
        except (ImportError, AttributeError) as error:
            why = _cannot_load(f"the scheduler at {self.address}", error)
            raise InputError(f"{why}; install the same there and start it again") from None
        self.look()
        if refused := [why for why in self.refused.values() if why]:
            raise InputError(f"{refused[0]}; install the same there and start it again")

    def look(self) -> dict[str, int]:
        """Threads by address of the workers that are connected now and may be given cells."""
        try:
            threads: dict[str, int] = self.client.nthreads()
            for gone in self.refused.keys() - threads.keys():
                del self.refused[gone]
            if new := [worker for worker in threads if worker not in self.refused]:
                with suppress(TimeoutError):  # one that is as slow as that is asked again at the next look
                    self._hear(self.client.run(who, workers=new, on_error="return", callback_timeout=ANSWER_TIMEOUT_S))
        except OSError:
            raise self.gone() from None
        return {worker: count for worker, count in threads.items() if self.refused.get(worker) == ""}

    def _hear(self, answers: Mapping[str, Any]) -> None:
        for worker, told in answers.items():
            if not isinstance(told, Exception):
                self.judge(worker, differing(self.code, told))
            elif not isinstance(told, OSError):
                self.refused[worker] = _cannot_load(f"the worker {worker}", told)

    def judge(self, worker: str, other: str) -> None:
        """Refuse a worker with other code, which says what that is."""
        self.refused[worker] = other and f"the worker {worker} has {other}"

    @property
    def hint(self) -> str:
        return f"start one in an environment that has dfl: dask worker {self.address}"

    def gone(self) -> FailedError:
        kept = "the finished cells are kept; start it, and the same command goes on"
        return FailedError(f"the Dask scheduler at {self.address} is gone; {kept}")

    def computed(
        self, cells: Sequence[Cell], at_once: int | None, stopping: StopSignal
    ) -> Generator[CellOutcome, None, None]:
        """Each cell when it has ended, until all have or the study is told to stop. at_once: None for one a thread."""
        self._waiting.extend(cells)
        try:
            while (self._waiting or self._running) and not stopping.code:
                workers = self.look()
                self._tell(workers)
                threads = sum(workers.values())
                # No more than can be begun: the death of a worker counts against all that lies there.
                room = min(at_once or threads, threads)
                while self._waiting and len(self._running) < room:
                    self._submit(self._waiting.popleft(), [*workers])
                yield from self._next()
        finally:
            with suppress(OSError):
                self.client.cancel([*self._running], force=True)

    def _tell(self, workers: Collection[str]) -> None:
        """Report workers that are given no cell, each once; and that none is left, once each time."""
        said = {f"{why}: it is given no cell" for why in self.refused.values() if why}
        said |= set() if workers else {f"No worker is left; {self.hint}"}
        for line in sorted(said - self._said):
            self.say(line)
        self._said = said

    def _submit(self, cell: Cell, workers: list[str]) -> None:
        cell.prepare()
        task = shipped(cell.spec).dump(), cell.network, self.port, self.code
        # A key of its own: what an earlier launcher asked for may just be being given up.
        # Named only where others must not have it: a task for named workers waits on when they are gone.
        named = {"workers": workers, "allow_other_workers": True} if any(self.refused.values()) else {}
        future = self.client.submit(compute, *task, key=f"cell-{uuid4()}", pure=False, **named)
        self._running[future] = cell
        future.add_done_callback(self._ended.put)

    def _next(self) -> Iterator[CellOutcome]:
        """The next cell that has ended; none where that takes a while."""
        with suppress(Empty):
            future = self._ended.get(timeout=POLL_INTERVAL_S)
            try:
                ended = self._told(self._running[future], future)
            except TimeoutError:  # its worker has died with the answer, and another one computes it
                future.add_done_callback(self._ended.put)
                return
            cell = self._running.pop(future)
            if ended:
                yield ended
            else:
                self._waiting.append(cell)

    def _told(self, cell: Cell, future: Any) -> CellOutcome | None:
        """The outcome of a cell; None from a worker with other code, which has come later or was changed."""
        if future.status == "error":
            return cell, _error_reason(future.exception(timeout=FETCH_TIMEOUT_S))
        if future.status == "cancelled":
            raise self.gone()
        answer: CellAnswer = future.result(timeout=FETCH_TIMEOUT_S)
        worker, other, ended, files = answer
        if other:
            self.judge(worker, other)
            return None
        shutil.rmtree(cell.files.run, ignore_errors=True)  # of an attempt on this machine, as is the log
        cell.files.said.unlink(missing_ok=True)
        for name in RESULT_FILES:
            if name in files:
                write_atomically(cell.files.path / name, files[name].encode())
        return cell, "" if cell.files.finished else failure_reason(cell, ended)


def _connect(address: str) -> Any:
    import dask

    with dask.config.set({"logging.distributed": "critical"}):  # what it has to say is said by this command
        from distributed import Client, __version__
    try:
        # First of all: a client fails in its own ways at a scheduler of another version, and waits for ever at none.
        there = asyncio.run(_scheduler_version(address))
        if there != __version__:  # between which Dask promises nothing
            versions = f"Dask {there} and this machine has {__version__}"
            raise InputError(f"the scheduler at {address} has {versions}; install one version on all")
        return Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        hint = "give the address that `dask scheduler` prints, such as tcp://host:8786"
        why = one_line(error) or f"nothing within {CONNECT_TIMEOUT_S:.0f} s"
        raise InputError(f"--dask {address}: no Dask scheduler answers there ({why}); {hint}") from None


async def _scheduler_version(address: str) -> str:
    from distributed import Security, rpc

    secured = Security().get_connection_args("client")
    async with (
        asyncio.timeout(CONNECT_TIMEOUT_S),
        rpc(address, connection_args=secured, timeout=CONNECT_TIMEOUT_S) as scheduler,
    ):
        told: str = (await scheduler.versions())["packages"]["distributed"]
        return told


def _cannot_load(what: str, error: Exception) -> str:
    return f"{what} cannot load dfl ({one_line(error)})"


def _error_reason(error: BaseException) -> str:
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        return "the workers that computed it died, one after the other; it may want more memory than they have"
    return describe_error(error)
