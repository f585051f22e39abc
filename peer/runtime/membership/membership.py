"""One member's part in deciding who belongs to the federation from which round on: it asks, answers and remembers."""

import asyncio
from typing import Any

from peer.network.transport import Pipe
from peer.network.views.questions import Questions
from peer.runtime.membership.moving_seat import MovingSeat, Terms
from peer.runtime.membership.register import Register
from peer.telemetry.events import Report, ViewConflict, ViewDecided
from peer.views.acceptor import NOWHERE, Standing
from peer.views.messages import Decided, Enter, Heard, Prepare, Promise, Reply, Request
from peer.views.view import ConflictError, View


class Membership:
    """What is promised is on disk before it is answered, and what is decided before anybody hears of it."""

    def __init__(self, register: Register, questions: Questions, report: Report, terms: Terms) -> None:
        self._terms = terms
        self.register, self._questions, self.report = register, questions, report
        self.id, self.chain = register.acceptor.id, register.acceptor.chain
        self.seat: MovingSeat | None = None
        """Where this peer is in its present life."""
        self.asks_to_enter: dict[str, int] = {}
        """Who does, with the round after which its private state stands."""
        self._changed, self._writing = asyncio.Event(), asyncio.Lock()
        self._written: dict[str, Any] = {}
        self._told = self.chain.current.number

    @property
    def held(self) -> bool:
        """Whether the next view is being decided on: no round may begin."""
        return self.register.acceptor.held

    @property
    def view(self) -> View:
        """In which this peer lives, or has last lived."""
        return self.chain.since(self.register.entered - 1)[0]

    def take_seat(self) -> MovingSeat:
        """For a life in that view."""
        self.seat = MovingSeat(self.view, self.id, self._terms, self)
        self._tell_seat()
        return self.seat

    async def moved(self, view: View) -> None:
        """Wait until that view is over: its rounds are void, or the others go on without this peer."""
        while not self.is_over(view):
            await self._change()

    def is_over(self, view: View) -> bool:
        """Whether life in that view is of no use any more."""
        if view.number == self.chain.current.number:
            return False
        following = self.chain.after(view.number, self.id)
        if following is None or not following.planned or self.id in dict(following.entrants):
            return True
        return following.first == view.first  # it has no round: nobody is sure to come to its first handshake

    async def enter(self, view: View) -> None:
        """Live there from now on: this is on disk when it returns."""
        self.register.entered = view.number
        async with self._writing:
            await self._write()

    async def answer(self, pipe: Pipe) -> None:
        """Serve a stream with a question."""
        await self._questions.answer(pipe, self._hear_another)

    async def hear(self, request: Request) -> Reply:
        """The answer, once what follows from it is on disk."""
        standing = await self._standing() if isinstance(request, Prepare) else NOWHERE
        reply = self.register.acceptor.hear(request, standing)
        if isinstance(reply, Promise):
            self.register.promised = reply.durable
        if self.held and self.seat:
            self.seat.hold(self.register.promised)  # a round that begins from now on is not in the promise
        # One who hears late that it was taken in asks once more: that must not count when it has gone again.
        if isinstance(request, Enter) and isinstance(reply, Heard) and request.id not in self.chain.current.members:
            self.asks_to_enter[request.id] = request.private
        await self._take_note()
        return reply

    async def _hear_another(self, request: Request) -> Reply:
        """The same of a question that has come in: what contradicts what is known here is told, and not believed."""
        try:
            return await self.hear(request)
        except ConflictError as error:
            self.report(ViewConflict(sentence=str(error)))
            return Heard()

    async def learn(self, views: tuple[View, ...]) -> None:
        """Views that were decided, in the order of their numbers."""
        await self.hear(Decided(views))

    async def _standing(self) -> Standing:
        """How this peer stands, once it has found what it had on disk."""
        async with asyncio.timeout(self._questions.timeouts.question):  # then nobody waits for the answer any more
            while not (standing := self.seat and self.seat.standing(self.chain)):
                await self._change()
        return standing

    async def _take_note(self) -> None:
        async with self._writing:
            if (state := self.register.acceptor.state_dict()) != self._written:
                await self._write()
                self._written = state
        for view in self.chain.since(self._told):
            self._told = view.number
            self.asks_to_enter.clear()  # who still wants to asks again
            self.report(ViewDecided(**view.as_json()))
        self._tell_seat()
        self.stir()

    async def _write(self) -> None:
        """As it is now, whatever is decided while it is being written."""
        await asyncio.to_thread(self.register.write, self.register.content())

    def _tell_seat(self) -> None:
        if seat := self.seat:
            # In a view that is void nothing more is begun, and nobody hears what is on disk of it.
            seat.hold(self.register.promised if self.held or self.is_over(seat.view) else None)
            following = self.chain.since(seat.view.number)[:1]
            if following and following[0].planned:
                seat.end_after(following[0].first - 1)

    def stir(self) -> None:
        """Something has changed."""
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
