"""A vector of 45 MB through the real links between two processes, against gRPC and raw TCP between the same two.

Run: python -m benchmarks.links [--turns 9] [--megabytes 45]. A turn sends the vector once and ends when the receiver
holds it whole as a tensor. Raw TCP is `sendall` and `recv_into` on blocking sockets, from one block of memory into
another. Bare gRPC sends the same bytes, ready-made, as messages as long as frames, over the same kind of stream, and
the receiver drops them: what grpcio costs with nothing of ours in it. The links are what a peer has: frames with
checksums, an outbox until the receiver's round is durable, gRPC's HTTP/2 streams with flow control, checks of every
header against the manifest and of every value for NaN. Links and bare gRPC run without certificates and with mutual
TLS. Records are raw TCP with each frame encrypted by AES-128-GCM: the least that an own transport could cost where TLS
is too slow.
"""

import argparse
import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
import uvloop
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

from benchmarks.measure import Cost, Figure, in_turns, machine, median, ratios
from benchmarks.peers import free_ports, write
from launcher.run_files import certificate_files
from peer.network.collectives import Collectives, Neighbourhood
from peer.network.limits import Limits
from peer.network.network import Network
from peer.network.streams.handshake import Identity
from peer.network.streams.stream import NetworkCallbacks, NetworkState
from peer.network.transport import ListenConfig, Pipe, Service
from peer.network.transport.grpc import GrpcTransport
from peer.network.transport.tls import CertificatePaths, TlsCredentials
from peer.network.wire.manifest import Manifest, PayloadSpec, vector_bytes
from peer.network.wire.messages import Resources
from peer.process import tune

LINKS, BARE = ("links", "links, TLS"), ("bare gRPC", "bare gRPC, TLS")
RAW, RECORDS = "raw TCP", "AES-GCM records"
CONTESTANTS = (*LINKS, *BARE, RAW, RECORDS)
IDS = SENDER, RECEIVER = ("peer0", "peer1")
FRAME = Limits().frame
Turn = Callable[[], Awaitable[None]]
Streams = dict[str, socket.socket]


class Place(NamedTuple):
    """Where the two ends of a contestant listen."""

    addresses: dict[str, str]
    certificates: Path | None
    """Their directory; None without TLS."""

    def transport(self, id: str) -> GrpcTransport:
        security = None
        if self.certificates:
            names = {address: peer for peer, address in self.addresses.items()}
            own = CertificatePaths(id, **certificate_files(self.certificates, id))
            security = TlsCredentials(own, names, lambda event: None)
        return GrpcTransport(ListenConfig(self.addresses[id]), status, security)


async def status(_request: bytes) -> bytes:
    return b""


def network(id: str, place: Place, floats: int) -> Network:
    manifest = Manifest((PayloadSpec("model", floats, 0, 0, 1_000_000),))
    node = NetworkState(Identity(id, {}, manifest.digest), place.addresses, place.transport(id))
    return Network(
        node, manifest, NetworkCallbacks(lambda event, **fields: None, lambda: ("communicating", 0), Resources)
    )


class LinkEnd:
    """One end of a link; both count the turns as rounds, and announce each as durable when it is over."""

    def __init__(self, net: Network, vector: Tensor, sends: bool) -> None:
        self._net, self._vector, self._sends, self._round = net, vector, sends, 0
        self._running = AsyncExitStack()
        self._neighbourhood = Neighbourhood(IDS, (RECEIVER,) if sends else (), () if sends else (SENDER,))

    async def listen(self) -> None:
        await self._net.listen()

    async def join(self) -> None:
        await self._running.enter_async_context(self._net.running())
        self._net.set_edges(0, self._neighbourhood.receivers, self._neighbourhood.senders)
        await self._net.edges.wait_complete()

    async def turn(self) -> None:
        self._round += 1
        self._net.begin_round(self._round)
        collectives = Collectives(self._net, self._round)
        if self._sends:
            await collectives.pass_token(self._neighbourhood, "model", self._vector)
        else:
            await collectives.receive_token(self._neighbourhood, "model", self._vector.nbytes)
        self._net.announce(self._round)
        if self._sends:
            durability = self._net.durability
            await durability.changed.until(lambda: durability.of(RECEIVER) >= self._round)

    async def leave(self) -> None:
        await self._running.aclose()


