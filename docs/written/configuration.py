"""The page configuration.md: every key of federation.yaml and of a peer's file."""

from collections.abc import Collection, Iterator, Mapping
from typing import get_args

from pydantic import BaseModel

from peer.learning.data.drift import Drift
from peer.learning.data.partition import PARTITIONS
from peer.learning.data.sources import SOURCES, Source, UserSource
from peer.learning.model.settings import ModelSettings
from peer.learning.model.zoo import MODELS
from peer.learning.tasks import TASKS
from peer.learning.training.optimiser import Optimiser
from peer.learning.training.phase import Budget, OwnFunction, Training
from peer.learning.training.scheduler import Scheduler
from peer.protocols.registry import PROTOCOLS, protocol_class
from peer.spec import blocks
from peer.spec.agreement import NOT_COMPARED
from peer.spec.blocks import Behaviour, Machine, Member, Wire
from peer.spec.federation import Spec
from peer.spec.peer import TLS, PeerConfig
from written.settings import defaults, shared_rows, shared_table, table
from written.words import prose

TRAINING: Mapping[str, type[BaseModel]] = {
    "optimiser": Optimiser,
    "scheduler": Scheduler,
    "budget": Budget,
    "step and loop": OwnFunction,
}
"""The blocks inside `training`."""
NOT_COMPARED_EITHER = (
    "`data.download`, `data.workers`, of `ring` all but ids and their order, and where data and weights lie"
)
INTRODUCTION = """\
# Configuration

<!-- Written by `make docs` from the settings' classes; change their docstrings, not this file. -->

[`federation.yaml`](#federationyaml) is the same for all peers; `dfl-launch run` writes each
[peer's file](#a-peers-file) itself. Brackets hold a key's values and, after a semicolon, its default, if any; linked
keys hold blocks.
[Examples](../examples/README.md) are whole files.

- YAML 1.2 (so `1e-3` is a number and `no` is a word), or JSON.
- A relative path is relative to the file that names it.
- `protocol: fibfl` is short for `protocol: {name: fibfl}`; the same holds for `model`, `task` and `data`.
- `module:Name` names your own code, imported from the directory of `federation.yaml` (or from `code`).
- `--set protocol.gamma=0.3` on the command line replaces one value, `--seed 7` the seed.
"""


def configuration() -> str:
    """The whole of configuration.md."""
    parts = [INTRODUCTION, *_spec(), *_protocols(), *_models(), *_tasks(), *_data(), *_partitions(), *_peer()]
    return "\n".join(part for part in parts if part)


def _spec() -> Iterator[str]:
    yield "## federation.yaml\n"
    apart = ", ".join(f"`{key}`" for key in NOT_COMPARED)
    yield f"{prose(Spec)} Handshakes compare it, except {apart}, {NOT_COMPARED_EITHER}.\n"
    yield table(Spec)
    yield "### ring\n"
    yield "One entry per peer, in ring order.\n"
    yield table(Member)
    yield "### training\n"
    yield f"{prose(Training)}\n"
    yield table(Training)
    for key, block in TRAINING.items():
        yield f"### {key}\n"
        yield f"{prose(block)}\n"
        yield table(block)
    yield "### wire\n"
    yield "`wire: bfloat16`, or `{kind: top-k, share: ...}`; see [wire.md](wire.md#fewer-bytes).\n"
    for wire in get_args(get_args(Wire)[0]):
        yield f"`{get_args(wire.model_fields['kind'].annotation)[0]}`: {prose(wire)}\n"
        yield table(wire, leave_out=["kind"])
    for chapter, block in (
        ("ending early", blocks.StopEarly),
        ("fine-tuning", blocks.FineTune),
        ("final evaluation", blocks.FinalEvaluation),
        ("keep", blocks.Keep),
        ("rewinds", blocks.Rewind),
    ):
        yield f"### {chapter}\n"
        yield f"{prose(block)}\n"
        yield table(block)
    yield "### machines\n"
    yield "One entry per peer, by its id; `machine` in a peer's file is such an entry.\n"
    yield table(Machine)
    yield "### behaviour\n"
    yield "`{peer3: {kind: ...}}`; see [adversaries.md](adversaries.md).\n"
    for behaviour in get_args(Behaviour):
        yield f"`{get_args(behaviour.model_fields['kind'].annotation)[0]}`: {prose(behaviour)}\n"
        yield table(behaviour, leave_out=["kind"])


def _protocols() -> Iterator[str]:
    yield "## protocol\n"
    yield "[protocols.md](protocols.md) says what each protocol does, sends and needs.\n"
    kinds = {name: protocol_class(name) for name in PROTOCOLS}
    yield from _each(kinds, leave_out=["name"], shared="protocols", words=False)


def _models() -> Iterator[str]:
    yield "## model\n"
    yield "Written `extractor | head`; FC: fully connected layer, d: values of an input, C: number of classes.\n"
    yield from (f"- `{name}`: {prose(make)}" for name, make in MODELS.items())
    yield "- `module:Name`: [a model of your own](running.md#a-model-of-your-own).\n"
    yield table(ModelSettings)


def _each(
    kinds: Mapping[str, type[BaseModel]], leave_out: Collection[str], shared: str = "", words: bool = True
) -> Iterator[str]:
    """A chapter for each kind, with its own keys; before them, one table of the keys that several have."""
    common = shared_rows(kinds, leave_out) if shared else {}
    if common:
        yield f"Keys of several {shared}, whose chapters give the defaults:\n"
        yield shared_table(common)
    for name, kind in kinds.items():
        yield f"### {name}\n"
        if words:
            yield f"{prose(kind)}\n"
        taken = defaults(kind, common)
        if taken:
            yield f"{taken}\n"
        yield table(kind, leave_out, common)


def _tasks() -> Iterator[str]:
    yield "## task\n"
    yield "[tasks.md](tasks.md) has targets, losses and answers.\n"
    for name, task in TASKS.items():
        yield f"### {name}\n"
        figures = prose(task).partition("\n\n")[2]
        yield f"{figures}\n" if figures else ""
        yield table(task, ["name"])


def _data() -> Iterator[str]:
    yield "## data\n"
    yield "Keys of all data sets:\n"
    yield table(Source)
    sources: dict[str, type[Source]] = {**SOURCES, "module:function": UserSource}
    yield from _each(sources, leave_out=Source.model_fields, shared="data sets")


def _partitions() -> Iterator[str]:
    yield "## partition\n"
    yield "`partition: {kind: ...}` under `data`.\n"
    yield from _each(PARTITIONS, leave_out=["kind"])
    yield "### drift\n"
    yield f"`drift: [...]` under `data`. {prose(Drift)}\n"
    yield table(Drift)


def _peer() -> Iterator[str]:
    yield "## A peer's file\n"
    yield f"{prose(PeerConfig)}\n"
    yield table(PeerConfig)
    yield "### tls\n"
    yield f"{prose(TLS)}\n"
    yield table(TLS)
