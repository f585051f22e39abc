"""Where each peer's time went, and what happened when: runs, waits, failures and recoveries.

Tables `moments`, `peers` and `seconds`, and their figures. All times are on one clock: seconds since the run began,
without the times in which no peer ran, as a run may pause for days.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from launcher.history import ACTIVITIES, PeerHistory, TimelineEvent
from launcher.page.charts import GREY, NAMES_AXIS, Chart, ReportFigure, nominal, quantitative, tip
from launcher.page.document import ReportDocument, Row
from launcher.page.run_data import RunData
from launcher.views import Views, change_in_words
from peer.telemetry.events import RoundDone
from peer.text import printable

MIN_PAUSE_S = 5.0
"""Seconds without any peer that are still shown: a launcher waits as long before it starts one again."""


class Clock:
    """A clock of the times when peers ran, each from its first event to its last, in Unix seconds."""

    def __init__(self, lives: Iterable[tuple[float, float]]):
        self._spans: list[tuple[float, float, float]] = []
        """Begin and end in unix seconds, and how long the pauses before were."""
        for begin, end in sorted(lives):
            if self._spans and begin <= self._spans[-1][1] + MIN_PAUSE_S:
                first, last, paused = self._spans[-1]
                self._spans[-1] = (first, max(last, end), paused)
            else:
                paused = self._spans[-1][2] + begin - self._spans[-1][1] if self._spans else begin
                self._spans.append((begin, end, paused))

    def seconds(self, time: float) -> float:
        """Since the run began; a time within a pause counts as its beginning."""
        at = bisect_right(self._spans, time, key=lambda span: span[0]) - 1
        if at < 0:
            return 0.0
        _, end, paused = self._spans[at]
        return round(min(time, end) - paused, 3)

    @property
    def pauses(self) -> list[float]:
        """The times on this clock at which a pause was left out."""
        return [round(begin - paused, 3) for begin, _, paused in self._spans[1:]]


ACTIVITY_COLOURS = {"start": "#cc79a7", "train": "#0072b2", "communicate": "#e69f00", "evaluate": "#009e73"}
ACTIVITY_COLOURS |= {"other": "#b8bcc2"}
EVENT_COLOURS = {"running": GREY, "waits": "#e69f00", "not heard": "#cc79a7", "failure": "#d55e00"}
EVENT_COLOURS |= {"recovery": "#009e73", "change of view": "#0072b2", "note": "#56b4e9"}
EVENT_SHAPES = {"failure": "cross", "recovery": "triangle-up", "change of view": "diamond", "note": "circle"}
ALL_PEERS = "all peers"
"""No peer's id has a space in it."""
MIN_SILENCE_S = 0.5
"""Seconds of a silence that is shown: a link that breaks and comes back at once is no event."""
MAX_TEXT = 300


def clock_of(histories: Mapping[str, PeerHistory]) -> Clock:
    return Clock((run.start, run.end or run.start) for one in histories.values() for run in one.runs if run.start > 0)


def event_rows(histories: Mapping[str, PeerHistory], views: Views) -> list[Row]:
    """A row each, in order of time. peer: the one that reported it, or `ALL_PEERS`. begin, end: seconds of the run."""
    clock = clock_of(histories)
    rows = [
        _event_row(id, moment, clock)
        for id, history in histories.items()
        for moment in [*history.runs, *history.timeline]
        if moment.kind != "not heard" or _matters(moment, histories)
    ]
    rows += [_event_row(ALL_PEERS, moment, clock) for moment in _changes(histories, views)]
    for at in clock.pauses:
        rows.append({"peer": ALL_PEERS, "kind": "note", "begin": at, "end": at, "text": "the run was restarted"})
    return sorted(rows, key=lambda row: row["begin"])


def _event_row(id: str, moment: TimelineEvent, clock: Clock) -> Row:
    begin = clock.seconds(moment.start)
    end = begin if moment.end is None else clock.seconds(moment.end)
    text = printable(moment.text[:MAX_TEXT])
    return {"peer": id, "kind": moment.kind, "begin": begin, "end": end, "text": text}


def _matters(silence: TimelineEvent, histories: Mapping[str, PeerHistory]) -> bool:
    """Whether it is more than a blink, a neighbour that has finished, or one that is no neighbour any more."""
    other = histories.get(silence.about)
    ended = other.ended if other else None
    forgotten = ended is not None and (not silence.over or ended <= silence.start + 1)
    return not forgotten and silence.seconds >= MIN_SILENCE_S


def _changes(histories: Mapping[str, PeerHistory], views: Views) -> Iterator[TimelineEvent]:
    """Each change of view once, when the first peer told of it."""
    for before, view in pairwise(views.by_number.values()):
        if times := [one.views[view.number].time for one in histories.values() if view.number in one.views]:
            yield TimelineEvent("change of view", min(times), change_in_words(before, view))


def peer_rows(data: RunData) -> Iterator[Row]:
    """A row a peer: its figures at the end, or after the last round of which it tells."""
    results = {one.id: one for one in data.summary.per_peer} if data.summary else {}
    for id, history in data.histories.items():
        result, last = results.get(id), history.rounds.get(history.completed)
        held, judged = history.data[-1] if history.data else None, result or last
        yield {
            "peer": id,
            "samples": result.samples if result else held and held.samples,
            "value": data.headline.value(judged) if judged else None,
            "rounds": history.completed,
            "bytes_sent": judged.bytes_sent if judged else 0,
            "bytes_received": judged.bytes_received if judged else 0,
            **{f"{name}_seconds": round(history.seconds(name), 3) for name in ACTIVITIES},
            "starts": len(history.runs),
            "model_sha256": result.model_sha256 if result else None,
            "classes": held.classes if held else {},
        }


