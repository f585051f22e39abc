"""federation.yaml: what all peers of a federation agree on, compared key by key in every handshake.

`Spec` has every key with its meaning; peer/spec/checks.py refuses what does not go together.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from peer.learning.model.settings import ModelSettings
from peer.learning.tasks import Classification, Task
from peer.learning.training.phase import Phase, Training
from peer.protocols.base import Init
from peer.protocols.declarations import Declarations, Record
from peer.settings import Settings, Wanted
from peer.spec.agreement import Agreement, user_code
from peer.spec.blocks import (
    AnyBehaviour,
    AnyProtocol,
    AnyRewind,
    AnySource,
    AnyTask,
    FinalEvaluation,
    FineTune,
    Float32,
    Id,
    Keep,
    Machine,
    Member,
    Port,
    StopEarly,
    TrackerName,
    Wire,
    ports_of,
)
from peer.spec.checks import problems, why_columns_stay
from peer.spec.document import dump_yaml
from peer.topology import neighbours
from peer.versions import SPEC, release
from peer.views.view import View

MAX_PEERS = 10_000
FIGURE = Record("stop_early")
"""What each peer tells all others of an evaluation, where they may stop early."""
IMPUTED, MEANS, VARIANCES = "column imputation", "column means", "column variances"
"""What may go into a mean over all peers before round 1, with `impute` and `standardize: federation`."""
Test = Literal["matched", "global", "paper"]


def _readable(format: int) -> int:
    if not SPEC.understands(format):
        raise ValueError(f"this file is of format {format}, and dfl {release()} reads {SPEC.span}; upgrade dfl")
    return format


def _block_if_true(given: Any) -> Any:
    return {True: {}, False: None}[given] if isinstance(given, bool) else given


def _test_of(task: Task) -> Test | None:
    return "matched" if task.has_classes and task.headline.name == "accuracy" else None


class Spec(Settings):
    """What all peers agree on."""

    format: Annotated[int, Field(ge=1), AfterValidator(_readable)] = SPEC.writes
    """This file's [format](upgrading.md#formats)."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=100)] = "federation"
    """The federation, and its directory under runs/."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """For initial weights, batch order and shared draws; splits use `data.seed`."""
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Communication rounds."""
    protocol: AnyProtocol
    """`name` and hyperparameters."""
    model: ModelSettings = ModelSettings()
    """Name, head, frozen parameters, weights."""
    task: AnyTask = Classification()
    """Loss and figures."""
    data: AnySource
    """`name` of the data set, place and split. `{id}` in a path gives each peer its own."""
    init: Init = Field(default_factory=lambda earlier: earlier["protocol"].init)
    """Whether peers start from the same weights."""
    wire: Wire = Float32()
    """Encoding of vectors."""
    training: Training = Field(default_factory=Training)
    """Optimiser, scheduler, precision and more."""
    behaviour: dict[Id, AnyBehaviour] = Field(default_factory=dict)
    """Simulated adversaries by id."""
    evaluate_every: Annotated[int, Field(ge=1)] | None = None
    """Evaluate every so many rounds, and after the last. Default: 1."""
    hold_back: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | Literal["given"] | None,
        Wanted("a share between 0 and 1, such as 0.1, or `given` for validation samples that come with the data"),
    ] = None
    """Share of training samples held back for `validation` figures and the [best
    round](running.md#how-good-the-models-are), or `given`: [those of the data](running.md#data-of-your-own)."""
    stop_early: StopEarly | None = None
    """End all peers once the `hold_back` figures stop improving."""
    finetune: FineTune | None = None
    """Local training after the last round."""
    final_evaluation: Annotated[
        FinalEvaluation | None,
        BeforeValidator(_block_if_true),
        Wanted("`true`, or a block such as {resamples: 1000, predictions: true}"),
    ] = None
    """`true`, or a block: [intervals, figures of each class](running.md#how-sure-a-figure-is), predictions."""
    test: Test | None = Field(default_factory=lambda earlier: _test_of(earlier["task"]))
    """[The accuracy](protocols.md#the-test-split-of-the-papers) quoted in summaries, for tasks judged by accuracy."""
    on_loss: Literal["wait", "stop", "bypass"] = "wait"
    """When a neighbour is lost: wait, stop after `patience`, or [continue without it](views.md) after
    `absence`."""
    keep: Keep | None = None
    """Older checkpoints to keep: `{every: 500, last: 3}`."""
    rewinds: Annotated[tuple[AnyRewind, ...], Field(min_length=1)] | None = None
    """Rounds to which all peers have [gone back](backups.md#go-back-together), in order: `[1500]`."""
    absence: Annotated[float, Field(ge=3, le=1e7)] = 30.0
    """Seconds of silence after which a peer is lost, with `on_loss: bypass`."""
    start_with: Annotated[int, Field(ge=2)] | None = None
    """Peers that suffice to begin with `on_loss: bypass`, more than half. Default: all."""
    faulty_members: Annotated[int, Field(ge=0)] | None = None
    """How many members may [lie about the membership](views.md#members-that-lie), with `on_loss: bypass`: f takes
    certificates and 3f + 1 members. Default: 1 from four members on with certificates, else 0."""
    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=100)] | None = None
    """With `on_loss: bypass`: the run in which signatures count. `dfl-launch run` draws it (see `run.json`); by hand,
    set another per run."""
    views: Literal["replay"] | None = None
    """`replay` takes all views [from the run in `recording`](views.md#the-same-once-more)."""
    on_stop: Literal["stop", "leave"] = "stop"
    """On SIGTERM: stop at once, or, with `on_loss: bypass`, [leave](views.md#when-a-member-leaves)."""
    patience: Annotated[float, Field(gt=0, le=1e7)] = 60.0
    """Seconds to wait for neighbours at the start and the end, and throughout with `on_loss: stop`."""
    plaintext: bool | Literal["trusted"] = False
    """Allow connections without certificates between machines; [with `on_loss: bypass`](views.md#without-certificates)
    `trusted`."""
    trace: bool = False
    """[Write](running.md#checking-a-blend) every round's shared vectors to <id>/trace/."""
    metrics: Port | None = None
    """host:port, or a port of 127.0.0.1, of the first peer for [Prometheus](monitoring.md); then upwards."""
    tensorboard: bool = False
    """Write every round's figures to <id>/tensorboard/."""
    tracker: TrackerName | None = None
    """`module:name` of [your own](monitoring.md#your-own-tracker)."""
    code: Path | None = None
    """Directory of `module:Name` code. Default: this file's."""
    machines: dict[Id, Machine] | None = None
    """For `resources: pinned`."""
    recording: Path | None = None
    """Directory of an earlier run, for `resources: replay` and `views: replay`."""
    ring: Annotated[tuple[Member, ...], Field(min_length=1, max_length=MAX_PEERS)]
    """The peers; `--peers N` makes peer0 ... peerN-1 on loopback."""

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        for problem in problems(self):
            raise ValueError(problem)
        return self

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
    def found_together(self) -> tuple[str, ...]:
        """The vectors of what is found of columns, of which all peers take means before round 1."""
        standardize = self.data.standardize
        imputes = self.data.impute and standardize != "own" and not why_columns_stay(self)
        return ((IMPUTED,) if imputes else ()) + ((MEANS, VARIANCES) if standardize == "federation" else ())

    def neighbours(self, id: str) -> tuple[str, ...]:
        """The peers with which that peer has edges at the start, in either direction."""
        return neighbours(self.protocol.graph, self.ids, id)

    def partners(self, id: str) -> tuple[str, ...]:
        """The peers with which that peer may ever speak: all others where the ring or its members may change."""
        changes = self.protocol.reorders or self.on_loss == "bypass"
        return neighbours("complete" if changes else self.protocol.graph, self.ids, id)

    @property
    def plain_rewinds(self) -> list[Any] | None:
        """`rewinds` as plain JSON."""
        plain: list[Any] | None = self.model_dump(mode="json", include={"rewinds"})["rewinds"]
        return plain

    @property
    def rewound_rounds(self) -> tuple[int, ...]:
        """The rounds to which all peers have gone back, in order."""
        return tuple(one.round for one in self.rewinds or ())

    @property
    def rewind_views(self) -> tuple[View, ...]:
        """The views in which they go on where the members had changed: a later entry replaces earlier ones of its
        number or later, and a rewind to before the first change begins the views anew."""
        found = list[View]()
        for one in self.rewinds or ():
            view = one.as_view(self.ids)
            found = [*(earlier for earlier in found if earlier.number < view.number), view] if view else []
        return (*found,)

    @property
    def metrics_addresses(self) -> dict[str, str]:
        """The addresses of the peers' figures for Prometheus, by id; empty without `metrics`."""
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
        """Every `module:Name` in the spec: user code."""
        return user_code(self.model_dump(mode="json"))

    @property
    def computing_code(self) -> list[str]:
        """All user code except a tracker, which receives events and has no influence on what a peer sends."""
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
        """What the two ends of a link must agree on: also which peers only dial out, which may change from one start of
        a run to the next."""
        more = {"dials_out": [*self.dial_out]} if self.dial_out else {}
        return Agreement({**self.agreement.content, **more})

    def dump(self) -> str:
        """The resolved spec as YAML."""
        content = self.model_dump(mode="json", exclude_none=True)
        for entry, member in zip(content["ring"], self.ring, strict=True):
            if member.data:  # whole: what is missing would be as in the federation's `data`
                entry["data"] = member.data.model_dump(mode="json")
        return dump_yaml(content)
