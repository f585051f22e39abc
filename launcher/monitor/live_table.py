"""How a person is shown a run while it goes on: a live table on a terminal, lines elsewhere.

The table has a line a peer, as many as find room, and below it how far all are.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil, inf

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launcher.history import ACTIVITIES
from launcher.monitor.federation import ENDED, OUTSIDE, FederationView, PeerView
from launcher.output import make_legible
from launcher.table import Row, curve, fitting, quantity
from peer.text import duration, number, plural, printable, shown

OTHER_LINES = 9
"""Lines that the table's frame, its heading and the federation's own lines take at most."""
CURVE = 8
"""Letters of a figure's course, over all rounds so far."""
LONGEST_STATE = len("communicating")
"""The constant width of the column, so that others do not come and go with the states."""


def render(federation: FederationView, console: Console) -> RenderableType:
    """The table of as many peers as find room and the federation's lines below it."""
    warnings = [Text(printable(str(short)), style="bold red") for short in federation.shortages[:1]]
    warnings += [Text(expiring, style="yellow")] if (expiring := federation.expiring(time.time())) else []
    shown, hidden = choose(federation, visible_rows(federation, console, len(warnings)))
    rows = [row(federation, peer) for peer in shown]
    # Left out in this order where the terminal is too narrow for all.
    figure = federation.headline.figure.name
    expendable = "train/comm/eval", "curve", "sent", "loss", "restarts", "round", figure, "waits for"
    lines: list[RenderableType] = [fitting(rows, expendable, console, elastic="waits for")]
    if hidden:
        states = Counter(federation.status_of(peer.id) for peer in hidden)
        counted = printable(", ".join(f"{count} {state}" for state, count in states.most_common()))
        lines.append(Text(f"and {plural(len(hidden), 'more peer')}: {counted}", style="dim"))
    lines += [progress(federation), Text(federation_line(federation), style="bold")]
    return Group(*lines, *warnings)


def visible_rows(federation: FederationView, console: Console, warnings: int) -> int:
    """The number of peers for which there is room; an id that is too long for a line continues on the next."""
    beside = max(console.width - LONGEST_STATE - len("   "), 1)
    lines = max(ceil(len(id) / beside) for id in federation.peers)
    return (console.height - OTHER_LINES - warnings) // lines


def progress(federation: FederationView) -> Table:
    """A bar of the rounds that all have completed; beside it how many these are, and the time that is left."""
    left = federation.seconds_left(time.time())
    words = f"round {federation.round}/{federation.rounds}" + (f", {duration(left)} left" if left is not None else "")
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    grid.add_row(ProgressBar(total=federation.rounds, completed=federation.round), Text(words, style="bold"))
    return grid


def federation_line(federation: FederationView) -> str:
    """How many there are, how good, and what has happened to them."""
    lost = sum(federation.status_of(id) in OUTSIDE for id in federation.peers)
    restarts = sum(peer.restarts for peer in federation.peers.values())
    words = [
        plural(len(federation.peers), "peer") + (f", {lost} lost" if lost else ""),
        f"mean {federation.headline.words} {number(federation.mean_figure(federation.round))}",
    ]
    words += [plural(restarts, "restart")] if restarts else []
    words += [f"view {federation.view.number}"] if federation.view.number else []
    return ", ".join(words)


def choose(federation: FederationView, rows: int) -> tuple[list[PeerView], Sequence[PeerView]]:
    """All peers in ring order if there is room; else those in trouble, then the slowest, then the worst."""
    peers = list(federation.peers.values())
    if len(peers) <= rows:
        return peers, []

    def interest(peer: PeerView) -> tuple[bool, bool, bool, int, float]:
        doing = federation.status_of(peer.id)
        trouble = doing in (*ENDED, *OUTSIDE) and doing not in ("done", "left")
        figure = peer.figure(federation.headline)
        goodness = inf if figure is None else figure if federation.headline.figure.better == "up" else -figure
        doubted, waits = bool(federation.suspected_by(peer.id)), bool(peer.waiting)
        return (not trouble, not doubted, not waits, peer.completed, goodness)

    peers.sort(key=interest)
    return peers[: max(rows, 1)], peers[max(rows, 1) :]


def row(federation: FederationView, peer: PeerView) -> Row:
    doubted = federation.suspected_by(peer.id)
    doing = federation.status_of(peer.id)
    named = "silent" if doubted and doing not in (*ENDED, *OUTSIDE) else doing
    state = Text(named.ljust(LONGEST_STATE), style=STYLES.get(named, ""))
    last = peer.history.rounds.get(peer.completed)
    restarted = any(one.restarts for one in federation.peers.values())
    spent = [peer.history.seconds(activity) for activity in ACTIVITIES]
    steps = sorted({peer.completed * step // CURVE for step in range(1, CURVE + 1)})
    split = "/".join(f"{100 * one / sum(spent):.0f}" for one in spent) + " %" if sum(spent) else ""
    return {
        "peer": peer.id,
        "state": state,
        **({"restarts": str(peer.restarts)} if restarted else {}),
        "round": f"{peer.round or peer.completed}/{federation.rounds}",
        federation.headline.figure.name: number(peer.figure(federation.headline)),
        "curve": curve(peer.figure(federation.headline, round) for round in steps),
        "loss": number(last.loss if last else None),
        "sent": quantity(last.bytes_sent if last else None),
        "train/comm/eval": split,
        "waits for": Text("" if doing in OUTSIDE else shown(", ".join(peer.waiting)), style="yellow"),
    }


OF_STYLE = {
    "bold red": ("silent", "lost", "expelled", "failed", "no answer"),
    "bold yellow": ("restarting",),
    "yellow": ("left", "returning", "stopped"),
    "cyan": ("training",),
    "magenta": ("communicating",),
    "blue": ("evaluating",),
    "green": ("serving", "done"),
}
STYLES = {state: style for style, states in OF_STYLE.items() for state in states}


class Lines:
    """The output for logs and pipes: a line for each round of the federation, and all messages."""

    def __init__(self, console: Console):
        self.console = console
        self._round: int | None = None

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, federation: FederationView) -> None:
        done = federation.round
        for round in federation.rounds_after(done if self._round is None else self._round):
            self.say(round_line(federation, round))
        self._round = done


class LiveTable:
    """The output for terminals: one line per peer, and messages scroll above it."""

    def __init__(self, live: Live):
        self._live = live

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def show(self, federation: FederationView) -> None:
        self._live.update(render(federation, self._live.console), refresh=True)


Display = Lines | LiveTable


@contextmanager
def display(console: Console) -> Iterator[Display]:
    """What suits the console, for the block: a terminal that cannot move its cursor is shown lines."""
    make_legible(console.file)
    if not console.is_terminal or console.is_dumb_terminal:
        yield Lines(console)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveTable(live)


def round_line(federation: FederationView, round: int) -> str:
    left = federation.seconds_left(time.time())
    loss = federation.mean_loss(round)
    words = [
        f"round {round}/{federation.rounds}",
        f"mean {federation.headline.words} {number(federation.mean_figure(round))}",
        *([f"loss {number(loss)}"] if loss is not None else []),
    ]
    return ", ".join([*words, f"{duration(left)} left"] if left is not None else words)
