"""A host that comes back under its name with another address is found again: a container, a laptop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from ipaddress import IPv4Address
from typing import cast

import pytest
from echoes import echo, status

from peer.network.transport import DisconnectedError, ListenConfig
from peer.network.transport.grpc import GrpcTransport

A, ADDRESS_RECORD = b"\0\1", b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4"


class NameServer(asyncio.DatagramProtocol):
    """All names are those of one IPv4 address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, origin: tuple[str, int]) -> None:
        end = data.index(0, 12) + 5
        asked = data[end - 4 : end - 2] == A
        answer = ADDRESS_RECORD + IPv4Address(self.address).packed if asked else b""
        head = data[:2] + b"\x81\x80\0\1" + (b"\0\1" if asked else b"\0\0") + b"\0\0\0\0"
        self.transport.sendto(head + data[12:end] + answer, origin)


async def answers(client: GrpcTransport, address: str) -> bool:
    pipe = await client.dial(address, "Tensors")
    try:
        await pipe.send(b"hello")
        return await pipe.receive() == b"hello"
    except DisconnectedError:
        return False
    finally:
        pipe.abort()


@pytest.fixture
async def names(ports: Callable[[int], list[int]]) -> AsyncIterator[tuple[NameServer, int]]:
    (port,) = ports(1)
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(
        lambda: NameServer("127.0.0.1"), local_addr=("127.0.0.1", port)
    )
    yield server, port
    transport.close()


async def test_a_name_is_looked_up_again_soon(names: tuple[NameServer, int], ports: Callable[[int], list[int]]) -> None:
    """gRPC does so by itself, but only 30 s after the time before."""
    server, name_port = names
    (port,) = ports(1)
    address = f"dns://127.0.0.1:{name_port}/peer.example:{port}"
    client, there = (
        GrpcTransport(ListenConfig("127.0.0.1:0"), status),
        GrpcTransport(ListenConfig(f"127.0.0.1:{port}"), status),
    )
    elsewhere = GrpcTransport(ListenConfig(f"127.0.0.2:{port}"), status)
    await there.listen(echo)
    try:
        assert await answers(client, address)
        await there.close()
        server.address = "127.0.0.2"
        await elsewhere.listen(echo)
        async with asyncio.timeout(20):
            while not await answers(client, address):  # noqa: ASYNC110 (nothing tells that gRPC has looked it up)
                await asyncio.sleep(0.1)
    finally:
        for transport in (client, there, elsewhere):
            await transport.close()
