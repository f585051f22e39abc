"""TCP proxies before the peers: a gate can be shut without a word, or every connection through it reset."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

CHUNK = 1 << 16


class Gate:
    """All connections to one peer."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.open = asyncio.Event()
        self.open.set()
        self.writers: set[asyncio.StreamWriter] = set()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer, far_writer)
        self.writers.update(ends)
        try:
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        finally:
            for end in ends:
                end.transport.abort()
            self.writers.difference_update(ends)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                await self.open.wait()
                writer.write(data)
                await writer.drain()
        for end in (writer,):
            end.transport.abort()


class Gates:
    """`routes`: from the port that is dialled to the port at which a peer listens; in a thread of their own."""

    def __init__(self, routes: Mapping[int, int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gates", daemon=True)
        self._thread.start()
        self._gates = self._do(self._listen(routes))

    def reset(self, dialled: int) -> int:
        """Reset every connection through this gate; how many ends there were."""
        return self._do(self._reset(self._gates[dialled]))

    def shut(self, dialled: int) -> None:
        self._loop.call_soon_threadsafe(self._gates[dialled].open.clear)

    def unshut(self, dialled: int) -> None:
        self._loop.call_soon_threadsafe(self._gates[dialled].open.set)

    def close(self) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self, routes: Mapping[int, int]) -> dict[int, Gate]:
        gates = {dialled: Gate(port) for dialled, port in routes.items()}
        self._servers = [
            await asyncio.start_server(gate.pass_on, "127.0.0.1", dialled) for dialled, gate in gates.items()
        ]
        return gates

    async def _reset(self, gate: Gate) -> int:
        count = len(gate.writers)
        for writer in gate.writers:
            writer.transport.abort()
        return count

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for gate in self._gates.values():
            gate.open.set()
            await self._reset(gate)
        for _ in range(20):
            await asyncio.sleep(0.05)
            if len(asyncio.all_tasks()) == 1:
                break
