"""The way back of a member that the others have gone on without."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from peer.errors import FailedError
from peer.network.streams.handshake import RefusedError
from peer.network.transport import DisconnectedError, StatusHandler, Transport
from peer.network.views.questions import Questions
from peer.runtime.membership.membership import Membership
from peer.views.messages import Ask, Decided, Enter, Request
from peer.views.view import View


class LeftBehindError(FailedError):
    """The others have gone on without this peer, and do not take it in."""


class Return:
    """Asks the members, on connections that it opens itself: it listens to nobody before it is a member again."""

    def __init__(
        self,
        membership: Membership,
        questions: Questions,
        transport: Callable[[StatusHandler], Transport],
        patience: float,
    ) -> None:
        """patience: seconds for which it asks although nobody answers."""
        self._membership, self._questions, self._make, self._patience = membership, questions, transport, patience
        self._random = Random(membership.id)

    async def next_view(self, private: int) -> View:
        """That in which this peer is to live next; `private`: the round after which the state stands that it has."""
        membership = self._membership
        if following := membership.chain.after(membership.register.entered, membership.id):
            return following
        clock = asyncio.get_running_loop().time
        async with self._connected() as transport:
            heard = clock()
            while not (following := membership.chain.after(membership.register.entered, membership.id)):
                answers = await self._ask_everybody(transport)
                heard = clock() if any(answers) else heard
                if clock() - heard > self._patience:
                    raise LeftBehindError(
                        f"the others have gone on without this peer since round {membership.chain.current.first}, and "
                        f"none of them has answered for {self._patience:g} s: they have finished, or are away; start "
                        "it again if they are not done"
                    )
                outside = membership.id not in membership.chain.current.members
                if outside and all(answers):  # who does not reach everybody would only be lost again
                    enter = Enter(membership.chain.current.number, membership.id, private)
                    await self._ask(self._random.choice(self._others), enter, transport)
                await asyncio.sleep(self._questions.timeouts.ask)
        return following

    async def wait_for_exclusion(self) -> None:
        """Until the others have gone on without this peer, which has nothing left to go on from as a member."""
        async with self._connected() as transport:
            while self._membership.id in self._membership.chain.current.members:
                await self._ask(
                    self._random.choice(self._others), Ask(self._membership.chain.current.number), transport
                )
                await asyncio.sleep(self._questions.timeouts.ask)

    async def _ask_everybody(self, transport: Transport) -> list[bool]:
        """Which members answer; what they tell of later views is taken up."""
        question = Ask(self._membership.chain.current.number)
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(self._ask(id, question, transport)) for id in self._others]
        return [task.result() for task in asking]

    async def _ask(self, member: str, request: Request, transport: Transport) -> bool:
        """Whether there is an answer."""
        try:
            reply = await self._questions.ask(transport, member, request)
        except (DisconnectedError, RefusedError):
            return False
        if isinstance(reply, Decided) and reply.views:
            await self._membership.learn(reply.views)
        return True

    @property
    def _others(self) -> list[str]:
        return [id for id in self._membership.chain.current.members if id != self._membership.id]

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Transport]:
        transport = self._make(nothing_to_tell)
        try:
            yield transport
        finally:
            await transport.close()


async def nothing_to_tell(_request: bytes) -> bytes:
    """The status of a peer to which nobody listens: it is never asked."""
    return b""
