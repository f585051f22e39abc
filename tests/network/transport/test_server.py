"""The server under a peer's ports: its own faults are told, and nobody else's."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from peer.network.transport import DisconnectedError, ListenConfig
from peer.network.transport.grpc import UNCOMPRESSED, GrpcTransport
from peer.network.transport.server import GrpcServer
from peer.network.wire.messages import SERVICE


async def test_a_fault_of_a_handler_is_told_once_and_to_no_caller(
    ports: Callable[[int], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(_requests: Any, _context: Any) -> None:
        raise ValueError("a secret")

    address, stray = f"127.0.0.1:{ports(1)[0]}", list[str]()
    server = GrpcServer([UNCOMPRESSED], stray.append)
    server.serve(SERVICE, {"Tensors": handle})
    server.add_insecure_port(address)
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        for _ in range(3):
            call = channel.stream_stream(f"/{SERVICE}/Tensors")()
            assert await call.code() == grpc.StatusCode.INTERNAL
            assert await call.details() == "internal error in this peer; see its log"
        assert await channel.stream_stream(f"/{SERVICE}/Other")().code() == grpc.StatusCode.UNIMPLEMENTED
    await server.stop(None)
    (record,) = caplog.records
    assert record.message == "a call met a fault of this peer's own, which is told once"
    assert record.exc_info
    assert str(record.exc_info[1]) == "a secret"
    (caller,) = stray
    assert caller.startswith("ipv4:127.0.0.1:")


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_compressed_reply_ends_the_stream(
    ports: Callable[[int], list[int]], compression: grpc.Compression
) -> None:
    """The reply is that of a dialled peer."""

    async def answer(requests: Any, context: Any) -> None:
        await context.write(bytes(1000))
        await asyncio.get_running_loop().create_future()

    address = f"127.0.0.1:{ports(1)[0]}"
    methods = {"Tensors": grpc.stream_stream_rpc_method_handler(answer)}
    server = grpc.aio.server(compression=compression)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    server.add_insecure_port(address)
    await server.start()
    transport = GrpcTransport(ListenConfig(None), answer)
    pipe = await transport.dial(address, "Tensors")
    with pytest.raises(DisconnectedError, match="ompress"):
        await pipe.receive()
    await transport.close()
    await server.stop(None)


async def test_a_server_that_ends_by_a_fault_says_so(
    ports: Callable[[int], list[int]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC's own word for it is one of those that no peer logs."""
    calls, fail = GrpcServer([], print)._server, asyncio.Event()

    async def hand_on(_method: bytes | None) -> None:
        await fail.wait()
        raise LookupError("no more calls")

    monkeypatch.setattr(calls, "_hand_on", hand_on)
    calls.add_insecure_port(f"127.0.0.1:{ports(1)[0]}".encode())
    await calls.start()
    fail.set()
    with pytest.raises(LookupError):
        await calls.wait_for_termination(None)
    record = next(record for record in caplog.records if record.name == "dfl")
    assert record.exc_info
    assert str(record.exc_info[1]) == "no more calls"
