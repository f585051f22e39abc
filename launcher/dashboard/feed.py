"""What the live page is told: made once for all browsers, and only while one watches.

A snapshot of what all peers do, with an icon, a tone and words for each, so that it is seen without colours, too. A
document of the run so far, by what its peers have told: nothing is proven of it yet. And the last document, the run as
its report shows it.

A feed holds the newest state alone, and no queue: a slow browser misses what was in between, and delays no other.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from launcher.certificates import AskingBundle
from launcher.monitor.federation import ENDED, OUTSIDE, FederationView, last_lines
from launcher.page.build import document_of
from launcher.page.document import ReportDocument, Row, as_text, titled
from launcher.page.html import figures_for_page
from launcher.page.ring import neighbours
from launcher.page.run_data import RunData, launched
from launcher.reports.summary_json import Summary
from launcher.run_files import RunFiles
from launcher.table import named, quantity
from peer.errors import FailedError, InputError
from peer.network.operator_client import StatusAnswer, StatusClient
from peer.spec.federation import Spec
from peer.text import duration, number, plural, printable, shown

Tone = Literal["begins", "works", "talks", "waits", "good", "bad", "gone"]
StatusIcon = tuple[str, Tone, str]
STATUS_ICONS: dict[str, StatusIcon] = {
    "starting": ("…", "begins", "starting"),
    "joining": ("…", "begins", "joining"),
    "ready": ("=", "waits", "ready for the next round"),
    "training": ("▲", "works", "training"),
    "communicating": ("⇄", "talks", "communicating"),
    "evaluating": ("◆", "works", "evaluating"),
    "serving": ("✓", "good", "finished; serving its messages until all neighbours have them"),
    "done": ("✓", "good", "finished"),
    "left": ("−", "gone", "left"),
    "stopped": ("■", "gone", "stopped"),
    "failed": ("✗", "bad", "failed"),
    "restarting": ("↻", "bad", "crashed; restarting"),
    "no answer": ("?", "bad", "no answer"),
    "dials out": ("−", "gone", "status unavailable: dials out only"),
    "lost": ("✗", "bad", "excluded; the others continue without it"),
    "expelled": ("✗", "gone", "expelled"),
    "returning": ("↻", "begins", "rejoining"),
}
MAX_WAITS_NAMED = 3


def status_icon(federation: FederationView, id: str, doubters: Sequence[str]) -> StatusIcon:
    """doubters: the neighbours that do not hear it now."""
    doing, waiting = federation.status_of(id), federation.peers[id].waiting
    if doing not in (*ENDED, *OUTSIDE):
        if doubters:
            return "?", "bad", f"suspected by {named(doubters, MAX_WAITS_NAMED)}"
        if waiting:
            return "=", "waits", shown(f"waiting for {named(waiting, MAX_WAITS_NAMED)}")
    return STATUS_ICONS.get(doing) or ("·", "begins", printable(doing))  # a state of another version's peer


@dataclass(frozen=True)
class LiveSnapshot:
    """peers: by id what each does. order: as they sit on the ring. broken: neighbours of whom one does not hear the
    other. said: how far all are. rounds: completed by all, and of how many. title: the same in a word, with who is in
    trouble. recent: what happened last."""

    peers: dict[str, Row] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    said: str = ""
    rounds: tuple[int, int] = (0, 1)
    title: str = ""
    recent: tuple[str, ...] = ()

    @classmethod
    def from_federation(cls, federation: FederationView, order: tuple[str, ...], now: float) -> Self:
        """`now` in unix seconds."""
        doubters = {id: federation.suspected_by(id) for id in order}
        rows = {id: _row(federation, id, doubters[id]) for id in order}
        pairs = neighbours(order)
        broken = [pair for pair in pairs if pair[0] in doubters[pair[1]] or pair[1] in doubters[pair[0]]]
        troubled = [f"{row['sign']} {id}" for id, row in rows.items() if row["tone"] == "bad"]
        rounds = (federation.round, federation.rounds)
        title = " · ".join([f"{rounds[0]}/{rounds[1]}", *([named(troubled, 2)] if troubled else [])])
        return cls(rows, order, tuple(broken), _status_line(federation, now), rounds, title, tuple(federation.recent))

    def since(self, before: "LiveSnapshot") -> Row:
        """What is different, as JSON; empty where nothing is."""
        news: Row = {}
        if changed := [row for id, row in self.peers.items() if before.peers.get(id) != row]:
            news["peers"] = changed
        if (self.order, self.broken) != (before.order, before.broken):
            news |= {"order": self.order, "pairs": neighbours(self.order), "broken": self.broken}
        lines = ("said", "rounds", "title", "recent")
        return news | {key: getattr(self, key) for key in lines if getattr(self, key) != getattr(before, key)}


def _row(federation: FederationView, id: str, doubters: list[str]) -> Row:
    peer = federation.peers[id]
    sign, tone, words = status_icon(federation, id, doubters)
    return {
        "peer": id,
        "sign": sign,
        "tone": tone,
        "words": words,
        "round": peer.round or peer.completed,
        "figure": number(peer.figure(federation.headline)),
        "restarts": peer.restarts,
    }


def _status_line(federation: FederationView, now: float) -> str:
    count, left = len(federation.peers), federation.seconds_left(now)
    ending = f", {duration(left)} left" if left else ""
    view = f", view {federation.view.number}" if federation.view.number else ""
    said = f"{federation.round} of {federation.rounds} rounds completed, {plural(count, 'peer')}{view}{ending}."
    begin = [peer.state for peer in federation.present if peer.state in ("starting", "joining")]
    if begin and not (federation.round or federation.view.number):
        loading = "; the others are loading PyTorch and their data" if "starting" in begin else ""
        said = f"{count - len(begin)} of {count} peers have joined{loading}."
    warnings = [printable(str(short)) for short in federation.shortages[:1]] + [federation.expiring(now)]
    return " ".join([said, *(f"{titled(one)}." for one in warnings if one)])


LOG_LINES, LOG_LETTERS = 12, 400


def machine_words(answer: StatusAnswer) -> str:
    """What a peer says of its machine; why it says nothing."""
    if isinstance(answer, str):
        return printable(answer)
    has = answer.resources
    gpu = f", {has['gpu']}: {quantity(has['free_gpu_memory_bytes'])} of {quantity(has['gpu_memory_bytes'])} free"
    cpu = f"{has['free_cpus']:.1f} of {plural(has['cpus'], 'core')} free (load {has['load']:.1f})"
    memory = f"memory: {quantity(has['free_memory_bytes'])} of {quantity(has['memory_bytes'])} free"
    return printable(f"CPU: {cpu}, {memory}{gpu if has['gpu'] else ''}")


POLL_SECONDS = 0.5
"""Seconds between two looks at what the peers do."""
REDRAW_SECONDS = 2.0
"""Seconds at least between two documents."""
SHARE = 20
"""A document is made no more often than that it takes one part in so many of the launcher's time."""


