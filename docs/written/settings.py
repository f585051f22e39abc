"""A table of the keys of a block: what each may be, its default, its meaning."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from peer.settings import field_docs
from peer.spec.federation import Spec
from written.limits import limit
from written.words import cell, escaped

SUPPLIED = {
    "init": "the protocol's own",
    "training": "the protocol's own",
    "ring": "from `--peers N`",
    "data": "digits",
}
"""Fields without a default in their class, for which reading the file supplies one."""
LINKED = (
    *("protocol", "model", "task", "data", "training", "wire", "partition", "drift", "behaviour", "ring", "machines"),
    *("tls", "machine", "optimiser", "scheduler", "stop_early", "budget", "step"),
)
"""Keys whose value is a block with a chapter of its own."""
ELSEWHERE = {(Spec, "stop_early"): "ending-early", (Spec, "finetune"): "fine-tuning"}
"""Keys whose chapter is called otherwise."""
Schema = Mapping[str, Any]


class Lenient(GenerateJsonSchema):
    """A schema also where the class of a block depends on its `name`; such a block has a chapter of its own."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {"type": "object"}


def table(settings: type[BaseModel], leave_out: Collection[str] = ()) -> str:
    """One row a field: key, what it may be, default, meaning. Empty when there is no field."""
    schema, words = settings.model_json_schema(schema_generator=Lenient), field_docs(settings)
    if "$ref" in schema:  # of a block that may hold others like itself
        schema = schema["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    required, rows = set(schema.get("required", ())), []
    for name, field in schema["properties"].items():
        if name not in leave_out:
            supplied = name in required or (name in SUPPLIED and "default" not in field)
            default = SUPPLIED.get(name, "required") if supplied else shown_default(field)
            chapter = ELSEWHERE.get((settings, name), name if name in LINKED else None)
            value = f"[{name}](#{chapter})" if chapter else kind(field)
            rows.append([f"`{name}`", value, default, escaped(words.get(name, field.get("description", "")))])
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return "\n".join(["| key | value | default | |", "|---|---|---|---|", *lines, ""]) if rows else ""


def kind(field: Schema) -> str:
    """What a field may hold, in words: `0 ≤ number ≤ 1`, `cosine or dot`."""
    match field:
        case {"enum": values}:
            return " or ".join(str(value) for value in values)
        case {"const": value}:
            return str(value)
        case {"anyOf": options}:
            return " or ".join(kind(option) for option in options if option.get("type") != "null")
        case {"type": "array", "prefixItems": items}:
            return f"a list of {len(items)}: {kind(items[0])}"
        case {"type": "array", "items": items}:
            return f"a list of {kind(items)}"
        case {"type": "integer" | "number"}:
            return bounded(field)
        case {"type": "string", "format": "path"}:
            return "path"
        case {"type": "string", "pattern": pattern}:
            return f"text like `{pattern}`"
    return {"string": "text", "boolean": "true or false"}.get(field.get("type", ""), "keys and values")


def bounded(field: Schema) -> str:
    """A number with its range."""
    low = {"minimum": "≤", "exclusiveMinimum": "<"}
    high = {"maximum": "≤", "exclusiveMaximum": "<"}
    before = "".join(f"{limit(field[key])} {sign} " for key, sign in low.items() if key in field)
    after = "".join(f" {sign} {limit(field[key])}" for key, sign in high.items() if key in field)
    return f"{before}{field['type']}{after}"


def shown_default(field: Schema) -> str:
    """The default as it would be written in YAML; an empty block has none in the schema."""
    default = field.get("default", {})
    if default is None:
        return "not given"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"
