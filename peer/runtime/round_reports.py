"""What a round has come to, and the run: evaluated, decided on, and told.

`Evaluator` finds what a peer's model is worth after a round, and what follows from it: the best one is kept, and all
may end. All of it replays: a round that is run again ends in the same figures, files and decision. Whether a run goes
on is a pure function of figures that all peers know (`EarlyStopping`), so that all decide alike, in a replay too. What
a checkpoint has of it, this peer's best round and whether the run is over, is `RunProgress`.

Then what a peer tells: in its first event, of a round when it is over, to a Status request, and of all rounds in the
end. The end of a run at one peer is `Finish`: the model as it is, fine-tuned if it shall be, and the result. A peer
that has fine-tuned and is started once more finds that model and its result whole, and takes them as they are.
"""

import asyncio
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from peer.errors import DivergedError, FailedError, InputError
from peer.learning.data.drift import stage_of
from peer.learning.device import memory_errors
from peer.learning.export import save_model
from peer.learning.model.model import Model
from peer.learning.model.weights import open_weights
from peer.learning.named_tensors import content_sha256
from peer.learning.training.evaluation import Evaluation, evaluate, measure
from peer.learning.training.phase import Phase
from peer.network.network import Network
from peer.network.streams.stream import Traffic
from peer.network.wire.messages import Resources, StatusReply
from peer.runtime.local_peer import LocalPeer
from peer.runtime.setup import Setup
from peer.spec.blocks import StopEarly
from peer.spec.federation import FIGURE, Spec
from peer.tasks import in_thread
from peer.telemetry.events import (
    SCHEMA,
    BytesPassed,
    FineTuned,
    Note,
    Report,
    RoundDone,
    Shortage,
    Started,
    StoppedEarly,
    Waiting,
    bounded,
)
from peer.telemetry.results import (
    BEST_MODEL,
    MODEL,
    Best,
    EarlierProcesses,
    ModelFigures,
    Result,
    history,
    read_result,
    write_result,
)

Better = Literal["up", "down"]
WORST_FIGURE = 1e300
"""Of a figure that is better when it is lower: stands for what is no finite number."""


@dataclass(frozen=True)
class EarlyStopping:
    """How far a federation has come, by the mean of everybody's figure."""

    best: float | None = None
    """The best mean so far; None before the first."""
    round: int = 0
    """That of the best mean."""
    waited: int = 0
    """Evaluations since then."""

    def after(self, round: int, figures: Sequence[float], better: Better, margin: float) -> "EarlyStopping":
        """With everybody's figure after `round`, in the order of the spec: finite numbers, one at least."""
        mean = sum(figure / len(figures) for figure in figures)
        if self.best is None or gain(mean, self.best, better) > margin:
            return EarlyStopping(mean, round, 0)
        return EarlyStopping(self.best, self.round, self.waited + 1)

    def since(self, first: int) -> "EarlyStopping":
        """Of the rounds from `first` on: there the data are others, and figures from before say nothing of them."""
        return self if self.round >= first else EarlyStopping()

    def is_over(self, round: int, rule: StopEarly) -> bool:
        """Whether the run ends after `round`."""
        return self.waited >= rule.patience and round >= rule.min_rounds


def gain(figure: float, before: float, better: Better) -> float:
    """By how much a figure is better than another; below 0 where it is worse."""
    return figure - before if better == "up" else before - figure


def figure_to_send(figure: float, better: Better) -> float:
    """A figure as it may leave a peer: in place of one that is no finite number, the worst there is."""
    if math.isfinite(figure):
        return figure
    return -WORST_FIGURE if better == "up" else WORST_FIGURE


