"""Real peers with certificates: who gets in, and what a rotation does to a run."""

import ipaddress
import shutil
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from authority import authority
from cryptography import x509
from real_peers import Build, SmallFederation, until

from launcher.certificates import make_certificates
from launcher.run_files import certificate_files
from peer.network.streams.handshake import Identity
from peer.network.wire.messages import SERVICE, Reply, StatusReply, StatusRequest

METHOD = f"/{SERVICE}/Status"


def secure(federation: SmallFederation, certs: Path, **settings: Any) -> None:
    for id in federation.ids:
        federation.configure(id, tls={k: str(v) for k, v in certificate_files(certs, id).items()}, **settings)


def ask(address: str, id: str, certs: Path | None, of: str) -> StatusReply:
    """The status of `id` at `address`, asked with `of`'s certificate from `certs`, or with none."""
    if certs is None:
        channel = grpc.insecure_channel(address)
    else:
        files = {name: path.read_bytes() for name, path in certificate_files(certs, of).items()}
        credentials = grpc.ssl_channel_credentials(files["ca"], files["key"], files["cert"])
        channel = grpc.secure_channel(address, credentials, [("grpc.ssl_target_name_override", id)])
    with channel:
        reply = channel.unary_unary(METHOD)(StatusRequest().SerializeToString(), timeout=5)
    return StatusReply.FromString(reply)


def replace(certs: Path, new: Path) -> None:
    for file in new.iterdir():
        shutil.copyfile(file, certs / file.name)


def taken_up(run: SmallFederation, id: str) -> None:
    """Waits until a peer uses the files that were replaced; it may have seen half of them before."""

    def used() -> bool:
        said = [event["sentence"] for event in run.events(id, "certificates")]
        return any(sentence.startswith("new certificates, valid") for sentence in said)

    until(used, 30, f"{id} takes them up")


