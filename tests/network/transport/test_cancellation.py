"""A task that is to end ends, also when its connection breaks in the same moment."""

import asyncio

from peer.network.transport import DisconnectedError, ListenConfig
from peer.network.transport.grpc import GrpcTransport


async def calls_again_and_again(transport: GrpcTransport, address: str, over: asyncio.Event) -> None:
    """Call again after each break, as links do."""
    while not over.is_set():
        pipe = await transport.dial(address, "Tensors")
        try:
            await pipe.receive()
        except DisconnectedError:
            continue
        finally:
            pipe.abort()


async def test_a_cancellation_is_not_taken_for_a_break() -> None:
    """gRPC takes a cancellation for itself while it prepares a call. It came to that in one of some ten tries here."""
    ends = await asyncio.start_server(lambda _reader, writer: writer.transport.abort(), "127.0.0.1", 0)
    host, port = ends.sockets[0].getsockname()
    address = f"{host}:{port}"
    over = asyncio.Event()
    transport = GrpcTransport(ListenConfig("127.0.0.1:1", None, (address,), 2), lambda request: request)
    async with ends:
        for turns in range(150):
            tasks = [asyncio.create_task(calls_again_and_again(transport, address, over)) for _ in range(2)]
            for _ in range(turns):
                await asyncio.sleep(0)  # another moment each time
            for task in tasks:
                task.cancel()
            _, left = await asyncio.wait(tasks, timeout=5)
            if left:
                over.set()
            assert not left, f"{len(left)} tasks go on calling after a cancellation, {turns} turns after their start"
    await transport.close()
