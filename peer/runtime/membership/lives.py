"""A peer from its start to the end of the run: a life in each view, one after the other."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace

from peer.network.streams.handshake import Identity
from peer.network.transport import StatusHandler, Transport
from peer.network.views.questions import Questions
from peer.ownership import make_private
from peer.runtime.bounds import Bounds
from peer.runtime.checkpoint import Checkpoints
from peer.runtime.checkpointer import LostError
from peer.runtime.journal import Journal
from peer.runtime.membership.inquiry import Inquiry
from peer.runtime.membership.lookout import Lookout
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.moving_seat import Terms
from peer.runtime.membership.needs import Loss
from peer.runtime.membership.register import Register
from peer.runtime.membership.replay import Replay
from peer.runtime.membership.returning import ExpelledError, LeftBehindError, Return
from peer.runtime.membership.steward import Steward
from peer.runtime.membership.votes import Votes
from peer.runtime.runtime import Runtime
from peer.runtime.setup import Setup, prepare
from peer.spec.agreement import digests
from peer.tasks import background, in_thread
from peer.telemetry.events import Departed, Failed, Returning
from peer.telemetry.telemetry import Telemetry
from peer.views.view import View


class Lives:
    """`run` is all of them."""

    def __init__(
        self,
        setup: Setup,
        transport: Callable[[StatusHandler], Transport],
        executor: Executor,
        telemetry: Telemetry,
        bounds: Bounds = Bounds(),
    ) -> None:
        self._setup, self._transport, self._executor = setup, transport, executor
        self._telemetry, self._bounds = telemetry, bounds
        self._checkpoints, self._journal = Checkpoints(setup.out / "checkpoint"), Journal(setup.out / "journal")
        self.runtime: Runtime | None = None
        """The present one, or the last."""
        self._membership: Membership | None = None

    @property
    def views(self) -> tuple[View, ...]:
        """All that were decided, as far as this peer knows."""
        return self._membership.chain.since(-1) if self._membership else self._setup.recorded or (self._setup.view,)

    async def _live(self, setup: Setup) -> bool:
        self.runtime = Runtime(setup, self._transport, self._executor, self._telemetry, self._bounds)
        return await self.runtime.run()

    async def run(self) -> None:
        """FailedError: the run cannot go on; asyncio.CancelledError: stopped in good order."""
        if self._setup.recorded:
            await Replay(self._setup, self._setup.recorded, self._live, self._telemetry.emit).run()
            return
        if self._setup.spec.on_loss != "bypass":
            await self._live(self._setup)
            return
        make_private(self._setup.out)
        questions = self._questions()
        register = Register.open(self._setup.out, self._setup.config.id, self._setup.view)
        loss, spec = self._loss(), self._setup.spec
        terms = Terms(spec.patience, begins_with_some=spec.start_with is not None, at_least=loss.at_least)
        self._membership = membership = Membership(register, questions, self._telemetry.emit, terms)
        async with background() as group:
            inquiry = Inquiry(membership, questions)
            votes = Votes(membership, inquiry, loss.at_least)
            group.create_task(votes.run(questions.timeouts.ask))
            group.create_task(Lookout(membership, inquiry, spec.ids).run(questions.timeouts.ask))
            group.create_task(Steward(membership, inquiry, loss, votes, questions.timeouts).run())
            await self._live_on(membership, Return(membership, questions, self._transport, loss))

    def leave(self, otherwise: Callable[[], None]) -> bool:
        """Have the others go on without this peer, and `otherwise` if that cannot be; False if it is no member."""
        membership = self._membership
        if membership and membership.is_member:
            membership.order.give(otherwise)
            return True
        return False

    def _questions(self) -> Questions:
        spec, agreement = self._setup.spec, self._setup.spec.agreement()
        identity = Identity(self._setup.config.id, digests(agreement), manifest="", settings=agreement)
        addresses = {id: at for id, at in spec.addresses.items() if at}
        return Questions(identity, addresses, self._bounds.limits, self._bounds.timeouts)

    def _loss(self) -> Loss:
        spec = self._setup.spec
        return Loss(spec.absence, spec.protocol.min_peers, spec.patience, spec.start_with, spec.rounds, spec.ids)

    async def _live_on(self, membership: Membership, back: Return) -> None:
        """One life after the other."""
        while True:
            if not membership.is_over(membership.view):
                try:
                    if await self._live_once(membership):
                        return
                except LostError as error:
                    self._telemetry.emit(Returning(sentence=str(error)))
                    await back.wait_for_exclusion()
            if membership.has_left:
                await self._depart(membership)
                return
            try:
                await self._move(membership, back)
            except ExpelledError as error:
                self._telemetry.emit(Failed(message=str(error)))
                raise

    async def _live_once(self, membership: Membership) -> bool:
        """Whether the run is over with this life."""
        view, seat = membership.view, membership.take_seat()
        try:
            async with background() as group:
                running = group.create_task(self._live(replace(self._setup, moved=seat)))
                moved = group.create_task(membership.moved(view))
                await asyncio.wait((running, moved), return_when=asyncio.FIRST_COMPLETED)
        finally:
            seat.leave()
        return not running.cancelled() and running.result()

    async def _depart(self, membership: Membership) -> None:
        """Started again, this peer asks to be taken in."""
        await self._drop_after(membership.chain.ceiling(membership.register.entered))
        view = membership.chain.current
        await membership.enter(view)
        self._telemetry.emit(
            Departed(
                sentence=f"left: view {view.number} goes on without this peer; started again, it asks to be taken in"
            )
        )

    async def _move(self, membership: Membership, back: Return) -> None:
        """To the next view, as somebody who comes back if there is none for this peer."""
        # What still trains would write into the model that the next life begins with.
        await asyncio.get_running_loop().run_in_executor(self._executor, int)
        await self._drop_after(membership.chain.ceiling(membership.register.entered))
        following = await back.next_view(await asyncio.to_thread(self._checkpoints.newest_whole))
        entering = membership.id in dict(following.entrants)  # all others have the last round, and only end there
        if entering and following.first > self._setup.spec.rounds:
            raise LeftBehindError("the others have finished without this peer, which came back in their last round")
        # Others may have been decided meanwhile, in which less of it counts.
        await self._drop_after(dict(following.entrants).get(membership.id, following.first - 1))
        await membership.enter(following)
        if await asyncio.to_thread(self._checkpoints.newest_whole) < 0:
            load, setup = asyncio.get_running_loop().run_in_executor, self._setup
            self._setup = await load(self._executor, prepare, setup.config, setup.spec, setup.common)

    async def _drop_after(self, round: int | None) -> None:
        """What lies after that round is void; None: nothing is."""
        if round is not None:
            await in_thread(self._checkpoints.drop_after, round)
            await in_thread(self._journal.drop_after, round)
