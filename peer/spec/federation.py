"""federation.yaml: what all peers of a federation agree on, compared key by key in every handshake.

`Spec` has every key with its meaning; peer/spec/checks.py refuses what does not go together.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_serializer, model_validator

from peer.learning.model.settings import ModelSettings
from peer.learning.tasks import Classification
from peer.learning.training.phase import Phase, Training
from peer.protocols.base import Init
from peer.protocols.declarations import Declarations, Record
from peer.settings import Settings
from peer.spec.agreement import Agreement, user_code
from peer.spec.blocks import (
    AnyBehaviour,
    AnyProtocol,
    AnySource,
    AnyTask,
    FineTune,
    Float32,
    Id,
    Machine,
    Member,
    Port,
    StopEarly,
    TrackerName,
    Wire,
    ports_of,
)
from peer.spec.checks import problems
from peer.spec.document import dump_yaml

MAX_PEERS = 10_000
FIGURE = Record("stop_early")
"""What each peer tells all others of an evaluation, where they may stop early."""
MEANS, VARIANCES = "column means", "column variances"
"""What goes into a mean over all peers before round 1, with `standardize: federation`."""
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
    """Simulated adversaries by id: `{peer3: {kind: noise, scale: 0.1}}`. For experiments; all peers know of them."""
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
    """What a peer does when a neighbour is gone: wait without end; stop after `patience`; or, after `absence`, continue
    without it and admit it again when it is back. See [views.md](views.md)."""
    absence: Annotated[float, Field(ge=3, le=1e7)] = 30.0
    """Seconds of silence after which a peer counts as lost with `on_loss: bypass`."""
    start_with: Annotated[int, Field(ge=2)] | None = None
    """How many peers are enough to begin with `on_loss: bypass`, more than half of all: a peer that has not come after
    `absence` may join later. Not given: all."""
    faulty_members: Annotated[int, Field(ge=0)] | None = None
    """How many members may lie about the membership, with `on_loss: bypass`, without effect: a stolen
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
    can decide on the membership. See [views.md](views.md#without-certificates)."""
    trace: bool = False
    """Write every round's shared vectors to <id>/trace/ so that anyone can recompute the blends."""
    metrics: Port | None = None
    """host:port, or a port of 127.0.0.1, at which Prometheus reads the figures of the ring's first peer; the second one
    has the next port, and so on. Not given: only peers whose own file has it. See [monitoring.md](monitoring.md)."""
    tensorboard: bool = False
    """Write every round's figures to <id>/tensorboard/ for TensorBoard."""
    tracker: TrackerName | None = None
    """`module:name` of your own function or class that receives every event of each peer. See
    [monitoring.md](monitoring.md#your-own-tracker)."""
    code: Path | None = None
    """Directory from which `module:Name` is imported. Not given: the one that holds this file."""
    machines: dict[Id, Machine] | None = None
    """`cores` and `memory` of the peers' machines by id, for protocols with `resources: pinned`; a peer's own file may
    have another `machine`."""
    recording: Path | None = None
    """Directory of an earlier run. For protocols with `resources: replay`, each peer finds there in <id>/events.jsonl
    what its resources were in each round; with `views: replay`, in <id>/views.json the members from each round
    on. Every peer may have it elsewhere."""
    ring: Annotated[tuple[Member, ...], Field(min_length=1, max_length=MAX_PEERS)]
    """The peers in ring order. With `--peers N` it may be left out: peer0 ... peerN-1 on loopback."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        for problem in problems(self):
            raise ValueError(problem)
        return self

    @field_serializer("code")
    def _code(self, code: Path | None) -> str | None:
        return str(code) if code else None

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(member.id for member in self.ring)

    @property
    def dial_out(self) -> tuple[str, ...]:
        """The peers that only dial out."""
        return tuple(member.id for member in self.ring if member.dials_out)

    @property
    def addresses(self) -> dict[str, str | None]:
        """host:port by id; None for a peer that only dials out."""
        return {member.id: member.address for member in self.ring}

    @property
    def metrics_addresses(self) -> dict[str, str]:
        """Where Prometheus reads each peer's figures, by id; empty without `metrics`."""
        return ports_of(self.metrics, self.ids) if self.metrics else {}

    def tolerated(self, certificates: bool) -> int:
        """f: how many members may lie about the membership."""
        return self.faulty_members if self.faulty_members is not None else int(certificates and len(self.ring) > 3)

    def declarations(self) -> Declarations:
        """Return all that may leave a peer: what the protocol declares, and each peer's figure for `stop_early`."""
        declared = self.protocol.declarations(self.rounds)
        if self.stop_early is None:
            return declared
        return Declarations(self.protocol.name, declared.shares, (*declared.records, FIGURE))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The training of a round, and that after the last one."""
        return (*self.protocol.local(), *([self.finetune.phase()] if self.finetune else []))

    @property
    def own_code(self) -> list[str]:
        """Every `module:Name` in it: user code."""
        return user_code(self.model_dump(mode="json"))

    @property
    def computing_code(self) -> list[str]:
        """The same without a tracker, which receives events and has no influence on what a peer sends."""
        return user_code(self.model_dump(mode="json", exclude={"tracker"}))

    def evaluates(self, round: int) -> bool:
        """Whether peers evaluate their models after that round."""
        return round == self.rounds or self._is_nth(round)

    def may_end_after(self, round: int) -> bool:
        """Whether peers exchange their figures then, to end early. It does not depend on the number of rounds: a peer
        that replays the last one after the run was extended must send what it sent before."""
        return self.stop_early is not None and self._is_nth(round)

    def _is_nth(self, round: int) -> bool:
        return round % (self.evaluate_every or 1) == 0

    @property
    def agreement(self) -> Agreement:
        """What peers must agree on."""
        return Agreement.from_plain(self.model_dump(mode="json"))

    @property
    def link_agreement(self) -> Agreement:
        """The same for the two ends of a link. Which peers only dial out may change from one start of a run to the
        next."""
        more = {"dials_out": [*self.dial_out]} if self.dial_out else {}
        return Agreement({**self.agreement.content, **more})

    def dump(self) -> str:
        """The resolved spec as YAML."""
        content = self.model_dump(mode="json", exclude_none=True)
        for entry, member in zip(content["ring"], self.ring, strict=True):
            if member.data:  # whole: what is missing would be as in the federation's `data`
                entry["data"] = member.data.model_dump(mode="json")
        return dump_yaml(content)
