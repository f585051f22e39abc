"""Questions about views: who may ask, what is taken for one, and that both ends read the same."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strangers import SPEC, pipes

from peer.network.limits import Timeouts
from peer.network.streams.handshake import Identity, RefusedError
from peer.network.transport import DisconnectedError
from peer.network.transport.memory import MemoryNetwork, MemoryPipe
from peer.network.view_rpc import ViewRpc
from peer.network.wire.messages import Answer, Question, Refusal
from peer.versions import WIRE
from peer.views.statements import (
    Announcement,
    Ask,
    AskPromise,
    Ballot,
    Behind,
    Confirm,
    Consent,
    Consents,
    Decided,
    Decision,
    Denied,
    Enter,
    Entry,
    Evidence,
    Expel,
    Grounds,
    Guilt,
    Heard,
    InvalidError,
    Leave,
    Lock,
    Objection,
    Poll,
    Prepare,
    Promise,
    Promised,
    Proposal,
    Propose,
    Refused,
    Relay,
    Relayed,
    Release,
    Reply,
    Request,
    Signed,
    Vote,
    Voted,
    Yield,
    read_reply,
    read_request,
    written,
)
from peer.views.view import View

IDS = ("a", "b", "c", "d")
BALLOT = Ballot(7, "b")
VIEW = View(3, ("a", "c", "d"), 12, planned=True, entrants=(("d", -1),), reason="d taken in")
OUT = View(4, ("a", "d"), 12, expelled=("b", "c"))
PREPARE = Signed("b", Prepare(3, BALLOT), "c2lnbmVk", "Y2VydGlmaWNhdGU=")
PROMISE = Signed("c", Promise(3, BALLOT, durable=11, started=12))
LOCKED = Signed("d", Promise(3, BALLOT, durable=-1, started=-1, locked=Ballot(6, "c")))
VOTE, OTHER = (Signed("c", Vote("accept", 3, BALLOT, digit * 64)) for digit in "12")
COMMIT = Signed("c", Vote("commit", 3, BALLOT, "1" * 64))
EVIDENCE = Evidence((Signed("a", Consent("c")),), (Guilt(VOTE, OTHER),))
LOCK = Lock(3, Ballot(6, "c"), VIEW, (VOTE,), EVIDENCE)
ANNOUNCED = (Signed("d", Announcement(2, 12)),)
ENTRY = Signed("b", Entry(2, 9))
GROUNDS = Grounds((PROMISE, LOCKED), LOCK, ANNOUNCED, (ENTRY,), EVIDENCE, leaves=True, missing=("d",))
DECIDED = Decided((Decision(VIEW, BALLOT, (COMMIT,)), Decision(OUT, BALLOT, (COMMIT,), EVIDENCE)))
REQUESTS: list[Request] = [
    AskPromise(PREPARE),
    Relay(PREPARE, ("c", "d")),
    Propose(Proposal(VIEW, VOTE, GROUNDS)),
    Propose(Proposal(None, VOTE, Grounds((PROMISE,)))),
    Confirm(LOCK),
    Confirm(Lock(3, BALLOT, None, (VOTE,))),
    Release(3, BALLOT, (COMMIT,)),
    Yield(3, BALLOT),
    DECIDED,
    Ask(2),
    Enter(ENTRY),
    Poll(2),
]
REPLIES: list[Reply] = [
    Promised(PROMISE),
    Promised(LOCKED, LOCK),
    Relayed((Promised(PROMISE),)),
    Voted(VOTE),
    Refused(3, Ballot(9, "c")),
    Objection("d answers b", ANNOUNCED),
    DECIDED,
    Decided(()),
    Behind(1),
    Consents(EVIDENCE),
    Denied("too few would be left"),
    Heard(),
]


def questions(id: str, **timeouts: float) -> ViewRpc:
    addresses = {id: f"{id}:1" for id in IDS}
    return ViewRpc(Identity(id, SPEC, manifest=""), addresses, timeouts=Timeouts(**timeouts))  # type: ignore[arg-type]


async def conversation(request: Request, reply: Reply) -> tuple[Request, Reply]:
    """What the other end has understood of the question, and the asker of the answer; over a network in memory."""
    network, heard = MemoryNetwork(), list[Request]()

    async def hear(_sender: str, asked: Request) -> Reply:
        heard.append(asked)
        return reply

    answering, asking = network.transport("a:1"), network.transport("b:1")
    await answering.listen(lambda _service, pipe: questions("a").answer(pipe, hear))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(answering.run())
        await asyncio.sleep(0)
        found = await questions("b").ask(asking, "a", request)
        serving.cancel()
    return heard[0], found


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
async def test_every_question_arrives_as_it_was_asked(request_: Request) -> None:
    assert await conversation(request_, Heard()) == (request_, Heard())


@pytest.mark.parametrize("reply", REPLIES, ids=lambda one: type(one).__name__)
async def test_every_answer_arrives_as_it_was_given(reply: Reply) -> None:
    assert await conversation(NOTHING_NEW, reply) == (NOTHING_NEW, reply)


@pytest.mark.parametrize("order", [Leave(2), Expel(2, "c")], ids=lambda one: type(one).__name__)
async def test_a_member_obeys_its_own_certificate_only(order: Request) -> None:
    heard = list[Request]()

    async def hear(_sender: str, asked: Request) -> Reply:
        heard.append(asked)
        return Heard()

    for caller_is in ("b", "a"):
        caller, pipe = pipes()
        pipe.identity = caller_is
        await put(caller, order, id=caller_is)
        with suppress(DisconnectedError):
            await questions("a").answer(pipe, hear)
    assert heard == [order], "of the one that came with its own"


NOTHING_NEW = Ask(0)


def question(**changes: object) -> Question:
    return Question(**{"version": WIRE.writes, "id": "b", "to": "a", "spec": SPEC, **changes})  # type: ignore[arg-type]


async def put(caller: MemoryPipe, asked: Request | bytes, **changes: object) -> None:
    """That question, in both its messages."""
    await caller.send(question(**changes).SerializeToString())
    await caller.send(asked if isinstance(asked, bytes) else written(asked))


async def never(_sender: str, _request: Request) -> Reply:
    raise AssertionError("it was heard")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (question(version=1), Refusal.VERSION),
        (question(to="c"), Refusal.IDENTITY),
        (question(spec={"seed": "2"}), Refusal.FEDERATION),
    ],
    ids=["version", "to", "spec"],
)
async def test_who_is_no_member_is_refused(asked: Question, reason: "Refusal.Reason.ValueType") -> None:
    caller, pipe = pipes()
    await caller.send(asked.SerializeToString())
    await questions("a").answer(pipe, never)
    assert Answer.FromString(await caller.receive()).refusal.reason == reason


@pytest.mark.parametrize("changes", [{}, {"version": 99, "release": "9.0"}])
async def test_a_certificate_of_another_is_refused(changes: dict[str, object]) -> None:
    """First of all: else it could make this peer say that the other must be upgraded."""
    caller, pipe = pipes()
    pipe.identity = "c"
    await put(caller, NOTHING_NEW, **changes)
    await questions("a").answer(pipe, never)
    assert Answer.FromString(await caller.receive()).refusal.reason == Refusal.IDENTITY


def changed(asked: Request, was: str, becomes: str) -> bytes:
    text = written(asked).decode()
    assert was in text
    return text.replace(was, becomes).encode()


NOT_ASKED: dict[str, bytes | Request] = {
    "another's-consent": Expel(0, "c"),
    "another's-leave": Leave(0),
    "for-another": Enter(Signed("c", Entry(0, 0))),
    "nothing": b"",
    "a-reply": written(Heard()),
    "no-kind": changed(NOTHING_NEW, "Ask", "Askk"),
    "cut-off": written(NOTHING_NEW)[:-1],
    "nobody": changed(DECIDED, '["a","c","d"]', "[]"),
    "no-id": changed(AskPromise(PREPARE), '"signer":"b"', '"signer":"B c"'),
    "a-long-id": changed(AskPromise(PREPARE), '"signer":"b"', f'"signer":"{"b" * 65}"'),
    "no-number": changed(NOTHING_NEW, "0", '"0"'),
    "no-whole-number": changed(NOTHING_NEW, "0", "0.5"),
    "below-zero": Ask(-1),
    "no-number-of-a-view": Ask((1 << 31) + 1),
    "no-counter": changed(AskPromise(PREPARE), '"counter":7', f'"counter":{(1 << 62) + 1}'),
    "no-round": Enter(Signed("b", Entry(2, 1_000_002))),
    "no-digest": changed(Propose(Proposal(VIEW, VOTE, GROUNDS)), "1" * 64, "1" * 63),
    "no-phase": changed(Propose(Proposal(VIEW, VOTE, GROUNDS)), '"accept"', '"except"'),
    "control-characters": changed(DECIDED, "d taken in", "d\\u001b taken in"),
    "a-long-reason": Decided((Decision(View(1, IDS, 1, reason="x" * 301), BALLOT, ()),)),
    "too-long": Decided(tuple(Decision(View(n, IDS, n, reason="x" * 300), BALLOT, ()) for n in range(3000))),
}


@pytest.mark.parametrize("asked", NOT_ASKED.values(), ids=NOT_ASKED)
async def test_what_no_member_asks_is_not_heard(asked: bytes | Request) -> None:
    caller, pipe = pipes()
    await put(caller, asked)
    with pytest.raises(DisconnectedError):
        await questions("a").answer(pipe, never)


async def test_an_answer_that_no_member_gives_is_told_apart_from_none() -> None:
    with pytest.raises(ExceptionGroup) as error:
        await conversation(NOTHING_NEW, Behind(-1))
    assert error.group_contains(InvalidError)


@given(st.binary(max_size=300), st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_no_question(first: bytes, second: bytes) -> None:
    async def asked(*data: bytes) -> None:
        caller, pipe = pipes()
        for one in data:
            await caller.send(one)
        with suppress(DisconnectedError):
            await questions("a").answer(pipe, never)

    asyncio.run(asked(first, second))
    asyncio.run(asked(question().SerializeToString(), second))


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    kinds = [type(one).__name__.encode() for one in (*REQUESTS, *REPLIES)]
    for text in (data, *(kind + b" " + data for kind in kinds)):
        for read in (read_request, read_reply):
            with suppress(InvalidError):
                read(text)


async def test_who_says_nothing_is_not_waited_for() -> None:
    network = MemoryNetwork()
    silent, asking = network.transport("a:1"), network.transport("b:1")
    await silent.listen(lambda _service, _pipe: asyncio.sleep(3600))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(silent.run())
        await asyncio.sleep(0)
        with pytest.raises(DisconnectedError, match=r"no answer in 0\.1 s"):
            await questions("b", view_rpc_timeout=0.1).ask(asking, "a", Ask(0))
        serving.cancel()


async def test_a_refusal_is_told_to_the_asker() -> None:
    network = MemoryNetwork()
    other, asking = network.transport("a:1"), network.transport("b:1")
    stranger = ViewRpc(Identity("a", {"seed": "9"}, manifest=""), {id: f"{id}:1" for id in IDS})
    await other.listen(lambda _service, pipe: stranger.answer(pipe, never))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(other.run())
        await asyncio.sleep(0)
        with pytest.raises(RefusedError, match="differ"):
            await questions("b").ask(asking, "a", Ask(0))
        serving.cancel()
