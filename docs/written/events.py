"""The page events.md: every event with its fields."""

import dataclasses
import logging
from collections.abc import Collection

from pydantic import TypeAdapter

from peer.settings import field_docs
from peer.telemetry.events import CLASSES_BY_NAME, SCHEMA, Event
from written.settings import Schema, kind
from written.words import escaped, prose

EVENTS = """\
# Events

<!-- Written by `make docs` from peer/telemetry/events.py; change those, not this one. -->

Each event is a JSON line of `<id>/events.jsonl`, and an object for a [tracker](monitoring.md#your-own-tracker). The
log has `str(event)`, in some events also the field `sentence`.

```json
{{"time": 1795392750.128, "event": "resumed", "round": 3}}
```

This is version **{schema}** (`schema` in [started](#started)), which grows when an event or a field is removed or
changes its meaning. Skip unknown events and fields, and lines that are not JSON objects (a crash may leave one).

Every event has `event`, its name, and `time`, 0 before it is emitted. Times are in Unix seconds, peers are given by id,
and losses and figures that are not finite are null. The level, if not INFO, is in brackets; DEBUG events are not in the
log.
"""


def events() -> str:
    """The whole of events.md: every event with its fields, in the order of the source."""
    parts = [EVENTS.format(schema=SCHEMA)]
    for event in CLASSES_BY_NAME.values():
        told = prose(event) + (f" ({logging.getLevelName(event.level)})" if event.level != logging.INFO else "")
        own = [one.name for one in dataclasses.fields(event) if one.name not in {"time", "sentence"}]
        parts.append(f"## {event.name}\n\n{told}\n" + (f"\n{fields_of(event, own)}" if own else ""))
    return "\n".join(parts)


def fields_of(kind: type[Event], names: Collection[str]) -> str:
    """A line per field: its name in the JSON, what it holds, its meaning. Empty when there is no field."""
    schema, words = TypeAdapter(kind).json_schema()["properties"], field_docs(kind)
    known = {**{name: name for name in schema}, "awaited": "for"}
    lines = []
    for name in names:
        meaning = " ".join(escaped(words.get(name, "")).split())
        told = "" if meaning == f"The {name}." else f": {meaning}"  # the name says it
        lines.append(f"- `{known[name]}` ({holds(schema[known[name]])}){told}\n")
    return "".join(lines)


def holds(field: Schema) -> str:
    """What a field of an event holds, in words: `number or null, by name`."""
    match field:
        case {"anyOf": options}:
            return " or ".join(holds(option) for option in options)
        case {"type": "object", "additionalProperties": dict(inner)}:
            return f"{holds(inner)}, by name"
        case {"type": "array", "prefixItems": items}:
            return f"list ({', '.join(map(holds, items))})"
        case {"type": "array", "items": items}:
            return f"list ({holds(items)})"
        case {"$ref": _}:
            return "object"
        case {"enum": _}:
            return kind(field)
    return {"string": "text", "boolean": "boolean"}.get(field["type"], field["type"])
