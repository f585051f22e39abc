"""How good a peer's model is after a round, what follows from that, and what a peer reports about its rounds.

`Evaluator` evaluates the model after a round and acts on the figures: it keeps the best model, and with `stop_early`
decides with all peers whether the run ends. A replay ends in the same figures, files and decision. Whether a run goes
on is a pure function of figures that all peers know (`EarlyStopping`), so that all decide alike, even in a replay.
`RunProgress` is the part of it in checkpoints: this peer's best round and whether the run is over.

The reports follow: at a start, after a round, and at the end of the run. `Finish` ends a run at one peer: it writes
the model as it is, or fine-tuned, and the result. A peer that has fine-tuned and is started again finds that model and
its result intact, and uses them as they are.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite, isnan, nan
from typing import Any, Literal

import torch

from peer.errors import DivergedError, FailedError
from peer.files import write_atomically
from peer.learning.export import read_if_intact, save_model
from peer.learning.randomness import derive
from peer.learning.tasks import Classification, Multilabel, Task
from peer.learning.training.evaluation import Evaluation, Predictions, evaluate, intervals, measure
from peer.runtime.rounds.local_peer import Participant, digests
from peer.runtime.setup import Setup
from peer.spec.blocks import FinalEvaluation, FineTune, StopEarly, describe_behaviours
from peer.spec.federation import FIGURE
from peer.tasks import in_thread
from peer.telemetry.events import (
    SCHEMA,
    FineTuned,
    Misbehaving,
    Note,
    Report,
    Rewound,
    RoundDone,
    Started,
    StoppedEarly,
    Unrepeatable,
    ViewDecided,
    bounded,
)
from peer.telemetry.results import (
    BEST_MODEL,
    EVENTS,
    MAX_CLASSES,
    MODEL,
    PREDICTIONS,
    Best,
    FinalFigures,
    ModelFigures,
    Result,
    close_torn_lines,
    earlier,
    history,
    read_result,
    write_result,
)
from peer.telemetry.telemetry import Telemetry
from peer.versions import release

Better = Literal["up", "down"]
WORST_FIGURE = 1e300
"""Stands for a figure that is not finite: the worst one if lower is better, its negative if higher is better."""
UNDEFINED_FIGURE = 2e300
"""Stands for a figure that is not defined on a peer's samples; it is in no mean."""


@dataclass(frozen=True)
class EarlyStopping:
    """The progress of a federation, by the mean of all peers' figures."""

    best: float | None = None
    """The best mean so far; None before the first."""
    round: int = 0
    """The round of the best mean."""
    waited: int = 0
    """The number of evaluations since then."""

    def after(self, round: int, figures: Sequence[float], better: Better, margin: float) -> "EarlyStopping":
        """Add all peers' figures after `round`, in the order of the spec: finite numbers, at least one."""
        defined = [figure for figure in figures if figure != UNDEFINED_FIGURE] or [figure_to_send(nan, better)]
        mean = sum(figure / len(defined) for figure in defined)
        if self.best is None or gain(mean, self.best, better) > margin:
            return EarlyStopping(mean, round, 0)
        return EarlyStopping(self.best, self.round, self.waited + 1)

    def since(self, first: int) -> "EarlyStopping":
        """Forget progress made before round `first`, where other data begin: older figures do not apply to them."""
        return self if self.round >= first else EarlyStopping()

    def should_stop(self, round: int, rule: StopEarly) -> bool:
        """Whether the run ends after `round`."""
        return self.waited >= rule.patience and round >= rule.min_rounds


def gain(figure: float, before: float, better: Better) -> float:
    """By how much a figure is better than another; negative if it is worse."""
    return figure - before if better == "up" else before - figure


def figure_to_send(figure: float, better: Better) -> float:
    """A figure as it may leave a peer: the worst possible one in place of one that is not finite."""
    if isfinite(figure):
        return figure
    return -WORST_FIGURE if better == "up" else WORST_FIGURE