class RunProgress:
    """By the figures on samples that are held back."""

    def __init__(self, better: Better) -> None:
        self._better: Better = better
        self.best: Best | None = None
        """The round with the best figure of this peer's own; of equal ones the earliest."""
        self.progress = EarlyStopping()
        """Everybody's."""
        self.over = False
        """Whether the round of this checkpoint is the last by `stop_early`."""

    def is_best(self, figure: float, since: int) -> bool:
        """Whether a round with that figure is the best. since: the first round with the data as they are now."""
        if not isfinite(figure):
            return False
        return self.best is None or self.best.round < since or gain(figure, self.best.figure, self._better) > 0

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON; empty where there is nothing to remember."""
        kept: dict[str, Any] = {"best": asdict(self.best)} if self.best else {}
        if self.progress.best is not None:
            kept |= {"progress": asdict(self.progress), "over": self.over}
        return kept

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.best = Best(**kept["best"]) if "best" in kept else None
        self.progress = EarlyStopping(**kept.get("progress", {}))
        self.over = kept.get("over", False)


def trace_facts(peer: LocalPeer) -> dict[str, object]:
    """What a trace says of its round beside the vectors."""
    return {
        "samples": peer.samples,
        "ring": json.dumps(peer.ring),
        "view": peer.network.identity.view,
        "participated": peer.trained_this_round,
        **peer.noted,
    }


def bounded_figures(figures: Mapping[str, float]) -> dict[str, float | None]:
    """The task's figures, as far as they can be written down."""
    return {name: bounded(value) for name, value in figures.items()}


def model_figures(evaluation: Evaluation | None, validation: Mapping[str, float]) -> ModelFigures:
    """The figures of one model; empty where it was not evaluated."""
    if evaluation is None:
        return ModelFigures(accuracy={})
    return ModelFigures(
        accuracy=evaluation.as_dict(),
        figures=bounded_figures(evaluation.figures),
        balanced=evaluation.balanced,
        test_loss=bounded(evaluation.loss),
        validation=bounded_figures(validation),
    )


def user_figures(peer: LocalPeer, found: ModelFigures) -> dict[str, Note]:
    """What a user's own code puts into the round's event: figures of their task, notes of their protocol."""
    spec = peer.setup.spec
    figures = found.figures if ":" in spec.task.name else {}
    return {**figures, **(peer.noted if ":" in spec.protocol.name else {})}


def round_done(peer: LocalPeer, found: ModelFigures, before: dict[str, float]) -> RoundDone:
    """The event of the present round; `before`: the peer's seconds when it began."""
    traffic, now = peer.network.traffic, asdict(peer.seconds)
    return RoundDone(
        round=peer.round,
        accuracy=found.accuracy,
        figures=found.figures,
        validation=found.validation,
        loss=bounded(peer.loss),
        test_loss=found.test_loss,
        balanced=found.balanced,
        seconds={name: now[name] - before[name] for name in now},
        bytes_sent=traffic.sent.total(),
        bytes_received=traffic.received.total(),
        tensor_bytes_sent=peer.network.audit.tensor_bytes,
        notes=dict(peer.noted),
    )


def bytes_passed(round: int, passed: Traffic) -> BytesPassed:
    return BytesPassed(round=round, sent=dict(passed.sent), received=dict(passed.received))


def started(setup: Setup, earlier: EarlierProcesses) -> Started:
    """The first event of a process in its file."""
    spec, view = setup.spec, setup.view
    return Started(
        schema=SCHEMA,
        version=version("dfl"),
        id=setup.config.id,
        federation=spec.name,
        protocol=spec.protocol.name,
        rounds=spec.rounds,
        restarts=earlier.starts,
        seconds=round(earlier.seconds, 3),
        view=view.number,
        members=view.members,
    )


@dataclass(frozen=True)
class Ending:
    """What a peer has in the end. digest: of its model; past: all rounds; before: its figures before fine-tuning."""

    found: ModelFigures
    digest: str
    past: tuple[RoundDone, ...]
    before: ModelFigures | None
    course: RunProgress


