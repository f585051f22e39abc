"""What a stranger can do who reaches a peer's port and has no certificate, and is no member of the ring."""

import asyncio
import gzip
import resource
import signal
import socket
import ssl
import struct
import sys
import tracemalloc
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import psutil
import pytest
from certified import secured
from endless import endless
from raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    RawConnection,
    connect,
    field,
    frame,
    prefix,
    questions,
    request,
)
from real_peers import Build, SmallFederation, until

from launcher.run_files import certificate_files
from peer.network.limits import Timeouts, UnknownCallerLimits
from peer.network.streams.handshake import REASON_WITHHELD
from peer.network.transport import SERVICES, ListenConfig
from peer.network.transport.grpc import GrpcTransport
from peer.network.wire.messages import SERVICE, Hello, Reply, StatusReply
from peer.process import raise_open_files
from peer.telemetry.events import CallerRefused, Event
from peer.versions import WIRE

PROTOCOL = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}
DESCRIPTORS = 1024
MEMORY = 64 << 20
"""What all strangers together may take of a peer's."""
NEARLY = prefix(1 << 20) + bytes((1 << 20) - 1)
"""A message of 1 MiB, but for its last byte."""
REFLECTION, HEALTH = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "grpc.health.v1.Health"
FLOOD = 700
"""Connections, one after the other."""
SERVING = b"\x08\x01"
ONE_HEADER = b"\x90"
"""An entry of the table that every HTTP/2 connection begins with."""
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
"""This machine at an address of the ring, and at another."""


@pytest.fixture
def running(federation: Build) -> SmallFederation:
    """Three peers in the middle of a long run, with so few descriptors that a thousand strangers could take all."""
    made = endless(federation)
    begin(made)
    return made


def begin(made: SmallFederation) -> None:
    made.start()
    for peer in made.peers.values():
        psutil.Process(peer.pid).rlimit(psutil.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    made.await_event("peer0", "round", round=1, seconds=60)


@pytest.fixture
def crowd() -> Iterator[ExitStack]:
    """Whatever is opened on it stays open to the end of the test."""
    raise_open_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 2 * DESCRIPTORS
    with ExitStack() as open:
        yield open


def goes_on(made: SmallFederation, rounds: int = 5) -> None:
    """peer0 finishes so many more rounds."""
    last = made.events("peer0", "round")[-1]["round"]
    made.await_event("peer0", "round", round=last + rounds, seconds=60)


@pytest.mark.parametrize("certified", [False, True], ids=["plaintext", "certificates"])
def test_silent_connections_neither_end_a_peer_nor_keep_its_neighbours_out(
    federation: Build, crowd: ExitStack, certified: bool
) -> None:
    made = endless(federation)
    if certified:
        secured(made)
    begin(made)
    for number in range(DESCRIPTORS + 100):
        crowd.enter_context(connect(made.address("peer0")))
        crowd.enter_context(connect(made.address("peer0"), f"127.0.0.{2 + number % 100}"))
    process = psutil.Process(made.peers["peer0"].pid)
    until(lambda: process.num_fds() < DESCRIPTORS // 2, 20, "descriptors are left for files and neighbours")
    made.peers["peer1"].signal(signal.SIGKILL)
    made.peers["peer1"].wait()
    made.start("peer1")
    made.await_event("peer1", "resumed", seconds=60)
    goes_on(made)
    assert made.peers["peer0"].running, made.log("peer0")


@pytest.mark.timeout(120)
def test_what_strangers_say_takes_bounded_memory(running: SmallFederation, crowd: ExitStack) -> None:
    address, process = running.address("peer0"), psutil.Process(running.peers["peer0"].pid)
    before, most = process.memory_info().rss, 0

    def attack(one: Callable[[RawConnection], None], connections: int = 12) -> None:
        nonlocal most
        with ExitStack() as open:
            for _ in range(connections):
                connection = open.enter_context(RawConnection(connect(address)))
                connection.hear(0.05)
                one(connection)
                most = max(most, process.memory_info().rss - before)

    def unfinished(path: str) -> Callable[[RawConnection], None]:
        def say(connection: RawConnection) -> None:
            for _ in range(8):
                connection.data(connection.call(path), NEARLY)

        return say

    def idle(connection: RawConnection) -> None:
        for _ in range(500):
            connection.call(f"/{REFLECTION}")

    def headers(connection: RawConnection) -> None:
        for _ in range(50):
            connection.call(f"/{SERVICE}/Tensors", field("padding", "x" * 15_000))

    def unread(connection: RawConnection) -> None:
        connection.frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0))
        for _ in range(8):
            connection.call(f"/{SERVICE}/Status")

    for path in ("Status", "Tensors", "Heartbeat"):
        attack(unfinished(f"/{SERVICE}/{path}"))
    attack(unfinished(f"/{HEALTH}/Check"))
    attack(unfinished(f"/{REFLECTION}"))
    for one in (idle, headers, unread):
        attack(one)
    assert most < MEMORY
    goes_on(running)