class RunProgress:
    """A run's progress by the figures on held-back samples, as in checkpoints."""

    def __init__(self, better: Better) -> None:
        self._better: Better = better
        self.best: Best | None = None
        """The round with this peer's own best figure, the earliest if there are several."""
        self.progress = EarlyStopping()
        """The progress of all peers together."""
        self.stopped_early = False
        """Whether `stop_early` made this round the last."""

    def is_best(self, figure: float, since: int) -> bool:
        """Whether a round with that figure is the best. since: the first round with the present data."""
        if not isfinite(figure):
            return False
        return self.best is None or self.best.round < since or gain(figure, self.best.figure, self._better) > 0

    def state_dict(self) -> dict[str, Any]:
        """The progress as plain JSON; empty if there is nothing to remember."""
        kept: dict[str, Any] = {"best": asdict(self.best)} if self.best else {}
        if self.progress.best is not None:
            kept |= {"progress": asdict(self.progress), "over": self.stopped_early}
        return kept

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        self.best = Best(**kept["best"]) if "best" in kept else None
        self.progress = EarlyStopping(**kept.get("progress", {}))
        self.stopped_early = kept.get("over", False)


def trace_facts(participant: Participant) -> dict[str, object]:
    """What a trace says about its round besides the vectors."""
    return {
        "samples": participant.learner.samples,
        "ring": json.dumps(participant.face.ring),
        "view": participant.setup.view.number,
        "participated": participant.round.trained,
        **participant.round.notes,
    }


def _bounded(figures: Mapping[str, float]) -> dict[str, float | None]:
    """The task's figures as JSON can hold them."""
    return {name: bounded(value) for name, value in figures.items()}


