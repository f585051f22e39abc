"""Questions about views: who may ask, what is taken for one, and that both ends read the same."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peer.views.messages import (
    Accept,
    Accepted,
    Ask,
    Ballot,
    Behind,
    Consents,
    Decided,
    Denied,
    Enter,
    Expel,
    Heard,
    Leave,
    Poll,
    Prepare,
    Promise,
    Refused,
    Release,
    Reply,
    Request,
    Vote,
)
from strangers import SPEC, pipes

from peer.network.limits import Limits, Timeouts
from peer.network.streams.handshake import Identity, RefusedError
from peer.network.transport import DisconnectedError
from peer.network.transport.memory import MemoryNetwork
from peer.network.views.questions import Questions
from peer.network.wire import views
from peer.network.wire.foreign import Foreign
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import VERSION, Answer, Question, Refusal
from peer.views.view import View

IDS = ("a", "b", "c", "d")
BALLOT = Ballot(7, "b")
VIEW = View(3, ("a", "c", "d"), 12, planned=True, entrants=(("d", -1),), reason="d taken in")
REQUESTS = [Prepare(3, BALLOT), Accept(3, BALLOT, VIEW), Release(3, BALLOT), Decided((VIEW,)), Ask(2), Enter(2, "b", 9)]
REQUESTS += [Poll(2), Accept(4, BALLOT, View(4, ("a", "d"), 12, expelled=("b", "c")))]
REPLIES = [
    Promise(3, BALLOT, durable=11, oldest=0, started=12, private=-1, accepted=None),
    Promise(3, BALLOT, durable=-1, oldest=4, started=-1, private=3, accepted=Vote(Ballot(6, "c"), VIEW)),
    Accepted(3, BALLOT),
    Refused(3, Ballot(9, "c")),
    Decided((VIEW, View(4, ("a", "c"), 13))),
    Decided(()),
    Behind(1),
    Consents(("b", "d")),
    Denied("too few would be left"),
    Heard(),
]


def questions(id: str, **timeouts: float) -> Questions:
    addresses = {id: f"{id}:1" for id in IDS}
    return Questions(Identity(id, SPEC, manifest=""), addresses, timeouts=Timeouts(**timeouts))  # type: ignore[arg-type]


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
    assert await conversation(Prepare(3, BALLOT), reply) == (Prepare(3, BALLOT), reply)


@pytest.mark.parametrize("order", [Leave(2), Expel(2, "c")], ids=lambda one: type(one).__name__)
async def test_a_member_obeys_its_own_certificate_only(order: Request) -> None:
    heard = list[Request]()

    async def hear(_sender: str, asked: Request) -> Reply:
        heard.append(asked)
        return Heard()

    for caller_is in ("b", "a"):
        caller, pipe = pipes()
        pipe.identity = caller_is
        await caller.send(question(order, id=caller_is).SerializeToString())
        with suppress(DisconnectedError):
            await questions("a").answer(pipe, hear)
    assert heard == [order], "of the one that came with its own"


NOTHING_NEW = Ask(0)


def question(request: Request = NOTHING_NEW, **changes: object) -> Question:
    asked = Question(**{"version": VERSION, "id": "b", "to": "a", "spec": SPEC, **changes})  # type: ignore[arg-type]
    views.ask(request, asked)
    return asked


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


async def test_a_certificate_of_another_is_refused() -> None:
    caller, pipe = pipes()
    pipe.identity = "c"
    await caller.send(question().SerializeToString())
    await questions("a").answer(pipe, never)
    assert Answer.FromString(await caller.receive()).refusal.reason == Refusal.IDENTITY


STRANGER = View(1, ("a", "mallory"), 1)
GAP = Decided((VIEW, View(5, ("a", "c"), 13)))


@pytest.mark.parametrize(
    "asked",
    [
        question(Decided((STRANGER,))),
        question(Decided((View(1, ("c", "a"), 1),))),
        question(Decided((View(1, (), 1),))),
        question(Decided((View(1, ("a",), 1, entrants=(("mallory", 0),)),))),
        question(GAP),
        question(Accept(2, BALLOT, VIEW)),
        question(Prepare(1, Ballot(1, "mallory"))),
        question(Prepare(1, Ballot(1, "c"))),
        question(Release(1, Ballot(1, "c"))),
        question(Expel(0, "c")),
        question(Expel(0, "mallory"), id="a"),
        question(Leave(0)),
        question(Decided((View(1, ("a",), 1, expelled=("mallory",)),))),
        question(Decided((View(1, ("a", "b"), 1, expelled=("b",)),))),
        question(Enter(0, "c", 0)),
        Question(version=VERSION, id="b", to="a", spec=SPEC),
        question(Decided(tuple(View(n, IDS, n, reason="x" * 4000) for n in range(1, 9)))),
    ],
    ids=[
        "stranger",
        "order",
        "nobody",
        "entrant",
        "gap",
        "number",
        "proposer",
        "another's-attempt",
        "another's-release",
        "another's-consent",
        "consent-to-nobody",
        "another's-leave",
        "expelled",
        "out-and-in",
        "for-another",
        "nothing",
        "too-long",
    ],
)
async def test_what_no_member_asks_is_not_heard(asked: Question) -> None:
    caller, pipe = pipes()
    await caller.send(asked.SerializeToString())
    with pytest.raises(DisconnectedError):
        await questions("a").answer(pipe, never)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_no_question(data: bytes) -> None:
    async def asked() -> None:
        caller, pipe = pipes()
        await caller.send(data)
        with suppress(DisconnectedError):
            await questions("a").answer(pipe, never)

    asyncio.run(asked())


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_read_as_an_answer_or_refused(data: bytes) -> None:
    reader = views.Reader(IDS, Limits())
    foreign = Foreign(Limits(), len(IDS))
    with suppress(BadFrameError):
        reader.answered(foreign.views(data), 3)


async def test_who_says_nothing_is_not_waited_for() -> None:
    network = MemoryNetwork()
    silent, asking = network.transport("a:1"), network.transport("b:1")
    await silent.listen(lambda _service, _pipe: asyncio.sleep(3600))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(silent.run())
        await asyncio.sleep(0)
        with pytest.raises(DisconnectedError, match=r"no answer in 0\.1 s"):
            await questions("b", question=0.1).ask(asking, "a", Ask(0))
        serving.cancel()


async def test_a_refusal_is_told_to_the_asker() -> None:
    network = MemoryNetwork()
    other, asking = network.transport("a:1"), network.transport("b:1")
    stranger = Questions(Identity("a", {"seed": "9"}, manifest=""), {id: f"{id}:1" for id in IDS})
    await other.listen(lambda _service, pipe: stranger.answer(pipe, never))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(other.run())
        await asyncio.sleep(0)
        with pytest.raises(RefusedError, match="differ"):
            await questions("b").ask(asking, "a", Ask(0))
        serving.cancel()
