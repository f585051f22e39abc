"""How a peer plays its rounds: in each, the protocol's calls, an evaluation, the reports, a checkpoint."""

from typing import Any

from peer.files import LineFile
from peer.learning.device import device_errors
from peer.plugins import user_code_errors
from peer.runtime.checkpoints import Checkpointer
from peer.runtime.rounds.admission import admit_columns, first_rows, settle_columns, sync_admitted
from peer.runtime.rounds.local_peer import Participant
from peer.runtime.rounds.reports import Evaluator, round_done, trace_facts, user_figures
from peer.tasks import in_thread
from peer.telemetry.events import BytesPassed
from peer.telemetry.results import AUDIT, ModelFigures, append_audit
from peer.telemetry.trace import Trace


class Rounds:
    """All rounds of one peer in one view."""

    def __init__(self, participant: Participant, evaluator: Evaluator, checkpointer: Checkpointer) -> None:
        self._participant, self._evaluator, self._checkpointer = participant, evaluator, checkpointer
        self._setup, self._network, self._lifecycle = participant.setup, participant.network, participant.lifecycle
        self._spec, self._protocol = participant.setup.spec, participant.setup.spec.protocol
        self._declared = self._spec.declarations()
        self._audit = LineFile(self._setup.out / AUDIT)
        self._reported = self._network.traffic.copy()
        """The traffic that was already reported: none, until `resume` has restored that of a checkpoint."""

    async def resume(self) -> int:
        """Go back to the newest checkpoint; return its round, or -1 if there is none."""
        done = await self._checkpointer.resume()
        self._reported = self._network.traffic.copy()
        return done

    async def set_up(self) -> None:
        """Play round 0, in which the protocol settles what must be known before training."""
        participant, peer = self._participant, self._participant.face
        participant.begin(0)
        with user_code_errors(self._protocol.name), device_errors():
            await settle_columns(participant)
            first_rows(self._protocol, participant.state, len(peer.members))
            await self._protocol.start(peer, self._spec.init)
            peer._check_calls()
        self._lifecycle.become("evaluating")
        await self._close(0)

    async def play(self, number: int) -> None:
        participant, peer, before = self._participant, self._participant.face, dict(self._lifecycle.times)
        name = self._traced(number)
        shared = peer.extractor if name == "extractor" else peer.model
        trace = Trace(self._setup.out, number, name, shared) if self._spec.trace else None
        participant.begin(number, trace)
        with user_code_errors(self._protocol.name), device_errors():
            if number == self._setup.view.first:
                await self._begin_view()
            await self._protocol.round(peer)
            peer._check_calls()
            self._protocol.state_contract.check(peer)
        if trace:
            await in_thread(trace.write, shared, trace_facts(participant))
        self._lifecycle.become("evaluating")
        found = await self._evaluate(number) if self._spec.evaluates(number) else ModelFigures(accuracy={})
        self._network.audit.noted(number, user_figures(participant, found))
        self._lifecycle.report(round_done(participant, found, before))
        self._report_bytes(number)
        await self._close(number)

    def interrupted(self) -> None:
        """Write the audit of a round that is cut short, if members may change: the round may never be played again, but
        what was sent in it was sent."""
        if self._setup.gate.can_be_excluded:
            for line in self._network.audit.interrupt(self._network.edges):
                append_audit(self._audit, self._line(line))
        self._audit.close()

    async def _begin_view(self) -> None:
        entrants = dict(self._setup.view.entrants)
        await admit_columns(self._participant, entrants)
        await sync_admitted(self._participant, entrants)
        await self._protocol.begin_view(self._participant.face)

    def _traced(self, number: int) -> str:
        """The part of the model that a trace records: what the protocol shares in this round."""
        shared = [share.part for share in self._declared.travelling(number)]
        return "extractor" if shared[:1] == ["extractor"] else "model"

    async def _evaluate(self, number: int) -> ModelFigures:
        found = await self._evaluator.evaluate()
        await self._evaluator.keep_best(number)
        await self._evaluator.agree(number)
        self._lifecycle.become("evaluating")
        return found

    def _report_bytes(self, number: int) -> None:
        now = self._network.traffic.copy()
        passed, self._reported = now - self._reported, now
        self._lifecycle.report(BytesPassed(round=number, sent=dict(passed.sent), received=dict(passed.received)))

    async def _close(self, number: int) -> None:
        """End a round: write its audit, and its checkpoint while the next round trains."""
        await in_thread(append_audit, self._audit, self._line(self._network.audit.close(number)))
        await self._checkpointer.save(number)
        if number < self._network.last_round:
            self._lifecycle.become("ready")

    def _line(self, line: dict[str, Any]) -> dict[str, Any]:
        """A line of the audit with the user code that affects what is sent and, in the first round after all peers have
        gone back, the rounds to which they have."""
        rewinds, own = self._spec.rewound_rounds, self._setup.own_code
        line = {**line, "rewinds": [*rewinds]} if rewinds and line["round"] == rewinds[-1] + 1 else line
        return {**line, "own_code": own} if own else line
