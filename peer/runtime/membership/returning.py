"""The way back of a member that the others have gone on without."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from random import Random

from peer.errors import FailedError
from peer.network.streams.handshake import RefusedError
from peer.network.transport import DisconnectedError, StatusHandler, Transport
from peer.network.views.questions import Questions
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.needs import Loss
from peer.telemetry.events import Awaited, Waiting
from peer.views.messages import Ask, Decided, Enter, Request
from peer.views.view import View


class LeftBehindError(FailedError):
    """The others have gone on without this peer, and do not take it in."""


class ExpelledError(FailedError):
    """The others have voted this peer out."""


class Return:
    """Asks the members, on connections that it opens itself: it listens to nobody before it is a member again."""

    def __init__(
        self,
        membership: Membership,
        questions: Questions,
        transport: Callable[[StatusHandler], Transport],
        loss: Loss,
    ) -> None:
        self._membership, self._questions, self._make, self._loss = membership, questions, transport, loss
        self._random = Random(membership.id)

    async def next_view(self, private: int) -> View:
        """That in which this peer is to live next; `private`: the round after which the state stands that it has."""
        membership = self._membership
        self._check_votes()
        if following := membership.chain.after(membership.register.entered, membership.id):
            return following
        async with self._connected() as transport:
            async for silent in self._ask_again_and_again(transport):
                if following := membership.chain.after(membership.register.entered, membership.id):
                    break
                if not silent:  # who does not reach everybody would only be lost again
                    enter = Enter(membership.chain.current.number, membership.id, private)
                    await self._ask(self._random.choice(self._others), enter, transport)
        assert following
        return following

    async def wait_for_exclusion(self) -> None:
        """Until the others have gone on without this peer, which has nothing left to go on from as a member."""
        async with self._connected() as transport:
            async for _ in self._ask_again_and_again(transport):
                if self._membership.id not in self._membership.chain.current.members:
                    return

    async def _ask_again_and_again(self, transport: Transport) -> AsyncIterator[list[str]]:
        """What members tell of later views is taken up; who of them does not answer.

        LeftBehindError when nobody has answered for `patience` seconds.
        """
        clock, said = asyncio.get_running_loop().time, list[str]()
        begun, answered = clock(), dict[str, float]()
        while True:
            # On a machine that is too busy not all answer each time; nor are they lost to each other for that.
            answered |= dict.fromkeys(await self._ask_everybody(transport), clock())
            self._check_votes()
            silent = [id for id in self._others if clock() - answered.get(id, -inf) > self._loss.absence]
            if clock() - max(answered.values(), default=begun) > self._loss.patience:
                raise LeftBehindError(
                    f"the others have gone on without this peer since round {self._membership.chain.current.first}, "
                    f"and none of them has answered for {self._loss.patience:g} s: they have finished, or are away; "
                    "start it again if they are not done"
                )
            if silent != said:
                self._membership.report(_waiting(silent))
            said = silent
            yield silent
            await asyncio.sleep(self._questions.timeouts.ask)

    def _check_votes(self) -> None:
        chain, id = self._membership.chain, self._membership.id
        if by := [view for view in chain.since(-1) if id in view.expelled]:
            why = f"view {by[0].number}: {by[0].reason}"
            raise ExpelledError(f"{id} was voted out of the federation ({why}), and is not taken in again")

    async def _ask_everybody(self, transport: Transport) -> list[str]:
        """Which members answer; what they tell of later views is taken up."""
        question = Ask(self._membership.chain.current.number)
        async with asyncio.TaskGroup() as group:
            asking = {id: group.create_task(self._ask(id, question, transport)) for id in self._others}
        return [id for id, task in asking.items() if task.result()]

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


def _waiting(silent: list[str]) -> Waiting:
    awaited = tuple(Awaited(id, None, "it does not answer") for id in silent)
    sentence = f"to be taken in: waiting for {', '.join(silent)} to answer" if silent else "all members answer"
    return Waiting(cause="join", awaited=awaited, sentence=sentence)


async def nothing_to_tell(_request: bytes) -> bytes:
    """The status of a peer to which nobody listens: it is never asked."""
    return b""
