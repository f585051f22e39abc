"""One host of a run, for as long as the run lasts: a connection that is made again whenever it is lost."""

import asyncio
from collections.abc import Callable
from typing import Any

from launcher.engines.ssh.agent import Agent, LostError, Notice, RefusedError, agent
from launcher.engines.ssh.connection import UnreachableError
from launcher.engines.ssh.followed import RemotePeer
from launcher.engines.ssh.hosts import Host
from peer.errors import FailedError
from peer.tasks import background

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds before the first attempt to connect again, and at most; each waits twice as long as the one before."""


class Link:
    """Orders wait until the host can be reached; whenever it is, peers are followed from where their files end here.

    directory: that of the run there. say: told when the host cannot be reached, and when it can be again.
    """

    def __init__(self, host: Host, directory: str, say: Callable[[str], None]) -> None:
        self.host, self.directory, self._say = host, directory, say
        self.why = ""
        """Why it cannot be reached, once an attempt has failed; empty while it can."""
        self._agent: asyncio.Future[Agent] = asyncio.get_running_loop().create_future()
        self._peers: dict[str, RemotePeer] = {}
        self._poked = asyncio.Event()

    async def keep(self, python: str) -> None:
        """Connects, and again for ever."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with agent(self.host, python, self._hear) as one:
                    pause = FIRST_PAUSE
                    await self._serve(one)
            except LostError:
                pass  # for a moment, perhaps
            except RefusedError as error:
                raise FailedError(f"{self.host.host}: {error}") from None
            except UnreachableError as error:
                if not self.why:
                    self._say(f"{self.host.host} cannot be reached: {error}; its peers go on, and so do the attempts")
                self.why = str(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _serve(self, one: Agent) -> None:
        """Until the connection is lost, which ends in LostError."""
        if self.why:
            self._say(f"{self.host.host} can be reached again")
            self.why = ""
        self._agent.set_result(one)
        try:
            async with background() as tasks:
                tasks.create_task(one.lost())
                await self._tend(one)
        finally:
            self._agent = asyncio.get_running_loop().create_future()

    async def _tend(self, one: Agent) -> None:
        """Follows whom it does not follow by this connection yet, and delivers signals, whenever poked."""
        followed: list[RemotePeer] = []
        while True:
            self._poked.clear()
            for peer in [*self._peers.values()]:
                if peer not in followed and not peer.ended:
                    followed.append(peer)
                    await one.ask("follow", directory=self.directory, id=peer.id, offsets=peer.offsets())
                number = peer.undelivered
                if number and await one.ask("send", directory=self.directory, id=peer.id, number=number):
                    peer.delivered(number)
            await self._poked.wait()

    def _hear(self, notice: Notice) -> None:
        if peer := self._peers.get(notice.get("peer", "")):
            peer.hear(notice)

    async def agent(self) -> Agent:
        """As soon as there is one."""
        return await asyncio.shield(self._agent)

    async def ask(self, do: str, **order: Any) -> Any:
        """The answer of the host about the run's directory, whenever it comes; FailedError when the host refuses."""
        while True:
            try:
                return await (await self.agent()).ask(do, directory=self.directory, **order)
            except LostError:
                await asyncio.sleep(0)
            except RefusedError as error:
                raise FailedError(f"{self.host.host}: {error}") from None

    def follow(self, peer: RemotePeer) -> None:
        """Until it has ended: its files, and its end."""
        self._peers[peer.id] = peer
        self.poke()

    def poke(self) -> None:
        """There is somebody to follow, or a signal to deliver."""
        self._poked.set()

    @property
    def running(self) -> list[str]:
        """The peers that are not known to have ended."""
        return [peer.id for peer in self._peers.values() if not peer.ended]

    async def ended(self) -> None:
        """Returns when no peer runs there."""
        for peer in [*self._peers.values()]:
            await peer.wait()
