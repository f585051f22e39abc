"""What a running peer answers to standard tools: health, reflection, and the Status RPC."""

from collections.abc import Iterator

import grpc
import pytest
from endless import endless
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from real_peers import Build, SmallFederation, until

from peer.network.wire.messages import SERVICE, StatusReply, StatusRequest


@pytest.fixture
def running(federation: Build) -> SmallFederation:
    made = endless(federation)
    made.start()
    return made


@pytest.fixture
def channel(running: SmallFederation) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(running.address("peer1")) as channel:
        grpc.channel_ready_future(channel).result(20)
        yield channel


def test_health(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", SERVICE):
        reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING, service


def test_reflection(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest
    services, symbol = stub.ServerReflectionInfo(
        iter((asked(list_services=""), asked(file_containing_symbol=SERVICE))), timeout=10
    )
    named = {service.name for service in services.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= named
    (file,) = symbol.file_descriptor_response.file_descriptor_proto
    (service,) = FileDescriptorProto.FromString(file).service
    assert {method.name for method in service.method} == {"Tensors", "Fetch", "Heartbeat", "Views", "Status"}


def test_status(running: SmallFederation, channel: grpc.Channel) -> None:
    ask = channel.unary_unary(f"/{SERVICE}/Status", StatusRequest.SerializeToString, StatusReply.FromString)

    def far() -> StatusReply | None:
        reply: StatusReply = ask(StatusRequest(), timeout=10)
        advertised = all(neighbour.resources.samples for neighbour in reply.neighbours)
        return reply if reply.round > 6 and advertised else None

    status = until(far, 20, "a few rounds are over, and the neighbours have advertised their resources")
    assert (status.id, status.federation, status.rounds) == ("peer1", "tiny", 5000)
    assert status.state in ("ready", "training", "communicating", "evaluating")
    assert 0 < status.accuracy <= 1
    assert status.bytes_sent > 5 * 2 * 4 * 116_352
    assert status.bytes_received > 4 * 2 * 4 * 116_352
    neighbours = {neighbour.id: neighbour for neighbour in status.neighbours}
    assert {id: one.address for id, one in neighbours.items()} == {id: running.address(id) for id in ("peer0", "peer2")}
    for one in neighbours.values():
        assert one.state == "up"
        assert one.durable >= status.round - 8
        assert one.resources.samples == 20
        assert one.resources.cpus >= 1
        assert 0 < one.resources.free_memory_bytes < one.resources.memory_bytes
        assert one.resources.load >= 0
    assert {*neighbours["peer0"].resources.bytes_per_second} == {"peer1", "peer2"}
    assert status.resources.samples == 20