class StreamEnd:
    """One end of a bare gRPC stream: messages are made beforehand, and dropped when they arrive."""

    def __init__(self, transport: GrpcTransport, receiver: str, vector: Tensor, sends: bool) -> None:
        self._transport, self._receiver, self._sends = transport, receiver, sends
        content = vector_bytes(vector)
        self._frames = [bytes(content[start : start + FRAME]) for start in range(0, len(content), FRAME)]
        self._accepted: asyncio.Queue[Pipe] = asyncio.Queue()
        self._over = asyncio.Event()

    async def listen(self) -> None:
        await self._transport.listen(self._accept)

    async def join(self) -> None:
        if self._sends:
            self._pipe = await self._transport.dial(self._receiver, "Tensors")
            await self._pipe.send(b"hello")
        else:
            self._pipe = await self._accepted.get()
            await self._pipe.receive()

    async def _accept(self, _service: Service, pipe: Pipe) -> None:
        self._accepted.put_nowait(pipe)
        await self._over.wait()

    async def turn(self) -> None:
        for frame in self._frames:
            await (self._pipe.send(frame) if self._sends else self._pipe.receive())

    async def leave(self) -> None:
        self._over.set()
        await self._transport.close()


class RawEnd:
    """One end of a bare TCP connection."""

    def __init__(self, stream: socket.socket, vector: Tensor, sends: bool) -> None:
        self._stream, self._bytes, self._sends = stream, vector_bytes(vector), sends

    async def turn(self) -> None:
        if self._sends:
            self._stream.sendall(self._bytes)
            return
        receive_into(self._stream, self._bytes)


class RecordsEnd:
    """One end of a TCP connection with AES-128-GCM records. Both ends have the key, and count the records as nonces."""

    TAG = 16

    def __init__(self, stream: socket.socket, vector: Tensor, sends: bool) -> None:
        self._stream, self._bytes, self._sends = stream, vector_bytes(vector), sends
        self._cipher, self._counter = AESGCM(bytes(16)), count()
        self._record = memoryview(bytearray(FRAME + self.TAG))

    async def turn(self) -> None:
        for start in range(0, len(self._bytes), FRAME):
            block, nonce = self._bytes[start : start + FRAME], next(self._counter).to_bytes(12)
            record = self._record[: len(block) + self.TAG]
            if self._sends:
                self._cipher.encrypt_into(nonce, block, None, record)
                self._stream.sendall(record)
            else:
                receive_into(self._stream, record)
                self._cipher.decrypt_into(nonce, record, None, block)


def receive_into(stream: socket.socket, room: memoryview) -> None:
    done = 0
    while done < len(room):
        done += stream.recv_into(room[done:])


def process(conductor: Connection, sends: bool, places: dict[str, Place], streams: Streams, floats: int) -> None:
    """One of the two processes: takes its turns when told to, and says what each cost it."""
    tune(1, 4 * floats)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(take_turns(conductor, sends, places, streams, floats))


