"""What each peer came to, and where its time went."""

from collections.abc import Iterator

from launcher.page.chronicle import Chronicle
from launcher.page.course import ACTIVITIES
from launcher.page.document import Row
from launcher.page.timeline import clock_of
from launcher.page.told import Told


def peers(told: Told) -> Iterator[Row]:
    """A row a peer: its figures at the end, or after the last round of which it tells."""
    results = {one.id: one for one in told.summary.per_peer} if told.summary else {}
    for id, chronicle in told.chronicles.items():
        result, last = results.get(id), chronicle.history.get(chronicle.completed)
        held, judged = chronicle.data[-1] if chronicle.data else None, result or last
        yield {
            "peer": id,
            "samples": result.samples if result else held and held.samples,
            "value": told.headline.value(judged) if judged else None,
            "rounds": chronicle.completed,
            "bytes_sent": judged.bytes_sent if judged else 0,
            "bytes_received": judged.bytes_received if judged else 0,
            **{f"{name}_seconds": round(_spent(chronicle, name), 3) for name in ACTIVITIES},
            "starts": len(chronicle.lives),
            "model_sha256": result.model_sha256 if result else None,
            "classes": held.classes if held else {},
        }


def seconds(told: Told) -> Iterator[Row]:
    """A row a peer and activity; `other` is what its processes took besides: starting, waiting for a round, saving."""
    clock = clock_of(told.chronicles)
    for id, chronicle in told.chronicles.items():
        spent = {name: _spent(chronicle, name) for name in ACTIVITIES}
        alive = sum(clock.seconds(life.end or life.start) - clock.seconds(life.start) for life in chronicle.lives)
        spent["other"] = max(0.0, alive - sum(spent.values()))
        yield from ({"peer": id, "activity": name, "seconds": round(value, 3)} for name, value in spent.items())


def _spent(chronicle: Chronicle, activity: str) -> float:
    return sum(done.seconds.get(activity, 0.0) for done in chronicle.history.values())
