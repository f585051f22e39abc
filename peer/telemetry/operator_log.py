"""The log for a person who started a peer by hand: its progress, the peers it waits for, and what to do next.

A launcher starts peers with `--quiet`, as it reports all this for all peers.
"""

import asyncio
import select
import shlex
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peer.tasks import background
from peer.telemetry import events
from peer.telemetry.events import Event
from peer.telemetry.remaining import Remaining
from peer.telemetry.telemetry import log, write_log
from peer.text import duration, plural, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

POLL_INTERVAL_S = 0.5
"""Seconds between two looks at the waits, and between two pictures of the live line."""
REMINDER_AFTER_S = 10.0
"""Seconds that the peer waits before it reminds the operator."""
REMINDER_EVERY_S = 60.0
"""Seconds from one reminder to the next."""
STDERR = 2
"""The descriptor of the terminal."""
LINK = "link"
BUSY = ("training", "evaluating", "done", "failed")
"""States in which a peer does not wait for others."""


@dataclass(frozen=True)
class Identification:
    """A peer's identity and the paths of its files. address: None if it only dials out."""

    id: str
    federation: str
    protocol: str
    address: str | None
    peers: int
    rounds: int
    config: Path
    out: Path
    model: Path

    def __str__(self) -> str:
        return introduction(self.id, self.federation, self.protocol, self.address, self.peers, self.rounds)

    @property
    def command(self) -> str:
        """Starts it again."""
        return f"dfl-peer --config {shlex.quote(str(self.config))}"


def introduction(id: str, federation: str, protocol: str, address: str | None, peers: int, rounds: int) -> str:
    """Introduce the peer in one line of a terminal. address: None if it only dials out."""
    place = f"at {address}" if address else "which only dials out"
    size = f"{plural(peers, 'peer')}, {plural(rounds, 'round')}"
    return printable(f"{id} of {federation}, {place}: {protocol}, {size}")


@dataclass(frozen=True)
class OpenWait:
    """A wait for one peer. peer: as the sentence has it; since: unix seconds."""

    peer: str
    since: float

    def __str__(self) -> str:
        return f"{self.peer} since {time.strftime('%H:%M:%S', time.localtime(self.since))}"


