"""A short stay at every host at once, to look whether peers can run there."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from launcher.engines.ssh.agent import Agent, LostError, RefusedError, agent
from launcher.engines.ssh.connection import UnreachableError
from launcher.engines.ssh.hosts import Host
from peer.tasks import background


class Visit:
    """At one host."""

    def __init__(self, host: Host, agent: Agent) -> None:
        self.host, self._agent = host, agent

    async def ask(self, do: str, **order: Any) -> Any:
        """The answer; RefusedError, also when the connection is lost."""
        try:
            return await self._agent.ask(do, **order)
        except LostError as error:
            raise RefusedError(str(error)) from None


@asynccontextmanager
async def visits(hosts: Mapping[str, Host]) -> AsyncIterator[dict[str, Visit | str]]:
    """By host: the visit, or why there can be none."""
    async with background() as tasks:
        met: dict[str, asyncio.Future[Visit | str]] = {
            name: asyncio.get_running_loop().create_future() for name in hosts
        }
        for name, host in hosts.items():
            tasks.create_task(_stay(host, met[name]))
        yield {name: await one for name, one in met.items()}


async def _stay(host: Host, met: "asyncio.Future[Visit | str]") -> None:
    try:
        async with agent(host, host.python) as one:
            met.set_result(Visit(host, one))
            await one.lost()
    except UnreachableError as error:
        if not met.done():
            met.set_result(str(error))
