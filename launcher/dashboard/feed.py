"""What the page is told: made once for all who watch, and only while somebody does."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from launcher.dashboard.now import Now
from launcher.dashboard.watched import document_so_far
from launcher.monitor.federation_view import FederationView, News
from launcher.page.chronicle import Chronicle
from launcher.page.document import Document, as_text
from launcher.page.html import charts
from launcher.views import Views
from peer.errors import FailedError
from peer.spec.federation import Spec

PAUSE = 0.5
"""Seconds between two looks at what the peers do."""
RARE = 2.0
"""Seconds at least between two documents."""
SHARE = 20
"""A document is made no more often than that it takes one part in so many of the launcher's time."""


class Feed:
    """The newest state alone, and no queue: who is slow misses what was in between, and makes nobody wait.

    drawings: how many documents there were. written: the newest while somebody watched, with its figures, as JSON.
    following: set when anything is new, and then another.
    """

    def __init__(self, spec: Spec, federation: FederationView):
        self.spec, self.federation = spec, federation
        self.now, self.drawings, self.ended = Now(), 0, ""
        self.written = ""
        self.following = asyncio.Event()
        self._watchers = 0
        self._chronicles = {id: Chronicle(id) for id in spec.ids}
        self._news: list[News] = []
        self._fresh, self._due, self._trouble = True, 0.0, ""
        federation.listeners.append(self._news.extend)

    async def run(self) -> None:
        while True:
            self.look(time.time())
            if self._watchers:
                await self.draw(time.monotonic())
            await asyncio.sleep(PAUSE)

    def look(self, now: float) -> None:
        """Takes in what is new. `now` in unix seconds."""
        news, self._news[:] = [*self._news], []
        for id, event in news:
            self._chronicles[id].hear(event)
        self._fresh |= bool(news)
        before, self.now = self.now, self._now(now)
        if self.now != before:
            self._tell()

    async def draw(self, clock: float) -> None:
        """Makes a document if there is anything new, and it is time for one; where that cannot be, the one before stays
        and it is said why. clock: a monotonic one, in seconds."""
        if self._fresh and clock >= self._due:
            self._fresh, begun = False, time.monotonic()
            try:
                # The chronicles are as they are until the next look.
                written = await asyncio.to_thread(self._write, self.federation.views)
            except FailedError as error:
                self._trouble = f"The figures are old: {error}"
            else:
                self._trouble = ""
                self._show(written)
            self._due = clock + max(RARE, SHARE * (time.monotonic() - begun))
            self.now = self._now(time.time())
            self._tell()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While somebody watches."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    @property
    def is_watched(self) -> bool:
        return self._watchers > 0

    def end(self, said: str, document: Document | None = None) -> None:
        """The last that is told: how it ended, and all of it, if that is known."""
        if not self.ended:
            self.ended = said
            self.now = self._now(time.time())
            if document:
                with suppress(FailedError):  # `report_on` says why
                    self._show(as_json(document))
            self._tell()

    def detach(self) -> None:
        """Hears nothing any more."""
        if self._news.extend in self.federation.listeners:
            self.federation.listeners.remove(self._news.extend)

    def _write(self, views: Views) -> str:
        return as_json(document_so_far(self.spec, views, self._chronicles))

    def _now(self, now: float) -> Now:
        seen = Now.of(self.federation, self._order(), now)
        return replace(seen, said=f"{seen.said} {self._trouble}") if self._trouble else seen

    def _order(self) -> tuple[str, ...]:
        orders = [order for one in self._chronicles.values() for order in one.orders]
        newest = max(orders, key=lambda order: order.time, default=None)
        known = newest is not None and sorted(newest.order) == sorted(self.spec.ids)
        return tuple(newest.order) if newest and known else self.spec.ids

    def _show(self, written: str) -> None:
        self.written = written
        self.drawings += 1

    def _tell(self) -> None:
        self.following.set()
        self.following = asyncio.Event()


def as_json(document: Document) -> str:
    return f'{{"document":{document.thinned().dump()},"figures":{as_text(charts(document))}}}'
