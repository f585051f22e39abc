"""Whom a certificate lets in, and as whom: calling a peer, and being dialled by one. The CA here is a hospital's own.

`dfl-launch certs` makes only the first kind.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from authority import CA, NO_CA, Holder, authority
from cryptography import x509
from cryptography.x509 import DNSName
from cryptography.x509.oid import ExtendedKeyUsageOID

from peer.errors import InputError
from peer.network.transport import DisconnectedError, ListenConfig, Pipe, Service
from peer.network.transport.grpc import GrpcTransport
from peer.network.transport.tls import CertificatePaths, TlsCredentials
from peer.network.wire.messages import SERVICE

LOOPBACK = x509.IPAddress(ip_address("127.0.0.1"))
REFUSED = "refused in the handshake"
NOBODY = ""
Make = Callable[[Holder], Holder]


@dataclass(frozen=True)
class Case:
    """A certificate; as whom its holder calls, and the names under which it can be dialled."""

    make: Make
    caller: str
    dialled: frozenset[str]


def case(make: Make, caller: str, *dialled: str) -> Case:
    return Case(make, caller, frozenset(dialled))


def names(*values: bytes, kind: int = 0x82) -> x509.UnrecognizedExtension:
    """Alternative names as no honest tool writes them."""
    parts = b"".join(bytes([kind, len(value)]) + value for value in values)
    return x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, bytes([0x30, len(parts)]) + parts)


def under(ca: Holder, *names: x509.GeneralName, more: tuple[x509.ExtensionType, ...] = (CA,)) -> Holder:
    """By a CA that this CA has signed, and shown with it."""
    between = ca.issue(called="between", more=more).under(ca)
    return between.issue(*names).under(between)


def signed_by_a_peer(ca: Holder, *more: x509.ExtensionType) -> Holder:
    mine = ca.issue(DNSName("peer1"), more=more)
    return mine.issue(DNSName("peer2")).under(mine)


def one_use(usage: x509.ObjectIdentifier) -> Make:
    return lambda ca: ca.issue(DNSName("peer1"), more=(NO_CA, x509.ExtendedKeyUsage([usage])))


CASES = {
    "its own": case(lambda ca: ca.issue(DNSName("peer1")), "peer1", "peer1"),
    "another common name": case(lambda ca: ca.issue(DNSName("peer1"), called="peer2"), "peer1", "peer1"),
    "an address as well": case(lambda ca: ca.issue(LOOPBACK, DNSName("peer1")), "peer1", "peer1"),
    "of a CA below": case(lambda ca: under(ca, DNSName("peer1")), "peer1", "peer1"),
    "that may be a CA itself": case(lambda ca: ca.issue(DNSName("peer1"), more=(CA,)), "peer1", "peer1"),
    # Several names are nobody's where a peer is called; where it dials, gRPC is content with any of them.
    "two names": case(lambda ca: ca.issue(DNSName("peer1"), DNSName("peer2")), "peer1, peer2", "peer1", "peer2"),
    "two names, turned": case(
        lambda ca: ca.issue(DNSName("peer2"), DNSName("peer1")), "peer2, peer1", "peer1", "peer2"
    ),
    "a name twice": case(lambda ca: ca.issue(DNSName("peer1"), DNSName("peer1")), "peer1, peer1", "peer1"),
    "only a common name": case(lambda ca: ca.issue(called="peer1"), NOBODY, "peer1"),
    "an address and a common name": case(lambda ca: ca.issue(LOOPBACK, called="peer1"), NOBODY, "peer1"),
    "a URI": case(lambda ca: ca.issue(x509.UniformResourceIdentifier("peer1")), NOBODY),
    "an empty name": case(lambda ca: ca.issue(DNSName("")), NOBODY),
    "any name": case(lambda ca: ca.issue(DNSName("*")), "*"),
    "any name below": case(lambda ca: ca.issue(DNSName("*.example")), "*.example"),
    "any name like it": case(lambda ca: ca.issue(DNSName("peer*")), "peer*"),
    "capitals": case(lambda ca: ca.issue(DNSName("PEER1")), "PEER1", "peer1"),
    "a dot behind": case(lambda ca: ca.issue(DNSName("peer1.")), "peer1.", "peer1"),
    "a space behind": case(lambda ca: ca.issue(DNSName("peer1 ")), "peer1 "),
    # gRPC reads names up to a NUL.
    "a NUL": case(lambda ca: ca.issue(more=(NO_CA, names(b"peer1\0.example"))), "peer1\0.example", "peer1"),
    "a NUL behind": case(lambda ca: ca.issue(more=(NO_CA, names(b"peer1\0"))), "peer1\0", "peer1"),
    "no letters": case(lambda ca: ca.issue(more=(NO_CA, names(b"peer1\xe9"))), NOBODY),
    "no kind of name": case(lambda ca: ca.issue(more=(NO_CA, names(b"peer1", kind=0x83))), REFUSED),
    "a long name": case(lambda ca: ca.issue(DNSName("p" * 1000)), "p" * 300),
    "for servers": case(one_use(ExtendedKeyUsageOID.SERVER_AUTH), REFUSED, "peer1"),
    "for callers": case(one_use(ExtendedKeyUsageOID.CLIENT_AUTH), "peer1"),
    "for mail": case(one_use(ExtendedKeyUsageOID.EMAIL_PROTECTION), REFUSED),
    "expired": case(lambda ca: ca.issue(DNSName("peer1"), begins=-2), REFUSED),
    "of tomorrow": case(lambda ca: ca.issue(DNSName("peer1"), begins=1), REFUSED),
    "signed by oneself": case(
        lambda _: authority("peer1", (x509.SubjectAlternativeName([DNSName("peer1")]),)), REFUSED
    ),
    "of another CA": case(lambda _: authority("CA").issue(DNSName("peer1")), REFUSED),
    "of a CA below that may sign others": case(
        lambda ca: under(ca, DNSName("peer1"), more=(CA, x509.NameConstraints([DNSName("example")], None))), REFUSED
    ),
    "of a CA too far below": case(
        lambda ca: under(ca.issue(called="near", more=(x509.BasicConstraints(True, 0),)), DNSName("peer1")), REFUSED
    ),
    "of a CA below that is not shown": case(
        lambda ca: ca.issue(called="between", more=(CA,)).issue(DNSName("peer1")), REFUSED
    ),
    "signed by a peer": case(lambda ca: signed_by_a_peer(ca, NO_CA), REFUSED),
    "signed by a peer of which nothing says that it is no CA": case(lambda ca: signed_by_a_peer(ca), REFUSED),
}
each = pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])
in_one_loop = pytest.mark.asyncio(loop_scope="module")


class Victim:
    """peer0, which calls and is called, with certificates of `ca`."""

    def __init__(self, ca: Holder, directory: Path, ports: list[int]) -> None:
        self.address, *free = (f"127.0.0.1:{port}" for port in ports)
        self.attackers = dict(zip(free, ("peer1", "peer2"), strict=True))
        (directory / "ca.pem").write_bytes(ca.shown)
        ca.issue(DNSName("peer0")).write(directory, "peer0")
        files = (directory / name for name in ("ca.pem", "peer0.pem", "peer0.key"))
        self.ca, security = ca, TlsCredentials(CertificatePaths("peer0", *files), self.attackers, print)
        self.transport = GrpcTransport(ListenConfig(self.address), self.status, security)
        self.callers: asyncio.Queue[str | None] = asyncio.Queue()

    async def status(self, _request: bytes) -> bytes:
        return b""

    async def accept(self, _service: Service, pipe: Pipe) -> None:
        self.callers.put_nowait(pipe.identity)
        await pipe.send(await pipe.receive())

    async def called_by(self, attacker: Holder) -> str | None:
        """The member that it takes the caller for."""
        shown = grpc.ssl_channel_credentials(self.ca.shown, attacker.private, attacker.shown)
        name = [("grpc.ssl_target_name_override", "peer0")]
        async with grpc.aio.secure_channel(self.address, shown, name) as channel:
            call = channel.stream_stream(f"/{SERVICE}/Tensors")()
            try:
                await call.write(b"hello")
                await call.read()
            except grpc.aio.AioRpcError as error:
                return REFUSED if error.code() == grpc.StatusCode.UNAVAILABLE else str(error)
        return self.callers.get_nowait()

    async def dials(self, attacker: Holder) -> frozenset[str]:
        """Whom it takes the attacker for that answers at the others' addresses."""
        server = answering(attacker, self.attackers)
        await server.start()
        taken = [name for address, name in self.attackers.items() if await self.reaches(address)]
        await server.stop(grace=None)
        return frozenset(taken)

    async def reaches(self, address: str) -> bool:
        try:
            pipe = await self.transport.dial(address, "Tensors")
            await pipe.send(b"hello")
            return await pipe.receive() == b"hello"
        except DisconnectedError:
            return False
        finally:
            await self.transport.renew(address)


