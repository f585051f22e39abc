"""Real peers with certificates: who gets in, and what a rotation does to a run."""

import shutil
from pathlib import Path
from typing import Any

import grpc
import pytest
from real_peers import Build, SmallFederation, until

from launcher.certificates import certificate_files, make_certificates
from peer.network.wire import SERVICE, StatusReply, StatusRequest

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


def hashes(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {id: result["model_sha256"] for id, result in results.items()}


def test_certificates_are_rotated_without_stopping(federation: Build, tmp_path: Path) -> None:
    slow = {"name": "fibfl", "extractor_epochs": 60}
    undisturbed = federation(slow, rounds=6, data={"name": "digits"}).run()

    run = federation(slow, rounds=6, data={"name": "digits"})
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

    for file in new.iterdir():
        shutil.copyfile(file, certs / file.name)
    for id in run.ids:
        run.await_event(id, "certificates")
    with pytest.raises(grpc.RpcError):
        ask(address, "peer0", old, of="peer1")
    assert ask(address, "peer0", new, of="peer1").federation == "tiny"

    assert set(run.wait().values()) == {0}
    assert hashes(run.results()) == hashes(undisturbed)
    for id in run.ids:
        assert [event["round"] for event in run.events(id, "round")] == [1, 2, 3, 4, 5, 6], "a round was repeated"


def test_the_certificate_decides_who_one_is(federation: Build, tmp_path: Path) -> None:
    """peer2 shows its own valid certificate while saying it is peer1: refused, and the reason is said."""
    run = federation("fibfl", patience=3)
    certs = tmp_path / "certs"
    make_certificates(run.spec, certs, days=2)
    secure(run, certs)
    run.start("peer0")
    files = {name: path.read_bytes() for name, path in certificate_files(certs, "peer2").items()}
    credentials = grpc.ssl_channel_credentials(files["ca"], files["key"], files["cert"])
    from peer.network.handshake import Identity
    from peer.network.wire import Reply

    def refusal() -> str | None:
        hello = Identity("peer1", run.spec.digests(), "any").hello("peer0")
        name = [("grpc.ssl_target_name_override", "peer0")]
        try:
            with grpc.secure_channel(run.address("peer0"), credentials, name) as channel:
                replies = channel.stream_stream(f"/{SERVICE}/Heartbeat")(iter([hello]), timeout=5)
                return Reply.FromString(next(replies)).refusal.detail
        except grpc.RpcError:
            return None  # not yet listening

    assert until(refusal, 20, "an answer") == "the certificate is `peer2`'s, not `peer1`'s"


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