async def take_turns(
    conductor: Connection, sends: bool, places: dict[str, Place], streams: Streams, floats: int
) -> None:
    vector, id = torch.rand(floats), SENDER if sends else RECEIVER
    ends: dict[str, LinkEnd | StreamEnd] = {
        name: LinkEnd(network(id, place, floats), vector, sends)
        if name in LINKS
        else StreamEnd(place.transport(id), place.addresses[RECEIVER], vector, sends)
        for name, place in places.items()
    }
    for end in ends.values():
        await end.listen()  # all, before one joins: so the other end can dial once it has
    for end in ends.values():
        await end.join()
    turns: dict[str, Turn] = {name: end.turn for name, end in ends.items()}
    turns[RAW] = RawEnd(streams[RAW], vector, sends).turn
    turns[RECORDS] = RecordsEnd(streams[RECORDS], vector, sends).turn
    conductor.send("ready")
    while (name := await asyncio.to_thread(conductor.recv)) is not None:
        began, cpu = time.monotonic(), time.process_time()
        await turns[name]()
        conductor.send((began, time.monotonic(), time.process_time() - cpu))
    for end in ends.values():
        await end.leave()


def connected() -> tuple[socket.socket, socket.socket]:
    """A sender's and a receiver's end of one TCP connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sending = socket.create_connection(server.getsockname())
        return sending, server.accept()[0]


def compare(megabytes: float, turns: int) -> dict[str, list[Cost]]:
    """Costs of the turns of each contestant."""
    with TemporaryDirectory() as directory:
        write(Path(directory) / "run", len(IDS), secured=True, protocol={"name": "fedisp"})
        return _compare(megabytes, turns, Path(directory) / "run" / "certs")


def _compare(megabytes: float, turns: int, certificates: Path) -> dict[str, list[Cost]]:
    ports = iter(free_ports(2 * len((*LINKS, *BARE))))
    places = {
        name: Place({id: f"127.0.0.1:{next(ports)}" for id in IDS}, certificates if "TLS" in name else None)
        for name in (*LINKS, *BARE)
    }
    context, floats = get_context("spawn"), round(megabytes * 1e6 / 4)
    conductors, processes = [], []
    connections = {name: connected() for name in (RAW, RECORDS)}
    for sends in (True, False):
        ours, theirs = context.Pipe()
        conductors.append(ours)
        streams = {name: ends[not sends] for name, ends in connections.items()}
        told = (theirs, sends, places, streams, floats)
        processes.append(context.Process(target=process, args=told, daemon=True))
        processes[-1].start()
        for stream in streams.values():
            stream.close()

    def turn(name: str) -> Cost:
        for conductor in conductors:
            conductor.send(name)
        (began, _, cpu_sending), (_, ended, cpu_receiving) = (conductor.recv() for conductor in conductors)
        return Cost(ended - began, cpu_sending + cpu_receiving)

    for conductor in conductors:
        conductor.recv()
    taken = in_turns({name: lambda name=name: turn(name) for name in CONTESTANTS}, turns)  # type: ignore[misc]
    for conductor in conductors:
        conductor.send(None)
    for one in processes:
        one.join(10)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--megabytes", type=float, default=45.0)
    arguments = parser.parse_args()
    taken = compare(arguments.megabytes, arguments.turns)
    print(f"a vector of {arguments.megabytes:g} MB, {arguments.turns} turns each:")
    for name, costs in taken.items():
        wall, cpu = median(costs)
        print(f"  {name:14} {wall * 1e3:6.1f} ms, {arguments.megabytes / wall:6.0f} MB/s, {cpu * 1e3:6.1f} ms of CPU")
    bars = (("links", RAW, 0.6, 2.5), *((*pair, 0.8, 1.25) for pair in zip(LINKS, BARE, strict=True)))
    for ours, name, goodput, cpu in bars:
        against = ratios(taken[ours], taken[name])
        print(Figure(f"links: goodput of {name}'s", [1 / one.wall for one in against], goodput, least=True))
        print(Figure(f"links: CPU of {name}'s", [one.cpu for one in against], cpu))
    for name in (RECORDS, BARE[1]):
        against = ratios(taken[name], taken[RAW])
        print(Figure(f"{name}: goodput of raw TCP's", [1 / one.wall for one in against], least=True))
        print(Figure(f"{name}: CPU of raw TCP's", [one.cpu for one in against]))
    print(machine())


if __name__ == "__main__":
    main()
