"""A peer's life from its files to its result: join, (train, communicate, evaluate)*, serve."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from peer.errors import DivergedError, FailedError, InputError
from peer.files import LineFile, write_failure
from peer.learning.device import memory_errors, memory_for
from peer.network.network import Network
from peer.network.streams.handshake import Identity
from peer.network.streams.state import NetworkCallbacks, NetworkState
from peer.network.streams.stream import Traffic
from peer.network.transport import StatusHandler, Transport
from peer.network.wire.messages import Resources
from peer.plugins import UserCodeError, user_code_errors
from peer.runtime.calls import first_rows
from peer.runtime.checkpointer import Checkpointer
from peer.runtime.checkpoints import CheckpointLostError
from peer.runtime.connection import build_manifest, with_admission_vectors
from peer.runtime.encodings import encoded_manifest, new_encoding
from peer.runtime.lifecycle import (
    Lifecycle,
    RuntimeLimits,
    State,
    await_staleness_bound,
    drain,
    wait_for_neighbours,
    watch_own_regression,
    watch_stalled,
    watch_unresponsive,
)
from peer.runtime.local_peer import LocalPeer, admit_standard, settle_standard, with_standard
from peer.runtime.resources import measure
from peer.runtime.round_reports import (
    Evaluator,
    Finish,
    bytes_passed,
    model_figures,
    round_done,
    started,
    status_reply,
    trace_facts,
    user_figures,
)
from peer.runtime.setup import Setup, own_directory
from peer.spec.agreement import digests
from peer.spec.blocks import describe_behaviours
from peer.tasks import background, in_thread
from peer.telemetry.events import Done, EndedUnacknowledged, Failed, Misbehaving, StateChanged
from peer.telemetry.results import AUDIT, EVENTS, append_audit, close_torn_lines, earlier
from peer.telemetry.telemetry import Telemetry
from peer.telemetry.trace import Trace
from peer.topology import receivers, senders

STATUS_WATCH_S = 2.0
"""Seconds for which whoever has asked for this peer's status is taken to go on asking."""


