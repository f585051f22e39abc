"""Where a peer's events go: a line for programs in events.jsonl, one in the log, and to whoever wants to be told.

Whoever is told beside the file and the log hears of events in a thread of its own, in their order, and the peer never
waits for it: TensorBoard, a function of the user's, and the metrics of peer.telemetry.metrics.

What goes wrong while strangers call would be told without end: their doing is counted and seldom told, and a fault of
the peer's own is told once.
"""

import json
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, Queue
from threading import Event as Flag
from threading import Lock, Thread
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from peer.errors import InputError, optional
from peer.files import LineFile
from peer.plugins import describe_error, load_object
from peer.telemetry.events import CallerRefused, Event, Report, RoundDone, SubscriberDropped
from peer.text import printable

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


log = logging.getLogger("dfl")


def write_log(event: Event) -> None:
    """The event's own sentence."""
    log.log(event.level, "%s", printable(str(event)))


class Telemetry:
    """Tells of events, from any thread; before a file is given they are not written.

    write_log: writes what the log has of an event, and never raises.
    """

    def __init__(self, write_log: Report = write_log) -> None:
        self._write_log = write_log
        self._file: LineFile | None = None
        self._lock = Lock()
        self._told: list[Report] = []

    @property
    def writes(self) -> bool:
        """Whether a file was given."""
        return self._file is not None

    def write_to(self, path: Path) -> None:
        """Append to this file from now on."""
        self._file = LineFile(path)

    def tell(self, who: Report) -> None:
        """Call `who` with each event from now on. It may neither raise nor take its time: see Listener."""
        self._told.append(who)

    def emit(self, event: Event) -> None:
        """Never raises: what cannot be written, on a full disk say, is only logged."""
        event = replace(event, time=round(time.time(), 3))
        if self._file:
            self._write(self._file, json.dumps({"time": event.time, **event.as_json()}))
        self._write_log(event)
        for tell in self._told:
            tell(event)

    def _write(self, file: LineFile, line: str) -> None:
        try:
            with self._lock:
                file.append(line)
        except OSError as error:
            log.error("cannot write %s: %s", file.path, error.strerror)

    def close(self) -> None:
        """Give the file back; an event that comes later opens it again."""
        if self._file:
            with self._lock:
                self._file.close()


MAX_EVENTS_BEHIND = 10_000
"""Events that a listener may be behind."""
SUBSCRIBER_TIMEOUT_S = 10.0
"""Seconds that a peer which has ended waits for its listeners to take in the last events."""


class Subscriber(ABC):
    """What becomes of events: figures to scrape, a file, whatever a user does with them."""

    name: str
    """As the settings have it, in words of a sentence."""

    @abstractmethod
    def hear(self, event: Event) -> None:
        """Takes in one event; whatever it raises ends its part, and not the peer."""

    def close(self) -> None:  # noqa: B027 (most have nothing to give back)
        """There will be no more events."""


