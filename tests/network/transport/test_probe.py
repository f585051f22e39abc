"""Whether somebody listens at an address, and why nobody does."""

import socket

import pytest

from peer.network.transport import DisconnectedError
from peer.network.transport.addresses import TcpProbe


async def test_somebody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        await TcpProbe().reach(f"127.0.0.1:{server.getsockname()[1]}")


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(DisconnectedError, match=r"^connection refused$"):
        await TcpProbe().reach(f"127.0.0.1:{port}")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70, "x..y"])
async def test_there_is_no_such_host(host: str) -> None:
    with pytest.raises(DisconnectedError, match=r"^unknown host$"):
        await TcpProbe().reach(f"{host}:7700")


async def test_a_name_is_remembered_while_it_cannot_be_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = TcpProbe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
        await probe.reach(address)

        async def hangs(_address: str) -> None:
            raise AssertionError("nobody waits for it")

        monkeypatch.setattr(probe, "_look_up", hangs)
        await probe.reach(address)
