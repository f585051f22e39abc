"""Do the settings go together? Every refusal has its reason and what to write instead, before anything is created.

`problems` has them all, in the order in which they are told: the first one counts. A protocol may be the user's own, so
what it declares is asked for once and checked here, too. What only the model or a peer's data can tell, once they are
loaded, is checked at the end.
"""

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from peer.errors import InputError, suggest
from peer.learning.data.partition import PARTITIONS
from peer.learning.data.sources import Source
from peer.learning.model.layout import ModelPart
from peer.learning.model.model import Model
from peer.learning.training.phase import Phase
from peer.network.wire.codec import CodedBlock
from peer.plugins import describe_error, is_installed, user_input_errors
from peer.protocols.base import Init, Protocol, ResourceSource
from peer.protocols.declarations import Record, Share
from peer.protocols.registry import suited
from peer.spec.agreement import ANEW, CHANGEABLE, NOT_COMPARED
from peer.spec.blocks import Coded, LabelFlip, why_no_ports
from peer.topology import Graph, unreachable_pair, unreachable_pair_problem

if TYPE_CHECKING:
    from peer.spec.federation import Spec


def problems(spec: "Spec") -> Iterator[str]:
    """What in these settings does not go together, each with what to write instead."""
    for check in (_ring, _protocol, _features, _classes, _unused, _early_end, _membership, _ports, _precision):
        yield from check(spec)


def _ring(spec: "Spec") -> Iterator[str]:
    for what in ("id", "address"):
        values = [value for member in spec.ring if (value := getattr(member, what))]
        if twice := next((value for value in values if values.count(value) > 1), None):
            yield f"two peers of the ring have the {what} `{twice}`; give each its own"
    if strangers := sorted({*(spec.machines or {})} - {*spec.ids}):
        yield f"`machines` has `{strangers[0]}`, which is not in the ring; {suggest(strangers[0], spec.ids)}"
    if "federation" in spec.ids:
        yield "a peer cannot have the id `federation`: its config would be written over federation.yaml; rename it"
    if strangers := [id for id in spec.behaviour if id not in spec.ids]:
        yield f"`behaviour` names `{strangers[0]}`, which is not in the ring; {suggest(strangers[0], spec.ids)}"


def _protocol(spec: "Spec") -> Iterator[str]:
    """What the protocol declares is right, and the ring and the wire are as it needs them."""
    protocol = spec.protocol
    check_declared(protocol, spec.rounds, len(spec.ring))
    if len(spec.ring) < protocol.min_peers:
        yield (
            f"`{protocol.name}` needs at least {protocol.min_peers} peers and the ring has {len(spec.ring)}; add "
            f"peers, or choose a protocol that goes with fewer: {', '.join(suited(spec.task, len(spec.ring)))}"
        )
    # Where the ring is put in another order, any two may become neighbours.
    graph = "complete" if protocol.reorders else protocol.graph
    if pair := unreachable_pair(graph, spec.ids, spec.dial_out):
        yield unreachable_pair_problem(pair)
    try:
        spec.declarations()
    except ValueError as error:
        yield f"`{protocol.name}`: {error}"
    if protocol.exact and spec.wire.kind != "float32":
        yield (
            f"`{protocol.name}` needs its vectors as they are, and `wire` is {spec.wire.kind}; leave out `wire` or "
            "write float32"
        )


def _features(spec: "Spec") -> Iterator[str]:
    """What is asked for and the protocol, or the data, cannot do."""
    protocol, training, data = spec.protocol, spec.training, spec.data
    if key := "optimiser" if training.optimiser else "scheduler" if training.scheduler else None:
        reason = protocol.why_optimiser_is_fixed()
        yield from _cannot(protocol, f"train with another {key}", reason, f"leave out `training.{key}`")
    if step := training.changes_gradient:
        yield from _cannot(protocol, f"train by `training.{step}`", protocol.why_steps_are_fixed(), "leave it out")
    weighed = [f"task.{key}" for key in ("focal", "class_weights") if getattr(spec.task, key, None)]
    if weighed := [*weighed, *(["training.sampler"] if training.sampler else [])]:
        yield from _cannot(protocol, f"weigh classes by `{weighed[0]}`", protocol.why_loss_is_fixed(), "leave it out")
    if training.sampler and not spec.task.has_classes:
        yield f"`training.sampler` goes by classes, which the task `{spec.task.name}` has not; leave it out"
    if training.loop:
        yield from _cannot(protocol, "train by `training.loop`", protocol.why_training_is_fixed(), "leave it out")
    if data.names_peers and (data.validation or data.partition.kind != "iid"):
        wrong = "`validation`" if data.validation else "a `partition`"
        yield f"`data` with `{{id}}` in its path is each peer's own, so {wrong} cannot be; leave it out"
    for source in (data, *(member.data for member in spec.ring if member.data)):
        yield from cannot_transform(protocol, source)
    if data.standardize == "federation" and (reason := why_columns_stay(spec)):
        yield f"`standardize: federation` cannot be: {reason}; write `own`, or leave it out"
    if data.drift:
        yield from _cannot(protocol, "follow data that drift", protocol.why_data_are_fixed(), "leave out `drift`")