class OperatorLog:
    """Writes the log's lines, with what only matters to a person beside them."""

    def __init__(self, about: Identification) -> None:
        self._about, self._rounds = about, about.rounds
        self._state, self._since = "joining", time.time()
        self._begun, self._earlier = self._since, 0.0
        self._completed, self._reminded = 0, float("-inf")
        self._remaining = Remaining()
        self._waits: dict[str, dict[str, OpenWait]] = {}
        """Open waits by cause, or `LINK` for neighbours without heartbeats, and by id."""

    def introduce(self, said: str = "") -> None:
        """The first line, unless it was said already."""
        if str(self._about) != said:
            self._say(str(self._about))

    def on_event(self, event: Event) -> None:
        """Log what matters of an event."""
        match event:
            case events.Started():
                self._begun, self._earlier = event.time, event.seconds
            case events.Resumed():
                self._complete(event.round)
                self._remaining.begin(self._completed)
            case events.StateChanged():
                self._state, self._since = event.state, event.time
            case events.ViewDecided():
                self._waits = {}
            case events.Waiting():
                self._wait(event.cause, {one.id: str(one) for one in event.awaited}, event.time)
            case events.LinkChanged():
                absent = {id: wait.peer for id, wait in self._waits.get(LINK, {}).items() if id != event.neighbour}
                if event.state in ("suspected", "down"):
                    absent[event.neighbour] = event.neighbour + (f" ({event.reason})" if event.reason else "")
                self._wait(LINK, absent, event.time)
            case events.StoppedEarly():
                self._rounds = event.round
            case events.RoundDone():
                self._complete(event.round)
                self._remaining.see(event.round, event.time)
                told = str(event).removeprefix(f"round {event.round}")
                self._say(f"round {event.round} of {self._rounds}{told}{self._left(event.time)}")
                return
            case events.Stopped():
                self._say(f"{event}; this command {self._resumes}: {self._about.command}")
                return
            case events.Done():
                self._say_end(event)
                return
        write_log(event)

    def reminder(self, now: float) -> str | None:
        """Return a reminder of the peers waited for, if one is due. `now` in unix seconds."""
        awaited = self._awaited().values()
        serves = self._state == "serving"
        if not (awaited or serves):
            self._reminded = float("-inf")
            return None
        since = min([one.since for one in awaited], default=self._since)
        if (
            now - max(since, self._since if serves else since) < REMINDER_AFTER_S
            or now - self._reminded < REMINDER_EVERY_S
        ):
            return None
        self._reminded = now
        named = "; ".join(map(str, awaited))
        safe = f"Ctrl-C is safe: the same command {self._resumes}"
        if not serves:
            return f"waiting for {named}; {safe}"
        others = f"waiting for {named}" if named else "its neighbours still need its last messages"
        return f"all rounds are done, and the model is {self._about.model}; {others}; {safe}"

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Print reminders inside the block, and on a terminal a live line below the log."""
        with _live(lambda: self.line(time.time())) as live:
            async with background() as tasks:
                tasks.create_task(self._look(live))
                yield

    async def _look(self, live: "Live | None") -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            if said := self.reminder(time.time()):
                self._say(said)
            # A terminal that is stopped (Ctrl-S) would make the whole peer wait.
            if live and select.select([], [STDERR], [], 0)[1]:
                live.refresh()

    def line(self, now: float) -> "RenderableType":
        """Return the live line: the peer's state, a bar of its rounds, and the peers it waits for."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True)
        awaited = ", ".join(self._awaited())
        doing = f"{self._about.id} waits for {awaited}" if awaited else f"{self._about.id} is {self._state}"
        grid.add_row(
            Text(printable(doing), style="yellow" if awaited else "cyan"),
            ProgressBar(total=self._rounds, completed=self._completed),
            Text(f"round {self._completed} of {self._rounds}{self._left(now)}", style="bold"),
        )
        return grid

    def _wait(self, cause: str, peers: Mapping[str, str], now: float) -> None:
        """Take a wait for exactly these peers, in words by id; known waits keep their beginning."""
        before = self._waits.get(cause, {})
        self._waits[cause] = {
            id: OpenWait(peer, before[id].since if id in before else now) for id, peer in peers.items()
        }

    def _complete(self, round: int) -> None:
        self._completed = max(round, 0)

    def _awaited(self) -> dict[str, OpenWait]:
        """All peers that are waited for, by id."""
        if self._state in BUSY:
            return {}
        causes = sorted(self._waits, key=lambda cause: cause != LINK)  # what another cause says of a peer says more
        return {id: wait for cause in causes for id, wait in self._waits[cause].items()}

    @property
    def _resumes(self) -> str:
        return f"resumes after round {self._completed}" if self._completed else "starts from the beginning"

    def _left(self, now: float) -> str:
        left = self._remaining.seconds(self._rounds, now)
        return f", about {duration(left)} left" if left is not None else ""

    def _say_end(self, event: events.Done) -> None:
        spent = f"in {duration(self._earlier + event.time - self._begun)}"
        self._say(f"{event}: {plural(self._completed, 'round')} {spent}; the model: {self._about.model}")
        command = f"dfl-launch summary {shlex.quote(str(self._about.out))}"
        self._say(f"to see how it went: {command} (add the others' directories to sum up the whole run)")

    def _say(self, sentence: str) -> None:
        log.info("%s", printable(sentence))


@contextmanager
def _live(line: "Callable[[], RenderableType]") -> "Iterator[Live | None]":
    """The line at the bottom of stderr; None where that is no terminal, or one that cannot move its cursor."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, emoji=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield None
        return
    live = Live(console=console, get_renderable=line, auto_refresh=False, transient=True, redirect_stdout=False)
    live.start()
    try:
        yield live
    finally:
        with suppress(OSError):  # the terminal may have gone, and is no reason to fail
            live.stop()
