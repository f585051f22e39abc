"""federation.yaml: what all peers of a federation agree on, compared key by key in every handshake.

`Spec` has every key with its meaning and refuses what does not go together. What only the model or a peer's data can
tell, once they are loaded, is checked at the end of this file.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_serializer, model_validator

from peer.errors import InputError, suggest
from peer.learning.data.partition import PARTITIONS
from peer.learning.model.model import Model
from peer.learning.model.settings import ModelSettings
from peer.learning.tasks import Classification
from peer.learning.training.phase import Phase, Training
from peer.protocols.base import Init
from peer.protocols.declarations import Declarations, Record
from peer.protocols.registry import suited
from peer.settings import Settings
from peer.spec.agreement import agreed, digests, lasting_digest, sha256, user_code
from peer.spec.blocks import (
    AnyBehaviour,
    AnyProtocol,
    AnySource,
    AnyTask,
    FineTune,
    Float32,
    Id,
    LabelFlip,
    Machine,
    Member,
    Port,
    StopEarly,
    TrackerName,
    Wire,
    ports_of,
    why_no_ports,
)
from peer.spec.checks import against_bypass, against_replay, check_declared, why_no_transforms
from peer.spec.document import dump_yaml
from peer.topology import unreachable_pair, unreachable_pair_problem

MAX_PEERS = 10_000
FIGURE = Record("stop_early")
"""What each peer tells all others of an evaluation, where they may stop early."""
MEANS, VARIANCES = "column means", "column variances"
"""What goes into a mean over all peers before round 1, with `standardize: federation`."""
BLIND = [kind for kind, partition in PARTITIONS.items() if not partition.by_label]
"""Splits that do not look at classes."""
Test = Literal["matched", "global", "paper"]


class Spec(Settings):
    """federation.yaml: what all peers agree on. It is compared in every handshake."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=100)] = "federation"
    """Names the federation and its directory under runs/."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Initial weights, batch order and shared draws derive from it; splits from `data.seed`."""
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Communication rounds."""
    protocol: AnyProtocol
    """`name` and the protocol's hyperparameters."""
    model: ModelSettings = ModelSettings()
    """`name` of the model, and how it is divided, frozen and begun."""
    task: AnyTask = Classification()
    """What is learnt, and how it is judged: `name` of the task."""
    data: AnySource
    """`name` of the data set, where it lies and how it is split. With `{id}` in its path each peer has its own: the id
    stands there."""
    init: Init = Field(default_factory=lambda earlier: earlier["protocol"].init)
    """Whether all peers start from the same weights. Not given: as the protocol's paper has it."""
    wire: Wire = Float32()
    """How vectors travel: `float32` as they are; `bfloat16` in half the bytes; `{kind: top-k, share: 0.1}` only the
    values that changed most. What is left out is made up for later. See [wire.md](wire.md#fewer-bytes)."""
    training: Training = Field(default_factory=Training)
    """Optimiser, scheduler, precision and more of each peer's local training. Not given: as the protocol has it."""
    behaviour: dict[Id, AnyBehaviour] = Field(default_factory=dict)
    """Who misbehaves, by id, and how: `{peer3: {kind: noise, scale: 0.1}}`. For experiments; everybody is told."""
    evaluate_every: Annotated[int, Field(ge=1)] | None = None
    """Every how many rounds a peer evaluates its model; after the last round it always does. Rounds in between have no
    figures. Not given: in every round."""
    hold_back: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of each peer's own training samples that it does not train on, drawn by `data.seed`. What its model is
    worth on them goes into the `validation` figures, and the model of the round in which the task's headline figure
    was best is kept beside the last one, as `model.best.safetensors`. Data that drift are split anew, and begin that
    anew. Not given: none."""
    stop_early: StopEarly | None = None
    """Ends all peers after the same round once they learn no more, by figures on the samples of `hold_back`:
    `{patience: 3, min_rounds: 5, margin: 0.001}`. Not given: all `rounds` are run."""
    finetune: FineTune | None = None
    """What each peer trains for itself after the last round, `{epochs: 3, part: head, lr: 0.01}`: its
    `model.safetensors` and figures are then of that. Not given: nothing."""
    test: Test | None = Field(default_factory=lambda earlier: "matched" if earlier["task"].has_classes else None)
    """The accuracy that tables and summaries quote where the task has classes: on a test set with each peer's own class
    mix, on the whole test set, or on the test split of the papers, which is drawn independently of the training
    split."""
    on_loss: Literal["wait", "stop", "bypass"] = "wait"
    """What a peer does when a neighbour is gone: wait for ever; stop after `patience`; or, after `absence`, go on
    without it and take it in again when it is back. See [views.md](views.md)."""
    absence: Annotated[float, Field(ge=3, le=1e7)] = 30.0
    """Seconds of silence after which a peer counts as lost with `on_loss: bypass`."""
    start_with: Annotated[int, Field(ge=2)] | None = None
    """How many peers are enough to begin with `on_loss: bypass`, more than half of all: who has not come after
    `absence` may come later. Not given: all."""
    faulty_members: Annotated[int, Field(ge=0)] | None = None
    """How many members may lie about who is one, with `on_loss: bypass`, and change nothing by it: a stolen
    certificate, a modified peer. f of them take certificates, and 3f + 1 members. Not given: 1 from four members on
    where there are certificates, else 0. See [views.md](views.md#members-that-lie)."""
    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=100)] | None = None
    """Which run this is, of several with the same settings and certificates: what members sign in one counts in that
    one only. `dfl-launch run` draws it with `on_loss: bypass`; for peers that you start by hand write another for each.
    See [views.md](views.md#members-that-lie)."""
    views: Literal["replay"] | None = None
    """`replay` takes all views from the run in `recording`, which ends in the same bits. Not given: they are decided as
    members are lost and return. See [views.md](views.md#the-same-once-more)."""
    on_stop: Literal["stop", "leave"] = "stop"
    """What a peer does when it is sent SIGTERM: stop at once; or, with `on_loss: bypass`, have the others go on without
    it first, so that none of them waits for it."""
    patience: Annotated[float, Field(gt=0, le=1e7)] = 60.0
    """Seconds: how long to wait for neighbours at the start and at the end (and while running with `on_loss: stop`)."""
    plaintext: bool | Literal["trusted"] = False
    """`true` allows connections without certificates between machines; on loopback they are always allowed. With
    `on_loss: bypass` it takes `trusted`: without certificates nothing is signed, so any process that reaches the ports
    can decide who is a member. See [views.md](views.md#without-certificates)."""
    trace: bool = False
    """Write every round's shared vectors to <id>/trace/ so that anyone can recompute the blends."""
    metrics: Port | None = None
    """host:port, or a port of 127.0.0.1, at which Prometheus reads the figures of the ring's first peer; the second one
    has the next port, and so on. Not given: only peers whose own file has it. See [monitoring.md](monitoring.md)."""
    tensorboard: bool = False
    """Write every round's figures to <id>/tensorboard/ for TensorBoard."""
    tracker: TrackerName | None = None
    """`module:name` of a function or class of your own that is told every event of each peer. See
    [monitoring.md](monitoring.md#your-own-tracker)."""
    code: Path | None = None
    """Directory from which `module:Name` is imported. Not given: the one that holds this file."""
    machines: dict[Id, Machine] | None = None
    """`cores` and `memory` of the peers' machines by id, for protocols with `resources: pinned`; a peer's own file may
    have another `machine`."""
    recording: Path | None = None
    """Directory of an earlier run. For protocols with `resources: replay`, each peer finds there in <id>/events.jsonl
    what its resources were in each round; with `views: replay`, in <id>/views.json who was a member from which round
    on. Every peer may have it elsewhere."""
    ring: Annotated[tuple[Member, ...], Field(min_length=1, max_length=MAX_PEERS)]
    """The peers in ring order. With `--peers N` it may be left out: peer0 ... peerN-1 on loopback."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for what in ("id", "address"):
            values = [value for member in self.ring if (value := getattr(member, what))]
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice:
                raise ValueError(f"two peers of the ring have the {what} `{twice}`; give each its own")
        if strangers := sorted({*(self.machines or {})} - {*self.ids}):
            raise ValueError(
                f"`machines` has `{strangers[0]}`, which is not in the ring; {suggest(strangers[0], self.ids)}"
            )
        if "federation" in self.ids:
            raise ValueError(
                "a peer cannot have the id `federation`: its config would be written over federation.yaml; rename it"
            )
        if strangers := [id for id in self.behaviour if id not in self.ids]:
            hint = suggest(strangers[0], self.ids)
            raise ValueError(f"`behaviour` names `{strangers[0]}`, which is not in the ring; {hint}")
        return self

    @model_validator(mode="after")
    def _declares(self) -> Self:
        """What else is set goes with what the protocol says of itself."""
        check_declared(self.protocol, self.rounds)
        least = self.protocol.min_peers
        if len(self.ring) < least:
            raise ValueError(
                f"`{self.protocol.name}` needs at least {least} peers and the ring has {len(self.ring)}; add peers, or "
                f"choose a protocol that goes with fewer: {suited(self.task, len(self.ring))}"
            )
        # Where the ring is put in another order, any two may become neighbours.
        around = "complete" if self.protocol.reorders else self.protocol.graph
        if pair := unreachable_pair(around, self.ids, self.dial_out):
            raise ValueError(unreachable_pair_problem(pair))
        try:
            self.declarations()
        except ValueError as error:
            raise ValueError(f"`{self.protocol.name}`: {error}") from None
        if self.protocol.exact and self.wire.kind != "float32":
            raise ValueError(
                f"`{self.protocol.name}` needs its vectors as they are, and `wire` is {self.wire.kind}; leave out "
                "`wire` or write float32"
            )
        if (self.training.optimiser or self.training.scheduler) and (why := self.protocol.why_optimiser_is_fixed()):
            key = "optimiser" if self.training.optimiser else "scheduler"
            raise ValueError(
                f"`{self.protocol.name}` cannot train with another {key}: {why}; leave out `training.{key}`"
            )
        if (own := self.training.changes_gradient) and (why := self.protocol.why_steps_are_fixed()):
            raise ValueError(f"`{self.protocol.name}` cannot train by `training.{own}`: {why}; leave it out")
        if self.data.names_peers and (self.data.validation or self.data.partition.kind != "iid"):
            wrong = "`validation`" if self.data.validation else "a `partition`"
            raise ValueError(f"`data` with `{{id}}` in its path is each peer's own, so {wrong} cannot be; leave it out")
        for data in (self.data, *(member.data for member in self.ring if member.data)):
            if changed := why_no_transforms(self.protocol, data):
                raise ValueError(changed)
        if why := self._why_none_together():
            raise ValueError(f"`standardize: federation` cannot be: {why}; write `own`, or leave it out")
        if self.data.drift and (why := self.protocol.why_data_are_fixed()):
            raise ValueError(f"`{self.protocol.name}` cannot follow data that drift: {why}; leave out `drift`")
        return self

    def _why_none_together(self) -> str | None:
        """Why peers cannot standardise together; None if they can, or need not."""
        if self.data.standardize != "federation":
            return None
        if self.protocol.graph == "none" and len(self.ring) > 1:
            return f"the peers of `{self.protocol.name}` are not connected"
        return self.protocol.why_figures_stay() and f"of `{self.protocol.name}` nothing may leave without noise"

    @model_validator(mode="after")
    def _suits_the_task(self) -> Self:
        """What goes by classes is refused where the task has none."""
        if lacking := self.protocol.lacks(self.task):
            own = "give it `kinds` and `mix`, or " if ":" in self.task.name and lacking != "classes" else ""
            raise ValueError(
                f"`{self.protocol.name}` goes by {lacking}, and the task `{self.task.name}` has none; {own}choose a "
                f"protocol that does not: {suited(self.task, len(self.ring))}"
            )
        if not self.task.has_classes and (found := next(self._by_classes(), None)):
            what, way_out = found
            raise ValueError(f"{what} by classes, and the task `{self.task.name}` has none; {way_out}")
        return self

    def _by_classes(self) -> Iterator[tuple[str, str]]:
        """What in these settings goes by classes, and the way out."""
        if self.test:
            yield f"`test: {self.test}` goes", "leave out `test`"
        for stage in self.data.stages:
            if stage.labels:
                yield "`labels` of a `drift` go", "leave them out"
            if stage.partition.by_label:
                yield f"the {stage.partition.kind} split goes", f"choose one of {', '.join(BLIND)}"
        for id, behaviour in self.behaviour.items():
            if isinstance(behaviour, LabelFlip):
                yield f"`{behaviour.kind}` of `{id}` goes", "choose another behaviour"

    @model_validator(mode="after")
    def _goes_by_what_is_given(self) -> Self:
        """What would be ignored is refused."""
        for key, source in (("machines", "pinned"), ("recording", "replay")):
            if key == "recording" and self.views == "replay":
                continue
            if getattr(self, key) is not None and self.protocol.resources_from != source:
                choice = "resources" in type(self.protocol).model_fields
                other = f"write `resources: {source}` into `protocol`, or " if choice else ""
                raise ValueError(f"`{self.protocol.name}` does not go by `{key}` as it is set; {other}leave it out")
        return self

    @model_validator(mode="after")
    def _can_stop_early(self) -> Self:
        if self.training.patience and self.hold_back is None:
            raise ValueError("`training.patience` goes by samples that nobody trains on; add `hold_back: 0.1`, say")
        if self.stop_early is None:
            return self
        if self.hold_back is None:
            raise ValueError("`stop_early` goes by samples that nobody trains on; add `hold_back: 0.1`, say")
        if self.protocol.graph == "none" and len(self.ring) > 1:
            raise ValueError(
                f"the peers of `{self.protocol.name}` are not connected and could not end together; leave out "
                "`stop_early`"
            )
        if why := self.protocol.why_figures_stay():
            raise ValueError(f"`{self.protocol.name}` cannot stop early: {why}; leave out `stop_early`")
        return self

    @model_validator(mode="after")
    def _can_go_on_without_some(self) -> Self:
        if self.on_loss == "bypass" and (obstacle := next(against_bypass(self), None)):
            why, way_out = obstacle
            raise ValueError(f"`on_loss: bypass` cannot be: {why}; {way_out}, or write `on_loss: wait`")
        if self.faulty_members and self.on_loss != "bypass":
            raise ValueError("`faulty_members` goes with `on_loss: bypass`; write that, or leave `faulty_members` out")
        if self.faulty_members and len(self.ring) < (least := 3 * self.faulty_members + 1):
            raise ValueError(
                f"`faulty_members: {self.faulty_members}` takes {least} peers, so that the others can outvote them, "
                f"and the ring has {len(self.ring)}; add peers, or write less"
            )
        if self.on_loss != "bypass" and self.start_with is not None:
            raise ValueError("`start_with` goes with `on_loss: bypass`; write that, or leave `start_with` out")
        if self.views == "replay" and (obstacle := next(against_replay(self), None)):
            why, way_out = obstacle
            raise ValueError(f"`views: replay` cannot be: {why}; {way_out}, or leave `views` out")
        if self.on_loss != "bypass" and self.on_stop == "leave":
            raise ValueError("`on_stop: leave` goes with `on_loss: bypass`; write that, or leave `on_stop` out")
        return self

    @model_validator(mode="after")
    def _has_ports_for_metrics(self) -> Self:
        if self.metrics and (why := why_no_ports(self.metrics, self.addresses)):
            raise ValueError(why)
        return self

    @model_validator(mode="after")
    def _rounds_once(self) -> Self:
        dtype, precision = self.model.dtype, self.training.precision
        if {dtype, precision} == {"bfloat16", "float16"}:
            raise ValueError(
                f"`training.precision` is {precision} and `model.dtype` {dtype}, which do not mix; write the same in "
                "both, or leave one of them out"
            )
        return self

    @field_serializer("code")
    def _code(self, code: Path | None) -> str | None:
        return str(code) if code else None

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(member.id for member in self.ring)

    @property
    def dial_out(self) -> tuple[str, ...]:
        """Whom nobody can dial."""
        return tuple(member.id for member in self.ring if member.dials_out)

    @property
    def addresses(self) -> dict[str, str | None]:
        """Where each is dialled, by id."""
        return {member.id: member.address for member in self.ring}

    @property
    def metrics_addresses(self) -> dict[str, str]:
        """Where Prometheus reads each peer's figures, by id; empty without `metrics`."""
        return ports_of(self.metrics, self.ids) if self.metrics else {}

    @property
    def allows_plaintext(self) -> bool:
        """Whether peers may speak between machines without certificates."""
        return self.plaintext == "trusted" or (self.plaintext and self.on_loss != "bypass")

    @property
    def to_allow_plaintext(self) -> str:
        """What to write into the spec for that."""
        if self.on_loss == "bypass":
            return "`plaintext: trusted` into the spec if you trust every process that reaches the ports"
        return "`plaintext: true` into the spec"

    def in_plaintext(self) -> Self:
        """The same, allowed to go without certificates: in a network of its own, which no other process reaches."""
        allowed = "trusted" if self.on_loss == "bypass" else True
        return self if self.allows_plaintext else self.model_copy(update={"plaintext": allowed})

    def tolerated(self, certificates: bool) -> int:
        """f: how many members may lie about who is one."""
        return self.faulty_members if self.faulty_members is not None else int(certificates and len(self.ring) > 3)

    def declarations(self) -> Declarations:
        """All that may leave a peer: what the protocol declares, and each peer's figure for `stop_early`."""
        declared = self.protocol.declarations(self.rounds)
        if self.stop_early is None:
            return declared
        return Declarations(self.protocol.name, declared.shares, (*declared.records, FIGURE))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What is trained: in a round, and after the last."""
        return (*self.protocol.local(), *([self.finetune.phase()] if self.finetune else []))

    @property
    def own_code(self) -> list[str]:
        """Every `module:Name` in it."""
        return user_code(self.model_dump(mode="json"))

    @property
    def computing_code(self) -> list[str]:
        """The same without a tracker, which is told of events and has no say in what a peer sends."""
        return user_code(self.model_dump(mode="json", exclude={"tracker"}))

    def evaluates(self, round: int) -> bool:
        """Whether peers evaluate their models after that round."""
        return round == self.rounds or self._is_nth(round)

    def may_end_after(self, round: int) -> bool:
        """Whether peers tell each other their figures then, to end early. It does not go by how many rounds there are:
        a peer that repeats the last one after the run was given more must tell what the others were told."""
        return self.stop_early is not None and self._is_nth(round)

    def _is_nth(self, round: int) -> bool:
        return round % (self.evaluate_every or 1) == 0

    def agreement(self) -> dict[str, Any]:
        """What the two ends of a link must agree on. Who dials may change from one start of a run to the next."""
        return self.canonical() | ({"dials_out": [*self.dial_out]} if self.dial_out else {})

    def canonical(self) -> dict[str, Any]:
        """What peers must agree on, as plain JSON."""
        return agreed(self.model_dump(mode="json"))

    def digests(self) -> dict[str, str]:
        """sha256 of every key's canonical JSON, so that a refusal can name the keys that differ."""
        return digests(self.canonical())

    @property
    def lasting_digest(self) -> str:
        """Of what stays the same as long as a run lasts, however it is gone on with or replayed: what members sign is
        about this federation."""
        return lasting_digest(self.digests())

    def digest(self) -> str:
        return sha256(self.canonical())

    def obstacle(self, digests: Mapping[str, str], rounds: int) -> str | None:
        """Why this spec cannot go on with a run of those digests and rounds; None if it can.

        More rounds than before are possible where the protocol's course does not depend on their number.
        """
        ours = self.digests()
        keys = sorted(key for key in digests.keys() | ours.keys() if digests.get(key) != ours.get(key))
        return self.why_not(keys, rounds)

    def why_not(self, differing: Sequence[str], rounds: int) -> str | None:
        """Why this spec cannot go on with a run of so many rounds that differs in these keys; None if it can."""
        # What a peer trains for itself in the end changes nothing that came before.
        differing = [key for key in differing if key != "finetune"]
        if not differing:
            return None
        if [*differing] != ["rounds"] or self.rounds < rounds:
            return f"it differs in {', '.join(f'`{key}`' for key in differing)}"
        why = self.protocol.why_rounds_are_fixed()
        return why and f"`{self.protocol.name}` cannot be given more rounds: {why}"

    def dump(self) -> str:
        """The resolved spec as YAML."""
        content = self.model_dump(mode="json", exclude_none=True)
        for entry, member in zip(content["ring"], self.ring, strict=True):
            if member.data:  # whole: what is missing would be as in the federation's `data`
                entry["data"] = member.data.model_dump(mode="json")
        return dump_yaml(content)


def check_learnt(spec: Spec, model: Model) -> None:
    """InputError with the way out where the part that a phase trains holds nothing that is learnt."""
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


def check_mix(spec: Spec, mix: NDArray[np.float64], id: str) -> None:
    """InputError with the way out where a protocol goes by a peer's mix of targets and it is not known, (0,)."""
    if not len(mix) and any(record.size == "kinds" for record in spec.protocol.records):
        instead = suited(spec.task, len(spec.ids))
        raise InputError(
            f"`{spec.protocol.name}` goes by each peer's mix of targets, and that of {id} is not known: data of its "
            "own take `task: {name: regression, edges: [...]}`, and of a torch data set no targets are read before; "
            f"give these, or choose a protocol that does not go by it, such as {instead}"
        )