class Feed:
    """The newest state alone, and no queue: a slow browser misses what was in between, and delays no other.

    chain: certificates with which peers are asked about their machines, if there are any. files: those of the run, if
    its logs are on this machine.
    drawings: how many documents there were. written: the newest while a browser watched, with its figures, as JSON.
    following: set when anything is new, and then another.
    """

    def __init__(self, spec: Spec, federation: FederationView, chain: AskingBundle, files: RunFiles | None = None):
        self.spec, self.federation = spec, federation
        self._chain, self._files = chain, files
        self.now, self.drawings, self.ended = LiveSnapshot(), 0, ""
        self.written = ""
        self.following = asyncio.Event()
        self._watchers = 0
        self._drawn_to = -1
        """How many events the federation had taken in when the last document was made."""
        self._due, self._trouble = 0.0, ""

    async def run(self) -> None:
        while True:
            self.look(time.time())
            if self._watchers:
                await self.draw(time.monotonic())
            await asyncio.sleep(POLL_SECONDS)

    def look(self, now: float) -> None:
        """Take in what is new. `now` in unix seconds."""
        before, self.now = self.now, self._now(now)
        if self.now != before:
            self._tell()

    async def draw(self, clock: float) -> None:
        """Make a document if there is anything new, and it is time for one; where that cannot be, the one before stays
        and it is said why. clock: a monotonic one, in seconds."""
        if self._drawn_to != self.federation.applied and clock >= self._due:
            self._drawn_to, begun = self.federation.applied, time.monotonic()
            # Copies: the federation goes on hearing of its peers while the thread reads.
            histories = {id: peer.history.copy() for id, peer in self.federation.peers.items()}
            data = RunData(self.spec, self.federation.views, histories, goes_on=True)
            try:
                written = await asyncio.to_thread(self._write, data)
            except FailedError as error:
                self._trouble = f"Charts are out of date: {error}"
            else:
                self._trouble = ""
                self._show(written)
            self._due = clock + max(REDRAW_SECONDS, SHARE * (time.monotonic() - begun))
            self.now = self._now(time.time())
            self._tell()

    async def of_peer(self, id: str) -> Row:
        """What is told of one peer to those who ask: its machine, in words, and the last lines of its log."""
        async with aclosing(StatusClient(self.spec.name, self.spec.addresses, self._chain)) as client:
            answers = await client.ask_all([id])
        log = [line[:LOG_LETTERS] for line in last_lines(self._files.log(id), LOG_LINES)] if self._files else []
        return {"machine": machine_words(answers[id]), "log": log or ["No log of this peer is on this machine."]}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While a browser watches."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    def end(self, said: str) -> None:
        """The last that is told: how it ended."""
        if not self.ended:
            self.ended = said
            self.now = self._now(time.time())
            self._tell()

    def conclude(self, said: str, summary: Summary | None) -> None:
        """The end of a run on this machine, as its report shows it, if it left anything to be read."""
        places = {id: out for id in self.spec.ids if self._files and (out := self._files.out(id)).is_dir()}
        if self._files and self._watchers and places and not self.ended:
            with suppress(InputError, FailedError):  # `write_report` says why
                data = RunData.read(self.spec, places, summary)
                self._show(as_json(document_of(data, self._files.path.name)))
        self.end(said)

    def _write(self, data: RunData) -> str:
        data = replace(data, launched=launched(self._files)) if self._files else data
        return as_json(document_of(data, self.spec.name))

    def _now(self, now: float) -> LiveSnapshot:
        seen = LiveSnapshot.from_federation(self.federation, self._order(), now)
        return replace(seen, said=f"{seen.said} {self._trouble}") if self._trouble else seen

    def _order(self) -> tuple[str, ...]:
        orders = [order for peer in self.federation.peers.values() for order in peer.history.orders]
        newest = max(orders, key=lambda order: order.time, default=None)
        known = newest is not None and sorted(newest.order) == sorted(self.spec.ids)
        return tuple(newest.order) if newest and known else self.spec.ids

    def _show(self, written: str) -> None:
        self.written = written
        self.drawings += 1

    def _tell(self) -> None:
        self.following.set()
        self.following = asyncio.Event()


def as_json(document: ReportDocument) -> str:
    return f'{{"document":{document.thinned().dump()},"figures":{as_text(figures_for_page(document))}}}'
