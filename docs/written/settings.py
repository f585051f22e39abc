"""A list of the keys of a block: what each may be, its default, its meaning."""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from peer.learning.training.phase import Training
from peer.settings import field_docs
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig
from written.limits import limit
from written.words import escaped

SUPPLIED = {
    "init": "the protocol's",
    "training": "the protocol's",
    "ring": "",
    "data": "`digits`",
    "test": "`matched`",
}
"""Fields without a default in their class, for which reading the file supplies one."""
LINKED = (
    *("protocol", "model", "task", "data", "training", "wire", "partition", "drift", "behaviour", "ring", "machines"),
    *("tls", "optimiser", "scheduler", "stop_early", "budget", "keep", "rewinds"),
)
"""Keys whose value is a block with a chapter of its own."""
ELSEWHERE: Mapping[tuple[type[BaseModel], str], str] = {
    (Spec, "stop_early"): "ending-early",
    (Spec, "finetune"): "fine-tuning",
    (Spec, "final_evaluation"): "final-evaluation",
    (Training, "step"): "step-and-loop",
    (Training, "loop"): "step-and-loop",
    (PeerConfig, "machine"): "machines",
}
"""Keys whose chapter is called otherwise."""
HIGH = 1000
"""Upper bounds from here on are not written."""
Schema = Mapping[str, Any]


class Lenient(GenerateJsonSchema):
    """A schema also where the class of a block depends on its `name`; such a block has a chapter of its own."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {"type": "object"}


Row = tuple[str, str, str, str]
"""A key's name, possible values, default and meaning."""


def table(settings: type[BaseModel], leave_out: Collection[str] = (), common: Collection[Row] = ()) -> str:
    """A line per key that is not in `common`. Empty when there is none."""
    known = {without_default(row) for row in common}
    return _lines([row for row in rows(settings, leave_out) if without_default(row) not in known])


def shared_table(common: Mapping[Row, Collection[str]]) -> str:
    """Keys without their defaults, which differ; where one has several meanings, with the kinds that have each."""
    kinds: dict[str, list[Collection[str]]] = {}
    for row, names in common.items():
        kinds.setdefault(row[0], []).append(names)
    found = []
    for row, names in common.items():
        most = names == max(kinds[row[0]], key=len)
        of = "" if len(kinds[row[0]]) == 1 else "others: " if most else f"{', '.join(f'`{name}`' for name in names)}: "
        found.append((*row[:3], f"{of}{row[3]}"))
    return _lines(found)


def shared_rows(kinds: Mapping[str, type[BaseModel]], leave_out: Collection[str]) -> dict[Row, list[str]]:
    """The keys that several kinds have with the same values and meaning, by key, and who has each."""
    found: dict[Row, list[str]] = {}
    for name, settings in kinds.items():
        for row in rows(settings, leave_out):
            found.setdefault(without_default(row), []).append(name)
    first = {row[0]: at for at, row in reversed([*enumerate(found)])}
    return {row: found[row] for row in sorted(found, key=lambda row: first[row[0]]) if len(found[row]) > 1}


def defaults(settings: type[BaseModel], common: Collection[Row]) -> str:
    """The keys in `common` that the settings have, with their defaults."""
    found = []
    for key, _, default, _ in (row for row in rows(settings) if without_default(row) in common):
        name, value = key.strip("`"), default.strip("`")
        found.append(f"`{name}` (required)" if value == "required" else f"`{name}={value}`" if value else f"`{name}`")
    return ", ".join(found)


def without_default(row: Row) -> Row:
    return row[0], row[1], "", row[3]


def rows(settings: type[BaseModel], leave_out: Collection[str] = ()) -> list[Row]:
    """One row per field."""
    schema, words = settings.model_json_schema(schema_generator=Lenient), field_docs(settings)
    if "$ref" in schema:  # of a block that may hold others like itself
        schema = schema["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    required, found = set(schema.get("required", ())), []
    for name, field in schema["properties"].items():
        if name not in leave_out:
            supplied = name in required or (name in SUPPLIED and "default" not in field)
            default = SUPPLIED.get(name, "required") if supplied else shown_default(field)
            chapter = ELSEWHERE.get((settings, name), name if name in LINKED else None)
            value = f"[block](#{chapter})" if chapter else kind(field)
            found.append((f"`{name}`", value, default, escaped(words.get(name, field.get("description", "")))))
    return found


def _lines(found: Collection[Row]) -> str:
    lines = []
    for key, values, default, meaning in found:
        shown = default.strip("`")
        value = values.removeprefix("integer ") if shown.isdigit() else values  # as the default shows
        block = re.fullmatch(r"\[block]\((.*)\)", value)
        given = "; ".join(part for part in ("" if block or (value == "boolean" and shown) else value, default) if part)
        name = f"[{key}]({block[1]})" if block else key
        lines.append(f"- {name}{f' ({given})' if given else ''}: {' '.join(meaning.split())}")
    return "".join(f"{line}\n" for line in lines)


def kind(field: Schema) -> str:
    """What a field may hold, in words: `≥0 ≤1`, `cosine|dot`."""
    match field:
        case {"enum": values}:
            return f"`{'|'.join(map(str, values))}`"
        case {"const": value}:
            return str(value)
        case {"anyOf": options}:
            return " or ".join(kind(option) for option in options if option.get("type") != "null")
        case {"type": "array", "prefixItems": items}:
            return f"list of {len(items)}: {kind(items[0])}"
        case {"type": "array", "items": items}:
            return f"list of {kind(items)}"
        case {"type": "integer" | "number"}:
            return bounded(field)
        case {"type": "string", "format": "path"}:
            return "path"
        case {"type": "string", "pattern": pattern}:
            return f"`{pattern}`"
    return {"string": "text", "boolean": "boolean"}.get(field.get("type", ""), "mapping")


def bounded(field: Schema) -> str:
    """A number with its range; upper bounds that nobody meets are left to the error that names them."""
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    meant = {key: field[key] for key in signs if key in field and field[key] < HIGH}
    bounds = [f"{signs[key]}{limit(value)}" for key, value in meant.items()]
    return " ".join([*([] if bounds and field["type"] == "number" else [str(field["type"])]), *bounds])


def shown_default(field: Schema) -> str:
    """The default as it would be written in YAML, of a block its word. Empty when nothing is set or listed."""
    default = field.get("default")
    if default in (None, [], {}):
        return ""
    if isinstance(default, dict):
        default = default.get("name", default.get("kind", default))
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"
