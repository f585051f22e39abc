"""One peer in one view, from its files to its result: join, (train, communicate, evaluate)*, serve."""

import asyncio
import logging
import time
from concurrent.futures import Executor
from typing import NoReturn

from peer.errors import DivergedError, FailedError, InputError, WrongMessageError
from peer.files import write_failure
from peer.learning.device import device_errors
from peer.plugins import UserCodeError
from peer.runtime.checkpoints import Checkpointer, Checkpoints
from peer.runtime.connection import MakeTransport, open_network, status_reply
from peer.runtime.lifecycle import (
    CheckpointLostError,
    Lifecycle,
    RuntimeLimits,
    await_staleness_bound,
    drain,
    wait_for_neighbours,
    watch_own_regression,
    watch_stalled,
    watch_unresponsive,
)
from peer.runtime.rounds.local_peer import LocalPeer, Participant
from peer.runtime.rounds.loop import Rounds
from peer.runtime.rounds.reports import Evaluator, Finish, open_files, report_warnings
from peer.runtime.run_directory import record_run
from peer.runtime.setup import Setup
from peer.tasks import background, within
from peer.telemetry.events import MAX_NAMED, Awaited, Done, EndedUnacknowledged, Failed, StateChanged, Waiting
from peer.telemetry.telemetry import Telemetry

STATUS_WATCH_S = 2.0
"""Seconds for which a client that has asked for this peer's status is expected to ask again."""


