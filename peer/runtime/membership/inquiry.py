"""What one member asks the others about views, several of them at once."""

import asyncio
from collections.abc import Collection, Mapping

from peer.network.streams.handshake import RefusedError
from peer.network.transport import REFUSED, DisconnectedError, Transport
from peer.network.views.questions import Questions
from peer.runtime.membership.membership import Membership
from peer.views.messages import Decided, Prepare, Promise, Reply, Request


class Inquiry:
    """Of one member, on the connections of its present life."""

    def __init__(self, membership: Membership, questions: Questions) -> None:
        self._membership, self._questions = membership, questions
        self._clock = asyncio.get_running_loop().time
        self._failures: dict[str, str] = {}
        """Why the last question to a member was not answered."""
        self.answered: dict[str, float] = {}
        """When each member answered last, by the loop's clock."""

    def refused(self, member: str) -> bool:
        """Whether nobody listened there when it was asked last."""
        return self._failures.get(member) == REFUSED

    async def ask_all(
        self, requests: Mapping[str, Request], transport: Transport, gone: Collection[str]
    ) -> dict[str, Reply | None]:
        """Everybody's answer, by member; None of whom none came. `gone`: who is silent for good, as it seems."""
        own, asking = self._membership.id, dict[str, asyncio.Task[Reply | None]]()
        async with asyncio.TaskGroup() as group:
            for id in (id for id in requests if id != own):
                ask = self.ask if id in gone else self._ask_patiently
                asking[id] = group.create_task(ask(id, requests[id], transport))
            if own in requests:
                await _wait_until_told(requests[own], asking)
                asking[own] = group.create_task(self.ask(own, requests[own], transport))
        return {id: None if self._is_void(id, task.result()) else task.result() for id, task in asking.items()}

    async def _ask_patiently(self, member: str, request: Request, transport: Transport) -> Reply | None:
        """Where nobody listens a peer may be on its way from one view to the next, or be starting.

        Whoever promises nothing is left out: so it is asked again, for as long as one is waited for that is silent.
        """
        until = self._clock() + self._questions.timeouts.question
        while (reply := await self.ask(member, request, transport)) is None:
            if not isinstance(request, Prepare) or not self.refused(member) or self._clock() > until:
                break
            await asyncio.sleep(self._questions.timeouts.retry[-1])
        return reply

    def _is_void(self, member: str, reply: Reply | None) -> bool:
        """Whether it comes from a member whose disk is not what it was: all would go back further than they can."""
        seat = self._membership.seat
        return isinstance(reply, Promise) and seat is not None and seat.has_lost(member, reply.durable)

    async def ask(self, member: str, request: Request, transport: Transport) -> Reply | None:
        """The answer; None where there is none."""
        self._failures.pop(member, None)
        try:
            if member == self._membership.id:
                return await self._membership.hear(request)
            reply = await self._questions.ask(transport, member, request)
            self.answered[member] = self._clock()
            return reply
        except TimeoutError:  # this peer itself does not know yet how it stands
            return None
        except (DisconnectedError, RefusedError) as error:
            self._failures[member] = str(error)
            return None


async def _wait_until_told(request: Request, asking: Mapping[str, asyncio.Task[Reply | None]]) -> None:
    """Whoever hears of a decision closes its connections to move on: so the others hear of it before this peer."""
    if isinstance(request, Decided) and request.views:
        hearing = [asking[id] for id in request.views[-1].members if id in asking]
        if hearing:
            await asyncio.wait(hearing)
