"""What a peer's model is worth after a round, and what follows from it: the best one is kept, and all may end."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from peer.learning.data.drift import stage_of
from peer.learning.export import save_model
from peer.learning.training.evaluation import Evaluation, evaluate, measure
from peer.runtime.course import Course
from peer.runtime.local_peer import LocalPeer
from peer.runtime.progress import tellable
from peer.runtime.round_reports import judged
from peer.spec.federation import FIGURE
from peer.tasks import in_thread
from peer.telemetry.events import Report, StoppedEarly
from peer.telemetry.results import BEST_MODEL, Best, Judged


class Judge:
    """Of one peer. All of it replays: a round that is run again ends in the same figures, files and decision."""

    def __init__(self, peer: LocalPeer, report: Report) -> None:
        self._peer, self._report, self._spec, self._task = peer, report, peer.setup.spec, peer.setup.shard.task
        self.course = Course(self._task.headline.better)
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

    async def judge(self) -> Judged:
        """The same, as a round's event and the result have it."""
        return judged(await self.evaluate(), self.validation)

    @property
    def judged(self) -> Judged | None:
        """What was found last."""
        return judged(self.evaluation, self.validation) if self.evaluation else None

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
        figure = tellable(self.validation[headline.name], headline.better)
        told = await self._peer.tell(FIGURE.name, figure)
        course.progress = course.progress.since(self._since(round)).after(round, told, headline.better, rule.margin)
        course.over = course.progress.is_over(round, rule)
        if course.over:
            self._peer.network.end_after(round)
        if round < self._spec.rounds and course.over:
            self._report(StoppedEarly(round=round, best_round=course.progress.round, figure=headline.name))

    def _since(self, round: int) -> int:
        """The first round with the data as they are in this one."""
        return stage_of(round, self._spec.data.stages).since
