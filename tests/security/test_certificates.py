"""What is refused at the start, and why: never a silent fall-back to plaintext."""

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.verification import PolicyBuilder, Store

from launcher.certificates import make_certificates
from launcher.run_files import certificate_files
from peer.errors import InputError
from peer.network.transport.addresses import is_loopback
from peer.network.transport.tls import CertificatePaths
from peer.spec.loading import load_peer, load_spec

SPEC = "protocol: fibfl\nring:\n" + "".join(f"  - {{id: peer{i}, address: '127.0.0.1:{7700 + i}'}}\n" for i in range(3))


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    (tmp_path / "federation.yaml").write_text(SPEC)
    make_certificates(load_spec(tmp_path / "federation.yaml"), tmp_path / "certs", days=30)
    return tmp_path / "certs"


def read(certs: Path, id: str = "peer0", **other: Path) -> None:
    CertificatePaths(id, **{**certificate_files(certs, id), **other}).read()


def test_a_peers_own_files_are_accepted(certs: Path) -> None:
    read(certs)
    assert (certs / "peer0.key").stat().st_mode & 0o077 == 0, "a key is for its owner only"
    assert not (certs / "ca.key").exists()


def test_a_strict_verifier_takes_them(certs: Path) -> None:
    """RFC 5280 to the letter, as Python's own TLS has it from 3.13 on."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as other:
        accepted = other.submit(strict(ssl.Purpose.CLIENT_AUTH, certs, "peer0").wrap_socket, theirs, server_side=True)
        with strict(ssl.Purpose.SERVER_AUTH, certs, "peer1").wrap_socket(ours, server_hostname="peer0") as caller:
            shown = caller.getpeercert() or {}
            assert shown["subjectAltName"] == (("DNS", "peer0"),)
        accepted.result(10).close()


def test_so_does_another_one(certs: Path) -> None:
    ca, peer = (x509.load_pem_x509_certificate((certs / f"{name}.pem").read_bytes()) for name in ("ca", "peer0"))
    policy = PolicyBuilder().store(Store([ca]))
    policy.build_server_verifier(x509.DNSName("peer0")).verify(peer, [])
    policy.build_client_verifier().verify(peer, [])


def strict(purpose: ssl.Purpose, certs: Path, id: str) -> ssl.SSLContext:
    files = certificate_files(certs, id)
    context = ssl.create_default_context(purpose, cafile=files["ca"])
    context.load_cert_chain(files["cert"], files["key"])
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@pytest.mark.parametrize("name", ["ca.pem", "peer0.pem", "peer0.key"])
def test_a_missing_file_is_named(certs: Path, name: str) -> None:
    (certs / name).unlink()
    with pytest.raises(InputError, match=rf"{name}: cannot be read \(No such file"):
        read(certs)


@pytest.mark.parametrize("name", ["ca.pem", "peer0.pem", "peer0.key"])
def test_a_file_that_is_no_pem_is_named(certs: Path, name: str) -> None:
    (certs / name).write_text("-----BEGIN NONSENSE-----\n")
    with pytest.raises(InputError, match=rf"{name}: is not"):
        read(certs)


def test_another_peers_certificate_is_refused(certs: Path) -> None:
    with pytest.raises(InputError, match="is made out to peer1, not to `peer0`"):
        read(certs, cert=certs / "peer1.pem", key=certs / "peer1.key")


def test_another_peers_key_is_refused(certs: Path) -> None:
    with pytest.raises(InputError, match="is not the key of"):
        read(certs, key=certs / "peer1.key")


def test_a_certificate_of_another_ca_is_refused(certs: Path, tmp_path: Path) -> None:
    make_certificates(load_spec(tmp_path / "federation.yaml"), tmp_path / "others", days=30)
    with pytest.raises(
        InputError, match=r"peer0\.pem: was issued by the CA [0-9a-f ]{19}, and that in .*ca\.pem is [0-9a-f ]{19};"
    ):
        read(certs, ca=tmp_path / "others" / "ca.pem")


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "federation.yaml").write_text(SPEC)
    make_certificates(load_spec(tmp_path / "federation.yaml"), tmp_path / "old", days=0)
    with pytest.raises(InputError, match="expired on"):
        read(tmp_path / "old")


@pytest.mark.parametrize("curve", [ec.SECP521R1(), ec.SECP256K1()])
def test_a_key_that_grpc_does_not_take_is_refused(certs: Path, tmp_path: Path, curve: ec.EllipticCurve) -> None:
    """The server would not open, or every handshake fail: after a rotation, a peer that nobody reaches any more."""
    key = ec.generate_private_key(curve)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "odd.key").write_bytes(pem)
    with pytest.raises(InputError, match=r"odd.key: is a kind of key that gRPC does not take; make one of RSA, P-256"):
        read(certs, key=tmp_path / "odd.key")


@pytest.mark.parametrize("address", ["10.0.0.3:7700", "[2001:db8::1]:7700", "hospital-a.example:7700", "0.0.0.0:7700"])
def test_plaintext_stays_on_this_machine(tmp_path: Path, address: str) -> None:
    (tmp_path / "federation.yaml").write_text(SPEC)
    (tmp_path / "peer0.yaml").write_text(f"{{federation: federation.yaml, id: peer0, listen: '{address}'}}\n")
    with pytest.raises(InputError, match="is not on this machine and `peer0` has no `tls`"):
        load_peer(tmp_path / "peer0.yaml")
    (tmp_path / "federation.yaml").write_text(SPEC + "plaintext: true\n")
    load_peer(tmp_path / "peer0.yaml")


def test_loopback_is_recognised() -> None:
    assert all(map(is_loopback, ["127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1"]))
    assert not any(map(is_loopback, ["0.0.0.0:1", "10.0.0.1:1", "localhost.example:1", "[::]:1"]))


BYPASS = SPEC + "on_loss: bypass\n"


def test_members_decide_without_certificates_on_loopback_or_where_all_are_trusted(tmp_path: Path) -> None:
    config = tmp_path / "peer0.yaml"
    config.write_text("{federation: federation.yaml, id: peer0, listen: '10.0.0.3:7700'}\n")
    for plaintext in ("false", "true"):
        (tmp_path / "federation.yaml").write_text(f"{BYPASS}plaintext: {plaintext}\n")
        with pytest.raises(InputError, match=r"`dfl-launch certs`, or write `plaintext: trusted` into the spec if you"):
            load_peer(config)
    (tmp_path / "federation.yaml").write_text(BYPASS + "plaintext: trusted\n")
    load_peer(config)
    config.write_text("{federation: federation.yaml, id: peer0}\n")
    (tmp_path / "federation.yaml").write_text(BYPASS)
    load_peer(config)


def test_liars_can_be_tolerated_only_where_members_sign(tmp_path: Path) -> None:
    (tmp_path / "peer0.yaml").write_text("{federation: federation.yaml, id: peer0}\n")
    ring = "".join(f"  - {{id: peer{i}, address: '127.0.0.1:77{i:02}'}}\n" for i in range(4))
    spec = f"protocol: fedavg\ndata: digits\non_loss: bypass\nfaulty_members: 1\nring:\n{ring}"
    (tmp_path / "federation.yaml").write_text(spec)
    with pytest.raises(InputError, match=r"`faulty_members: 1` needs certificates.*or write `faulty_members: 0`"):
        load_peer(tmp_path / "peer0.yaml")
    (tmp_path / "federation.yaml").write_text(spec.replace("faulty_members: 1", "faulty_members: 2"))
    with pytest.raises(InputError, match=r"`faulty_members: 2` takes 7 peers.*the ring has 4"):
        load_peer(tmp_path / "peer0.yaml")
    (tmp_path / "federation.yaml").write_text(spec.replace("on_loss: bypass\n", ""))
    with pytest.raises(InputError, match="`faulty_members` goes with `on_loss: bypass`"):
        load_peer(tmp_path / "peer0.yaml")
    (tmp_path / "federation.yaml").write_text(spec.replace("faulty_members: 1\n", ""))
    loaded = load_peer(tmp_path / "peer0.yaml")[1]
    assert (loaded.tolerated(certificates=True), loaded.tolerated(certificates=False)) == (1, 0)
