"""Which rounds of which view count, once all views are known."""

from collections.abc import Sequence
from dataclasses import dataclass

from peer.views.view import View


@dataclass(frozen=True)
class Span:
    """The rounds of one view that count: from `first` to `last`."""

    view: View
    first: int
    last: int

    @property
    def rounds(self) -> range:
        return range(self.first, self.last + 1)


def spans(views: Sequence[View], rounds: int) -> Sequence[Span]:
    """Of all views of a run of so many rounds, in order; a round is in one of them. Views of which no round counts are
    left out."""
    last, found = rounds, list[Span]()
    for view in reversed(views):
        if view.first <= last:
            found.append(Span(view, view.first, last))
        last = min(last, view.first - 1)
    return found[::-1]