def why_columns_stay(spec: "Spec") -> str | None:
    """Why nothing that is found of columns may leave a peer; None if it may."""
    if _is_unconnected(spec):
        return f"the peers of `{spec.protocol.name}` are not connected"
    return f"of `{spec.protocol.name}` nothing may leave without noise" if spec.protocol.why_figures_stay() else None


def _cannot(protocol: Protocol, what: str, reason: str | None, hint: str) -> Iterator[str]:
    if reason:
        yield f"`{protocol.name}` cannot {what}: {reason}; {hint}"


def cannot_transform(protocol: Protocol, source: Source) -> Iterator[str]:
    """Why a protocol cannot train on samples that these data change at random; nothing if it can."""
    if source.transforms:
        reason = protocol.why_inputs_are_fixed()
        yield from _cannot(protocol, "train on `transforms` of its samples", reason, "leave them out")


def _is_unconnected(spec: "Spec") -> bool:
    return spec.protocol.graph == "none" and len(spec.ring) > 1


def _classes(spec: "Spec") -> Iterator[str]:
    """What goes by classes, or by kinds of targets, is refused where the task has none."""
    protocol, task = spec.protocol, spec.task
    if lacking := protocol.lacks(task):
        own = "give it `kinds` and `mix`, or " if ":" in task.name and lacking != "classes" else ""
        yield (
            f"`{protocol.name}` goes by {lacking}, and the task `{task.name}` has none; {own}choose a protocol that "
            f"does not: {', '.join(suited(task, len(spec.ring)))}"
        )
    if not task.has_classes:
        for what, hint in _by_classes(spec):
            yield f"{what} by classes, and the task `{task.name}` has none; {hint}"


def _by_classes(spec: "Spec") -> Iterator[tuple[str, str]]:
    if spec.test:
        yield f"`test: {spec.test}` goes", "leave out `test`"
    for stage in spec.data.stages:
        if stage.labels:
            yield "`labels` of a `drift` go", "leave them out"
        if stage.partition.by_label:
            others = ", ".join(kind for kind, split in PARTITIONS.items() if not split.by_label)
            yield f"the {stage.partition.kind} split goes", f"choose one of {others}"
    for id, behaviour in spec.behaviour.items():
        if isinstance(behaviour, LabelFlip):
            yield f"`{behaviour.kind}` of `{id}` goes", "choose another behaviour"


def _unused(spec: "Spec") -> Iterator[str]:
    """What would be ignored is refused."""
    for key, source in (("machines", "pinned"), ("recording", "replay")):
        used = key == "recording" and spec.views == "replay"
        if getattr(spec, key) is not None and spec.protocol.resources_from != source and not used:
            choice = "resources" in type(spec.protocol).model_fields
            other = f"write `resources: {source}` into `protocol`, or " if choice else ""
            yield f"`{spec.protocol.name}` does not go by `{key}` as it is set; {other}leave it out"


def _early_end(spec: "Spec") -> Iterator[str]:
    for key, given in (("training.patience", spec.training.patience), ("stop_early", spec.stop_early)):
        if given and spec.hold_back is None:
            yield f"`{key}` goes by samples that nobody trains on; add `hold_back: 0.1`, say"
    if spec.stop_early:
        name = spec.protocol.name
        if _is_unconnected(spec):
            yield f"the peers of `{name}` are not connected and could not end together; leave out `stop_early`"
        yield from _cannot(spec.protocol, "stop early", spec.protocol.why_figures_stay(), "leave out `stop_early`")


