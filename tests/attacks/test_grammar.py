"""A member that says whatever the grammar of any RPC allows: the peer lives, answers and keeps no more for it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import grpc
import pytest
from certified import Member, secured
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from liars import hello
from real_peers import Build
from strangers import frame

from launcher.run_files import certificate_files
from peer.network.wire.messages import SERVICE, Beat, Hello, Question, Reply, StatusReply, StatusRequest
from peer.spec.agreement import lasting_digest
from peer.spec.recordings import VIEWS
from peer.versions import WIRE
from peer.views.signing import CertifiedKeyring
from peer.views.statements import (
    Base64,
    Counter,
    Digest,
    Request,
    Signed,
    Words,
    written,
)
from peer.views.view import Id, Number, Reason, Round

PROTOCOL = {"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}
IDS = ("peer0", "peer1", "peer2", "peer3")
LIAR, HONEST = "peer1", "peer0"
EXAMPLES = 100
SECONDS = 0.2
"""For what is answered to one of them: much is answered by nothing."""
ids = st.sampled_from([*IDS, LIAR, "stranger"])
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    Id: ids,
    Number: st.sampled_from([0, 1, 1, 2, 1 << 31]),
    Round: st.integers(-1, 9) | st.just(1_000_001),
    Counter: st.integers(1, 9) | st.just(1 << 62),
    Digest: st.sampled_from(["0" * 64, "f" * 64]),
    Base64: st.sampled_from(["", "AAAA", "A" * 8192, "="]),
    Words: st.sampled_from(["", "no", "x" * 300]),
    Reason: st.sampled_from(["", "no", "x" * 300]),
    bool: st.booleans(),
    int: st.integers(0, 9),
}
NUMBERS = {
    FieldDescriptor.TYPE_SINT64: st.integers(-2, 9) | st.sampled_from([2**63 - 1, -(2**63)]),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 9) | st.just(2**64 - 1),
    FieldDescriptor.TYPE_FIXED64: st.integers(0, 9),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 9) | st.just(2**32 - 1),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 9),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=99),
    FieldDescriptor.TYPE_STRING: ids | st.text(max_size=20),
}
Sign = Callable[[Any], Any]
T = TypeVar("T")


def of_views(kind: Any, sign: Sign) -> st.SearchStrategy[Any]:
    """Anything of that type; what is signed is so by the liar, or by nobody."""
    if kind in LEAVES:
        return LEAVES[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return st.none() | of_views(arguments[0], sign)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(of_views(arguments[0], sign), max_size=2).map(tuple)
    if origin is Signed:
        statement = of_views(arguments[0], sign)
        return statement.map(sign) | st.builds(Signed, ids, statement, LEAVES[Base64], LEAVES[Base64])
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{one.name: of_views(hints[one.name], sign) for one in fields(kind)})
    return st.none() | st.one_of([of_views(one, sign) for one in arguments if one is not type(None)])


def of_wire(kind: type[T]) -> st.SearchStrategy[T]:
    """Any message of that type, with any of its fields."""
    found: dict[str, st.SearchStrategy[Any]] = {}
    for field in kind.DESCRIPTOR.fields:  # type: ignore[attr-defined]
        if field.message_type and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            found[field.name] = st.dictionaries(NUMBERS[FieldDescriptor.TYPE_STRING], NUMBERS[value.type], max_size=3)
            continue
        one = of_wire(field.message_type._concrete_class) if field.message_type else NUMBERS[field.type]
        found[field.name] = st.lists(one, max_size=3) if field.is_repeated else one
    return st.fixed_dictionaries({}, optional=found).map(lambda given: kind(**given))


def serialized(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return strategy.map(lambda message: message.SerializeToString())


def conversations(beginnings: dict[str, bytes], sign: Sign) -> st.SearchStrategy[tuple[str, list[bytes], bool]]:
    """A service, what is said there, and whether the answers are read; most begin as an honest member does."""
    requests = st.one_of([of_views(one, sign) for one in get_args(Request)]).map(written)
    said = {
        "Tensors": st.just(frame()) | st.binary(max_size=99),
        "Fetch": serialized(of_wire(Reply)),
        "Heartbeat": serialized(of_wire(Beat)),
        "Views": requests,
    }
    first = {name: serialized(of_wire(Question if name == "Views" else Hello)) for name in said}
    return st.one_of(
        [
            st.tuples(
                st.just(name),
                st.tuples(
                    st.just(beginnings[name]) | st.just(beginnings[name]) | first[name],
                    st.lists(said[name] | said[name] | st.binary(max_size=9), max_size=4),
                ).map(lambda parts: [parts[0], *parts[1]]),
                st.booleans(),
            )
            for name in said
        ]
    )


@pytest.mark.timeout(100)
def test_whatever_a_member_says_the_peer_lives_and_keeps_no_more_for_it(federation: Build) -> None:
    run = federation(PROTOCOL, len(IDS), rounds=6, on_loss="bypass", absence=5, patience=90)
    certs = secured(run)
    files = {name: path.read_bytes() for name, path in certificate_files(certs, LIAR).items()}
    keyring = CertifiedKeyring(
        LIAR, lasting_digest(run.spec.agreement.digests), lambda: (files["ca"], files["cert"], files["key"])
    )
    greeting = hello(run, LIAR, HONEST)
    question = Question(version=WIRE.writes, id=LIAR, to=HONEST, spec=run.spec.agreement.digests).SerializeToString()
    beginnings = dict.fromkeys(("Tensors", "Fetch", "Heartbeat"), greeting) | {"Views": question}
    run.start(HONEST)
    run.await_event(HONEST, "state", state="joining")
    with Member(run, certs, LIAR, HONEST) as member:
        channel, heard = member._channel, set[str]()

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(conversations(beginnings, keyring.sign))
        def say(conversation: tuple[str, list[bytes], bool]) -> None:
            service, messages, reads = conversation
            call = channel.stream_stream(f"/{SERVICE}/{service}")(iter(messages), timeout=SECONDS)
            with suppress(grpc.RpcError, StopIteration):
                for _ in range(len(messages) if reads else 1):
                    next(call)
                    heard.add(service)
            call.cancel()

        say()
        status = channel.unary_unary(f"/{SERVICE}/Status")(StatusRequest().SerializeToString(), timeout=10)
    assert heard == {*beginnings}, "each service has answered something"
    assert StatusReply.FromString(status).id == HONEST
    assert run.peers[HONEST].running
    assert "Traceback" not in run.log(HONEST), run.log(HONEST)
    directory = run.directory / HONEST
    kept = (directory / VIEWS).stat().st_size if (directory / VIEWS).exists() else 0
    assert kept < 1 << 16
    assert (directory / "events.jsonl").stat().st_size < 1 << 18
