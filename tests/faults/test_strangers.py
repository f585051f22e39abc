"""A thousand connections, half a hello, and floods of handshakes at real peers: the federation does not notice."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import grpc
import psutil
import pytest
from real_peers import Build, digests

from peer.network.wire.messages import SERVICE, Hello

PROTOCOL = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 2}
CONNECTIONS = 1000
HANDSHAKES, SECONDS = 300, 5
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@contextmanager
def loris(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections that begin to say something and never go on."""
    sockets = []
    for number in range(count):
        one = socket.create_connection(("127.0.0.1", port), timeout=5)
        one.sendall(PREFACE[: number % len(PREFACE)] or b"P")
        sockets.append(one)
    try:
        yield sockets
    finally:
        for one in sockets:
            one.close()


def flood(address: str, count: int) -> None:
    """Handshakes of strangers and bytes that are no handshake, over one channel.

    A call has seconds: among so many connections the channel's own may be one of those that are shown out, and gRPC
    waits 20 s for the next.
    """
    with grpc.insecure_channel(address) as channel:
        for service in ("Tensors", "Heartbeat"):
            dial = channel.stream_stream(f"/{SERVICE}/{service}")
            calls = []
            for number in range(count // 2):
                said = Hello(version=1, id=f"stranger{number}").SerializeToString() if number % 2 else b"\xff" * 1000
                calls.append(dial(iter([said]), timeout=SECONDS))
            for call in calls:
                with suppress(grpc.RpcError):
                    list(call)


@pytest.mark.timeout(100)
def test_strangers_do_not_harm_a_run(federation: Build) -> None:
    one = federation(PROTOCOL, peers=3, rounds=25)
    expected = one.undisturbed()
    one.start()
    one.await_event("peer0", "state", state="training", round=1)
    process, address = psutil.Process(one.peers["peer0"].pid), one.address("peer0")
    before, beside = process.memory_info().rss, psutil.Process(one.peers["peer1"].pid)
    with loris(int(address.rpartition(":")[2]), CONNECTIONS):
        beside.suspend()  # the run must not be over before the first flood is
        flood(address, HANDSHAKES)
        grown = process.memory_info().rss - before
        beside.resume()
        while one.peers["peer0"].running:
            flood(address, HANDSHAKES // 10)
        codes = one.wait()
    assert grown < 64 << 20
    assert codes == dict.fromkeys(one.ids, 0), one.log("peer0")
    assert digests(one.results()) == expected
    refused = one.events("peer0", "refused")
    assert 0 < len(refused) <= HANDSHAKES
    assert len({(event["caller"], event["reason"]) for event in refused}) == len(refused), "once each"
