"""The page events.md: every event with its fields."""

import dataclasses
import logging
from collections.abc import Collection

from pydantic import TypeAdapter

from peer.settings import field_docs
from peer.telemetry.events import EVENT_CLASSES, SCHEMA, Event
from written.settings import Schema, kind
from written.words import cell, escaped, prose

EVENTS = """\
# Events

<!-- Written by `make docs` from the files in peer/telemetry/events; change those, not this one. -->

What a peer tells of its life. Each event is a JSON line of `<id>/events.jsonl`, and what the launcher's live view,
reports, [metrics, TensorBoard and trackers](monitoring.md) go by. To a tracker in Python, it is an object with these
fields as attributes; `str(event)` is its sentence in the log.

```json
{{"time": 1795392750.128, "event": "resumed", "round": 3}}
```

This is version **{schema}**. A reader finds the version in `schema` of [started](#started), the first event of each
process. It grows when an event or a field goes, or means something else; it stays when one is added. So a reader passes
over events and fields that it does not know, and over a line that is no JSON object, which a crash may leave. A line
before the first `started` is of dfl before there was a version. Where the version is a newer one than it knows, a
reader takes what it can, and says so: `dfl-launch` does.

Every event has its name, in `event`, and

{common}
What is written at another level than INFO says so: DEBUG is not in the log.
"""


def events() -> str:
    """The whole of events.md: every event with its fields, in the order of the source."""
    parts = [EVENTS.format(schema=SCHEMA, common=fields_of(Event, ["time"]))]
    for event in EVENT_CLASSES:
        told = prose(event) + (f" Level: {logging.getLevelName(event.level)}." if event.level != logging.INFO else "")
        own = [one.name for one in dataclasses.fields(event) if one.name != "time"]
        parts.append(f"## {event.name}\n\n{told}\n\n{fields_of(event, own)}")
    return "\n".join(parts)


def fields_of(kind: type[Event], names: Collection[str]) -> str:
    """One row a field: its name in the line, what it holds, its meaning. Empty when there is no field."""
    schema, words = TypeAdapter(kind).json_schema()["properties"], field_docs(kind)
    known = {**{name: name for name in schema}, "awaited": "for"}
    rows = [
        f"| `{known[name]}` | {holds(schema[known[name]])} | {cell(escaped(words.get(name, '')))} |" for name in names
    ]
    return "\n".join(["| field | holds | |", "|---|---|---|", *rows, ""]) if rows else ""


def holds(field: Schema) -> str:
    """What a field of an event holds, in words: `number or null, by name`."""
    match field:
        case {"anyOf": options}:
            return " or ".join(holds(option) for option in options)
        case {"type": "object", "additionalProperties": dict(inner)}:
            return f"{holds(inner)}, by name"
        case {"type": "array", "prefixItems": items}:
            return f"a list ({', '.join(map(holds, items))})"
        case {"type": "array", "items": items}:
            return f"a list ({holds(items)})"
        case {"$ref": _}:
            return "object"
        case {"enum": _}:
            return kind(field)
    return {"string": "text", "boolean": "true or false"}.get(field["type"], field["type"])
