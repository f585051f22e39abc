"""What a person sees while a run goes on: a live table on a terminal, lines elsewhere."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from launcher.formatting import duration, plural, quantity, share
from launcher.monitor.federation_view import Federation
from launcher.monitor.peer_view import PeerView

ROUND_ABOUT = 7
"""Lines that the table's frame, its heading and the federation's own lines take."""


class Lines(AbstractContextManager["Lines"]):
    """For logs and pipes: a line for each round of the federation, and whatever is said."""

    def __init__(self, console: Console):
        self.console = console
        self._round: int | None = None

    def say(self, text: str) -> None:
        print(text, file=self.console.file, flush=True)

    def show(self, federation: Federation) -> None:
        done = federation.round
        for round in range((done if self._round is None else self._round) + 1, done + 1):
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

    def show(self, federation: Federation) -> None:
        self._live.update(picture(federation, self.console.height - ROUND_ABOUT), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


Display = Lines | LiveTable


def display(console: Console) -> Display:
    return LiveTable(console) if console.is_terminal else Lines(console)


def round_line(federation: Federation, round: int) -> str:
    left = federation.seconds_left(time.monotonic())
    words = [
        f"round {round}/{federation.rounds}",
        f"mean {federation.test} accuracy {share(federation.mean_accuracy(round))}",
        f"loss {share(federation.mean_loss(round))}",
    ]
    return ", ".join([*words, f"{duration(left)} left"] if left is not None else words)


def picture(federation: Federation, rows: int) -> RenderableType:
    """The table of at most `rows` peers and the federation's line below it."""
    shown, hidden = choose(federation, rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("peer", "state", "round", "accuracy", "loss", "sent", "train/comm/eval", "waits for"):
        table.add_column(
            name,
            justify="right" if name in ("round", "accuracy", "loss", "sent") else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for peer in shown:
        table.add_row(*row(federation, peer))
    lines: list[RenderableType] = [table]
    if hidden:
        states = Counter(peer.state for peer in hidden)
        counted = ", ".join(f"{count} {state}" for state, count in states.most_common())
        lines.append(Text(f"and {plural(len(hidden), 'more peer')}: {counted}", style="dim"))
    return Group(*lines, Text(federation_line(federation), style="bold"))


def federation_line(federation: Federation) -> str:
    done = federation.round
    left = federation.seconds_left(time.monotonic())
    restarts = sum(peer.restarts for peer in federation.peers.values())
    words = [
        plural(len(federation.peers), "peer"),
        f"round {done}/{federation.rounds}",
        f"mean {federation.test} accuracy {share(federation.mean_accuracy(done))}",
    ]
    words += [plural(restarts, "restart")] if restarts else []
    words += [f"{duration(left)} left"] if left is not None else []
    return " · ".join(words)


def choose(federation: Federation, rows: int) -> tuple[list[PeerView], Sequence[PeerView]]:
    """All peers in ring order if there is room; else those in trouble, then the slowest, then the worst."""
    peers = list(federation.peers.values())
    if len(peers) <= rows:
        return peers, []

    def interest(peer: PeerView) -> tuple[bool, bool, bool, int, float]:
        trouble = peer.state in ("failed", "restarting", "stopped")
        accuracy = peer.accuracy(federation.test)
        doubted, waits = bool(federation.doubted(peer.id)), bool(peer.waiting)
        return (not trouble, not doubted, not waits, peer.completed, 1.0 if accuracy is None else accuracy)

    peers.sort(key=interest)
    return peers[: max(rows, 1)], peers[max(rows, 1) :]


def row(federation: Federation, peer: PeerView) -> list[RenderableType]:
    doubted = federation.doubted(peer.id)
    state = Text(peer.state, style=STYLES.get(peer.state, ""))
    if doubted and peer.state not in ("restarting", "failed", "stopped", "done"):
        state = Text("silent", style="bold red")
    if peer.restarts:
        state.append(f" (restart {peer.restarts})", style="yellow")
    spent = [peer.seconds(activity) for activity in ("train", "communicate", "evaluate")]
    split = "/".join(f"{100 * one / sum(spent):.0f}" for one in spent) + " %" if sum(spent) else ""
    return [
        peer.id,
        state,
        f"{peer.round or peer.completed}/{federation.rounds}",
        share(peer.accuracy(federation.test)),
        share(peer.last.loss if peer.last else None),
        quantity(peer.last.bytes_sent if peer.last else None),
        split,
        Text(", ".join(peer.waiting), style="yellow"),
    ]


STYLES = {
    "training": "cyan",
    "communicating": "magenta",
    "evaluating": "blue",
    "serving": "green",
    "done": "green",
    "failed": "bold red",
    "stopped": "yellow",
    "restarting": "bold yellow",
}
