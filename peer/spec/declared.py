"""What a protocol declares, which may be the user's own: asked for once, before anything is created."""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from peer.learning.model.model import Part
from peer.learning.training.phase import Phase
from peer.plugins import in_words, is_installed
from peer.protocols.base import Init, Protocol, Record, ResourceSource, Share
from peer.topology.graphs import Graph

CHOICES = {
    "graph": get_args(Graph),
    "resources_from": get_args(ResourceSource),
    "init": get_args(Init),
    "common": (*get_args(Part), None),
    "passed_on": (*get_args(Part), None),
}
READ_ALL = {"model_dump", "model_dump_json", "model_copy", "model_fields", "__dict__", "vars", "getattr", "dict"}
"""Names in code that may read any field."""
WHY = [name for name in vars(Protocol) if name.startswith("why_")]


def check_declared(protocol: Protocol, rounds: int) -> None:
    """ValueError, with the way out, for what is not as a protocol has to say it."""
    try:
        declared = (protocol.shares(rounds), protocol.local())
    except Exception as error:
        raise ValueError(f"`{protocol.name}` cannot say what it does: {in_words(error)}") from error
    _check_kinds(f"`shares` of `{protocol.name}` returned", declared[0], Share)
    _check_kinds(f"`local` of `{protocol.name}` returned", declared[1], Phase)
    _check_kinds(f"`records` of `{protocol.name}` is", protocol.records, Record)
    _check_rows(f"`by_peer` of `{protocol.name}` is", protocol.by_peer)
    for names in ("replicated", "unchanging"):
        _check_names(f"`{names}` of `{protocol.name}` is", getattr(protocol, names))
    for field in type(protocol).model_fields:
        if hasattr(Protocol, field):
            raise ValueError(
                f"`{field}` of `{protocol.name}` is a hyperparameter, which nothing reads; write "
                f"`{field}: ClassVar = ...`, or a property"
            )
    if unread := _never_read(type(protocol)):
        raise ValueError(
            f"`{unread}` of `{protocol.name}` is a hyperparameter that its code never reads, so that it changes "
            f"nothing; use it, as `self.{unread}`, or take it out"
        )
    for name, known in CHOICES.items():
        if (chosen := getattr(protocol, name)) not in known:
            listed = ", ".join(map(str, known))
            raise ValueError(f"`{name}` of `{protocol.name}` is {chosen!r}; it is one of {listed}")
    if type(protocol.min_peers) is not int or protocol.min_peers < 1:
        raise ValueError(f"`min_peers` of `{protocol.name}` is {protocol.min_peers!r}, and must be a number from 1")
    for name in WHY:
        if not isinstance(said := getattr(protocol, name)(), str | None):
            raise ValueError(f"`{name}` of `{protocol.name}` returned {said!r}; return the reason as text, or None")


def _never_read(kind: type[Protocol]) -> str | None:
    """A field of the user's own classes that none of the user's code reads; None where that cannot be known."""
    own = [one for one in kind.__mro__ if issubclass(one, Protocol) and not one.__module__.startswith("peer.")]
    if not own:
        return None
    inherited = next(one for one in kind.__mro__ if issubclass(one, Protocol) and one not in own).model_fields
    read: set[str] = set()
    for file in _files_beside(own):
        try:
            read |= {*_read_in(ast.parse(file.read_bytes()))}
        except (OSError, SyntaxError, ValueError):
            return None
    declared = [field for field in kind.model_fields if field not in inherited]
    return None if read & READ_ALL else next((field for field in declared if field not in read), None)


def _files_beside(classes: list[type[Protocol]]) -> Iterator[Path]:
    """Of all imported modules those of the classes' own packages, and those of the user's that lie beside them."""
    packages = {one.__module__.partition(".")[0] for one in classes}
    homes = {Path(file).parent for one in classes if (file := getattr(sys.modules[one.__module__], "__file__", None))}
    for name, module in [*sys.modules.items()]:
        if not (file := getattr(module, "__file__", None)):
            continue
        beside = not is_installed(file) and any(Path(file).is_relative_to(home) for home in homes)
        if beside or name.partition(".")[0] in packages:
            yield Path(file)


def _read_in(tree: ast.AST) -> Iterator[str]:
    """The names of attributes that are read, and texts, as `getattr` takes them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Name) and node.id in READ_ALL:
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _check_kinds(told: str, declared: Any, kind: type) -> None:
    """ValueError unless what a protocol declares is a tuple of these; `told` names it."""
    if isinstance(declared, kind):
        raise ValueError(f"{told} one {kind.__name__} and no tuple; write a comma behind it: `({kind.__name__}(...),)`")
    if not isinstance(declared, tuple) or not all(isinstance(one, kind) for one in declared):
        raise ValueError(f"{told} {declared!r}, and must be a tuple of {kind.__name__}, such as `()`")


def _check_rows(told: str, rows: Any) -> None:
    """ValueError unless these are names in `peer.state` with what a member's row is at first."""
    firsts = [*rows.values()] if isinstance(rows, Mapping) else None
    if firsts is None or not all(isinstance(name, str) for name in rows) or not {*map(type, firsts)} <= {float, bool}:
        raise ValueError(
            f"{told} {rows!r}, and must say what a member's row is at first, by its name in `peer.state`, such as "
            "{'trust': 1.0} or {'dropped': False}"
        )


def _check_names(told: str, names: Any) -> None:
    """ValueError unless these are names in `peer.state`, as a tuple."""
    if isinstance(names, str):
        raise ValueError(f"{told} the text {names!r} and no tuple; write a comma behind it: `({names!r},)`")
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{told} {names!r}, and must be a tuple of names in `peer.state`, such as `('weights',)`")
