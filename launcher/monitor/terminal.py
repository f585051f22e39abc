"""How a person is shown a run while it goes on: a live table on a terminal, lines elsewhere."""

import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from launcher.legible import make_legible
from launcher.monitor.federation_view import FederationView
from launcher.monitor.picture import picture
from peer.text import duration, number


class Lines(AbstractContextManager["Lines"]):
    """For logs and pipes: a line for each round of the federation, and whatever is said."""

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
    """What suits the console: a terminal that cannot move its cursor is shown lines."""
    make_legible(console.file)
    return LiveTable(console) if console.is_terminal and not console.is_dumb_terminal else Lines(console)


def round_line(federation: FederationView, round: int) -> str:
    left = federation.seconds_left(time.time())
    loss = federation.mean_loss(round)
    words = [
        f"round {round}/{federation.rounds}",
        f"mean {federation.headline.words} {number(federation.mean_figure(round))}",
        *([f"loss {number(loss)}"] if loss is not None else []),
    ]
    return ", ".join([*words, f"{duration(left)} left"] if left is not None else words)
