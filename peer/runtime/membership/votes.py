"""Who is voted out: asks the other members whether they consent, as long as this one does."""

import asyncio
from collections.abc import Mapping

from peer.runtime.membership.inquiry import Inquiry
from peer.runtime.membership.membership import Membership
from peer.views.messages import Consents, Decided, Poll


class Votes:
    """As one member knows them. The question holds nobody."""

    def __init__(self, membership: Membership, inquiry: Inquiry, at_least: int) -> None:
        """at_least: members of every view."""
        self._membership, self._inquiry, self._at_least = membership, inquiry, at_least
        self._told: dict[str, frozenset[str]] = {}
        """What each of the others has consented to."""

    async def run(self, seconds: float) -> None:
        """For ever: ask so often."""
        acceptor = self._membership.register.acceptor
        while True:
            if acceptor.consents - {*acceptor.chain.current.expelled}:
                await self._ask()
            acceptor.unheard = frozenset(self.out)
            await asyncio.sleep(seconds)

    @property
    def out(self) -> Mapping[str, tuple[str, ...]]:
        """Who is to be voted out, each with the members that consent; nobody if too few would be left."""
        membership, view = self._membership, self._membership.chain.current
        said = self._told | {membership.id: membership.register.acceptor.consents}
        by = {
            id: tuple(one for one in view.members if one != id and id in said.get(one, ()))
            for id in said[membership.id]
        }
        found = {id: those for id, those in by.items() if view.is_quorum(those)}
        return found if len({*view.members} - found.keys()) >= self._at_least else {}

    async def _ask(self) -> None:
        seat, membership = self._membership.seat, self._membership
        if not seat or not (transport := seat.transport):
            return
        poll = Poll(membership.chain.current.number)
        others = [id for id in membership.chain.current.members if id != membership.id]
        replies = await asyncio.gather(*(self._inquiry.ask(id, poll, transport) for id in others))
        for id, reply in zip(others, replies, strict=True):
            if isinstance(reply, Consents):
                self._told[id] = frozenset(reply.ids)
            elif isinstance(reply, Decided) and reply.views:
                await membership.learn(reply.views)
