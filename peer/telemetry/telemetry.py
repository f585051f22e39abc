"""Where a peer's events go: a line for programs in events.jsonl, one in the log, and to subscribers.

A subscriber receives events in a thread of its own, in their order, and the peer never waits for it: TensorBoard, a
user's function (the tracker), and the metrics of peer.telemetry.metrics.

What unknown callers do wrong could be reported without end: it is counted and reported ever more rarely. A fault of the
peer's own is reported once.
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
    """Emits events, from any thread; before a file is given they are not written.

    write_log: writes what the log has of an event, and never raises.
    """

    def __init__(self, write_log: Report = write_log) -> None:
        self._write_log = write_log
        self._file: LineFile | None = None
        self._lock = Lock()
        self._subscribers: list[Report] = []

    @property
    def writes(self) -> bool:
        """Whether a file was given."""
        return self._file is not None

    def write_to(self, path: Path) -> None:
        """Append to this file from now on."""
        self._file = LineFile(path)

    def subscribe(self, publish: Report) -> None:
        """Call `publish` with each event from now on. It must neither raise nor block: see SubscriberThread."""
        self._subscribers.append(publish)

    def emit(self, event: Event) -> None:
        """Never raises: what cannot be written, on a full disk say, is only logged."""
        event = replace(event, time=round(time.time(), 3))
        if self._file:
            self._write(self._file, json.dumps({"time": event.time, **event.as_json()}))
        self._write_log(event)
        for publish in self._subscribers:
            publish(event)

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
"""Events that a subscriber may be behind."""
SUBSCRIBER_TIMEOUT_S = 10.0
"""Seconds that a peer which has ended waits for its subscribers to handle the last events."""


class Subscriber(ABC):
    """What becomes of events: figures to scrape, a file, whatever a user does with them."""

    name: str
    """The subscriber's name in the settings, for use in a sentence."""

    @abstractmethod
    def on_event(self, event: Event) -> None:
        """Handle one event; what it raises ends this subscription, and not the peer."""

    def close(self) -> None:  # noqa: B027 (most have nothing to give back)
        """Release resources, as there will be no more events."""


class SubscriberThread:
    """Passes events to one subscriber, in their order, until it fails, falls too far behind, or the peer ends."""

    def __init__(self, subscriber: Subscriber, report: Report) -> None:
        self._subscriber, self._report = subscriber, report
        self._queue: Queue[Event | None] = Queue()
        self._over, self._lock = Flag(), Lock()
        self._thread = Thread(target=self._listen, name=f"tell {subscriber.name}", daemon=True)
        self._thread.start()

    def publish(self, event: Event) -> None:
        """Never raises and never waits."""
        if self._over.is_set():
            return
        if self._queue.qsize() >= MAX_EVENTS_BEHIND:
            self._drop(f"is {MAX_EVENTS_BEHIND} events behind")
        else:
            self._queue.put(event)

    def end(self, patience: float = SUBSCRIBER_TIMEOUT_S) -> None:
        """Wait, at most `patience` seconds, until the subscriber has handled all events, or failed, and is closed."""
        self._queue.put(None)
        self._thread.join(patience)
        if self._thread.is_alive():
            self._drop(f"has not taken in the last events within {patience:g} s")

    def _listen(self) -> None:
        try:
            while not self._over.is_set() and (event := self._queue.get()) is not None:
                self._subscriber.on_event(event)
            self._subscriber.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 (a user's code may raise anything, and the peer goes on)
            self._drop(f"failed: {describe_error(error)}")
            with suppress(Exception):
                self._subscriber.close()

    def _drop(self, why: str) -> None:
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
    """Writes into `directory`. A round that is emitted again, after a crash say, replaces all from it on."""

    name = "TensorBoard"

    def __init__(self, directory: Path) -> None:
        self._directory, self._make = directory, writer_class()
        self._writer: SummaryWriter | None = None
        self._round = 0

    def on_event(self, event: Event) -> None:
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
    """Calls the user's function; of a class it makes one object, in the thread in which that is called."""

    def __init__(self, name: str) -> None:
        self.name = f"tracker `{name}`"
        self._found = load_tracker(name)
        self._call: Callable[[Event], object] | None = None

    def on_event(self, event: Event) -> None:
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


REPORTED_AGAIN_FACTOR = 10
"""A reason is reported again when it has come this many times as often."""


class ThrottledRefusals:
    """Counts what unknown callers do wrong, and reports it ever more rarely. From any thread."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._counts: Counter[str] = Counter()
        self._next: dict[str, int] = {}
        self._lock = Lock()

    def add(self, reason: str, origin: str = "", first: int = 1) -> None:
        """Count one more. It is reported when it has come `first` times, and then each time that is ten times as often.

        Reasons are this peer's own words, so they are few.
        """
        with self._lock:
            self._counts[reason] += 1
            count, due = self._counts[reason], self._next.get(reason, first)
            if count < due:
                return
            self._next[reason] = REPORTED_AGAIN_FACTOR * due
        words = reason if count == 1 else f"{reason}, {count:,} times by now"
        self._report(CallerRefused(caller="a stranger", origin=origin, kind="stranger", reason=words))


class OwnFaults:
    """Reports faults of this peer's own, each once. From any thread. `where`: what met them."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._told: set[tuple[str, int | None]] = set()

    def report(self, error: BaseException) -> None:
        """Log an error with its traceback, once for each line of code."""
        where = [(frame.filename, frame.lineno) for frame in extract_tb(error.__traceback__)[-1:]]
        line = where[0] if where else (type(error).__name__, None)
        if line not in self._told:
            self._told.add(line)
            log.error("%s met a fault of this peer's own, which is told once", self._where, exc_info=error)
