"""Writes what the documentation repeats from the code: `make docs`."""

import csv
import dataclasses
import inspect
import json
import logging
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from launcher.study.tables import tables as study_tables
from launcher.study.written_tables import markdown
from peer.documented import field_words
from peer.learning.data.drift import Drift
from peer.learning.data.partition import PARTITIONS
from peer.learning.data.sources import SOURCES, Source, UserSource
from peer.learning.model.settings import ModelSettings
from peer.learning.model.zoo import MODELS
from peer.learning.tasks import TASKS
from peer.learning.training.optimiser import Optimiser
from peer.learning.training.scheduler import Scheduler
from peer.learning.training.settings import Budget, OwnStep, Training
from peer.network.limits import Limits, Strangers
from peer.network.wire.frames import HEADER
from peer.protocols.base import Protocol
from peer.protocols.registry import PROTOCOLS, protocol_class
from peer.runtime.lifecycle import MEANING, TRANSITIONS
from peer.spec import evaluation
from peer.spec.behaviour import Behaviour
from peer.spec.federation import Spec
from peer.spec.member import Machine, Member
from peer.spec.peer import TLS, PeerConfig
from peer.spec.wire import Bfloat16, Float32, TopK
from peer.telemetry.events import KINDS, SCHEMA, Event
from peer.views.tables import tables

HERE = Path(__file__).parent
SUPPLIED = {
    "init": "the protocol's own",
    "training": "the protocol's own",
    "ring": "from `--peers N`",
    "data": "digits",
}
"""Fields without a default in their class, for which reading the file supplies one."""
FIELDS = (
    "magic: `DFL2`",
    "number of the payload in the manifest",
    "number of scalars of the message",
    "view",
    "round",
    "step: which collective call of the round, and which step of it",
    "the collective and the names of its scalars: their xxh32",
    "number of this frame in the message, from 0",
    "where in the payload's vector the message begins, in bytes",
    "bytes of the whole message",
    "bytes after the header",
    "xxh3-64 of the header before it and of everything after it",
)
"""What the codec's header holds, in its order."""
LINKED = (
    *("protocol", "model", "task", "data", "training", "wire", "partition", "drift", "behaviour", "ring", "machines"),
    *("tls", "machine", "optimiser", "scheduler", "stop_early", "budget", "step"),
)
"""Keys whose value is a block with a chapter of its own."""

ELSEWHERE = {(Spec, "stop_early"): "ending-early", (Spec, "finetune"): "fine-tuning"}
"""Keys whose chapter is called otherwise."""

TRAINING: Mapping[str, type[BaseModel]] = {
    "optimiser": Optimiser,
    "scheduler": Scheduler,
    "budget": Budget,
    "step": OwnStep,
}
"""The blocks inside `training`."""

Schema = Mapping[str, Any]

INTRODUCTION = """\
# Configuration

<!-- Written by `make docs` from the settings' classes; change their docstrings, not this file. -->

Two kinds of file: [`federation.yaml`](#federationyaml), which is the same for all peers, and one
[peer file](#a-peers-file) each. `dfl-launch run` writes the peer files itself.

- YAML 1.2 (so `1e-3` is a number and `no` is a word), or JSON.
- A relative path is relative to the file that names it.
- An unknown key is an error that names the nearest known one.
- `protocol: fibfl` is short for `protocol: {name: fibfl}`; the same for `model`, `task` and `data`.
- `module:Name` names code of your own, imported from the directory of `federation.yaml` (or from `code`).
- On the command line, `--set protocol.gamma=0.3` replaces one value, `--seed 7` the seed.

```yaml
name: example
seed: 42
rounds: 10
protocol: {name: fibfl, gamma: 0.5}
model: {name: mlp}
data: {name: digits, partition: {kind: dirichlet, alpha: 0.5}}
ring:
  - {id: peer0, address: "127.0.0.1:7700"}
  - {id: peer1, address: "127.0.0.1:7701"}
  - {id: peer2, address: "127.0.0.1:7702"}
```
"""


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


def pages() -> dict[Path, str]:
    """Every page that is written here, or has a block that is, with its text."""
    readme, architecture, wire = HERE.parent / "README.md", HERE / "architecture.md", HERE / "wire.md"
    security = HERE.parent / "SECURITY.md"
    examples = HERE.parent / "examples"
    protocol, task = ((examples / name).read_text(encoding="utf-8") for name in ("my_protocol.py", "own_task.py"))
    training, monitoring = HERE / "tasks.md", HERE / "monitoring.md"
    tracker = (examples / "tracker.py").read_text(encoding="utf-8")
    return {
        HERE / "configuration.md": configuration(),
        HERE / "events.md": events(),
        examples / "README.md": listed(examples),
        readme: filled(readme, {"examples/my_protocol.py": f"```python\n{protocol}```\n"}),
        monitoring: filled(monitoring, {"examples/tracker.py": f"```python\n{tracker}```\n"}),
        training: filled(training, {"examples/own_task.py": f"```python\n{task}```\n"}),
        architecture: filled(architecture, {"peer.runtime.lifecycle": life(), "peer.views": tables()}),
        wire: filled(wire, {"peer.network.wire.frames": header()}),
        security: filled(security, {"peer.network.limits": limits()}),
        **{page: filled(page, dict(measured(page))) for page in (HERE / "results").glob("*.md")},
    }


