"""`--install`: a Python environment on every host, with the dfl that runs here."""

import asyncio
import base64
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version

from launcher.engines.ssh import wheel
from launcher.engines.ssh.agent import RefusedError, agent
from launcher.engines.ssh.connection import UnreachableError
from launcher.engines.ssh.hosts import Host
from peer.errors import FailedError


async def install(hosts: Iterable[Host], extras: Sequence[str], say: Callable[[str], None]) -> None:
    """On all at once. FailedError names a host where it did not work."""
    name, content = wheel.build()
    await asyncio.gather(*(_install(host, name, content, (extras, say)) for host in hosts))


async def _install(host: Host, name: str, content: bytes, how: tuple[Sequence[str], Callable[[str], None]]) -> None:
    extras, say = how
    order = {"directory": host.directory, "name": name, "content": base64.b64encode(content).decode(), "extras": extras}
    try:
        async with agent(host, host.python) as one:
            if await one.ask("installed", directory=order["directory"], content=order["content"], extras=extras):
                return
            say(
                f"{host.host}: makes a Python environment in {host.environment} with dfl {version('dfl')} and what it "
                "needs, by pip; the first time that takes minutes"
            )
            await one.ask("install", **order)
        async with agent(host, host.interpreter(installed=True)) as one:
            if why := await one.ask("device", name="auto"):
                raise RefusedError(why)
    except (RefusedError, UnreachableError) as error:
        raise FailedError(f"{host.host}: dfl could not be installed: {error}") from None
    say(f"{host.host}: dfl {version('dfl')} is installed")