@pytest.mark.timeout(120)
def test_a_flood_of_short_calls_takes_bounded_memory(federation: Build, ports: Callable[[int], list[int]]) -> None:
    """New connections one after the other, with as many calls on each as it may have; nobody waits for the answers."""
    made, health = endless(federation), f"127.0.0.1:{ports(1)[0]}"
    made.configure("peer0", health=health)
    begin(made)
    process, most = psutil.Process(made.peers["peer0"].pid), 0
    before = process.memory_info().rss
    paths = (*(f"{SERVICE}/{name}" for name in (*SERVICES, "Status")), f"{HEALTH}/Check", f"{HEALTH}/Watch", REFLECTION)
    told = [questions(f"/{path}", 4, prefix(15_000) + bytes(15_000), field("padding", "x" * 5000)) for path in paths]
    for address in (made.address("peer0"), health):
        held: deque[socket.socket] = deque()
        for number in range(FLOOD):
            held.append(connect(address))
            with suppress(OSError):  # it was shut while it spoke
                held[-1].sendall(told[number % len(told)])
            if len(held) > 100:
                held.popleft().close()
            most = max(most, process.memory_info().rss - before)
        for connection in held:
            connection.close()
    assert most < MEMORY
    goes_on(made)


async def nothing(*_: object) -> Any:
    return b""


@asynccontextmanager
async def serving(
    ports: Callable[[int], list[int]], report: Callable[[Event], None] = lambda _: None
) -> AsyncIterator[tuple[str, str]]:
    """A peer's two ports, that of its neighbours and that of probes, in this process."""
    address, probes = (f"127.0.0.1:{port}" for port in ports(2))
    transport = GrpcTransport(ListenConfig(address, probes), nothing, report=report)
    await transport.listen(nothing)
    try:
        yield address, probes
    finally:
        await transport.close()


def ask_with_long_headers(address: str) -> None:
    """One call with 10,000 headers on a connection that never acknowledges the bound on them, until one is answered."""
    headers = b"".join(frame(CONTINUATION, 0, 1, ONE_HEADER * 1000) for _ in range(10))
    said = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, request(f"/{HEALTH}/Check")) + headers
    said += frame(CONTINUATION, END_HEADERS, 1) + frame(DATA, END_STREAM, 1, prefix(0))
    heard = b""
    while SERVING not in heard:  # gRPC refuses some of them at random
        with connect(address) as connection:
            connection.sendall(said)
            heard = b""
            while SERVING not in heard and b"grpc-status" not in heard:
                heard += connection.recv(1 << 16)


async def test_headers_that_grpc_does_not_bound_do_not_hold_up_the_event_loop(
    ports: Callable[[int], list[int]],
) -> None:
    """gRPC's own loop over calls would make three objects of each."""
    async with serving(ports) as (address, probes):
        for place in (address, probes):
            tracemalloc.start()
            await asyncio.to_thread(ask_with_long_headers, place)
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert most < 10_000 * sys.getsizeof("")