def measured(page: Path) -> Iterator[tuple[str, str]]:
    """The tables that a page has of studies' results, by what is written of their source: `data/x.csv: mean`."""
    for source, file, column in re.findall(r"<!-- from ((data/\S+): (\w+)), by", page.read_text(encoding="utf-8")):
        with (page.parent / file).open(encoding="utf-8", newline="") as lines:
            rows = [{key: plain(value) for key, value in row.items()} for row in csv.DictReader(lines)]
        axes = [*rows[0]][: [*rows[0]].index("peers")]
        found = next(one for one in study_tables(rows, axes) if one.measure.column == column)
        yield source, "".join(f"{line}\n" for line in markdown([found], "").splitlines() if line.startswith("|"))


def plain(value: str) -> int | float | str | None:
    """A field of a study's CSV: a number where it is one; None where it is empty."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value or None


def listed(examples: Path) -> str:
    """The page of examples: one row a spec, by the first words of its comment."""
    rows = ["# Examples", "", "Each file says how it is run. The tests run all of them.", "", "| file | |", "|---|---|"]
    for file in sorted(examples.glob("*.yaml")):
        comment = re.match(r"(# .*\n)+", file.read_text(encoding="utf-8"))
        assert comment, f"{file.name} does not say what it shows"
        words = " ".join(comment[0].replace("\n#", "\n").removeprefix("#").split())
        rows.append(f"| [{file.name}]({file.name}) | {cell(escaped(words))} |")
    return "".join(f"{row}\n" for row in rows)


def filled(page: Path, blocks: Mapping[str, str]) -> str:
    """The page with what stands between the two comments about each source replaced."""
    text, end = page.read_text(encoding="utf-8"), "<!-- end -->\n"
    for source, block in blocks.items():
        begin = f"<!-- from {source}, by `make docs` -->\n"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{block}{end}{rest.partition(end)[2]}"
    return text


def life() -> str:
    """The table of a peer's states."""
    rows = ["| state | it is | then |", "|---|---|---|"]
    rows += [f"| {state} | {MEANING[state]} | {', '.join(after) or '–'} |" for state, after in TRANSITIONS.items()]
    return "".join(f"{row}\n" for row in rows)


def header() -> str:
    """A frame's header: one row a field, its place computed from the format that the codec packs by."""
    order, *codes = re.findall(r"<|\d*[a-zA-Z]", HEADER.format)
    fields = iter(FIELDS)
    rows, offset = ["| offset | size | |", "|---|---|---|"], 0
    for code in codes:
        size = struct.calcsize(order + code)
        rows.append(f"| {offset} | {size} | {'zeros' if code.endswith('x') else next(fields)} |")
        offset += size
    return "".join(f"{row}\n" for row in rows)


def limits() -> str:
    """What others can make grow: one row a limit, with the words below it in the source."""
    rows = ["| limit | value | |", "|---|---|---|"]
    for kind in (Strangers, Limits):
        for name, text in field_words(kind).items():
            rows.append(f"| `{kind.__name__}.{name}` | {limit(getattr(kind(), name))} | {cell(escaped(text))} |")
    return "".join(f"{row}\n" for row in rows)


def events() -> str:
    """The whole of events.md: every event with its fields, in the order of the source."""
    parts = [EVENTS.format(schema=SCHEMA, common=fields_of(Event, ["time"]))]
    for kind in KINDS:
        told = prose(kind) + (f" Level: {logging.getLevelName(kind.level)}." if kind.level != logging.INFO else "")
        own = [one.name for one in dataclasses.fields(kind) if one.name != "time"]
        parts.append(f"## {kind.name}\n\n{told}\n\n{fields_of(kind, own)}")
    return "\n".join(parts)


def fields_of(kind: type[Event], names: Collection[str]) -> str:
    """One row a field: its name in the line, what it holds, its meaning. Empty when there is no field."""
    schema, words = TypeAdapter(kind).json_schema()["properties"], field_words(kind)
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


def configuration() -> str:
    """The whole of configuration.md."""
    parts = [INTRODUCTION, *_spec(), *_protocols(), *_models(), *_tasks(), *_data(), *_partitions(), *_peer()]
    return "\n".join(part for part in parts if part)