def hashes(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {id: result["model_sha256"] for id, result in results.items()}


HELD = """
import time
from pathlib import Path
from typing import Literal

from peer.protocols.fibfl import FibFL


class Held(FibFL):
    name: Literal["held:Held"]
    until: str

    async def round(self, peer):
        if (peer.id, peer.round) == ("peer2", 3):
            await peer.compute(wait, Path(self.until))
        await super().round(peer)


def wait(path):
    while not path.exists():
        time.sleep(0.02)
"""
"""In round 3 peer2 waits for a file, and so before long the others for peer2."""


def test_certificates_are_rotated_without_stopping(federation: Build, tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(HELD)
    (go := tmp_path / "go").touch()
    held = {"name": "held:Held", "until": str(go), "head_epochs": 1, "extractor_epochs": 1}
    undisturbed = federation(held, rounds=6, code=str(tmp_path)).run()
    go.unlink()

    run = federation(held, rounds=6, code=str(tmp_path))
    certs, old, new = tmp_path / "certs", tmp_path / "old", tmp_path / "new"
    make_certificates(run.spec, certs, days=2)
    make_certificates(run.spec, new, days=2)
    shutil.copytree(certs, old)
    secure(run, certs)
    run.start()
    run.await_event("peer0", "round", round=1)
    address = run.address("peer0")
    assert ask(address, "peer0", old, of="peer1").id == "peer0"
    with pytest.raises(grpc.RpcError):
        ask(address, "peer0", None, of="nobody")
    with pytest.raises(grpc.RpcError):
        ask(address, "peer0", new, of="peer1")

    replace(certs, new)
    for id in run.ids:
        taken_up(run, id)
    with pytest.raises(grpc.RpcError):
        ask(address, "peer0", old, of="peer1")
    assert ask(address, "peer0", new, of="peer1").federation == "tiny"
    go.touch()

    assert set(run.wait().values()) == {0}
    assert hashes(run.results()) == hashes(undisturbed)
    for id in run.ids:
        assert [event["round"] for event in run.events(id, "round")] == [1, 2, 3, 4, 5, 6], "a round was repeated"


# The ssl module closes no socket whose other end is gone before the handshake begins.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
def test_many_handshakes_at_once_harm_nobody(federation: Build, tmp_path: Path) -> None:
    """gRPC's own way to exchange a certificate dies of it (grpc/grpc issue 36693)."""
    run = federation("fibfl", patience=60)
    certs, new = tmp_path / "certs", tmp_path / "new"
    make_certificates(run.spec, certs, days=2)
    make_certificates(run.spec, new, days=2)
    secure(run, certs)
    run.start("peer0")
    run.await_event("peer0", "state", state="joining")
    place = ("127.0.0.1", int(run.address("peer0").rpartition(":")[2]))
    shown, made = as_client(certs, "peer1"), [0] * 8
    calling = threading.Event()
    calling.set()

    def call(caller: int) -> None:
        while calling.is_set():
            # Refused while the peer changes its server; that it lives is seen in the end.
            with suppress(OSError), socket.create_connection(place, timeout=10) as plain:
                shown.wrap_socket(plain, server_hostname="peer0").close()
                made[caller] += 1

    with ThreadPoolExecutor(len(made)) as pool:
        callers = [pool.submit(call, caller) for caller in range(len(made))]
        try:
            until(lambda: sum(made) > 2000, 30, "2,000 handshakes")
            replace(certs, new)
            taken_up(run, "peer0")
            shown, before = as_client(new, "peer1"), sum(made)
            until(lambda: sum(made) > before + 500, 30, "500 handshakes with the new certificates")
        finally:
            calling.clear()
    for caller in callers:
        caller.result()
    assert ask(run.address("peer0"), "peer0", new, of="peer1").id == "peer0"


def as_client(certs: Path, id: str) -> ssl.SSLContext:
    files = certificate_files(certs, id)
    context = ssl.create_default_context(cafile=files["ca"])
    context.load_cert_chain(files["cert"], files["key"])
    context.set_alpn_protocols(["h2"])
    return context


def test_the_certificate_decides_who_one_is(federation: Build, tmp_path: Path) -> None:
    """peer2 shows its own valid certificate while saying it is peer1: refused, and the reason is said."""
    run = federation("fibfl", patience=60)
    certs = tmp_path / "certs"
    make_certificates(run.spec, certs, days=2)
    secure(run, certs)
    run.start("peer0")
    said = until(lambda: refusal(run, certs, shown="peer2", claimed="peer1"), 20, "an answer")
    assert said == "the certificate is made out to `peer2`, not to `peer1`"


def refusal(run: SmallFederation, certs: Path, shown: str, claimed: str) -> str | None:
    """What peer0 answers to one that shows a certificate and says it is `claimed`; None while it does not listen."""
    files = {name: path.read_bytes() for name, path in certificate_files(certs, shown).items()}
    credentials = grpc.ssl_channel_credentials(files["ca"], files["key"], files["cert"])
    hello = Identity(claimed, run.spec.agreement.digests, "any").hello("peer0")
    name = [("grpc.ssl_target_name_override", "peer0")]
    try:
        with grpc.secure_channel(run.address("peer0"), credentials, name) as channel:
            replies = channel.stream_stream(f"/{SERVICE}/Heartbeat")(iter([hello]), timeout=5)
            return Reply.FromString(next(replies)).refusal.detail
    except grpc.RpcError:
        return None


def test_only_dns_names_say_who_one_is(federation: Build, tmp_path: Path) -> None:
    """With a CA of one's own: a certificate for something else has no DNS name, and so it is nobody's."""
    run = federation("fibfl", patience=60)
    certs = tmp_path / "certs"
    certs.mkdir()
    ca, address = authority(), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    (certs / "ca.pem").write_bytes(ca.shown)
    ca.issue(called="monitor").write(certs, "monitor")
    ca.issue(address).write(certs, "machine")
    ca.issue(address, x509.DNSName("peer1")).write(certs, "peer1")
    for id in ("peer0", "peer2"):
        ca.issue(x509.DNSName(id)).write(certs, id)
    secure(run, certs)
    run.start("peer0")
    for shown in ("monitor", "machine"):
        said = until(lambda shown=shown: refusal(run, certs, shown, claimed="peer1"), 20, "an answer")  # type: ignore[misc]
        assert said == "the certificate is made out to nobody, not to `peer1`"
    said = until(lambda: refusal(run, certs, shown="peer1", claimed="peer1"), 20, "an answer")
    assert said == "other classes, inputs or tensors than `peer0`'s"  # past the certificate: `hello` says any manifest


def test_a_missing_certificate_is_no_reason_for_plaintext(federation: Build, tmp_path: Path) -> None:
    run = federation("fibfl")
    certs = tmp_path / "certs"
    make_certificates(run.spec, certs, days=2)
    (certs / "peer0.key").unlink()
    secure(run, certs)
    run.start("peer0")
    assert run.wait() == {"peer0": 2}
    assert "peer0.key: cannot be read (No such file or directory)" in run.log("peer0")
    assert not (run.directory / "peer0").exists()


def test_health_without_a_certificate(federation: Build, tmp_path: Path, ports: Any) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    run = federation("fibfl", patience=20)
    certs = tmp_path / "certs"
    make_certificates(run.spec, certs, days=2)
    probes = f"127.0.0.1:{ports(1)[0]}"
    secure(run, certs)
    tls = {k: str(v) for k, v in certificate_files(certs, "peer0").items()}
    run.configure("peer0", tls=tls, health=probes)
    run.start("peer0")
    with grpc.insecure_channel(probes) as channel:
        grpc.channel_ready_future(channel).result(20)
        status = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert status.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(METHOD)(b"", timeout=5)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