def answering(holder: Holder, addresses: Any) -> grpc.aio.Server:
    """A server with the holder's certificate that lets everybody in and echoes."""

    async def echo(_requests: Any, context: Any) -> None:
        await context.write(await context.read())

    methods = {"Tensors": grpc.stream_stream_rpc_method_handler(echo)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    for address in addresses:
        server.add_secure_port(address, grpc.ssl_server_credentials([(holder.private, holder.shown)]))
    return server


@pytest.fixture(scope="module")
def ca() -> Holder:
    return authority()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def victim(
    ca: Holder, tmp_path_factory: pytest.TempPathFactory, ports: Callable[[int], list[int]]
) -> AsyncIterator[Victim]:
    victim = Victim(ca, tmp_path_factory.mktemp("victim"), ports(3))
    await victim.transport.listen(victim.accept)
    yield victim
    await victim.transport.close()


@each
@in_one_loop
async def test_a_caller_is_who_its_certificate_says_and_nobody_else(victim: Victim, case: Case) -> None:
    assert await victim.called_by(case.make(victim.ca)) == case.caller
    assert await victim.called_by(victim.ca.issue(DNSName("peer2"))) == "peer2", "an honest one still gets in"


@each
@in_one_loop
async def test_whoever_is_dialled_holds_a_certificate_for_that_name(victim: Victim, case: Case) -> None:
    assert await victim.dials(case.make(victim.ca)) == case.dialled


@each
def test_a_peer_starts_only_with_a_certificate_that_is_its_own(ca: Holder, tmp_path: Path, case: Case) -> None:
    """What would not let it in everywhere as itself is refused at its own start already."""
    (tmp_path / "ca.pem").write_bytes(ca.shown)
    case.make(ca).write(tmp_path, "peer1")
    own = CertificatePaths("peer1", *(tmp_path / name for name in ("ca.pem", "peer1.pem", "peer1.key")))
    if case.caller == "peer1" and case.dialled == {"peer1"} and case is not CASES["of a CA below"]:
        own.read()
    else:
        with pytest.raises(InputError, match=r"peer1\.pem: "):
            own.read()