def _spec() -> Iterator[str]:
    yield "## federation.yaml\n"
    yield f"{prose(Spec)}\n"
    yield table(Spec)
    yield "### ring\n"
    yield "One entry a peer, in ring order.\n"
    yield table(Member)
    yield "### training\n"
    yield f"{prose(Training)}\n"
    yield table(Training)
    for key, block in TRAINING.items():
        yield f"### {key}\n"
        yield f"{prose(block)}\n"
        yield table(block)
    yield "### wire\n"
    yield "`wire: bfloat16`, or `{kind: top-k, share: ...}`. Where one is refused: [wire.md](wire.md#fewer-bytes).\n"
    for wire in (Float32, Bfloat16, TopK):
        yield f"`{get_args(wire.model_fields['kind'].annotation)[0]}`: {prose(wire)}\n"
        yield table(wire, leave_out=["kind"])
    for chapter, block in (("ending early", evaluation.StopEarly), ("fine-tuning", evaluation.FineTune)):
        yield f"### {chapter}\n"
        yield f"{prose(block)}\n"
        yield table(block)
    yield "### machines\n"
    yield "One entry a peer, by its id.\n"
    yield table(Machine)
    yield "### behaviour\n"
    yield "`{peer3: {kind: ...}}`: what it is for is in [adversaries.md](adversaries.md).\n"
    for behaviour in get_args(Behaviour):
        yield f"`{get_args(behaviour.model_fields['kind'].annotation)[0]}`: {prose(behaviour)}\n"
        yield table(behaviour, leave_out=["kind"])


def _protocols() -> Iterator[str]:
    yield "## protocol\n"
    yield "What each one does and where it comes from: [protocols.md](protocols.md).\n"
    for name in PROTOCOLS:
        protocol = protocol_class(name)
        shown = protocol(name=name)
        init = "that of `like`" if name == "solo" else shown.init
        yield f"### {name}\n"
        yield f"{prose(protocol)}\n"
        yield f"Source: {protocol.paper}. Edges: {shown.graph}. Leaves the peer: {leaves(shown)}."
        yield f"Least number of peers: {protocol.min_peers}. `init` when not given: {init}.\n"
        yield table(protocol, leave_out=["name"])


def leaves(protocol: Protocol) -> str:
    """What leaves a peer: vectors with the numbers beside them, and records for everybody."""
    vectors = [
        share.vector + (f" with {share.scalars} number{'s' * (share.scalars > 1)}" if share.scalars else "")
        for share in protocol.shares(rounds=10)
    ]
    records = [f"a record of its {record.name} for everybody" for record in protocol.records]
    return "; ".join([*vectors, *records]) or "nothing"


def _models() -> Iterator[str]:
    yield "## model\n"
    yield "Written `extractor | head`; FC is a fully connected layer, d the number of values of an input, C the number"
    yield "of classes.\n"
    yield "| name | |\n|---|---|"
    yield from (f"| `{name}` | {cell(prose(make))} |" for name, make in MODELS.items())
    own = "Your own: takes an input's shape and the number of classes, gives (extractor, head) or a module."
    yield f"| `module:Name` | {own} See [running.md](running.md#a-model-of-your-own). |\n"
    yield table(ModelSettings)


def _tasks() -> Iterator[str]:
    yield "## task\n"
    yield "What each one takes and gives: [tasks.md](tasks.md).\n"
    for name, task in TASKS.items():
        yield f"### {name}\n"
        yield f"{prose(task)}\n"
        yield table(task, leave_out=["name"])


def _data() -> Iterator[str]:
    yield "## data\n"
    yield "Keys that every data set knows:\n"
    yield table(Source)
    sources: dict[str, type[Source]] = {**SOURCES, "module:function": UserSource}
    for name, source in sources.items():
        yield f"### {name}\n"
        yield f"{prose(source)}\n"
        yield table(source, leave_out=Source.model_fields)


def _partitions() -> Iterator[str]:
    yield "## partition\n"
    yield "`partition: {kind: ...}` under `data`: how the samples are dealt to the peers.\n"
    for name, partition in PARTITIONS.items():
        yield f"### {name}\n"
        yield f"{prose(partition)}\n"
        yield table(partition, leave_out=["kind"])
    yield "### drift\n"
    yield f"A list of these, under `data`. {prose(Drift)}\n"
    yield table(Drift)


def _peer() -> Iterator[str]:
    yield "## A peer's file\n"
    yield f"{prose(PeerConfig)}\n"
    yield table(PeerConfig)
    yield "### tls\n"
    yield f"{prose(TLS)}\n"
    yield table(TLS)
    yield "### machine\n"
    yield f"{prose(Machine)}\n"
    yield table(Machine)


class Lenient(GenerateJsonSchema):
    """A schema also where the class of a block depends on its `name`; such a block has a chapter of its own."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {"type": "object"}


def table(settings: type[BaseModel], leave_out: Collection[str] = ()) -> str:
    """One row a field: key, what it may be, default, meaning. Empty when there is no field."""
    schema, words = settings.model_json_schema(schema_generator=Lenient), field_words(settings)
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


def limit(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:,}".removesuffix(".0")


def shown_default(field: Schema) -> str:
    """The default as it would be written in YAML; an empty block has none in the schema."""
    default = field.get("default", {})
    if default is None:
        return "not given"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def prose(thing: type | Callable[..., Any]) -> str:
    """A docstring's paragraphs, each on one line."""
    return "\n\n".join(escaped(" ".join(block.split())) for block in (inspect.getdoc(thing) or "").split("\n\n"))


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def escaped(text: str) -> str:
    """Stars and angle brackets mean themselves, also outside code."""
    parts = text.split("`")
    parts[::2] = [part.replace("*", "\\*").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