def _membership(spec: "Spec") -> Iterator[str]:
    """Whether a federation can go on without some of its members and take them in again; and do so once more."""
    if spec.on_loss == "bypass":
        for reason, hint in _against_bypass(spec):
            yield f"`on_loss: bypass` cannot be: {reason}; {hint}, or write `on_loss: wait`"
    else:
        given = {"faulty_members": spec.faulty_members, "start_with": spec.start_with is not None}
        for key in (*(key for key in given if given[key]), *(["on_stop: leave"] if spec.on_stop == "leave" else [])):
            yield f"`{key}` goes with `on_loss: bypass`; write that, or leave `{key.partition(':')[0]}` out"
    if spec.faulty_members and len(spec.ring) < (least := 3 * spec.faulty_members + 1):
        yield (
            f"`faulty_members: {spec.faulty_members}` takes {least} peers, so that the others can outvote them, and "
            f"the ring has {len(spec.ring)}; add peers, or write less"
        )
    for one in [one for one in spec.rewinds or () if one.view is not None]:
        if spec.on_loss != "bypass":
            yield "a rewind with a `view` goes with `on_loss: bypass`; write that, or the round alone"
        if strangers := [id for id in one.members if id not in spec.ids]:
            yield f"`rewinds` names `{strangers[0]}`, which is not in the ring; {suggest(strangers[0], spec.ids)}"
        if len({*one.members}) < (least := spec.protocol.least_members(len(spec.ring))):
            yield f"`rewinds` has too few `members` for `{spec.protocol.name}`, which needs {least}"
    if spec.views == "replay":
        for reason, hint in _against_replay(spec):
            yield f"`views: replay` cannot be: {reason}; {hint}, or leave `views` out"