def result(peer: LocalPeer, ending: Ending) -> Result:
    """What the launcher's summary is made of."""
    traffic, ring, spec, found = peer.network.traffic, peer.ring_order, peer.setup.spec, ending.found
    return Result(
        id=peer.id,
        rounds=peer.network.last_round,
        samples=peer.samples,
        accuracy=found.accuracy,
        figures=found.figures,
        balanced=found.balanced,
        test_loss=found.test_loss,
        validation=found.validation,
        best=ending.course.best,
        before_finetuning=ending.before,
        stopped_early=peer.network.last_round < spec.rounds,
        model_sha256=ending.digest,
        bytes_sent=traffic.sent.total(),
        bytes_received=traffic.received.total(),
        tensor_bytes_sent=peer.network.audit.tensor_bytes,
        sent_to=dict(traffic.sent),
        seconds=asdict(peer.seconds),
        ring=ring.order,
        ring_cost={"before": ring.cost_before, "after": ring.cost_after},
        history=ending.past,
        replicated=peer.state.digests(spec.protocol.replicated),
    )


class Evaluator:
    """Of one peer. All of it replays: a round that is run again ends in the same figures, files and decision."""

    def __init__(self, peer: LocalPeer, report: Report) -> None:
        self._peer, self._report, self._spec, self._task = peer, report, peer.setup.spec, peer.setup.shard.task
        self.course = RunProgress(self._task.headline.better)
        self.evaluation: Evaluation | None = None
        """The newest, on the test set."""
        self.validation: Mapping[str, float] = {}
        """The task's figures then on the samples that are held back; empty where none are."""

    async def evaluate(self) -> Evaluation:
        """Find out what the model is worth as it is."""
        began = time.perf_counter()
        found, self.validation = await self._peer.compute(self._measure)
        self._peer.seconds.evaluate += time.perf_counter() - began
        self.evaluation = found
        return found

    async def judge(self) -> ModelFigures:
        """The same, as a round's event and the result have it."""
        return model_figures(await self.evaluate(), self.validation)

    @property
    def judged(self) -> ModelFigures | None:
        """What was found last."""
        return model_figures(self.evaluation, self.validation) if self.evaluation else None

    def _measure(self) -> tuple[Evaluation, Mapping[str, float]]:
        model, shard = self._peer.trained, self._peer.setup.shard
        found = evaluate(model, shard.test, shard.proportions, paper=shard.paper, own=shard.own)
        return found, measure(model, shard.held_back).results() if shard.held_back else {}

    async def keep_best(self, round: int, directory: Path) -> None:
        """Write the model beside the last one if it is the best of all rounds so far, before a checkpoint says so."""
        if not self.validation:
            return
        figure = self.validation[self._task.headline.name]
        if self.course.is_best(figure, self._since(round)):
            model = self._peer.trained
            await in_thread(save_model, model, directory / BEST_MODEL)
            self.course.best = Best(round=round, figure=figure, model_sha256=await asyncio.to_thread(model.sha256))

    async def agree(self, round: int) -> None:
        """Tell everybody how good the model is, and decide with them whether that was the last round."""
        rule = self._spec.stop_early
        if rule is None or not self._spec.may_end_after(round):
            return
        headline, course = self._task.headline, self.course
        figure = figure_to_send(self.validation[headline.name], headline.better)
        told = await self._peer.tell(FIGURE.name, figure)
        course.progress = course.progress.since(self._since(round)).after(round, told, headline.better, rule.margin)
        course.over = course.progress.is_over(round, rule)
        if course.over:
            self._peer.network.set_last_round(round)
        if round < self._spec.rounds and course.over:
            self._report(StoppedEarly(round=round, best_round=course.progress.round, figure=headline.name))

    def _since(self, round: int) -> int:
        """The first round with the data as they are in this one."""
        return stage_of(round, self._spec.data.stages).since


