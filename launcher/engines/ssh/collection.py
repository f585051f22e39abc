"""What the summary needs of a peer, brought here by SFTP. Its checkpoints stay where they are."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.engines.ssh.link import Link
from peer.errors import FailedError
from peer.telemetry.results import AUDIT, RESULT

if TYPE_CHECKING:
    import asyncssh

WANTED = (AUDIT, "model.safetensors", RESULT)
TRACE = "trace"


async def collect(link: Link, there: str, out: Path) -> None:
    """Its files, whole or not at all; tried again when the connection is lost meanwhile."""
    import asyncssh

    while True:
        connection = (await link.agent()).connection
        try:
            async with connection.start_sftp_client() as sftp:
                await _bring(sftp, there, out)
                return
        except asyncssh.SFTPError as error:
            if not isinstance(error, asyncssh.SFTPConnectionLost | asyncssh.SFTPNoConnection):
                raise FailedError(f"{link.host.host}: {there} cannot be collected: {error.reason}") from None
        except asyncssh.ChannelOpenError as error:
            raise FailedError(f"{link.host.host}: SFTP does not work there ({error.reason}); have it allowed") from None
        except (OSError, asyncssh.Error):
            pass  # the connection was lost: there will be another
        await asyncio.sleep(0)


async def _bring(sftp: "asyncssh.SFTPClient", there: str, out: Path) -> None:
    for name in WANTED:
        if await sftp.exists(f"{there}/{name}"):
            beside = out / f".{name}.part"
            await sftp.get(f"{there}/{name}", beside)
            beside.chmod(0o600)
            beside.replace(out / name)
    if await sftp.exists(f"{there}/{TRACE}"):
        await sftp.get(f"{there}/{TRACE}", out, recurse=True, follow_symlinks=True)