def _by_class(figures: Mapping[tuple[int, str], Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What there is of each class's number and each figure, by the class's name; empty where there is nothing."""
    numbers = {name: at for at, name in enumerate(names if figures else ())}
    return {name: {one: of for (at, one), of in figures.items() if at == number} for name, number in numbers.items()}


def user_figures(participant: Participant, found: ModelFigures) -> dict[str, Note]:
    """What user code adds to the audit: the figures of its task, the notes of its protocol."""
    spec, own = participant.setup.spec, participant.setup.own_code
    figures = found.figures if spec.task.name in own else {}
    return {**figures, **(participant.round.notes if spec.protocol.name in own else {})}


def round_done(participant: Participant, found: ModelFigures, before: Mapping[str, float]) -> RoundDone:
    """The event at the end of the present round. before: the phase times when it began."""
    traffic, times = participant.network.traffic, participant.lifecycle.times
    return RoundDone(
        **vars(found),
        round=participant.round.number,
        loss=bounded(participant.learner.loss),
        seconds={phase: spent - before[phase] for phase, spent in times.items()},
        bytes_sent=traffic.sent.total(),
        bytes_received=traffic.received.total(),
        tensor_bytes_sent=participant.network.audit.tensor_bytes,
        notes=dict(participant.round.notes),
    )


async def open_files(telemetry: Telemetry, participant: Participant) -> None:
    """Write events to the peer's file from now on; the first one also sums up earlier processes of this peer."""
    setup = participant.setup
    close_torn_lines(setup.out)
    if telemetry.writes:  # this process has run in an earlier view
        return
    before = await asyncio.to_thread(earlier, setup.out)
    telemetry.write_to(setup.out / EVENTS)
    spec, view = setup.spec, setup.view
    telemetry.emit(
        Started(
            schema=SCHEMA,
            version=release(),
            id=setup.config.id,
            federation=spec.name,
            protocol=spec.protocol.name,
            rounds=spec.rounds,
            restarts=before.starts,
            seconds=round(before.seconds, 3),
            view=view.number,
            members=view.members,
            certificate_expires=participant.network.transport.certificate_expires,
        )
    )
    if setup.rewound is not None:
        telemetry.emit(Rewound(round=setup.rewound))
        if view.number in {one.number for one in spec.rewind_views}:
            telemetry.emit(ViewDecided(**view.as_json()))


def report_warnings(setup: Setup, report: Report) -> None:
    """Report what the settings or the data make of the run: adversaries, and samples that are not the same again."""
    spec = setup.spec
    if not setup.shard.train.repeats:
        report(Unrepeatable(data=setup.config.data.name if setup.config.data else spec.data.name))
    if spec.behaviour:
        report(Misbehaving(peers=describe_behaviours(spec.behaviour)))


class Evaluator:
    """Evaluates one peer's model. A round that is played again ends in the same decision."""

    def __init__(self, participant: Participant) -> None:
        self._participant, self._learner = participant, participant.learner
        self._spec, self._task = participant.setup.spec, participant.learner.shard.task
        self.progress = RunProgress(self._task.headline.better)
        self.evaluation: Evaluation | None = None
        """The last evaluation on the test set."""
        self.validation: Mapping[str, float] = {}
        """The task's figures on held-back samples in that evaluation; empty if there are none."""

    async def evaluate(self) -> ModelFigures:
        """Evaluate the model as it is; return the figures."""
        with self._participant.lifecycle.timed("evaluate"):
            self.evaluation, self.validation = await self._learner.compute(self._measure)
        return self.newest

    @property
    def newest(self) -> ModelFigures:
        """The figures of the last evaluation; empty if there was none."""
        if (found := self.evaluation) is None:
            return ModelFigures(accuracy={})
        return ModelFigures(
            accuracy=found.as_dict(),
            figures=_bounded(found.figures),
            balanced=found.balanced,
            test_loss=bounded(found.loss),
            validation=_bounded(self.validation),
        )

    def _measure(self) -> tuple[Evaluation, Mapping[str, float]]:
        model, shard = self._learner.model, self._learner.shard
        found = evaluate(model, shard.test, shard.proportions, paper=shard.paper, own=shard.own)
        return found, measure(model, shard.held_back).results() if shard.held_back else {}

    async def keep_best(self, round: int) -> None:
        """Write the model as the best one if it is the best so far, before a checkpoint says so."""
        if not self.validation:
            return
        figure = self.validation[self._task.headline.name]
        if self.progress.is_best(figure, self._learner.since(round)):
            model = self._learner.model
            await in_thread(save_model, model, self._participant.setup.out / BEST_MODEL)
            self.progress.best = Best(round=round, figure=figure, model_sha256=await asyncio.to_thread(model.sha256))

    async def forget_lost_best(self) -> None:
        """Do without a best model that is not on disk: the file is gone, or has that of a round that became void."""
        path = self._participant.setup.out / BEST_MODEL
        if (best := self.progress.best) is None:
            return
        if await in_thread(read_if_intact, self._learner.model, path, best.model_sha256) is None:
            self.progress.best = None
            path.unlink(missing_ok=True)

    async def agree(self, round: int) -> None:
        """Tell all peers how good the model is, and decide with them whether this was the last round."""
        rule = self._spec.stop_early
        if rule is None or not self._spec.may_end_after(round):
            return
        headline, run = self._task.headline, self.progress
        figure = figure_to_send(self.validation[headline.name], headline.better)
        if isnan(self.validation[headline.name]) and type(self._task).judge is not Task.judge:
            figure = UNDEFINED_FIGURE  # `results` that are NaN, which release 0.1.0 knows too, count as the worst
        known = await self._participant.communicator.gather(FIGURE.name, (figure,))
        figures = [known[member][0] for member in self._participant.face.members]
        before = run.progress.since(self._learner.since(round))
        run.progress = before.after(round, figures, headline.better, rule.margin)
        run.stopped_early = run.progress.should_stop(round, rule)
        if run.stopped_early:
            self._participant.network.set_last_round(round)
        if round < self._spec.rounds and run.stopped_early:
            self._participant.lifecycle.report(
                StoppedEarly(round=round, best_round=run.progress.round, figure=headline.name)
            )


class Finish:
    """Ends the run, once the last checkpoint has been read back. A peer that is killed meanwhile repeats this from the
    same model."""

    def __init__(self, participant: Participant, evaluator: Evaluator) -> None:
        self._participant, self._evaluator = participant, evaluator
        self._spec, self._out = participant.setup.spec, participant.setup.out
        self._last = participant.network.last_round

    async def run(self) -> None:
        """Write model and result; DivergedError if the model is not finite, FailedError if fine-tuning diverges."""
        await self._participant.learner.apply_drift(self._last)
        if await in_thread(self._take_fine_tuned):
            await self._evaluator.evaluate()
            return
        await self._participant.learner.compute(self._check_finite)
        found = self._evaluator.newest if self._evaluator.evaluation else await self._evaluator.evaluate()
        await self._write(found, None)
        if finetune := self._spec.finetune:
            await self._write(await self._fine_tune(finetune), found)

    def _take_fine_tuned(self) -> bool:
        """Load a fine-tuned model of this run if it and its result are intact on disk; return whether they are."""
        result = read_result(self._out)
        if result is None or result.before_finetuning is None or result.rounds != self._last:
            return False
        if bool(result.final) != bool(self._spec.final_evaluation):
            return False  # that setting has changed since; fine-tuning comes to the same model
        model = self._participant.learner.model
        if (weights := read_if_intact(model, self._out / MODEL, result.model_sha256)) is None:
            return False
        model.load(weights)
        return True

    def _check_finite(self) -> None:
        """Raise DivergedError if the model is not finite: no other check sees what a protocol computes last of all."""
        vector = self._participant.learner.model.vector
        if not bool(torch.isfinite(vector.sum())) and (wrong := int((~torch.isfinite(vector)).sum())):
            raise DivergedError(
                f"{self._participant.face.id}: the model is not finite in {wrong} of {vector.numel()} values after "
                f"round {self._last}, the last, though training had left it finite; see what the protocol made of it"
            )

    async def _write(self, found: ModelFigures, before: ModelFigures | None) -> None:
        """Write the model as it is, and the result. before: the figures before fine-tuning."""
        model = self._participant.learner.model
        await in_thread(save_model, model, self._out / MODEL)
        # What it says is of the last model only: of an older one nothing must stay, and before fine-tuning it can wait.
        (self._out / PREDICTIONS).unlink(missing_ok=True)
        wanted = self._spec.final_evaluation if before or not self._spec.finetune else None
        final = await self._participant.learner.compute(self._look_closer, wanted) if wanted else None
        digest = await asyncio.to_thread(model.sha256)
        past = await asyncio.to_thread(history, self._out)
        result = replace(self._result(found, before, digest, past), final=final)
        await in_thread(write_result, self._out, result)

    def _look_closer(self, wanted: FinalEvaluation) -> FinalFigures:
        """What `final_evaluation` asks for; its predictions are on disk before the result tells of them."""
        learner = self._participant.learner
        model, shard = learner.model, learner.shard
        few, predictions = model.classes <= MAX_CLASSES, Predictions(shard.task)
        tells = few and isinstance(shard.task, Classification | Multilabel)
        measured = measure(model, shard.test, seen=predictions if wanted.predictions or tells else None)
        measured = replace(measured, judged=predictions.judged(model.classes) if tells else None)
        seed = derive(self._spec.seed, "intervals")  # one for all peers: equal models and samples give equal intervals
        drawing = (len(shard.test), wanted.resamples, seed, learner.trainer.check_stop)
        spans = intervals(measured.if_defined, *drawing)
        names = model.class_names or tuple(map(str, range(model.classes)))
        if wanted.predictions:
            write_atomically(self._out / PREDICTIONS, predictions.table(measured, names).encode())
        figures = _by_class(measured.of_classes(slice(None)), names if few else ())
        return FinalFigures(
            intervals={one.name: spans[one.name] for one in shard.task.figures},
            classes={name: _bounded(of) for name, of in figures.items()},
            class_intervals=_by_class(intervals(measured.of_classes, *drawing) if few else {}, names),
            confusion=measured.judged.confusion if measured.judged and shard.task.has_classes else (),
        )

    def _result(
        self, found: ModelFigures, before: ModelFigures | None, digest: str, past: tuple[RoundDone, ...]
    ) -> Result:
        """The result, from which the launcher makes its summary."""
        participant, network = self._participant, self._participant.network
        traffic, ring = network.traffic, participant.communicator.ring
        return Result(
            **vars(found),
            id=participant.face.id,
            rounds=self._last,
            samples=participant.learner.samples,
            best=self._evaluator.progress.best,
            before_finetuning=before,
            stopped_early=self._last < self._spec.rounds,
            model_sha256=digest,
            bytes_sent=traffic.sent.total(),
            bytes_received=traffic.received.total(),
            tensor_bytes_sent=network.audit.tensor_bytes,
            sent_to=dict(traffic.sent),
            seconds=dict(participant.lifecycle.times),
            ring=ring.order,
            ring_cost={"before": ring.cost_before, "after": ring.cost_after},
            history=past,
            replicated=digests({name: participant.state[name] for name in self._spec.protocol.replicated}),
        )

    async def _fine_tune(self, how: FineTune) -> ModelFigures:
        learner, lifecycle = self._participant.learner, self._participant.lifecycle
        lifecycle.become("ready")
        lifecycle.become("training")
        try:
            with lifecycle.timed("train"):
                learner.trainer = learner.new_trainer(self._spec.training.without_phases)
                await learner.compute(learner.trainer.train, how.phase(), self._last + 1)
        except DivergedError:
            raise FailedError(
                "fine-tuning diverged; lower `lr` in `finetune` and start again, or leave it out: the model in "
                "model.safetensors is that of the last round"
            ) from None
        lifecycle.become("evaluating")
        found = await self._evaluator.evaluate()
        told = {name: getattr(found, name) for name in ("accuracy", "figures", "validation", "balanced")}
        lifecycle.report(FineTuned(**told))
        return found