def seconds_of_rounds(histories: Mapping[str, PeerHistory]) -> float:
    """From when the first peer began its first round to when the last ended its last one."""
    clock, done = clock_of(histories), [one for history in histories.values() for one in history.rounds.values()]
    ends = [clock.seconds(one.time) for one in done]
    return max(ends) - min(clock.seconds(begin_of(one)) for one in done) if ends else 0.0


def begin_of(done: RoundDone) -> float:
    """When a peer began that round, in Unix seconds."""
    return done.time - sum(done.seconds.values())


def start_up_seconds(history: PeerHistory) -> float:
    """From when each of its processes began to the first round in it."""
    begins = sorted(map(begin_of, history.rounds.values()))
    first = [(run, next((begin for begin in begins if begin >= run.start), None)) for run in history.runs]
    return sum(begin - run.start for run, begin in first if begin is not None and begin <= (run.end or 0))


def activity_rows(data: RunData) -> Iterator[Row]:
    """A row a peer and activity; `other` is what its processes took besides: waiting for a round, saving."""
    clock = clock_of(data.histories)
    for id, history in data.histories.items():
        spent = {"start": start_up_seconds(history)} | {name: history.seconds(name) for name in ACTIVITIES}
        alive = sum(clock.seconds(run.end or run.start) - clock.seconds(run.start) for run in history.runs)
        spent["other"] = max(0.0, alive - sum(spent.values()))
        yield from ({"peer": id, "activity": name, "seconds": round(value, 3)} for name, value in spent.items())


def time_figure(document: ReportDocument) -> ReportFigure:
    order = [row["peer"] for row in document.tables["peers"]]
    scale = {"domain": [*ACTIVITY_COLOURS], "range": [*ACTIVITY_COLOURS.values()]}
    chart: Chart = {
        "height": 330,
        "mark": {"type": "bar", "cornerRadius": 1},
        "encoding": {
            "x": nominal("peer", sort=order, axis=NAMES_AXIS),
            "y": quantitative("seconds", "time (s)"),
            "color": nominal("activity", scale=scale, sort=None),
            "order": {"field": "activity_order", "type": "quantitative"},
            "tooltip": [tip("peer", "peer"), tip("activity", "activity"), tip("seconds", "time (s)", ".1f")],
        },
        "transform": [{"calculate": f"indexof({[*ACTIVITY_COLOURS]}, datum.activity)", "as": "activity_order"}],
    }
    said = (
        "Start: from a process's first event to its first round. Communicate: sending, and waiting for what neighbours "
        "send. Other: waiting for a round, saving."
    )
    return ReportFigure("time", "Where the time went", said, ("seconds",), chart)


def timeline_figure(document: ReportDocument) -> ReportFigure:
    order = [row["peer"] for row in document.tables["peers"]]
    height = min(720, max(120, 26 * len(order)))
    happened = {row["kind"] for row in document.tables["moments"]}
    shown = [kind for kind in EVENT_COLOURS if kind in happened]
    colour = nominal(
        "kind", scale={"domain": shown, "range": [EVENT_COLOURS[kind] for kind in shown]}, legend={"columns": 3}
    )
    known = [tip(name, name) for name in ("peer", "kind")] + [tip("text", "what")]
    known += [tip("begin", "from (s)", ".1f"), tip("end", "to (s)", ".1f")]
    row: Chart = nominal("peer", scale={"domain": order, "paddingInner": 0.3}, axis=NAMES_AXIS | {"labelSeparation": 0})
    along = quantitative("begin", "time (s)", scale={"nice": False}, axis={"grid": False})

    def bar(kinds: tuple[str, ...], thickness: float) -> Chart:
        return {
            "transform": [{"filter": {"field": "kind", "oneOf": [*kinds]}}],
            "mark": {"type": "bar", "height": {"band": thickness}, "minBandSize": 2},
            "encoding": {"y": row, "x": along, "x2": {"field": "end"}, "color": colour, "tooltip": known},
        }

    points: Chart = {
        "transform": [
            {"filter": {"field": "kind", "oneOf": [*EVENT_SHAPES]}},
            {"filter": f"datum.peer !== '{ALL_PEERS}'"},
        ],
        "mark": {"type": "point", "filled": True, "size": 90 if len(order) <= 40 else 40, "opacity": 1},
        "encoding": {
            "y": row,
            "x": along,
            "color": colour,
            "shape": nominal("kind", scale={"domain": [*EVENT_SHAPES], "range": [*EVENT_SHAPES.values()]}, legend=None),
            "tooltip": known,
        },
    }
    changes: Chart = {
        "transform": [{"filter": f"datum.peer === '{ALL_PEERS}'"}],
        "mark": {"type": "rule", "style": "change"},
        "encoding": {"x": along, "tooltip": known},
    }
    return ReportFigure(
        "timeline",
        "What happened when",
        "Grey: running. Gap: not running. Dashed line: view change or restart of the run. Idle periods of the whole "
        "run are cut out.",
        ("moments",),
        {"height": height, "layer": [bar(("running",), 0.4), bar(("waits", "not heard"), 0.9), changes, points]},
        wide=True,
    )
