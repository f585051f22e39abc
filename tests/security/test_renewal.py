"""New certificates while the transport serves, in one process: a taken address, and an end at a bad moment."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from echoes import echo, status

from launcher.certificates import make_certificates
from launcher.run_files import certificate_files
from peer.errors import InputError
from peer.network.transport import ListenConfig
from peer.network.transport.addresses import why_taken
from peer.network.transport.grpc import GrpcTransport
from peer.network.transport.tls import CertificatePaths, TlsCredentials
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

SPEC = "{protocol: fedavg, ring: [{id: peer0, address: '127.0.0.1:7700'}, {id: peer1, address: '127.0.0.1:7701'}]}"


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """With certificates of it in `certs`."""
    (tmp_path / "federation.yaml").write_text(SPEC)
    spec = load_spec(tmp_path / "federation.yaml")
    make_certificates(spec, tmp_path / "certs", days=30)
    return spec


CUT = "ExecuteBatchError raised in core by servicer method"
"""What gRPC itself may log about a call that ends while its answer is written (grpc/grpc pull request 32551)."""


def in_use(certs: Path, names: dict[str, str], said: Callable[[str], None]) -> TlsCredentials:
    """Certificates that are looked at all the time."""
    certificates = CertificatePaths("peer0", **certificate_files(certs, "peer0"))
    return TlsCredentials(certificates, names, lambda event: said(str(event)), look=0.002)


async def test_an_address_that_was_taken_meanwhile_is_waited_for(spec: Spec, tmp_path: Path) -> None:
    """A peer with new certificates opens its server again, and between the two somebody else may take the address."""
    said, answers = asyncio.Queue[str](), [InputError("cannot listen at 127.0.0.1:7700"), None]

    async def renew() -> None:
        if answer := answers.pop(0):
            raise answer

    watching = asyncio.create_task(in_use(tmp_path / "certs", {}, said.put_nowait).watch(renew))
    make_certificates(spec, tmp_path / "certs", days=60)
    assert await asyncio.wait_for(said.get(), 20) == "cannot listen at 127.0.0.1:7700"
    assert (await asyncio.wait_for(said.get(), 20)).startswith("new certificates, valid until")
    watching.cancel()


async def test_a_peer_can_end_while_its_certificates_are_renewed(
    spec: Spec, tmp_path: Path, ports: Callable[[int], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{ports(1)[0]}"
    for attempt in range(40):
        transport = GrpcTransport(
            ListenConfig(address), status, in_use(tmp_path / "certs", {address: "peer0"}, lambda _: None)
        )
        await transport.listen(echo)
        watching = asyncio.create_task(transport.run())
        pipe = await transport.dial(address, "Tensors")
        await pipe.send(b"hello")
        assert await pipe.receive() == b"hello"
        make_certificates(spec, tmp_path / "certs", days=30)
        await asyncio.sleep(attempt * 0.0002)  # somewhere in the renewal, which takes some milliseconds
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await transport.close()
        assert why_taken(address) is None
    said = [record.getMessage() for record in caplog.records]
    assert not [one for one in said if not one.startswith(CUT)]


async def test_a_peer_that_waits_to_be_admitted_takes_new_certificates_and_listens_nowhere(
    spec: Spec, tmp_path: Path, ports: Callable[[int], list[int]]
) -> None:
    address, said = f"127.0.0.1:{ports(1)[0]}", asyncio.Queue[str]()
    used = in_use(tmp_path / "certs", {address: "peer0"}, said.put_nowait)
    transport = GrpcTransport(ListenConfig(address), status, used)
    before, watching = used.bundle, asyncio.create_task(transport.run())
    make_certificates(spec, tmp_path / "certs", days=60)
    assert (await asyncio.wait_for(said.get(), 20)).startswith("new certificates, valid until")
    assert used.bundle != before
    assert why_taken(address) is None
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await transport.close()
