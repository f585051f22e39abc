"""Do the settings go together? Every refusal has its reason and the way out, before anything is created.

A protocol may be the user's own, so what it declares is asked for once and checked here. Then whether samples may be
changed at random, whether a federation can go on without some of its members and take them in again, and whether it can
do so once more to the same bits.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from peer.learning.data.sources import Source
from peer.learning.model.layout import ModelPart
from peer.learning.training.phase import Phase
from peer.plugins import describe_error, is_installed
from peer.protocols.base import Init, Protocol, ResourceSource
from peer.protocols.declarations import Record, Share
from peer.topology import Graph

if TYPE_CHECKING:
    from peer.spec.federation import Spec


CHOICES = {
    "graph": get_args(Graph),
    "resources_from": get_args(ResourceSource),
    "init": get_args(Init),
    "common": (*get_args(ModelPart), None),
    "passed_on": (*get_args(ModelPart), None),
}
READ_ALL = {"model_dump", "model_dump_json", "model_copy", "model_fields", "__dict__", "vars", "getattr", "dict"}
"""Names in code that may read any field."""
WHY = [name for name in vars(Protocol) if name.startswith("why_")]


def check_declared(protocol: Protocol, rounds: int) -> None:
    """ValueError, with the way out, for what is not as a protocol has to say it."""
    try:
        declared = (protocol.shares(rounds), protocol.local())
    except Exception as error:
        raise ValueError(f"`{protocol.name}` cannot say what it does: {describe_error(error)}") from error
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


def why_no_transforms(protocol: Protocol, source: Source) -> str | None:
    """Why a protocol cannot train on samples that these data change at random; None if it can."""
    why = protocol.why_inputs_are_fixed() if source.transforms else None
    return why and f"`{protocol.name}` cannot train on `transforms` of its samples: {why}; leave them out"


def against_bypass(spec: "Spec") -> Iterator[tuple[str, str]]:
    """Why nobody can be lost or taken in during the run, and the way out."""
    protocol, most = spec.protocol, len(spec.ring)
    if most < 3:
        yield f"of {most} peers no majority is left when one is lost", "add peers"
    if protocol.graph == "none":
        yield f"the peers of `{protocol.name}` are not connected, so none is missed", "choose another protocol"
    if why := protocol.why_members_are_fixed():
        yield f"`{protocol.name}` needs all its members: {why}", "choose another protocol"
    shared = {*protocol.by_peer, *(share.vector for share in protocol.shares(spec.rounds))}
    if unsent := [name for name in protocol.replicated if name not in shared]:
        way_out = f"declare Share({unsent[0]!r}, size=..., rounds=range(0)) in `shares`"
        yield f"`{protocol.name}` has no way to give `{unsent[0]}` to who is taken in", way_out
    if spec.dial_out:
        yield f"`{spec.dial_out[0]}` dials out, and members must reach each other", "give it an `address`"
    if spec.stop_early:
        yield "`stop_early` counts on everybody's figures of all rounds", "leave out `stop_early`"
    if spec.wire.kind == "top-k":
        yield "`wire: top-k` counts on all that was sent before", "choose another `wire`"
    if spec.start_with is not None and not most < 2 * spec.start_with <= 2 * most:
        yield f"`start_with: {spec.start_with}` is not more than half of {most} peers", "choose a number that is"


def against_replay(spec: "Spec") -> Iterator[tuple[str, str]]:
    """Why recorded views cannot be replayed to the same bits, and the way out."""
    if spec.on_loss != "bypass":
        yield "views are those of a run with `on_loss: bypass`", "write that"
    if spec.recording is None:
        yield "no run is named", "write `recording: DIR`, the directory of the run whose views these are to be"
    if not spec.training.is_reproducible:
        yield "`training` goes by the clock, and so differs from run to run", "leave its `budget` of seconds out"
    if "resources" in type(spec.protocol).model_fields and spec.protocol.resources_from == "measured":
        yield f"what `{spec.protocol.name}` measures differs from run to run", "pin its `resources`"
