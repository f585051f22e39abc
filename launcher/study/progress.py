"""How far a study is: a bar with the time left on a terminal, and a line a cell that failed."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from launcher.output import Output
from launcher.study.pool import Ended
from peer.text import printable


class Shown:
    """The bar, and what is said above it."""

    def __init__(self, output: Output, total: int, kept: int) -> None:
        columns = TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left:")
        self._output = output
        self._bar = Progress(*columns, TimeRemainingColumn(), console=output.console, redirect_stdout=False)
        self._done, self._total = kept, total
        self._task = self._bar.add_task("cells", total=total, completed=kept)

    def tell(self, ended: Ended) -> None:
        self._done += 1
        self._bar.advance(self._task)
        if ended.failure:
            self._output.say(printable(f"failed: {ended.cell.name}: {ended.failure}"))
        elif not self._output.console.is_terminal:
            self._output.say(printable(f"{self._done} of {self._total}: {ended.cell.name}"))

    @classmethod
    @contextmanager
    def on(cls, output: Output, total: int, kept: int) -> Iterator["Shown"]:
        shown = cls(output, total, kept)
        if not output.console.is_terminal:
            yield shown
            return
        with shown._bar:
            yield shown
