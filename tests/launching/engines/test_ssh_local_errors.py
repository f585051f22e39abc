"""What goes wrong on the launcher's own machine is said, and is not taken for a connection that was lost."""

import asyncio
import base64
import errno
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.engines import ssh, ssh_connection
from launcher.engines.ssh_connection import Agent, RemotePeer
from launcher.engines.ssh_hosts import Host
from peer.errors import FailedError

pytest.importorskip("asyncssh")


class FakeLink:
    """A connection that breaks some times; then SFTP meets a full disk here."""

    host = Host(host="lab0")

    def __init__(self, broken: int) -> None:
        self.broken, self.connections = broken, 0

    async def agent_within(self) -> Any:
        self.connections += 1
        lost = self.connections <= self.broken

        @asynccontextmanager
        async def sftp() -> AsyncIterator[None]:
            raise OSError(errno.ECONNRESET, "reset") if lost else OSError(errno.ENOSPC, "No space left on device")
            yield

        return SimpleNamespace(connection=SimpleNamespace(start_sftp_client=sftp, is_closed=lambda: lost))


def test_a_full_disk_here_ends_the_collecting_and_a_lost_connection_does_not(tmp_path: Path) -> None:
    link = FakeLink(broken=2)
    with pytest.raises(FailedError, match=r"cannot write .*: No space left on device; make room"):
        asyncio.run(ssh.collect_files(cast(Any, link), "/there", tmp_path))
    assert link.connections == 3


def test_what_a_host_tells_and_cannot_be_written_here_ends_the_wait_once(tmp_path: Path) -> None:
    """The connection stays, so that the peer can be told to end and its end be heard."""

    async def listen() -> None:
        peer = RemotePeer("peer0", Host(host="lab0"), tmp_path / "missing", lambda: None)
        notice = {"peer": "peer0", "file": "log.txt", "at": 0, "data": base64.b64encode(b"said").decode()}

        async def stdout() -> AsyncIterator[bytes]:
            yield b"what a login shell says\n"
            yield json.dumps(notice).encode() + b"\n"
            yield json.dumps(notice).encode() + b"\n"

        process = cast(Any, SimpleNamespace(stdout=stdout()))
        await Agent(Host(host="lab0"), cast(Any, None), process).listen(peer.on_notice)
        with pytest.raises(FailedError, match=r"cannot write .*missing/log.txt: No such file or directory; mend that"):
            await peer.wait()
        peer.signal(signal.SIGTERM)
        assert peer.undelivered == signal.SIGTERM
        peer.on_notice({"peer": "peer0", "ended": 143})
        assert await peer.wait() == 143

    asyncio.run(listen())


@pytest.mark.parametrize("hangs", ["shell", "Python"])
async def test_a_host_that_starts_nothing_is_unreachable(hangs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its home directory lies on a server that is gone; the connection itself stays."""

    async def silence() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def create_process(*_: object, **_named: object) -> Any:
        if hangs == "shell":
            await asyncio.Event().wait()
        return SimpleNamespace(stdin=SimpleNamespace(write=lambda _: None), stdout=silence())

    @asynccontextmanager
    async def connected(_host: Host) -> AsyncIterator[Any]:
        yield SimpleNamespace(create_process=create_process)

    monkeypatch.setattr(ssh_connection, "connected", connected)
    monkeypatch.setattr(ssh_connection, "ANSWER_TIMEOUT_S", 0.05)
    with pytest.raises(ssh_connection.UnreachableError, match="timed out"):
        async with asyncio.timeout(10), ssh_connection.agent(Host(host="lab0"), "python3"):
            pass