def _against_bypass(spec: "Spec") -> Iterator[tuple[str, str]]:
    """Why no peer can be lost or taken in during the run, and what to do."""
    protocol, most = spec.protocol, len(spec.ring)
    if most < 3:
        yield f"of {most} peers no majority is left when one is lost", "add peers"
    if protocol.graph == "none":
        yield f"the peers of `{protocol.name}` are not connected, so none is missed", "choose another protocol"
    if reason := protocol.why_members_are_fixed():
        yield f"`{protocol.name}` needs all its members: {reason}", "choose another protocol"
    shared = {*protocol.by_peer, *(share.vector for share in protocol.shares(spec.rounds))}
    if unsent := [name for name in protocol.replicated if name not in shared]:
        hint = f"declare Share({unsent[0]!r}, size=..., rounds=range(0)) in `shares`"
        yield f"`{protocol.name}` has no way to give `{unsent[0]}` to who is taken in", hint
    if spec.dial_out:
        yield f"`{spec.dial_out[0]}` dials out, and members must reach each other", "give it an `address`"
    if spec.stop_early:
        yield "`stop_early` counts on everybody's figures of all rounds", "leave out `stop_early`"
    if spec.wire.kind == "top-k":
        yield "`wire: top-k` counts on all that was sent before", "choose another `wire`"
    least = max(most // 2 + 1, protocol.least_members(most))
    if spec.start_with is not None and not least <= spec.start_with <= most:
        yield f"`start_with: {spec.start_with}` does not fit {most} peers", f"give it {least} to {most}"


def _against_replay(spec: "Spec") -> Iterator[tuple[str, str]]:
    """Why recorded views cannot be replayed to the same bits, and what to do."""
    if spec.on_loss != "bypass":
        yield "views are those of a run with `on_loss: bypass`", "write that"
    if spec.recording is None:
        yield "no run is named", "write `recording: DIR`, the directory of the run whose views these are to be"
    if not spec.training.is_reproducible:
        yield "`training` goes by the clock, and so differs from run to run", "leave its `budget` of seconds out"
    if "resources" in type(spec.protocol).model_fields and spec.protocol.resources_from == "measured":
        yield f"what `{spec.protocol.name}` measures differs from run to run", "pin its `resources`"


def _ports(spec: "Spec") -> Iterator[str]:
    if spec.metrics and (problem := why_no_ports(spec.metrics, spec.addresses)):
        yield problem


def _precision(spec: "Spec") -> Iterator[str]:
    dtype, precision = spec.model.dtype, spec.training.precision
    if {dtype, precision} == {"bfloat16", "float16"}:
        yield (
            f"`training.precision` is {precision} and `model.dtype` {dtype}, which do not mix; write the same in both, "
            "or leave one of them out"
        )


def why_not_continued(spec: "Spec", differing: Collection[str], rounds: int) -> str | None:
    """Why this spec cannot go on with a run of so many rounds that differs in these keys; None if it can.

    More rounds than before are possible where the protocol's course does not depend on their number.
    """
    keys = sorted({*differing} - {*CHANGEABLE, ANEW})
    if not keys:
        return None
    if keys == ["rounds"] and spec.rounds < rounds:
        return f"it has {rounds} rounds, not {spec.rounds}: a run can be given more rounds, not fewer"
    if keys != ["rounds"]:
        named, may = (", ".join(f"`{key}`" for key in some) for some in (keys, ("rounds", *CHANGEABLE, *NOT_COMPARED)))
        return f"it differs in {named}, and what may change in a run is {may}"
    reason = spec.protocol.why_rounds_are_fixed()
    return reason and f"`{spec.protocol.name}` cannot be given more rounds: {reason}"


CHOICES = {
    "graph": get_args(Graph),
    "resources_from": get_args(ResourceSource),
    "init": get_args(Init),
    "common": (*get_args(ModelPart), None),
    "passed_on": (*get_args(ModelPart), None),
}
READS_ANY_FIELD = {"model_dump", "model_dump_json", "model_copy", "model_fields", "__dict__", "vars", "getattr", "dict"}
"""Names in code that may read any field."""
REASON_HOOKS = [name for name in vars(Protocol) if name.startswith("why_")]


def check_declared(protocol: Protocol, rounds: int, peers: int) -> None:
    """Raises ValueError for a wrong declaration of a protocol."""
    try:
        declared = (protocol.shares(rounds), protocol.local())
        least = protocol.least_members(peers)
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
    most = max(peers, protocol.min_peers)
    if type(least) is not int or not 1 <= least <= most:
        raise ValueError(
            f"`least_members` of `{protocol.name}` returned {least!r}; of {peers} peers return a number from 1 "
            f"to {most}"
        )
    for name in REASON_HOOKS:
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
    return None if read & READS_ANY_FIELD else next((field for field in declared if field not in read), None)


def _files_beside(classes: list[type[Protocol]]) -> Iterator[Path]:
    """The files of imported modules in the classes' packages, and of modules not installed that lie beside them."""
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
        elif isinstance(node, ast.Name) and node.id in READS_ANY_FIELD:
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


def check_model(spec: "Spec", model: Model) -> None:
    """Raises InputError if a phase trains a part of the model that has nothing trainable, or if a user's codec cannot
    encode a part of that size."""
    if isinstance(spec.wire, Coded):
        for size in filter(None, (model.sizes["extractor"], model.sizes["head"])):
            with user_input_errors(f"`{spec.wire.name}` fails on {size} values"):
                CodedBlock(size, spec.wire.codec).rehearse()
    for phase in spec.protocol.local():
        if phase.epochs and not model.trainable(phase.part):
            raise InputError(
                f"`{spec.protocol.name}` trains the {phase.part}, and nothing in that of model {model.name} is learnt; "
                "freeze less of it, divide the model elsewhere, or choose another protocol"
            )
    if spec.finetune and not model.trainable(spec.finetune.part):
        raise InputError(
            f"`finetune` trains the {spec.finetune.part}, and nothing in that of model {model.name} is learnt; write "
            "`part: model`, or leave `finetune` out"
        )


def _goes_by_mix(protocol: Protocol | type[Protocol]) -> bool:
    return "kinds" in {record.size for record in protocol.records}


def check_mix(spec: "Spec", mix: NDArray[np.float64], id: str) -> None:
    """Raises InputError if a protocol needs a peer's mix of targets and it is not known, (0,)."""
    if not len(mix) and _goes_by_mix(spec.protocol):
        instead = ", ".join(name for name, one in suited(spec.task, len(spec.ids)).items() if not _goes_by_mix(one))
        raise InputError(
            f"`{spec.protocol.name}` needs each peer's mix of targets, and that of {id} is not known: data of its "
            "own need `task: {name: regression, edges: [...]}`, and the targets of a torch data set are not read "
            f"before; give the edges, or choose a protocol that does not need the mix, such as {instead}"
        )
