"""Whoever is told of a peer's events beside its file and its log, in a thread of its own: the peer never waits."""

from abc import ABC, abstractmethod
from contextlib import suppress
from queue import Empty, Queue
from threading import Event as Flag
from threading import Lock, Thread

from peer.plugins import in_words
from peer.telemetry.events import Event, Report, Untold

MOST_WAITING = 10_000
"""Events that a listener may be behind."""
PATIENCE = 10.0
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


class Listener:
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
        if self._queue.qsize() >= MOST_WAITING:
            self._give_up(f"is {MOST_WAITING} events behind")
        else:
            self._queue.put(event)

    def end(self, patience: float = PATIENCE) -> None:
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
            self._give_up(f"failed: {in_words(error)}")
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
        self._report(Untold(sentence=f"{self._subscriber.name} {why}; it is told nothing more, and the peer goes on"))