def give_up(address: str) -> None:
    """Calls, some of them with a nanosecond's time, on connections that are reset before anybody can answer."""
    for number in range(20):
        with connect(address) as connection, suppress(OSError):
            connection.sendall(questions(f"/{HEALTH}/Check", 2, prefix(0), field("grpc-timeout", "1n") * (number % 2)))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_calls_that_are_given_up_are_counted_and_fill_no_log(
    ports: Callable[[int], list[int]], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Each was a traceback of gRPC's, .2 to 1 MB a second in all."""
    told: list[Event] = []
    async with serving(ports, told.append) as both:
        for count, address in enumerate(both, 1):
            while len(told) < count:
                give_up(address)
                await asyncio.to_thread(said, address, HERE, f"/{HEALTH}/Check")
    reason = "calls that are given up before they can be answered, 100 times by now"
    assert [event.reason for event in told if isinstance(event, CallerRefused)] == 2 * [reason]
    assert not capfd.readouterr().err
    assert not [record for record in caplog.records if not record.name.startswith("grpc")]  # peers log none of gRPC's


async def test_a_call_of_a_method_that_is_none_ends_no_server(ports: Callable[[int], list[int]]) -> None:
    """gRPC's own server shuts down for good when the name of a method is no text."""
    async with serving(ports) as both:
        for address in both:
            for path in ("/\udcff", f"/{HEALTH}/\udcc3(", "\udcfe", "", "/", "/of.Nothing/There"):
                _, end = await asyncio.to_thread(said, address, HERE, path)
                assert b"there is no such method" in end
            assert (await asyncio.to_thread(said, address, HERE, f"/{HEALTH}/Check"))[0] == SERVING


@pytest.mark.parametrize(("algorithm", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_message_that_unfolds_is_not_unfolded(
    ports: Callable[[int], list[int]], algorithm: str, compress: Callable[[bytes], bytes]
) -> None:
    bomb = compress(bytes(2 * MEMORY))
    before = psutil.Process().memory_info().rss
    async with serving(ports) as both:
        for address in both:
            for path in (f"/{HEALTH}/Check", *(f"/{SERVICE}/{service}" for service in (*SERVICES, "Status"))):
                _, end = await asyncio.to_thread(said, address, HERE, path, bomb, algorithm)
                assert f"algorithm '{algorithm}' is disabled".encode() in end
    assert psutil.Process().memory_info().rss - before < MEMORY


async def test_of_the_calls_that_a_busy_peer_cannot_take_up_few_are_kept(
    ports: Callable[[int], list[int]], crowd: ExitStack
) -> None:
    """gRPC takes calls in while the event loop has other work, as it has here until the last line."""
    strangers = replace(UnknownCallerLimits(), waiting=8)

    address = f"127.0.0.1:{ports(1)[0]}"
    server = GrpcTransport(ListenConfig(address), nothing, strangers=strangers)
    await server.listen(nothing)
    callers = [crowd.enter_context(RawConnection(connect(address))) for _ in range(30)]
    for caller in callers:
        caller.hear(1)
        for _ in range(strangers.streams):
            caller.data(caller.call(f"/{HEALTH}/Check"), prefix(0), end=True)

    def refused() -> int:
        for caller in callers:
            caller.hear(0.01)
        return sum(len(caller.ended) for caller in callers)

    taken_up = 1
    most = 2 * strangers.waiting + taken_up
    until(lambda: refused() >= len(callers) * strangers.streams - most, 10, "all but a few are refused")
    await server.close()


def test_sessions_of_tls_are_kept_for_nobody(federation: Build) -> None:
    """A server keeps 20,000 of TLS 1.2, also of a member that comes with a new one each time; of TLS 1.3 none."""
    made = federation(PROTOCOL)
    files = certificate_files(secured(made), "peer1")
    made.start("peer0")
    made.await_event("peer0", "state", state="joining")

    def spoken(newest: ssl.TLSVersion) -> str | None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(files["ca"])
        context.load_cert_chain(files["cert"], files["key"])
        context.maximum_version = newest
        with context.wrap_socket(connect(made.address("peer0")), server_hostname="peer0") as one:
            return one.version()

    assert spoken(ssl.TLSVersion.MAXIMUM_SUPPORTED) == "TLSv1.3"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        spoken(ssl.TLSVersion.TLSv1_2)


def test_a_connection_of_calls_begun_and_taken_back_is_shut(running: SmallFederation) -> None:
    with RawConnection(connect(running.address("peer0"))) as connection:

        def shut() -> bool:
            for stream in (connection.call(f"/{SERVICE}/Tensors") for _ in range(200)):
                connection.frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
            connection.hear(0)
            return connection.closed

        until(shut, 20, "the connection is shut")
    goes_on(running)


def test_a_message_longer_than_any_is_refused_before_it_comes(running: SmallFederation) -> None:
    with RawConnection(connect(running.address("peer0"))) as connection:
        stream = connection.call(f"/{SERVICE}/Tensors")
        connection.data(stream, prefix(512 << 20) + bytes(1000))
        until(lambda: connection.hear(0.1) and stream in connection.ended, 5, "the stream is over")
    assert Timeouts().hello > 5, "which would end it, too"


def said(address: str, origin: str, path: str, message: bytes = b"", encoding: str = "") -> tuple[bytes, bytes]:
    """What a caller from there is told before the call ends: the message, and the words of its end."""
    with RawConnection(connect(address, origin)) as connection:
        connection.hear(0.2)
        stream = connection.call(path, field("grpc-encoding", encoding) if encoding else b"")
        connection.data(stream, prefix(len(message), bool(encoding)) + message, end=True)
        over = lambda: not connection.hear(0.1) and (stream in connection.ended or connection.closed)  # noqa: E731
        until(over, 10, "the call is over")
        return connection.answers[stream][5:], connection.headers[stream]


def test_the_federation_is_no_business_of_strangers(running: SmallFederation) -> None:
    address, status, listing = running.address("peer0"), f"/{SERVICE}/Status", b"\x3a\0"
    reply = StatusReply.FromString(said(address, HERE, status)[0])
    assert (reply.id, reply.federation) == ("peer0", "tiny")
    assert SERVICE.encode() in said(address, HERE, f"/{REFLECTION}", listing)[0]
    for path in (status, f"/{REFLECTION}"):
        told, end = said(address, ELSEWHERE, path, listing)
        assert not told
        assert b"at the addresses of the ring only" in end
        assert not any(name.encode() in end for name in ("tiny", *running.ids))
    for origin in (HERE, ELSEWHERE):
        assert said(address, origin, f"/{HEALTH}/Check")[0] == SERVING


@pytest.mark.parametrize("service", [service for service in SERVICES if service != "Views"])
def test_a_refusal_tells_strangers_nothing_of_what_differs(running: SmallFederation, service: str) -> None:
    """Or they could guess a spec key by key. The peer's own log has what the caller is not told."""
    right = {"version": WIRE.writes, "id": "peer1", "to": "peer0", "spec": running.spec.agreement.digests}
    wrong: dict[str, dict[str, Any]] = {
        "seed": {"spec": running.spec.agreement.digests | {"seed": "0" * 64}},
        "peer0": {"to": "peer2"},
        "10 classes": {"manifest": "none"},
    }
    for secret, changes in wrong.items():
        message, path = Hello(**(right | changes)).SerializeToString(), f"/{SERVICE}/{service}"
        open, closed = (said(running.address("peer0"), origin, path, message)[0] for origin in (HERE, ELSEWHERE))
        assert secret.encode() in open
        assert Reply.FromString(closed).refusal == REASON_WITHHELD
    assert any("seed" in event["reason"] for event in running.events("peer0", "refused"))


def test_probes_are_answered_while_strangers_hold_their_port(
    federation: Build, ports: Callable[[int], list[int]], crowd: ExitStack
) -> None:
    address = f"127.0.0.1:{ports(1)[0]}"
    made = federation(PROTOCOL)
    made.configure("peer0", health=address)
    made.start("peer0")
    made.await_event("peer0", "state", state="joining")
    for _ in range(300):
        crowd.enter_context(connect(address))

    def answered() -> bool:
        with suppress(ConnectionError):
            return said(address, ELSEWHERE, f"/{HEALTH}/Check")[0] == SERVING
        return False

    until(answered, 20, "a probe is answered")
