"""What happened when, on one clock: who ran, who waited for whom, what failed, what mended, which view came."""

from collections.abc import Iterator, Mapping

from launcher.page.chronicle import Chronicle
from launcher.page.clock import Clock
from launcher.page.document import Row
from launcher.page.moment import Moment
from launcher.views import Views, change
from peer.text import printable
from peer.views.view import View

EVERYBODY = "all peers"
"""No peer's id has a space in it."""
SHORTEST = 0.5
"""Seconds of a silence that is shown: a link that breaks and comes back at once is no event."""
LONGEST_TEXT = 300


def clock_of(chronicles: Mapping[str, Chronicle]) -> Clock:
    return Clock(
        (life.start, life.end or life.start) for one in chronicles.values() for life in one.lives if life.start > 0
    )


def moments(chronicles: Mapping[str, Chronicle], views: Views) -> list[Row]:
    """A row each, in order of time. peer: whose events tell of it, or `EVERYBODY`. begin, end: seconds of the run."""
    clock = clock_of(chronicles)
    rows = [
        _row(id, moment, clock)
        for id, chronicle in chronicles.items()
        for moment in [*chronicle.lives, *chronicle.all_moments]
        if moment.kind != "not heard" or _matters(moment, chronicles)
    ]
    rows += [_row(EVERYBODY, moment, clock) for moment in _changes(chronicles, views)]
    for at in clock.pauses:
        rows.append({"peer": EVERYBODY, "kind": "note", "begin": at, "end": at, "text": "the run was started again"})
    return sorted(rows, key=lambda row: row["begin"])


def _row(id: str, moment: Moment, clock: Clock) -> Row:
    begin = clock.seconds(moment.start)
    end = begin if moment.end is None else clock.seconds(moment.end)
    text = printable(moment.text[:LONGEST_TEXT])
    return {"peer": id, "kind": moment.kind, "begin": begin, "end": end, "text": text}


def _matters(silence: Moment, chronicles: Mapping[str, Chronicle]) -> bool:
    """Whether it is more than a blink, a neighbour that has finished, or one that is no neighbour any more."""
    other = chronicles.get(silence.about)
    ended = other.ended if other else None
    forgotten = ended is not None and (not silence.over or ended <= silence.start + 1)
    return not forgotten and (silence.end or silence.start) - silence.start >= SHORTEST


def _changes(chronicles: Mapping[str, Chronicle], views: Views) -> Iterator[Moment]:
    """Each change of view once, when the first peer told of it."""
    before = View(0, views.ids, first=0)
    for view in views.later:
        times = [one.views[view.number].time for one in chronicles.values() if view.number in one.views]
        if times:
            said = change(before, view) or "what was played of some rounds is void"
            why = f" ({view.reason})" if view.reason else ""
            yield Moment("change of view", min(times), f"view {view.number} from round {view.first} on: {said}{why}")
        before = view
