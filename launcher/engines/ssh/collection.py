"""What the summary needs of a peer, brought here by SFTP. Its checkpoints stay where they are."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.engines.ssh.link import Link
from peer.errors import FailedError
from peer.files import cannot_write
from peer.telemetry.results import WANTED

if TYPE_CHECKING:
    import asyncssh

TRACE = "trace"


REACH = 60.0
"""Seconds that a host is waited for; the files themselves take as long as they take."""


async def collect(link: Link, there: str, out: Path) -> None:
    """Its files, whole or not at all; tried again when the connection is lost meanwhile. FailedError when it cannot."""
    import asyncssh

    while True:
        connection = await _connection(link)
        try:
            async with connection.start_sftp_client() as sftp:
                await _bring(sftp, there, out)
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


async def _bring(sftp: "asyncssh.SFTPClient", there: str, out: Path) -> None:
    for name in WANTED:
        if await sftp.exists(f"{there}/{name}"):
            beside = out / f".{name}.part"
            await sftp.get(f"{there}/{name}", beside)
            beside.chmod(0o600)
            beside.replace(out / name)
    if await sftp.exists(f"{there}/{TRACE}"):
        await sftp.get(f"{there}/{TRACE}", out, recurse=True, follow_symlinks=True)
