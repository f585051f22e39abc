"""A peer from its start to the end of the run: it plays one view after the other, each with a `Runtime` of its own.

A member of the next view goes on to it at once; any other peer first asks to be admitted (`Rejoin`).
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

from peer.errors import FailedError, InputError, NotNowError
from peer.files import write_failure
from peer.runtime.checkpoints import Checkpoints, drop_after
from peer.runtime.connection import MakeTransport
from peer.runtime.lifecycle import CheckpointLostError, RuntimeLimits
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.proposer import ExcludedError, ExpelledError, Proposer, Rejoin
from peer.runtime.membership.replay import Replay
from peer.runtime.run_directory import own_directory
from peer.runtime.runtime import Runtime
from peer.runtime.setup import Setup
from peer.tasks import background, in_thread
from peer.telemetry.events import Departed, Failed, Returning
from peer.telemetry.telemetry import Telemetry
from peer.views.view import View


class ViewRunner:
    """Runs a peer through all its views."""

    def __init__(
        self,
        setup: Setup,
        transport: MakeTransport,
        executor: Executor,
        telemetry: Telemetry,
        bounds: RuntimeLimits = RuntimeLimits(),
    ) -> None:
        self._setup, self._transport, self._executor = setup, transport, executor
        self._telemetry, self._bounds = telemetry, bounds
        self._checkpoints = Checkpoints(setup.out / "checkpoint")
        self.runtime: Runtime | None = None
        """The runtime of the present view, or of the last one."""
        self._played = False
        """Whether this process has been in a round, of whatever view."""
        self._membership: Membership | None = None

    @property
    def views(self) -> tuple[View, ...]:
        """All decided views that this peer knows, with view 0."""
        if self._membership:
            return self._membership.chain.since(-1)
        return (View(0, self._setup.spec.ids, first=0), *(one.view for one in self._setup.recorded or ()))

    async def run(self) -> None:
        """Run to the end; FailedError: the run cannot go on; asyncio.CancelledError: stopped in good order."""
        try:
            await self._run()
        except InputError as error:
            if not self._played or isinstance(error, NotNowError):
                raise
            raise FailedError(str(error)) from None  # such as a port that is taken by now: another start may help
        except OSError as error:  # of what is decided, or between two views; a `Runtime` has a sentence of its own
            message = write_failure(error.filename or self._setup.out, error)
            self._telemetry.emit(Failed(message=message))
            raise FailedError(message) from None

    async def _run(self) -> None:
        # Between views, too: two processes could sign contradictions.
        with own_directory(self._setup.config, self._setup.spec) as rewound:
            self._setup = replace(self._setup, rewound=rewound)
            await self._run_in_own_directory()

    async def _run_in_own_directory(self) -> None:
        setup, emit = self._setup, self._telemetry.emit
        if setup.recorded is not None:
            await Replay(setup, setup.recorded, self._play, emit).run()
        elif setup.spec.on_loss != "bypass":
            await self._play(setup)
        else:
            if setup.config.tls is None:
                logging.getLogger("dfl").warning(
                    "no certificates: any process that reaches the peers' ports can decide who is a member; make "
                    "certificates with `dfl-launch certs` where others do"
                )
            self._membership = membership = Membership.open(setup, self._bounds, emit)
            rejoin = Rejoin(membership, partial(self._transport, self._status), self._bounds.reminders)
            await membership.follow_rewinds()
            async with background() as group:
                group.create_task(Proposer(membership, self._bounds.reminders).run())
                await self._play_views(membership, rejoin)

    def leave(self, otherwise: Callable[[], object]) -> bool:
        """Ask the others to go on without this peer; `otherwise` is called if that is not possible. Return False if
        this peer is not a member."""
        membership = self._membership
        if membership and membership.is_member:
            membership.leave_request.submit(otherwise)
            return True
        return False

    async def _play_views(self, membership: Membership, rejoin: Rejoin) -> None:
        while True:
            if membership.acceptor.has_forgotten:
                sentence = f"{membership.store.path}: does not hold what this peer has promised to the others"
                self._telemetry.emit(Returning(sentence=sentence))
                await rejoin.wait_for_exclusion()
            elif not membership.is_over(membership.view):
                try:
                    if await self._play_view(membership):
                        return
                except CheckpointLostError as error:
                    self._telemetry.emit(Returning(sentence=str(error)))
                    await rejoin.wait_for_exclusion()
            if membership.has_left:
                await self._finish_leaving(membership)
                return
            try:
                await self._enter_next_view(membership, rejoin)
            except ExpelledError as error:
                self._telemetry.emit(Failed(message=str(error)))
                raise

    async def _play_view(self, membership: Membership) -> bool:
        """Play until the run or the view is over; return whether the run is."""
        view, gate = membership.view, membership.open_gate()
        try:
            async with background() as group:
                running = group.create_task(self._play(replace(self._setup, given_gate=gate)))
                over = group.create_task(membership.wait_view_over(view))
                await asyncio.wait((running, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gate.leave()
        return not running.cancelled() and running.result()

    async def _play(self, setup: Setup) -> bool:
        self.runtime = Runtime(setup, self._transport, self._executor, self._telemetry, self._bounds)
        try:
            return await self.runtime.run()
        finally:
            self._played |= self.runtime.lifecycle.round > 0

    async def _finish_leaving(self, membership: Membership) -> None:
        """Note on disk that this peer has left: restarted, it asks to be admitted."""
        await self._drop_after(membership.chain.last_valid_round(membership.memory.entered))
        view = membership.chain.current
        await membership.enter(view)
        sentence = f"left: view {view.number} goes on without this peer; restarted, it asks to be taken in"
        self._telemetry.emit(Departed(sentence=sentence))

    async def _enter_next_view(self, membership: Membership, rejoin: Rejoin) -> None:
        """Go on to the next view; where this peer is no member of it, by asking to be admitted."""

        async def newest() -> int:
            await self._drop_after(membership.chain.last_valid_round(membership.memory.entered))
            return await asyncio.to_thread(self._checkpoints.newest_intact)

        following = await rejoin.next_view(newest)
        entrants = dict(following.entrants)
        if membership.id in entrants and following.first > self._setup.spec.rounds:
            # All others have the last round, and only end there.
            raise ExcludedError("the others have finished without this peer, which came back in their last round")
        # It answers meanwhile: an evaluation that must end before, or a large model, may take longer than `absence`.
        async with membership.connected(self._transport(self._status), listens=True):
            # Views decided meanwhile may have made more rounds void.
            brought = entrants.get(membership.id, following.first - 1)
            await self._drop_after(membership.chain.valid(brought, membership.memory.entered))
            await membership.enter(following)
            # A barrier: this returns when the worker thread is free. Training still under way would write into the
            # model with which the next view begins.
            in_worker = partial(asyncio.get_running_loop().run_in_executor, self._executor)
            await in_worker(int)
            if await asyncio.to_thread(self._checkpoints.newest_intact) < 0:
                self._setup = await in_worker(self._setup.from_scratch)

    async def _status(self, request: bytes) -> bytes:
        """The status in the last view; LookupError if this process has played none."""
        if self.runtime is None:
            raise LookupError("it has just started")
        return await self.runtime.status(request)

    async def _drop_after(self, round: int | None) -> None:
        """Remove all that is void, which is all after that round; None: nothing is."""
        if round is not None:
            await in_thread(drop_after, self._setup.out, round)
