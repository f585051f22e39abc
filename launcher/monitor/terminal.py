"""What a person sees while a run goes on: a live table on a terminal, lines elsewhere."""

import io
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import inf
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from launcher.formatting import duration, plural, quantity
from launcher.monitor.federation_view import OUTSIDE, FederationView
from launcher.monitor.peer_view import ENDED, PeerView
from launcher.table import Row, fitting
from peer.text import number, printable

ROUND_ABOUT = 7
"""Lines that the table's frame, its heading and the federation's own lines take."""
LONGEST_STATE = len("communicating")
"""So wide is the column always: others shall not come and go with the states."""


class Lines(AbstractContextManager["Lines"]):
    """For logs and pipes: a line for each round of the federation, and whatever is said."""

    def __init__(self, console: Console):
        self.console = console
        self._round: int | None = None

    def say(self, text: str) -> None:
        print(text, file=self.console.file, flush=True)

    def show(self, federation: FederationView) -> None:
        done = federation.round
        for round in federation.rounds_after(done if self._round is None else self._round):
            self.say(round_line(federation, round))
        self._round = done

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class LiveTable(AbstractContextManager["LiveTable"]):
    """For terminals: one line a peer, and what is said scrolls above it."""

    def __init__(self, console: Console):
        self.console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def show(self, federation: FederationView) -> None:
        self._live.update(picture(federation, self.console), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


Display = Lines | LiveTable


def display(console: Console) -> Display:
    """What suits the console. Characters that its encoding does not know are replaced."""
    if isinstance(console.file, io.TextIOWrapper):
        console.file.reconfigure(errors="replace")
    return LiveTable(console) if console.is_terminal else Lines(console)


def round_line(federation: FederationView, round: int) -> str:
    left = federation.seconds_left(time.monotonic())
    loss = federation.mean_loss(round)
    words = [
        f"round {round}/{federation.rounds}",
        f"mean {federation.headline.words} {number(federation.mean_figure(round))}",
        *([f"loss {number(loss)}"] if loss is not None else []),
    ]
    return ", ".join([*words, f"{duration(left)} left"] if left is not None else words)


def picture(federation: FederationView, console: Console) -> RenderableType:
    """The table of as many peers as find room and the federation's line below it."""
    shown, hidden = choose(federation, console.height - ROUND_ABOUT)
    rows = [row(federation, peer) for peer in shown]
    # Left out in this order where the terminal is too narrow for all.
    expendable = ("train/comm/eval", "sent", "loss", federation.headline.name, "round", "waits for")
    lines: list[RenderableType] = [fitting(rows, expendable, console, elastic="waits for")]
    if hidden:
        states = Counter(federation.doing(peer.id) for peer in hidden)
        counted = printable(", ".join(f"{count} {state}" for state, count in states.most_common()))
        lines.append(Text(f"and {plural(len(hidden), 'more peer')}: {counted}", style="dim"))
    return Group(*lines, Text(federation_line(federation), style="bold"))


def federation_line(federation: FederationView) -> str:
    done = federation.round
    left = federation.seconds_left(time.monotonic())
    lost = sum(federation.doing(id) in OUTSIDE for id in federation.peers)
    restarts = sum(peer.restarts for peer in federation.peers.values())
    words = [
        plural(len(federation.peers), "peer") + (f", {lost} lost" if lost else ""),
        f"round {done}/{federation.rounds}",
        f"mean {federation.headline.words} {number(federation.mean_figure(done))}",
    ]
    words += [plural(restarts, "restart")] if restarts else []
    words += [f"{duration(left)} left"] if left is not None else []
    return ", ".join(words)


def choose(federation: FederationView, rows: int) -> tuple[list[PeerView], Sequence[PeerView]]:
    """All peers in ring order if there is room; else those in trouble, then the slowest, then the worst."""
    peers = list(federation.peers.values())
    if len(peers) <= rows:
        return peers, []

    def interest(peer: PeerView) -> tuple[bool, bool, bool, int, float]:
        trouble = (peer.state in ENDED and peer.state not in ("done", "left")) or federation.doing(peer.id) in OUTSIDE
        figure = peer.figure(federation.headline)
        goodness = inf if figure is None else figure if federation.headline.figure.better == "up" else -figure
        doubted, waits = bool(federation.doubted(peer.id)), bool(peer.waiting)
        return (not trouble, not doubted, not waits, peer.completed, goodness)

    peers.sort(key=interest)
    return peers[: max(rows, 1)], peers[max(rows, 1) :]


def row(federation: FederationView, peer: PeerView) -> Row:
    doubted = federation.doubted(peer.id)
    doing = federation.doing(peer.id)
    named = "silent" if doubted and doing not in (*ENDED, *OUTSIDE) else doing
    style = STYLES.get(named, "")
    state = Text(named.ljust(LONGEST_STATE), style=style)
    if peer.restarts:
        state.append(f" (restart {peer.restarts})", style="yellow")
    spent = [peer.seconds(activity) for activity in ("train", "communicate", "evaluate")]
    split = "/".join(f"{100 * one / sum(spent):.0f}" for one in spent) + " %" if sum(spent) else ""
    return {
        "peer": peer.id,
        "state": state,
        "round": f"{peer.round or peer.completed}/{federation.rounds}",
        federation.headline.name: number(peer.figure(federation.headline)),
        "loss": number(peer.last.loss if peer.last else None),
        "sent": quantity(peer.last.bytes_sent if peer.last else None),
        "train/comm/eval": split,
        "waits for": Text("" if doing in OUTSIDE else ", ".join(peer.waiting), style="yellow"),
    }


STYLES = {
    "silent": "bold red",
    "lost": "bold red",
    "expelled": "bold red",
    "left": "yellow",
    "returning": "yellow",
    "training": "cyan",
    "communicating": "magenta",
    "evaluating": "blue",
    "serving": "green",
    "done": "green",
    "failed": "bold red",
    "no answer": "bold red",
    "stopped": "yellow",
    "restarting": "bold yellow",
}