class Runtime:
    """One peer. `run` is its whole life; everything it needs was checked before."""

    def __init__(
        self,
        setup: Setup,
        transport: Callable[[StatusHandler], Transport],
        executor: Executor,
        telemetry: Telemetry,
        bounds: RuntimeLimits = RuntimeLimits(),
    ) -> None:
        self.setup, self.telemetry = setup, telemetry
        self._spec, self._out, self._reminders = setup.spec, setup.out, bounds.reminders
        self._lifecycle = Lifecycle()
        self._declared = self._spec.declarations()
        self._seat, self._view = setup.seat, setup.view
        peers, names = len(self._view.members), setup.shard.names
        plain = build_manifest(self._declared, setup.model, self._spec.rounds, peers, names)
        travelling = encoded_manifest(plain, self._declared, new_encoding(self._spec.wire, setup.model.sizes))
        declared = with_admission_vectors(travelling, plain, self._spec.protocol, self._view, len(self._spec.ids))
        if self._spec.data.standardize == "federation":
            declared = with_standard(declared, setup.shard.train.shape[0], self._view)
        agreement = setup.agreement
        identity = Identity(
            setup.config.id,
            digests(agreement),
            declared.digest,
            declared.data,
            self._view.number,
            self._seat.passed,
            rounds=self._spec.rounds,
            settings=agreement,
            keyring=self._seat.keyring,
        )
        state = NetworkState(identity, self._addresses(), transport(self.status), bounds.timeouts, bounds.limits)
        memory = memory_for(setup.model.device)
        callbacks = NetworkCallbacks(telemetry.emit, self._doing, self._resources, memory, self._seat.answer)
        self.network = Network(state, declared, callbacks)
        self.peer = LocalPeer(setup, self.network, executor, telemetry.emit, self._become)
        self._judge = Evaluator(self.peer, telemetry.emit)
        self._checkpointer = Checkpointer(self._out / "checkpoint", self.peer, self._judge.course, telemetry.emit)
        self._complete = self._out / "complete"
        self._audit = LineFile(self._out / AUDIT)
        self._asked = float("-inf")
        """When somebody asked for its status last, by the monotonic clock."""
        self._seen_serving = asyncio.Event()
        self._passed = Traffic()
        """All bytes of which was told."""

    def _addresses(self) -> dict[str, str | None]:
        """Every member's, or only its own where the protocol has no edges: then nobody waits for anybody."""
        alone, addresses = self._spec.protocol.graph == "none", self._spec.addresses
        return {id: addresses[id] for id in self._view.members if not alone or id == self.setup.config.id}

    async def run(self) -> bool:
        """Live until the run is over, or this view is; whether it is the run.

        FailedError: the run cannot go on; asyncio.CancelledError: stopped in good order.
        """
        await self.network.listen()
        try:
            with memory_errors():
                async with self.network.running():
                    over = await self._live()
            if over:
                self._become("done")
                self.telemetry.emit(Done())
            return over
        except DivergedError as error:
            raise self._failed(f"{error}{self._by_others() if error.by_others else ''}") from None
        except CheckpointLostError as error:
            raise error if self._seat.can_be_lost else self._failed(str(error)) from None
        except UserCodeError as error:
            logging.getLogger("dfl").error("code of the user's failed", exc_info=error.__cause__)
            raise self._failed(str(error)) from None
        except (FailedError, InputError) as error:
            raise self._failed(str(error)) from None
        except OSError as error:
            raise self._failed(write_failure(error.filename or self._out, error)) from None
        finally:
            self._audit.close()
            self.telemetry.close()

    def _by_others(self) -> str:
        """Values out of all proportion that a neighbour sent end as one's own."""
        if not (senders := self.network.edges.peers("receive")):
            return ""
        return (
            f"; if that does not help, see what {' and '.join(senders)} sent (`trace: true` shows each round's vectors)"
        )

    def _failed(self, message: str) -> FailedError:
        self._lifecycle.state = "failed"
        self.telemetry.emit(StateChanged(state="failed", round=self.peer.round))
        self.telemetry.emit(Failed(message=message))
        return FailedError(message)

    async def _live(self) -> bool:
        """In a directory of its own, watching its neighbours."""
        network, emit = self.network, self.telemetry.emit
        with own_directory(self._out, self.setup.config, self._spec):
            async with self._checkpointer.writing(), background() as watchers:
                lost = watch_unresponsive(network.edges, self._spec, self._seat, self._running, emit, self._reminders)
                watchers.create_task(lost)
                watchers.create_task(watch_stalled(network, emit, self._reminders))
                if self._seat.can_be_lost:
                    faulty = self._view.tolerates(self._spec.tolerated(self.setup.config.tls is not None))
                    watchers.create_task(watch_own_regression(network.edges, self._joining, faulty))
                try:
                    return await self._live_there()
                finally:
                    self._close_interrupted()
                    self.peer.trainer.stop()
                    asyncio.get_running_loop().run_in_executor(self.peer.executor, self.setup.shard.close)

    async def _live_there(self) -> bool:
        close_torn_lines(self._out)
        if not self.telemetry.writes:  # the first life of this process
            before = await asyncio.to_thread(earlier, self._out)
            self.telemetry.write_to(self._out / EVENTS)
            self.telemetry.emit(started(self.setup, before))
        done = await self._checkpointer.resume()
        self._passed = self.network.traffic.copy()
        self.telemetry.emit(StateChanged(state="joining", round=self.peer.round))
        await self.peer.hold_data_of(done)
        self.telemetry.emit(self.peer.data_held(max(0, done)))
        if self._spec.behaviour:
            self.telemetry.emit(Misbehaving(peers=describe_behaviours(self._spec.behaviour)))
        if self._judge.course.over:
            self.network.set_last_round(done)
        self._seat.take(self.network, done)
        if done < self.network.last_round:
            self._complete.unlink(missing_ok=True)
            if done < self._view.first:
                self._use_first_edges()
            await wait_for_neighbours(self.network.edges, self.telemetry.emit, self._seat.patience(done))
            self._become("ready")
            while done < self.network.last_round and await self._may_start(done + 1):
                done += 1
                await (self._round(done) if done else self._start())
        if done < self._spec.rounds and not self._judge.course.over:
            await self._pass_on()
            return False
        await self._checkpointer.finish()
        await Finish(self.peer, self._judge).run()
        await self._serve()
        return True

    def _use_first_edges(self) -> None:
        """Open the links of the view's ring; a resumed peer has those of its checkpoint."""
        graph, ring, first = self.peer.graph, self.peer.ring, self._view.first
        self.network.set_edges(first, receivers(graph, ring, self.peer.id), senders(graph, ring, self.peer.id))

    async def _may_start(self, round: int) -> bool:
        """Wait until that round may begin; False if it belongs to the next view."""
        if round:
            emit, late = self.telemetry.emit, self._reminders.behind
            await await_staleness_bound(self.network.durability, self._spec, round, emit, late)
            await self.peer.follow_drift(round)
        await self._seat.may_start(round)
        return round <= self.network.last_round

    async def _pass_on(self) -> None:
        await self._checkpointer.finish()
        await self._seat.may_pass_on(self.network)

    async def _start(self) -> None:
        """Round 0: what the protocol settles before training."""
        self.peer.begin(0)
        with user_code_errors(self._spec.protocol.name), memory_errors():
            if whose := self._spec.data.standardize:
                await settle_standard(self.peer, whose)
            first_rows(self._spec.protocol, self.peer.state, len(self.peer.members))
            await self._spec.protocol.start(self.peer, self._spec.init)
            self.peer.end()
        self._become("evaluating")
        await self._close_round(0)

    async def _round(self, round: int) -> None:
        self.peer.begin(round)
        before = asdict(self.peer.seconds)
        name = self._traced(round)
        shared = self.peer.extractor if name == "extractor" else self.peer.model
        if self._spec.trace:
            self.peer.departures.trace = Trace(self._out, round, name, shared)
        with user_code_errors(self._spec.protocol.name), memory_errors():
            if round == self._view.first:
                await self._begin_view(round)
            await self._spec.protocol.round(self.peer)
            self.peer.end()
            self._spec.protocol.check_state(self.peer)
        if trace := self.peer.departures.trace:
            await in_thread(trace.write, shared, trace_facts(self.peer))
        self._become("evaluating")
        found = model_figures(None, {})
        if self._spec.evaluates(round):
            found = await self._judge.judge()
            await self._judge.keep_best(round, self._out)
            await self._judge.agree(round)
            self._become("evaluating")
        self.network.audit.noted(round, user_figures(self.peer, found))
        self.telemetry.emit(round_done(self.peer, found, before))
        passed = self.network.traffic.copy()
        self.telemetry.emit(bytes_passed(round, passed - self._passed))
        self._passed = passed
        await self._close_round(round)

    async def _begin_view(self, round: int) -> None:
        if whose := self._spec.data.standardize:
            await admit_standard(self.peer, whose, dict(self._view.entrants))
        await self.peer.take_in(dict(self._view.entrants))
        if round > 1:
            await self._spec.protocol.begin_view(self.peer)

    def _traced(self, round: int) -> str:
        """The part of the model whose course a trace shows: what the protocol shares in this round."""
        shared = [share.part for share in self._declared.travelling(round)]
        return "extractor" if shared[:1] == ["extractor"] else "model"

    async def _close_round(self, round: int) -> None:
        """Put the round on disk while the next one trains."""
        await in_thread(append_audit, self._audit, self._audited(self.network.audit.close(round)))
        await self._checkpointer.save(round)
        if round < self.network.last_round:
            self._become("ready")

    def _audited(self, line: dict[str, Any]) -> dict[str, Any]:
        """With whose code had a say in what was sent."""
        return {**line, "own_code": self.setup.own_code} if self.setup.own_code else line

    def _close_interrupted(self) -> None:
        """Where members change a round that is cut off may never be played again, and what has left in it has left."""
        if self._seat.can_be_lost:
            for line in self.network.audit.interrupt(self.network.edges):
                append_audit(self._audit, self._audited(line))

    async def _serve(self) -> None:
        """Keep what the neighbours may still ask for until they have the last round on disk (rule R8)."""
        self._become("serving")
        if not self._complete.exists():
            behind = await drain(self.network, self._spec.patience)
            if behind:
                who = ", ".join(behind)
                way_out = "if one of them waits for this peer, start it again"
                self.telemetry.emit(
                    EndedUnacknowledged(sentence=f"ended without hearing that {who} finished; {way_out}")
                )
            else:
                await self._seat.may_finish(self.network)
                self._complete.touch()  # started once more, this peer has nothing to wait for but a farewell
        await self.network.close_gracefully()
        await self._tell_who_watches()

    async def _tell_who_watches(self) -> None:
        """Whoever asks again and again shall hear of the end, too: from a peer that has gone it could be anything."""
        if time.monotonic() - self._asked < STATUS_WATCH_S:
            with suppress(TimeoutError):
                async with asyncio.timeout(STATUS_WATCH_S):
                    await self._seen_serving.wait()

    def _running(self) -> bool:
        return self._lifecycle.state not in ("joining", "serving")

    def _joining(self) -> bool:
        return self._lifecycle.state == "joining"

    def _become(self, state: State) -> None:
        if state != self._lifecycle.state:
            self._lifecycle.become(state)
            self.telemetry.emit(StateChanged(state=state, round=self.peer.round))

    def _doing(self) -> tuple[str, int]:
        return self._lifecycle.state, self.peer.round

    def _resources(self) -> Resources:
        rates = {peer: link.bytes_per_second for peer, link in self.network.links.items()}
        return measure(self.setup.model.device, self.peer.samples, rates)

    async def status(self, _request: bytes) -> bytes:
        """The answer to the Status RPC."""
        self._asked = time.monotonic()
        if self._lifecycle.state == "serving":
            self._seen_serving.set()
        found, state = self._judge.evaluation, self._lifecycle.state
        waiting, resources = self._seat.waiting, self._resources()
        return status_reply(self.network, self._judge.course, state, self.peer, found, resources, waiting)
