"""One member's part in deciding who belongs to the federation from which round on: it asks, answers and remembers."""

import asyncio
from contextlib import suppress
from typing import Any

from peer.network.transport import Pipe
from peer.network.views.questions import Questions
from peer.runtime.membership.leaving import Order
from peer.runtime.membership.moving_seat import MovingSeat, Terms
from peer.runtime.membership.register import Register
from peer.tasks import in_thread, uninterrupted
from peer.telemetry.events import Report, ViewConflict, ViewDecided
from peer.views.acceptor import NOWHERE, Standing
from peer.views.messages import Decided, Denied, Enter, Expel, Heard, Leave, Prepare, Promise, Reply, Request
from peer.views.view import ConflictError, View


class Membership:
    """What is promised is on disk before it is answered, and what is decided before anybody hears of it."""

    def __init__(self, register: Register, questions: Questions, report: Report, terms: Terms) -> None:
        self._terms = terms
        self.register, self._questions, self.report = register, questions, report
        self.id, self.chain = register.acceptor.id, register.acceptor.chain
        self.seat: MovingSeat | None = None
        """Where this peer is in its present life."""
        self.order = Order(report)
        """To leave, if there is one."""
        self.asks_to_enter: dict[str, int] = {}
        """Who does, with the round after which its private state stands."""
        self._changed, self._writing = asyncio.Event(), asyncio.Lock()
        self._written: dict[str, Any] = {}
        self._told = self.chain.current.number
        self._stranded: int | None = None
        """The number of the view in which it lives and which cannot be played to its end any more."""

    @property
    def held(self) -> bool:
        """Whether the next view is being decided on: no round may begin."""
        return self.register.acceptor.held

    @property
    def view(self) -> View:
        """In which this peer lives, or has last lived."""
        return self.chain.since(self.register.entered - 1)[0]

    @property
    def is_member(self) -> bool:
        """Whether it is one of the last view."""
        return self.id in self.chain.current.members

    @property
    def has_left(self) -> bool:
        """Whether it was told to leave, and no view is left in which it is to live."""
        return self.order.stands and not self.is_member and not self.chain.after(self.register.entered, self.id)

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
        return view.number == self._stranded or self.chain.is_over(view.number, self.id)

    def strand(self, view: View) -> None:
        """Who leaves cannot play that view to its end: somebody else is away."""
        self._stranded = view.number
        self._tell_seat()
        self.stir()

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
        if isinstance(request, Leave):
            return await self._leave(request)
        if isinstance(request, Expel) and (denied := self._why_not(request)):
            return Denied(denied)
        standing = await self._standing() if isinstance(request, Prepare) else NOWHERE
        reply = self.register.acceptor.hear(request, standing)
        if isinstance(reply, Promise):
            self.register.promised = reply.durable
        if self.held and self.seat:
            self.seat.hold(self.register.promised)  # a round that begins from now on is not in the promise
        # One who hears late that it was taken in asks once more: that must not count when it has gone again.
        current = self.chain.current
        known = {*current.members, *current.expelled}
        if isinstance(request, Enter) and isinstance(reply, Heard) and request.id not in known:
            self.asks_to_enter[request.id] = request.private
        await uninterrupted(self._take_note)  # what was heard stands, also where the asker has gone meanwhile
        return reply

    async def _leave(self, request: Leave) -> Reply:
        """Answered when it is decided, or cannot be; else after a while, and the asker asks again."""
        if refusal := self.order.refusal:
            return Denied(refusal)
        if self.is_member:
            self.order.give()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._questions.timeouts.question / 2):
                while self.is_member and self.order.stands:
                    await self._change()
        refusal = self.order.refusal
        return Denied(refusal) if refusal else self.register.acceptor.hear(request)

    def _why_not(self, request: Expel) -> str | None:
        left = {*self.chain.current.members} - {request.id}
        if len(left) >= self._terms.at_least or request.id in self.chain.current.expelled:
            return None
        return f"without {request.id} {len(left)} members would be left, and the protocol needs {self._terms.at_least}"

    async def _hear_another(self, sender: str, request: Request) -> Reply:
        """The same of a question that has come in: what contradicts what is known here is told, and not believed."""
        out = self.register.acceptor.unheard.union(self.chain.current.expelled)
        if sender in out and isinstance(request, Decided):
            return Heard()
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
        await in_thread(self.register.write, self.register.content())

    def _tell_seat(self) -> None:
        if seat := self.seat:
            # In a view that is void nothing more is begun, and nobody hears what is on disk of it.
            seat.hold(self.register.promised if self.held or self.is_over(seat.view) else None)
            following = self.chain.since(seat.view.number)[:1]
            if following and following[0].planned:
                seat.end_after(following[0].first - 1)
                seat.departs = self.id not in following[0].members

    def stir(self) -> None:
        """Something has changed."""
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
