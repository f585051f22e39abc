"""The end of a run at one peer: the model as it is, fine-tuned if it shall be, and the result."""

import asyncio
import time

from peer.errors import DivergedError, FailedError
from peer.learning.device import memory_errors
from peer.learning.export import save_model
from peer.learning.training.phase import Phase
from peer.runtime.fine_tuned import take_fine_tuned
from peer.runtime.judge import Judge
from peer.runtime.local_peer import LocalPeer
from peer.runtime.round_reports import Ending, result
from peer.tasks import in_thread
from peer.telemetry.events import FineTuned
from peer.telemetry.results import MODEL, Judged, history, write_result


class Finish:
    """Once the last checkpoint has been read back. Who is killed meanwhile does it once more, from the same model."""

    def __init__(self, peer: LocalPeer, judge: Judge) -> None:
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

    async def _write(self, found: Judged, before: Judged | None) -> None:
        """The model as it is, and the result; `before`: its figures before fine-tuning."""
        await in_thread(save_model, self._peer.trained, self._out / MODEL)
        digest = await asyncio.to_thread(self._peer.trained.sha256)
        past = await asyncio.to_thread(history, self._out)
        ending = Ending(found, digest, past, before, self._judge.course)
        await in_thread(write_result, self._out, result(self._peer, ending))

    async def _fine_tune(self, phase: Phase) -> Judged:
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