class SubscriberThread:
    """Tells one subscriber of events, in their order, until it fails, falls too far behind, or the peer ends."""

    def __init__(self, subscriber: Subscriber, report: Report) -> None:
        self._subscriber, self._report = subscriber, report
        self._queue: Queue[Event | None] = Queue()
        self._over, self._lock = Flag(), Lock()
        self._thread = Thread(target=self._listen, name=f"tell {subscriber.name}", daemon=True)
        self._thread.start()

    def tell(self, event: Event) -> None:
        """Never raises and never waits."""
        if self._over.is_set():
            return
        if self._queue.qsize() >= MAX_EVENTS_BEHIND:
            self._give_up(f"is {MAX_EVENTS_BEHIND} events behind")
        else:
            self._queue.put(event)

    def end(self, patience: float = SUBSCRIBER_TIMEOUT_S) -> None:
        """Wait until everything is taken in, or what went wrong is told, and all is given back; so long at most."""
        self._queue.put(None)
        self._thread.join(patience)
        if self._thread.is_alive():
            self._give_up(f"has not taken in the last events within {patience:g} s")

    def _listen(self) -> None:
        try:
            while not self._over.is_set() and (event := self._queue.get()) is not None:
                self._subscriber.hear(event)
            self._subscriber.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 (a user's code may raise anything, and the peer goes on)
            self._give_up(f"failed: {describe_error(error)}")
            with suppress(Exception):
                self._subscriber.close()

    def _give_up(self, why: str) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        self._queue.put(None)  # for a thread that waits for the next one by now
        self._report(
            SubscriberDropped(sentence=f"{self._subscriber.name} {why}; it is told nothing more, and the peer goes on")
        )


class TensorBoard(Subscriber):
    """Writes into `directory`. A round that is told again, after a crash say, replaces all from it on."""

    name = "TensorBoard"

    def __init__(self, directory: Path) -> None:
        self._directory, self._make = directory, writer_class()
        self._writer: SummaryWriter | None = None
        self._round = 0

    def hear(self, event: Event) -> None:
        if not isinstance(event, RoundDone):
            return
        if self._writer is None or event.round <= self._round:
            self.close()
            self._writer = self._make(self._directory, purge_step=event.round)
        self._round = event.round
        for tag, value in scalars(event):
            self._writer.add_scalar(tag, value, event.round, walltime=event.time)
        self._writer.flush()  # what is killed has written all but the round it was in

    def close(self) -> None:
        if self._writer:
            self._writer.close()


def scalars(event: RoundDone) -> Iterator[tuple[str, float]]:
    """All numbers of a round with their tags, such as accuracy/matched."""
    groups: dict[str, Mapping[str, float | None]] = {
        "accuracy": {**event.accuracy, "balanced": event.balanced},
        "loss": {"train": event.loss, "test": event.test_loss},
        "figures": event.figures,
        "validation": event.validation,
        "seconds": event.seconds,
        "bytes": {"sent": event.bytes_sent, "received": event.bytes_received},
        "notes": event.single_notes,
    }
    for group, values in groups.items():
        yield from ((f"{group}/{name}", value) for name, value in values.items() if value is not None)


def writer_class() -> Any:
    """The official writer; InputError when it is not installed."""
    found = optional("torch.utils.tensorboard", "`tensorboard: true`", "the package tensorboard", "tensorboard")
    return found.SummaryWriter


class Tracker(Subscriber):
    """Calls what `name` names; of a class it makes one object, in the thread in which that is called."""

    def __init__(self, name: str) -> None:
        self.name = f"tracker `{name}`"
        self._found = load_tracker(name)
        self._call: Callable[[Event], object] | None = None

    def hear(self, event: Event) -> None:
        if self._call is None:
            self._call = self._found() if isinstance(self._found, type) else self._found
        self._call(event)


def load_tracker(name: str) -> Callable[..., object]:
    """The function or class called `module:name`; InputError when it cannot be called."""
    found = load_object(name)
    called = isinstance(found, type) and any("__call__" in vars(kind) for kind in found.__mro__)
    if not callable(found) or (isinstance(found, type) and not called):
        raise InputError(f"`tracker: {name}` cannot be called with an event; write a function `def track(event):`")
    return found  # type: ignore[no-any-return]


TOLD_AGAIN_FACTOR = 10
"""Times as often."""


class ThrottledRefusals:
    """From any thread."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._counts: Counter[str] = Counter()
        self._next: dict[str, int] = {}
        self._lock = Lock()

    def add(self, reason: str, origin: str = "", first: int = 1) -> None:
        """One more. It is told when it has come `first` times, and whenever that is MORE times as often.

        Reasons are this peer's own words, so they are few.
        """
        with self._lock:
            self._counts[reason] += 1
            count, due = self._counts[reason], self._next.get(reason, first)
            if count < due:
                return
            self._next[reason] = TOLD_AGAIN_FACTOR * due
        words = reason if count == 1 else f"{reason}, {count:,} times by now"
        self._report(CallerRefused(caller="a stranger", origin=origin, kind="stranger", reason=words))


class OwnFaults:
    """From any thread. `where`: what met them."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._told: set[tuple[str, int | None]] = set()

    def tell(self, error: BaseException) -> None:
        """With its traceback, once for each line of code."""
        where = [(frame.filename, frame.lineno) for frame in extract_tb(error.__traceback__)[-1:]]
        line = where[0] if where else (type(error).__name__, None)
        if line not in self._told:
            self._told.add(line)
            log.error("%s met a fault of this peer's own, which is told once", self._where, exc_info=error)
