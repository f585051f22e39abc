"""What two operators can compare when one end's certificate is refused: both CAs, both validities, who it names."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from authority import Holder, authority
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import DNSName

from launcher.certificates import make_certificates
from peer.network.transport import UNTRUSTED, DisconnectedError, ListenConfig
from peer.network.transport.grpc import CERTIFICATE_REASONS, GrpcTransport
from peer.network.transport.tls import CertificatePaths, TlsCredentials, fingerprint
from peer.spec.loading import load_spec

DATES = r"valid \d{4}-\d\d-\d\d \d\d:\d\d to \d{4}-\d\d-\d\d \d\d:\d\d UTC"
Serve = Callable[[Holder, Holder], Awaitable[str]]


def certificates(ca: Holder, id: str, directory: Path) -> CertificatePaths:
    directory.mkdir(exist_ok=True)
    (directory / "ca.pem").write_bytes(ca.shown)
    ca.issue(DNSName(id)).write(directory, id)
    return CertificatePaths(id, directory / "ca.pem", directory / f"{id}.pem", directory / f"{id}.key")


@pytest.fixture
async def serve(ports: Callable[[int], list[int]]) -> AsyncIterator[Serve]:
    """Listens with a certificate, and takes callers of a CA; its address."""
    servers: list[grpc.aio.Server] = []

    async def listen(shows: Holder, takes: Holder) -> str:
        servers.append(server := grpc.aio.server())
        credentials = grpc.ssl_server_credentials([(shows.private, shows.shown)], takes.shown, True)
        server.add_secure_port(address := f"127.0.0.1:{ports(1)[0]}", credentials)
        await server.start()
        return address

    yield listen
    for server in servers:
        await server.stop(None)


async def why_refused(ca: Holder, address: str, directory: Path) -> str:
    """What peer0 of that CA says of peer1 at the address."""
    security = TlsCredentials(certificates(ca, "peer0", directory), {address: "peer1"}, print)

    async def status(_request: bytes) -> bytes:
        return b""

    transport = GrpcTransport(ListenConfig(None), status, security)
    pipe = await transport.dial(address, "Tensors")
    try:
        with pytest.raises(DisconnectedError) as refused:
            await pipe.receive()
    finally:
        await transport.close()
    return str(refused.value)


async def test_both_cas_are_told_with_both_validities(ports: Callable[[int], list[int]], tmp_path: Path) -> None:
    spec = load_spec(Path(__file__).parents[2] / "examples" / "fibfl.yaml", peers=3, port=7200)
    ours, theirs = (make_certificates(spec, tmp_path / name, days=2) for name in ("ours", "theirs"))
    assert ours != theirs
    assert re.fullmatch("[0-9a-f]{4}( [0-9a-f]{4}){3}", ours)
    key, cert, ca = ((tmp_path / "theirs" / name).read_bytes() for name in ("peer1.key", "peer1.pem", "ca.pem"))
    server = grpc.aio.server()
    address = f"127.0.0.1:{ports(1)[0]}"
    server.add_secure_port(address, grpc.ssl_server_credentials([(key, cert)], ca, True))
    await server.start()
    files = (tmp_path / "ours" / name for name in ("ca.pem", "peer0.pem", "peer0.key"))
    mine = CertificatePaths("peer0", *files).read()
    said = await mine.compared(UNTRUSTED, address, "peer1")
    await server.stop(None)
    assert re.fullmatch(
        f"its certificate is of another CA: made out to `peer1`, {DATES}, by the CA {theirs}; "
        f"this peer's is {DATES}, by the CA {ours}; compare them with its operator",
        said,
    )
    assert await mine.compared(UNTRUSTED, address, "peer1") == UNTRUSTED, "nobody shows anything there any more"


@pytest.mark.parametrize(
    ("begins", "what"),
    [(-2, "its certificate has expired by this peer's clock"), (1, "its certificate is not valid yet by this peer's")],
)
async def test_dates_are_told(begins: int, what: str, serve: Serve, tmp_path: Path) -> None:
    ca = authority("CA")
    said = await why_refused(ca, await serve(ca.issue(DNSName("peer1"), begins=begins), ca), tmp_path)
    assert said.startswith(what)
    assert said.endswith(f"by the CA {fingerprint(ca.cert)}; compare them with its operator")


async def test_another_ca_is_told_with_its_name_where_it_names_no_key(serve: Serve, tmp_path: Path) -> None:
    ca, other = authority("CA"), authority("other")
    said = await why_refused(ca, await serve(other.issue(DNSName("peer1")), other), tmp_path)
    assert said.startswith("its certificate is of another CA: made out to `peer1`, valid ")
    assert "by the CA `CN=other`, which names no key; this peer's is valid " in said


async def test_another_name_is_told(serve: Serve, tmp_path: Path) -> None:
    ca = authority("CA")
    said = await why_refused(ca, await serve(ca.issue(DNSName("peer2")), ca), tmp_path)
    assert "made out to `peer2`, valid " in said


async def test_who_is_not_taken_tells_what_it_has(serve: Serve, tmp_path: Path) -> None:
    ca, other = authority("CA"), authority("other")
    said = await why_refused(ca, await serve(ca.issue(DNSName("peer1")), other), tmp_path)
    assert said.startswith("it does not take this peer's certificate, or is no dfl-peer: made out to `peer1`, valid ")


async def test_what_a_hostile_certificate_says_forges_no_lines(serve: Serve, tmp_path: Path) -> None:
    ca, other = authority("CA"), authority("o\nther\x1b[2J")
    said = await why_refused(ca, await serve(other.issue(DNSName("p\neer" + "1" * 500)), other), tmp_path)
    assert said.startswith("its certificate is of another CA: made out to `p?eer1")
    assert said.isprintable()
    assert len(said) < 600


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x04"),  # the version of X.509
        (b"\x0c\x05other", b"\x14\x05oth\xffr"),  # the CA's name, as text that is none
        (b"\x0c\x05other", b"\x03\x05\x00ther"),  # and as something else
    ],
)
async def test_of_a_certificate_that_cannot_be_read_nothing_is_told(right: bytes, wrong: bytes, tmp_path: Path) -> None:
    """Any stranger can show one at a peer's address: OpenSSL sends what gRPC would not load."""
    ca, stranger = authority("CA"), authority("other").issue(DNSName("peer1"))
    der = stranger.cert.public_bytes(Encoding.DER).replace(right, wrong, 1)
    assert wrong in der
    (shown := tmp_path / "shown.pem").write_bytes(ssl.DER_cert_to_PEM_cert(der).encode() + stranger.private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown)
    context.set_alpn_protocols(["h2"])
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await why_refused(ca, address, tmp_path / "peer0") in CERTIFICATE_REASONS