def status_reply(
    network: Network,
    course: RunProgress,
    state: str,
    peer: LocalPeer,
    evaluation: Evaluation | None,
    resources: Resources,
    waiting: Waiting | None,
) -> bytes:
    """Id, state, round, neighbours, figures, bytes and resources, as they are now; for which members it waits."""
    spec, view = peer.setup.spec, peer.setup.view
    return StatusReply(
        id=peer.id,
        federation=spec.name,
        state=state,
        round=peer.round,
        rounds=network.last_round if course.over else spec.rounds,
        neighbours=[
            StatusReply.Neighbour(
                id=neighbour.id,
                address=neighbour.address or "",
                state=neighbour.state,
                reason=neighbour.reason,
                durable=network.durability.of(neighbour.id),
                resources=neighbour.signs.resources,
            )
            for neighbour in network.edges.neighbours.values()
        ],
        accuracy=evaluation.by(spec.test) if evaluation and spec.test else None,
        figure=_headline(evaluation, spec) if evaluation else None,
        bytes_sent=network.traffic.sent.total(),
        bytes_received=network.traffic.received.total(),
        resources=resources,
        view=view.number,
        first=view.first,
        outside=[id for id in spec.ids if id not in view.members],
        shortage=_shortage(waiting, waiting.shortage) if waiting and waiting.shortage else None,
    ).SerializeToString()


def _shortage(waiting: Waiting, short: Shortage) -> StatusReply.Shortage:
    awaited = [
        StatusReply.Shortage.Awaited(id=one.id, address=one.address or "", reason=one.reason) for one in waiting.awaited
    ]
    return StatusReply.Shortage(**vars(short), awaited=awaited)


def _headline(evaluation: Evaluation, spec: Spec) -> float | None:
    return evaluation.by(spec.test) if spec.test else evaluation.figures[spec.task.headline.name]


def take_fine_tuned(model: Model, out: Path, rounds: int) -> bool:
    """Whether a fine-tuned model of so many rounds and its result are whole in `out`: then `model` becomes that one."""
    result = read_result(out)
    if result is None or result.before_finetuning is None or result.rounds != rounds:
        return False
    try:
        with open_weights(out / MODEL) as stored:
            tensors = {name: one.read() for name, one in stored.items()}
        if content_sha256(tensors) != result.model_sha256:
            return False
        model.load(tensors)
    except InputError:
        return False
    return True


class Finish:
    """Once the last checkpoint has been read back. Who is killed meanwhile does it once more, from the same model."""

    def __init__(self, peer: LocalPeer, judge: Evaluator) -> None:
        self._peer, self._judge, self._out = peer, judge, peer.setup.out
        self._last = peer.network.last_round

    async def run(self) -> None:
        """FailedError where fine-tuning diverges."""
        await self._peer.follow_drift(self._last)
        if await in_thread(take_fine_tuned, self._peer.trained, self._out, self._last):
            await self._judge.judge()
            return
        found = self._judge.judged or await self._judge.judge()
        await self._write(found, None)
        if finetune := self._peer.setup.spec.finetune:
            await self._write(await self._fine_tune(finetune.phase()), found)

    async def _write(self, found: ModelFigures, before: ModelFigures | None) -> None:
        """The model as it is, and the result; `before`: its figures before fine-tuning."""
        await in_thread(save_model, self._peer.trained, self._out / MODEL)
        digest = await asyncio.to_thread(self._peer.trained.sha256)
        past = await asyncio.to_thread(history, self._out)
        ending = Ending(found, digest, past, before, self._judge.course)
        await in_thread(write_result, self._out, result(self._peer, ending))

    async def _fine_tune(self, phase: Phase) -> ModelFigures:
        peer = self._peer
        peer.enter("ready")
        peer.enter("training")
        began, trainer = time.perf_counter(), peer.take_trainer(peer.setup.spec.training.beside_the_phase)
        try:
            with memory_errors():
                await peer.compute(trainer.train, phase, self._last + 1)
        except DivergedError:
            raise FailedError(
                "fine-tuning diverged; lower `lr` in `finetune` and start again, or leave it out: the model in "
                "model.safetensors is that of the last round"
            ) from None
        peer.seconds.train += time.perf_counter() - began
        peer.enter("evaluating")
        found = await self._judge.judge()
        peer.report(FineTuned(accuracy=found.accuracy, figures=found.figures, validation=found.validation))
        return found
