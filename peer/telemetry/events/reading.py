"""Events as they are read again, from a line of events.jsonl."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from peer.telemetry.events import life, links, rounds, views
from peer.telemetry.events.base import Event, Worded, adapter

ROOMS = (life, rounds, links, views)
KINDS = [
    kind
    for room in ROOMS
    for kind in vars(room).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind not in (Event, Worded)
]
"""All there are, in the order of the source."""
NAMED = {kind.name: kind for kind in KINDS}


def read_event(line: Mapping[str, Any]) -> Event | None:
    """The event that a JSON object of events.jsonl stands for; None for one that no peer wrote like that."""
    kind = NAMED.get(str(line.get("event")))
    if kind is None:
        return None
    try:
        event: Event = adapter(kind).validate_python(dict(line))
    except ValidationError:
        return None
    return event
