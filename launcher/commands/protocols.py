"""`dfl-launch protocols`: every protocol with its paper, what it sends where, and its parameters. `dfl-launch tasks`:
every task, and what installed packages bring: their tasks, models, data, protocols and export formats."""

import argparse
import inspect
import re
from collections.abc import Iterator
from typing import Any

from launcher.output import Output
from launcher.table import listing
from peer.errors import InputError
from peer.learning.tasks import TASKS
from peer.plugins import installed, load_object
from peer.protocols.base import Protocol
from peer.protocols.registry import PROTOCOLS, protocol_class
from peer.settings import field_docs

NOTHING = "nothing"


def protocols_command(_arguments: argparse.Namespace, output: Output) -> int:
    entries = [describe(name, protocol_class(name)) for name in PROTOCOLS]
    if output.as_json:
        output.document(entries)
    else:
        headings = ("name", "paper", "edges", "leaves the peer", "min. peers")
        rows = ([one["name"], one["paper"], one["edges"], leaving(one), str(one["min_peers"])] for one in entries)
        output.console.print(listing(headings, rows))
        output.say("Which to take:", *(f"  {purpose}: {', '.join(names)}" for purpose, names in PURPOSES.items()))
        output.say("`run --beside solo` says whether taking part is worth it.")
    return 0


PURPOSES = {
    "one model for all": ("fedavg",),
    "one model for all, where data differ": ("fedprox", "feddyn", "scaffold", "ri-fedavg"),
    "a model each, with a private head": ("fedrep", "hearth"),
    "the same, exchanging with ring neighbours only": ("fibfl", "fibfl+", "fibfl++", "ring-median"),
    "a model each, blended with those of others": ("rdfl", "gossip-sgd", "fedisp", "flexifed"),
    "a model each, which learns from others' predictions": ("def-kt", "vpdl", "cycle-pdl"),
    "rewarding members by what they contribute": ("cycle-pdl", "cycle-gossip", "cgsv", "rffl", "cffl"),
    "a bound on what the model tells of a peer": ("dp-fedavg",),
    "to compare with": ("solo",),
}
"""What protocols are for, as their papers have it; docs/results says what of that was seen to hold."""


def tasks_command(_arguments: argparse.Namespace, output: Output) -> int:
    entries = [*known_tasks()]
    if output.as_json:
        output.document(entries)
    else:
        output.console.print(listing(("name", "kind", "from", "about"), ([*entry.values()] for entry in entries)))
    return 0


BROUGHT = {
    "tasks": "task",
    "models": "model",
    "data": "data",
    "protocols": "protocol",
    "codecs": "codec",
    "exports": "export format",
}
"""What packages bring, by the end of their entry points' group."""


def known_tasks() -> Iterator[dict[str, str]]:
    """{name, kind, from, about} of each built-in task, and of all that installed packages bring."""
    for name, task in TASKS.items():
        yield {"name": name, "kind": "task", "from": "dfl", "about": first_line(task)}
    for group, kind in BROUGHT.items():
        for name, entry in sorted(installed(group).items()):
            package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "?"
            try:
                about = first_line(load_object(entry.value))
            except InputError as error:
                about = f"cannot be used: {error}"
            yield {"name": name, "kind": kind, "from": package, "about": about}


def first_line(described: object) -> str:
    """What a docstring begins with, up to the first full stop, colon or semicolon."""
    paragraph = " ".join((inspect.getdoc(described) or "").partition("\n\n")[0].split())
    return re.split(r"[.;:](?: |$)", paragraph)[0]


def describe(name: str, protocol: type[Protocol]) -> dict[str, Any]:
    """{name, paper, edges, shares, records, min_peers, parameters}; edges and shares with the default parameters."""
    default = protocol(name=name)
    return {
        "name": name,
        "paper": protocol.paper,
        "edges": default.graph,
        "shares": ", ".join(dict.fromkeys(share.vector for share in default.shares(rounds=10))) or NOTHING,
        "records": ", ".join(record.name for record in default.records) or NOTHING,
        "min_peers": protocol.min_peers,
        "parameters": parameters(protocol),
    }


def parameters(protocol: type[Protocol]) -> list[dict[str, Any]]:
    """{name, default, type, description} of every hyperparameter."""
    schema, words = protocol.model_json_schema(), field_docs(protocol)
    return [
        {
            "name": name,
            "default": field.get("default"),
            "type": kind(field),
            "description": words.get(name, field.get("description", "")),
        }
        for name, field in schema["properties"].items()
        if name != "name"
    ]


def kind(field: dict[str, Any]) -> str:
    """The JSON type of a field in a word or two: `number`, `integer or null`, `extractor or model`."""
    if "enum" in field:
        return " or ".join(str(value) for value in field["enum"])
    if "const" in field:
        return str(field["const"])
    if "anyOf" in field:
        return " or ".join(kind(option) for option in field["anyOf"])
    return str(field.get("type", "object"))


def leaving(entry: dict[str, Any]) -> str:
    """Vectors and records by their names."""
    return ", ".join(entry[key] for key in ("shares", "records") if entry[key] != NOTHING) or NOTHING
