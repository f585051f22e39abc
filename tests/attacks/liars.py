"""Neighbours that do not keep to what was agreed: raw gRPC streams, no part of the peer's own network in use."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from real_peers import SmallFederation

from peer.learning.data.samples import Names
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.network.streams.handshake import Identity
from peer.network.wire.messages import SERVICE, Beat, Reply, StatusReply, StatusRequest, Welcome
from peer.runtime.manifest import build_manifest

OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
AT_ONCE_AGAIN = [(f"grpc.{kind}_reconnect_backoff_ms", 100) for kind in ("initial", "min", "max")]
"""Connects as soon as a peer listens."""
WELCOME = Reply(welcome=Welcome(durable=-1)).SerializeToString()
Answer = Callable[[str, Iterator[bytes]], Iterator[bytes]]
"""From the service and what the caller says, its hello first, to what it is answered."""


def hello(federation: SmallFederation, id: str, to: str, durable: int = -1) -> bytes:
    """The hello that an honest peer of that id says."""
    spec = federation.spec
    model = build("mlp", Example.zeros((1, 8, 8), 10), spec.seed)
    declared = build_manifest(spec.protocol.declarations(spec.rounds), model, spec.rounds, len(spec.ids), Names())
    return Identity(id, spec.agreement.digests, declared.digest).hello(to, durable)


def status(address: str) -> StatusReply:
    """The status as anybody's client reads it, with gRPC's own limits."""
    with grpc.insecure_channel(address) as channel:
        return StatusReply.FromString(
            channel.unary_unary(f"/{SERVICE}/Status")(StatusRequest().SerializeToString(), timeout=10)
        )


def content(stream: Iterator[bytes]) -> None:
    """Listen until the other end has enough."""
    with suppress(grpc.RpcError):
        for _ in stream:
            pass


def welcoming(service: str, said: Iterator[bytes]) -> Iterator[bytes]:
    """Takes everything and tells nothing but that it lives."""
    next(said)
    yield WELCOME
    for _ in said:
        if service == "Heartbeat":
            yield Reply(beat=Beat(state="training", round=1, durable=-1)).SerializeToString()


@dataclass
class Liar:
    """Answers whoever calls the peer `id`, and calls whom it likes in that peer's name."""

    federation: SmallFederation
    id: str
    answer: Answer = welcoming
    streams: dict[str, int] = field(default_factory=lambda: {"Tensors": 0, "Heartbeat": 0})
    """How many were opened to it."""
    received: int = 0
    """Bytes after the hellos."""

    @contextmanager
    def listening(self) -> Iterator["Liar"]:
        server = grpc.server(ThreadPoolExecutor(64), options=OPTIONS)
        handlers = {name: grpc.stream_stream_rpc_method_handler(self._handler(name)) for name in self.streams}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        server.add_insecure_port(self.federation.address(self.id))
        server.start()
        try:
            yield self
        finally:
            server.stop(0).wait(5)

    def _handler(self, service: str) -> Callable[[Iterator[bytes], Any], Iterator[bytes]]:
        def handle(said: Iterator[bytes], _context: Any) -> Iterator[bytes]:
            self.streams[service] += 1
            with suppress(grpc.RpcError, StopIteration):
                yield from self.answer(service, self._counted(said))

        return handle

    def _counted(self, said: Iterator[bytes]) -> Iterator[bytes]:
        for number, data in enumerate(said):
            self.received += len(data) if number else 0
            yield data

    @contextmanager
    def stream(self, to: str, service: str, *messages: bytes) -> Iterator[Iterator[bytes]]:
        """A stream of its own, on which it says hello and then these; what comes back."""
        ended = threading.Event()

        def said() -> Iterator[bytes]:
            yield hello(self.federation, self.id, to)
            yield from messages
            ended.wait(60)

        with grpc.insecure_channel(self.federation.address(to), OPTIONS) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{service}")(said(), timeout=60, wait_for_ready=True)
            try:
                yield call
            finally:
                ended.set()
                call.cancel()

    def flap(self, to: str, service: str, times: int, *messages: bytes) -> None:
        """Open a stream, say these, take the welcome and cancel it, so many times."""
        said = [hello(self.federation, self.id, to), *messages]
        with grpc.insecure_channel(self.federation.address(to), OPTIONS) as channel:
            open = channel.stream_stream(f"/{SERVICE}/{service}")
            for _ in range(times):
                held = threading.Event()
                call = open(_and_then_wait(said, held), timeout=20, wait_for_ready=True)
                with suppress(grpc.RpcError, StopIteration):
                    for _ in range(1 + bool(messages)):
                        next(call)
                call.cancel()
                held.set()


def _and_then_wait(messages: list[bytes], held: threading.Event) -> Iterator[bytes]:
    yield from messages
    held.wait(20)


@contextmanager
def saying_goodbye(address: str, words: str) -> Iterator[Callable[[], int]]:
    """A server that ends every connection by HTTP/2's GOAWAY with these words; how many there were."""
    host, _, port = address.rpartition(":")
    debug, times = words.encode(), list[bytes]()
    settings = bytes.fromhex("000000 04 00 00000000")
    goodbye = (8 + len(debug)).to_bytes(3) + bytes.fromhex("07 00 00000000 00000000 00000002") + debug

    def serve(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, suppress(ConnectionError):
                    connection.recv(1 << 16)
                    connection.sendall(settings + goodbye)
                    times.append(connection.recv(1 << 16))

    with socket.create_server((host, int(port))) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield lambda: len(times)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


@contextmanager
def impostor(federation: SmallFederation, *messages: bytes, service: str) -> Iterator[Callable[[], int]]:
    """Opens streams to every peer in the names of its neighbours until the block ends; how many on a connection.

    43 a second for each, four of which it holds open; on each it says hello and then these messages.
    """
    done, opened = threading.Event(), list[str]()

    def fool(id: str, to: str) -> None:
        said, held, connected = [hello(federation, id, to), *messages], list[Any](), threading.Event()

        def heed(state: grpc.ChannelConnectivity) -> None:
            (connected.set if state is grpc.ChannelConnectivity.READY else connected.clear)()

        with grpc.insecure_channel(federation.address(to), [*OPTIONS, *AT_ONCE_AGAIN]) as channel:
            channel.subscribe(heed, try_to_connect=True)
            open = channel.stream_stream(f"/{SERVICE}/{service}")
            while not done.wait(1 / 43):
                held.append(open(_and_then_wait(said, done), timeout=20))
                opened.extend([to] * connected.is_set())
                if len(held) > 4:
                    held.pop(0).cancel()

    pairs = [(id, to) for to in federation.ids for id in federation.ids if id != to]
    threads = [threading.Thread(target=fool, args=pair, daemon=True) for pair in pairs]
    with ExitStack() as ending:
        for thread in threads:
            thread.start()
            ending.callback(thread.join, 10)
        ending.callback(done.set)
        yield lambda: len(opened)
