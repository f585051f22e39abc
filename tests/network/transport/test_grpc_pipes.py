"""Pipes over real gRPC: an end that is dropped is noticed at the other, whoever drops it."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable

import pytest

from peer.network.transport import DisconnectedError, ListenConfig, Pipe, Service
from peer.network.transport.grpc import GrpcTransport, describe_grpc_error


async def status(_request: bytes) -> bytes:
    return b""


class Ends:
    """Two transports and the streams that one of them has accepted."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.server, self.client = (
            GrpcTransport(ListenConfig(address), status),
            GrpcTransport(ListenConfig("127.0.0.1:0"), status),
        )
        self.accepted: asyncio.Queue[Pipe] = asyncio.Queue()

    async def accept(self, _service: Service, pipe: Pipe) -> None:
        self.accepted.put_nowait(pipe)
        try:
            while True:
                await pipe.send(await pipe.receive())
        except DisconnectedError:
            return

    async def stream(self) -> tuple[Pipe, Pipe]:
        """Both ends of a new stream over which something has passed."""
        near = await self.client.dial(self.address, "Tensors")
        await near.send(b"hello")
        assert await near.receive() == b"hello"
        return near, await self.accepted.get()


@pytest.fixture
async def ends(ports: Callable[[int], list[int]]) -> AsyncIterator[Ends]:
    ends = Ends(f"127.0.0.1:{ports(1)[0]}")
    await ends.server.listen(ends.accept)
    yield ends
    await ends.client.close()
    await ends.server.close()


@pytest.mark.parametrize(
    ("details", "plain", "secure"),
    [
        ("last error: UNKNOWN: ipv4:10.77.0.1:7700: tcp handshaker shutdown", "timed out", "timed out"),
        ("Ssl handshake failed: SSL_ERROR_SSL", "Ssl handshake failed: SSL_ERROR_SSL", "TLS handshake failed"),
    ],
)
def test_of_tls_only_where_there_is_any(details: str, plain: str, secure: str) -> None:
    assert (describe_grpc_error(details, secure=False), describe_grpc_error(details, secure=True)) == (plain, secure)


async def test_a_stream_that_the_server_drops_ends_at_the_client(ends: Ends) -> None:
    """It ends even without a garbage collection, which an idle process may not have for minutes."""
    gc.disable()
    try:
        near, far = await ends.stream()
        waiting = asyncio.create_task(near.receive())
        await asyncio.sleep(0.05)
        far.abort()
        with pytest.raises(DisconnectedError):
            await asyncio.wait_for(waiting, 10)
    finally:
        gc.enable()


async def test_a_stream_that_the_client_drops_ends_at_the_server(ends: Ends) -> None:
    near, far = await ends.stream()
    near.abort()
    with pytest.raises(DisconnectedError):
        await asyncio.wait_for(far.receive(), 10)


async def test_renewed_connections_are_new(ends: Ends) -> None:
    near, _ = await ends.stream()
    await ends.client.renew(ends.address)
    with pytest.raises(DisconnectedError):
        await asyncio.wait_for(near.receive(), 10)
    again, _ = await ends.stream()
    await again.send(b"more")
    assert await again.receive() == b"more"


async def test_no_proxy_of_the_environment_comes_between(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "GRPC_ADDRESS_HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1" if name.endswith("_proxy") else "127.0.0.1:1")
    monkeypatch.setenv("GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES", "127.0.0.0/8")
    await asyncio.wait_for(ends.stream(), 20)
