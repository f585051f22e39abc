"""What the summary needs of a peer, brought here by SFTP. Its checkpoints stay where they are.

Which files there are to be is known here: no name, no size and no listing of the host's is gone by.
"""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher.engines.ssh.hosts import Host
from launcher.engines.ssh.link import Link
from peer.errors import FailedError
from peer.files import cannot_write
from peer.spec.federation import Spec
from peer.telemetry.results import BEST_MODEL, MODEL, WANTED, traced

if TYPE_CHECKING:
    import asyncssh


REACH = 60.0
"""Seconds that a host is waited for; the files themselves take as long as they take."""


CHUNK = 4 << 20
"""Bytes that are asked for at a time."""


def names(spec: Spec, host: Host) -> tuple[str, ...]:
    """Of all files that are wanted of a peer there, relative to its directory."""
    if host.models == "leave":
        return tuple(name for name in WANTED if name not in (MODEL, BEST_MODEL))
    return (*WANTED, *(traced(round) for round in range(1, spec.rounds + 1) if spec.trace))


async def collect(link: Link, there: str, out: Path, names: Iterable[str] = WANTED) -> None:
    """Those of its files that are there, each whole or not at all; tried again when the connection is lost meanwhile.

    FailedError when it cannot.
    """
    import asyncssh

    while True:
        connection = await _connection(link)
        try:
            async with connection.start_sftp_client() as sftp:
                await _bring(sftp, link.host, there, out, names)
                return
        except asyncssh.SFTPError as error:
            if not isinstance(error, asyncssh.SFTPConnectionLost | asyncssh.SFTPNoConnection):
                raise FailedError(f"{link.host.host}: {there} cannot be collected: {error.reason}") from None
        except asyncssh.ChannelOpenError as error:
            if not await _lost(connection):
                raise FailedError(
                    f"{link.host.host}: SFTP does not work there ({error.reason}); have it allowed"
                ) from None
        except asyncssh.Error:
            pass  # the connection was lost: there will be another
        except OSError as error:
            if not await _lost(connection):
                raise FailedError(cannot_write(out, error)) from None
        await asyncio.sleep(0)


async def _connection(link: Link) -> "asyncssh.SSHClientConnection":
    try:
        async with asyncio.timeout(REACH):
            return (await link.agent()).connection
    except TimeoutError:
        raise FailedError(f"{link.host.host} cannot be reached: {link.why or 'timed out'}") from None


async def _lost(connection: "asyncssh.SSHClientConnection") -> bool:
    await asyncio.sleep(0)  # it is marked as closed a step after its transport is
    closed: bool = connection.is_closed()
    return closed


async def _bring(sftp: "asyncssh.SFTPClient", host: Host, there: str, out: Path, names: Iterable[str]) -> None:
    import asyncssh

    left = host.bytes_of_a_peer
    for name in names:
        try:
            async with sftp.open(f"{there}/{name}", "rb") as file:
                left -= await _copy(file, out / name, left)
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
            continue
        if left < 0:
            raise FailedError(host.too_much(there))


async def _copy(file: "asyncssh.SFTPClientFile", here: Path, most: int) -> int:
    """How many bytes it has; when there are more than `most`, the file is not made, and the rest is not asked for."""
    here.parent.mkdir(mode=0o700, exist_ok=True)
    beside, size = here.with_name(f".{here.name}.part"), 0
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as made:
            while size <= most and (data := cast(bytes, await file.read(min(CHUNK, most + 1 - size)))):
                size += len(data)
                if size <= most:
                    made.write(data)
        if size <= most:
            beside.replace(here)
    finally:
        beside.unlink(missing_ok=True)
    return size
