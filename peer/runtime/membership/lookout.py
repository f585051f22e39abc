"""Whether those who are missed are there all the same, and what was decided of which this peer has not heard."""

import asyncio
from random import Random

from peer.network.transport import Transport
from peer.runtime.membership.inquiry import Inquiry
from peer.runtime.membership.membership import Membership
from peer.views.messages import Ask, Decided


class Lookout:
    """Of one member. Who answers is not silent: it may still play the view before, or be busy."""

    def __init__(self, membership: Membership, inquiry: Inquiry, order: tuple[str, ...]) -> None:
        """`order`: everybody's id, as in the spec."""
        self._membership, self._inquiry, self._order = membership, inquiry, order
        self._random = Random(membership.id)

    async def run(self, seconds: float) -> None:
        """For ever, so many seconds apart: nobody is asked while nobody is missed."""
        while True:
            await asyncio.sleep(seconds)
            seat = self._membership.seat
            if seat and seat.transport and (missing := seat.missing) and not self._membership.is_over(seat.view):
                others = [id for id in self._order if id != self._membership.id]
                async with asyncio.TaskGroup() as group:
                    for id in sorted({*missing, self._random.choice(others)}):
                        group.create_task(self._ask(id, seat.transport))

    async def _ask(self, member: str, transport: Transport) -> None:
        reply = await self._inquiry.ask(member, Ask(self._membership.chain.current.number), transport)
        if isinstance(reply, Decided) and reply.views:
            await self._membership.learn(reply.views)