class Runtime:
    """One peer in one view, from start to end (`run`); all that it needs was checked before."""

    def __init__(
        self,
        setup: Setup,
        transport: MakeTransport,
        executor: Executor,
        telemetry: Telemetry,
        bounds: RuntimeLimits = RuntimeLimits(),
    ) -> None:
        self.setup, self.telemetry = setup, telemetry
        self._spec, self._out, self._executor = setup.spec, setup.out, executor
        self._reminders, self._gate, self._view = bounds.reminders, setup.gate, setup.view
        self._outwaits = bounds.votes and self._gate.can_be_excluded
        self.lifecycle = Lifecycle(telemetry.emit)
        self.network = open_network(setup, transport(self.status), bounds, self.lifecycle)
        self.participant = Participant(setup, self.network, executor, self.lifecycle)
        self._evaluator = Evaluator(self.participant)
        self._complete = self._out / "complete"
        self._asked = float("-inf")
        """When the status was last asked for, by the monotonic clock."""
        self._seen_serving = asyncio.Event()

    @property
    def peer(self) -> LocalPeer:
        """The peer as its protocol sees it."""
        return self.participant.face

    async def run(self) -> bool:
        """Run until all rounds or this view are over; return whether all rounds are.

        FailedError: the run cannot go on; InputError: found in round 0; asyncio.CancelledError: stopped in good order.
        """
        await self.network.listen()
        try:
            with device_errors():
                async with self.network.running():
                    over = await self._run_watched()
            if over:
                self.lifecycle.become("done")
                self.telemetry.emit(Done())
            return over
        except DivergedError as error:
            raise self._failed(f"{error}{self._sender_hint() if error.by_others else ''}") from None
        except CheckpointLostError as error:
            raise error if self._gate.can_be_excluded else self._failed(str(error)) from None
        except UserCodeError as error:
            logging.getLogger("dfl").error("user code failed", exc_info=error.__cause__)
            raise self._failed(str(error)) from None
        except (FailedError, InputError) as error:
            in_round_0 = self.lifecycle.round == 0 and self.lifecycle.state != "joining"
            failed = self._failed(str(error))
            raise (error if in_round_0 and isinstance(error, InputError) else failed) from None
        except OSError as error:
            raise self._failed(write_failure(error.filename or self._out, error)) from None
        finally:
            self.telemetry.close()

    def _sender_hint(self) -> str:
        """Name the senders as possible culprits: excessive values that a neighbour sends make this model diverge."""
        if not (senders := self.network.edges.peers("receive")):
            return ""
        return (
            f"; if that does not help, see what {' and '.join(senders)} sent (`trace: true` shows each round's vectors)"
        )

    def _failed(self, message: str) -> FailedError:
        self.lifecycle.become("failed")
        self.telemetry.emit(Failed(message=message))
        return FailedError(message)

    async def _run_watched(self) -> bool:
        """Run, and watch the neighbours meanwhile."""
        network, emit, files = self.network, self.telemetry.emit, Checkpoints(self._out / "checkpoint")
        async with background() as writing, background() as watchers:
            checkpointer = Checkpointer(files, self.participant, self._evaluator.progress, writing)
            lost = watch_unresponsive(network.edges, self._spec, self._gate, self.lifecycle, self._reminders)
            watchers.create_task(lost)
            watchers.create_task(watch_stalled(network, emit, self._reminders))
            if self._gate.can_be_excluded:
                faulty = self._view.tolerates(self._spec.tolerated(self.setup.config.tls is not None))
                watchers.create_task(watch_own_regression(network.edges, self.lifecycle, faulty))
            rounds = Rounds(self.participant, self._evaluator, checkpointer)
            try:
                await open_files(self.telemetry, self.participant)
                record_run(self._out, self.setup.config.id, self._spec)  # which forgets that events were lacking
                if self.setup.config.tls:
                    watchers.create_task(network.transport.watch_expiry())
                return await self._run_rounds(rounds, checkpointer)
            except WrongMessageError as error:
                # An entrant can end: the others have not begun to rely on it.
                entering = self.peer.id in dict(self._view.entrants) and self.peer.round == self._view.first
                if entering or not self._outwaits:
                    raise
                await self._outwait(error)
            finally:
                self.participant.learner.trainer.stop()
                asyncio.get_running_loop().run_in_executor(self._executor, self.setup.shard.close)
                rounds.interrupted()  # the last, as it may fail: it writes

    async def _outwait(self, error: WrongMessageError) -> NoReturn:
        """Wait for a view without the sender: if its receivers ended, one after the other, one liar could leave too few
        to vote it out."""
        addresses, named = self._spec.addresses, error.senders[:MAX_NAMED]
        awaited, others = tuple(Awaited(id, addresses[id], str(error)) for id in named), len(error.senders) - len(named)
        said = f"{error}; this peer waits: vote out who lies (`dfl-launch expel`), or stop it for longer than `absence`"
        while True:
            self.telemetry.emit(Waiting(cause="stalled", awaited=awaited, others=others, sentence=said))
            await asyncio.sleep(self._reminders.stalled_again)

    async def _run_rounds(self, rounds: Rounds, checkpointer: Checkpointer) -> bool:
        network, learner = self.network, self.participant.learner
        done = await rounds.resume()
        await self._evaluator.forget_lost_best()
        self.telemetry.emit(StateChanged(state=self.lifecycle.state, round=self.lifecycle.round))
        if self._evaluator.progress.stopped_early:
            network.set_last_round(done)
        self._gate.attach(network, done)
        # Nothing of this view is on disk, which would bring its edges, and it has a round to play.
        if done < min(self._view.first, network.last_round):
            self.participant.use_first_edges()
        await learner.load_data_for(done)
        self.telemetry.emit(learner.data_summary(max(0, done)))
        report_warnings(self.setup, self.telemetry.emit)
        if done < network.last_round:
            self._complete.unlink(missing_ok=True)
            await wait_for_neighbours(network.edges, done, self.telemetry.emit, self._gate.join_timeout(done))
            self.lifecycle.become("ready")
            while done < network.last_round and await self._may_start(done + 1):
                done += 1
                await (rounds.play(done) if done else rounds.set_up())
        await checkpointer.verify_last()
        if done < self._spec.rounds and not self._evaluator.progress.stopped_early:
            await self._gate.wait_to_end(network, finished=False)
            return False
        await Finish(self.participant, self._evaluator).run()
        await self._serve()
        return True

    async def _may_start(self, round: int) -> bool:
        """Wait until that round may begin; False if it belongs to the next view."""
        if round:
            emit, late = self.telemetry.emit, self._reminders.behind
            await await_staleness_bound(self.network.durability, self._spec, round, emit, late)
            await self.participant.learner.apply_drift(round)
        await self._gate.wait_to_start(round)
        return round <= self.network.last_round

    async def _serve(self) -> None:
        """Keep what the neighbours may still ask for until they have the last round on disk (rule R8)."""
        self.lifecycle.become("serving")
        if not self._complete.exists():
            if behind := await drain(self.network, self._spec.patience):
                who = ", ".join(behind)
                hint = "if one of them waits for this peer, start it again"
                self.telemetry.emit(EndedUnacknowledged(sentence=f"ended without hearing that {who} finished; {hint}"))
            else:
                await self._gate.wait_to_end(self.network, finished=True)
                self._complete.touch()  # if started again, this peer has only its farewell to wait for
        await self.network.close_gracefully()
        await self._let_watchers_see_end()

    async def _let_watchers_see_end(self) -> None:
        """Let a client that polls the status see the end, too: once the peer is gone, it could be in any state."""
        if time.monotonic() - self._asked < STATUS_WATCH_S:
            await within(STATUS_WATCH_S, self._seen_serving.wait())

    async def status(self, _request: bytes) -> bytes:
        self._asked = time.monotonic()
        if self.lifecycle.state == "serving":
            self._seen_serving.set()
        return status_reply(self.participant, self._evaluator)
