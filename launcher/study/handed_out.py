"""Cells on the workers of a Dask cluster, each brought back when it has ended."""

import shutil
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any
from uuid import uuid4

from launcher.study.cell import Cell
from launcher.study.cluster import Cluster
from launcher.study.pool import Ended, why
from launcher.study.remote import BROUGHT, Answer, Task, compute
from launcher.study.stopping import Stopping
from peer.files import write_atomically
from peer.plugins import in_words
from peer.spec.own_code import own_code

LOOK = 1.0
"""Seconds between two looks at whether the study is told to stop, and at who has come or gone, while nothing ends."""
FETCH = 60.0
"""Seconds for an answer to be brought."""
MANY = 1 << 20


@dataclass
class HandedOut:
    """Cells that are being computed. port: the first that peers may take on a worker's machine."""

    cluster: Cluster
    port: int
    say: Callable[[str], None]
    _waiting: deque[Cell] = field(default_factory=deque, init=False)
    _running: dict[Any, Cell] = field(default_factory=dict, init=False)
    _ended: "SimpleQueue[Any]" = field(default_factory=SimpleQueue, init=False)
    _said: set[str] = field(default_factory=set, init=False)

    def computed(self, cells: Sequence[Cell], at_once: int | None, stopping: Stopping) -> Generator[Ended, None, None]:
        """Each cell when it has ended, until all have or the study is told to stop. at_once: None for one a thread."""
        self._waiting.extend(cells)
        try:
            while (self._waiting or self._running) and not stopping.code:
                workers = self.cluster.look()
                self._tell(workers)
                # No more than can be begun: the death of a worker counts against all that lies there.
                room = min(at_once or MANY, sum(workers.values()))
                while self._waiting and len(self._running) < room:
                    self._submit(self._waiting.popleft(), [*workers])
                yield from self._next()
        finally:
            with suppress(OSError):
                self.cluster.client.cancel([*self._running], force=True)

    def _tell(self, workers: Collection[str]) -> None:
        """Who is given no cell, each once; and that nobody is there, once each time."""
        said = {f"{why}: it is given no cell" for why in self.cluster.refused.values() if why}
        said |= set() if workers else {f"No worker is left; {self.cluster.way_out}"}
        for line in sorted(said - self._said):
            self.say(line)
        self._said = said

    def _submit(self, cell: Cell, workers: list[str]) -> None:
        cell.prepare()
        task: Task = {
            "spec": _portable(cell),
            "network": cell.network,
            "port": self.port,
            "code": self.cluster.code,
        }
        # A key of its own: what an earlier launcher asked for may just be being given up.
        # Named only where others must not have it: who waits for named workers waits on when they are gone.
        named = {"workers": workers, "allow_other_workers": True} if any(self.cluster.refused.values()) else {}
        future = self.cluster.client.submit(compute, task, key=f"cell-{uuid4()}", pure=False, **named)
        self._running[future] = cell
        future.add_done_callback(self._ended.put)

    def _next(self) -> Iterator[Ended]:
        """The next cell that has ended; none where that takes a while."""
        with suppress(Empty):
            future = self._ended.get(timeout=LOOK)
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

    def _told(self, cell: Cell, future: Any) -> Ended | None:
        """None of a worker that has other code, as it has come since, or was changed."""
        if future.status == "error":
            return Ended(cell, _why(future.exception(timeout=FETCH)))
        if future.status == "cancelled":
            raise self.cluster.gone()
        answer: Answer = future.result(timeout=FETCH)
        if answer["refused"]:
            self.cluster.refuse(answer["worker"], answer["refused"])
            return None
        shutil.rmtree(cell.files.run, ignore_errors=True)  # of an attempt on this machine, as is the log
        cell.files.said.unlink(missing_ok=True)
        for name in BROUGHT:
            if name in answer["files"]:
                write_atomically(cell.place / name, answer["files"][name].encode())
        return Ended(cell, "" if cell.finished else why(cell, answer["code"]))


def _portable(cell: Cell) -> str:
    """Its spec. A machine needs the directory of own code only where there is such code."""
    named = own_code(cell.spec.model_dump(mode="json"))
    return (cell.spec if named else cell.spec.model_copy(update={"code": None})).dump()


def _why(error: BaseException) -> str:
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        return "the workers that computed it died, one after the other; it may want more memory than they have"
    return in_words(error)
