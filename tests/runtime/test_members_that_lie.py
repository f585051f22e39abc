"""What a lying member says to one that asks is its own fault, and holds up nobody else."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest

from peer.network.durability import Durability
from peer.network.limits import Timeouts
from peer.network.neighbours import Edges
from peer.network.streams.handshake import Identity
from peer.network.transport import REFUSED, DisconnectedError, Transport
from peer.network.view_rpc import ViewRpc
from peer.runtime.lifecycle import CheckpointLostError, Lifecycle, ReportIntervals, watch_own_regression
from peer.runtime.membership.membership import ADMISSIONS, ADMIT_AGAIN_S, Membership
from peer.runtime.membership.proposer import Proposer
from peer.runtime.membership.view_store import ViewStore
from peer.telemetry.events import CallerRefused, Event
from peer.views import statements
from peer.views.decision import Acceptor, MemberProgress, Memory, Rules, next_view
from peer.views.signing import Keyring
from peer.views.statements import (
    HIGHEST,
    JUMP,
    Announcement,
    Ask,
    AskPromise,
    Ballot,
    Behind,
    Decided,
    Decision,
    Enter,
    Entry,
    Grounds,
    Heard,
    InvalidError,
    Lock,
    Objection,
    Prepare,
    Promise,
    Promised,
    Proposal,
    Propose,
    Relay,
    Relayed,
    Reply,
    Request,
    Signed,
    Statement,
    Vote,
    Voted,
    Yield,
)
from peer.views.view import View

IDS = ("peer0", "peer1", "peer2", "peer3")
BALLOT = Ballot(1, "peer1")
SHORT = Timeouts(view_rpc_timeout=0.2, decision_timeout=0.4, retry=(0.04,))
UNHURRIED = Timeouts(view_rpc_timeout=1.2, decision_timeout=2.4, retry=(0.04,))
"""Where the difference between two of them counts."""
"""A tenth of what they are."""


class Stamp(Keyring):
    """A keyring whose signatures are the signer's name."""

    signs = True

    def sign(self, statement: Statement) -> Signed[Statement]:
        return Signed(self.id, statement, self.id)

    def is_valid(self, signed: Signed[Statement]) -> bool:
        return signed.signature == signed.signer


class Scripted(ViewRpc):
    """Questions that one function answers."""

    def __init__(self, reply: Callable[[str, Request], Awaitable[Reply]], timeouts: Timeouts = SHORT) -> None:
        super().__init__(Identity("peer0", {}, manifest="", settings={}), {}, timeouts=timeouts)
        self._reply = reply

    async def ask(self, transport: Transport, member: str, asked: Request) -> Reply:
        return await self._reply(member, asked)


class Answered(ViewRpc):
    """By each member as it is given here, and by no other."""

    def __init__(self, replies: dict[str, Reply]) -> None:
        super().__init__(Identity("peer0", {}, manifest="", settings={}), {})
        self._replies = replies

    async def ask(self, transport: Transport, member: str, asked: Request) -> Reply:
        if member not in self._replies:
            raise DisconnectedError("nobody is there")
        return self._replies[member]


def promised(by: str, ballot: Ballot = BALLOT, round: int = 3) -> Promised:
    return Promised(Stamp(by, "").sign(Promise(1, ballot, round, round)))


def seated(
    directory: Path, replies: dict[str, Reply] | ViewRpc, told: list[Event], ids: tuple[str, ...] = IDS
) -> Membership:
    """peer0, in the first view, whose questions are answered like that."""
    acceptor = Acceptor(Memory("peer0"), Rules(ids, rounds=9, faulty=1), Stamp("peer0", ""))
    register = ViewStore(directory / "views.json", acceptor.memory)
    rpc = replies if isinstance(replies, ViewRpc) else Answered(replies)
    membership = Membership(register, acceptor, rpc, told.append)
    gate = membership.open_gate()
    gate.transport = object()  # type: ignore[assignment]
    gate.progress = lambda _: MemberProgress(3, 3)  # type: ignore[method-assign,assignment]
    return membership


async def test_a_false_promise_that_is_relayed_is_the_fault_of_whoever_gave_it(tmp_path: Path) -> None:
    """It once kept the true ones from the proposer, which was said to have lied itself."""
    told = list[Event]()
    membership = seated(tmp_path, {"peer2": promised("peer2"), "peer3": promised("peer3", round=1000)}, told)
    prepare = Stamp("peer1", "").sign(Prepare(1, BALLOT))
    assert isinstance(await membership.handle(AskPromise(prepare)), Promised)
    assert await membership.handle(Relay(prepare, ("peer2", "peer3"))) == Relayed((promised("peer2"),))
    assert [event.caller for event in told if isinstance(event, CallerRefused)] == ["peer3"]


async def test_nor_is_a_promise_with_a_lock_that_nobody_holds_the_fault_of_whoever_relays_it(tmp_path: Path) -> None:
    """The proposer would take the one that has relayed it for the liar."""
    told = list[Event]()
    lock = Lock(7, Ballot(0, "peer3"), None, ())
    membership = seated(tmp_path, {"peer3": replace(promised("peer3"), lock=lock)}, told)
    prepare = Stamp("peer1", "").sign(Prepare(1, BALLOT))
    await membership.handle(AskPromise(prepare))
    assert await membership.handle(Relay(prepare, ("peer3",))) == Relayed(())
    assert [event.caller for event in told if isinstance(event, CallerRefused)] == ["peer3"]


async def test_a_promise_for_which_a_view_was_decided_meanwhile_is_no_lie(tmp_path: Path) -> None:
    told = list[Event]()
    membership = seated(tmp_path, {"peer2": promised("peer2")}, told)
    prepare = Stamp("peer1", "").sign(Prepare(1, BALLOT))
    await membership.handle(AskPromise(prepare))
    membership.chain.extend(View(1, IDS[:3], 0))
    assert await membership._promise_of("peer2", prepare) == promised("peer2")
    assert not told


async def test_whoever_only_waits_to_begin_the_first_round_says_that_the_run_has_begun(tmp_path: Path) -> None:
    """Else one that has begun it and one that has not never agreed on who is lost, and held each other for ever."""
    gate = seated(tmp_path, {}, []).open_gate()
    assert not gate.may_exclude
    gate.block_rounds(promised=-1)
    waiting = gate.wait_to_start(0)
    waiting.send(None)
    assert gate.may_exclude
    waiting.close()


@pytest.mark.parametrize(("begun", "objects"), [(1, True), (2, False)])
async def test_who_was_started_again_before_the_first_checkpoint_believes_that_the_run_has_begun(
    tmp_path: Path, begun: int, objects: bool
) -> None:
    """If so many say so that one of them is honest: else it objected for as long as who is lost did not come back."""
    told = list[Event]()
    membership = seated(tmp_path, {}, told)
    others = [promised(id, round=0 if number < begun else -1).promise for number, id in enumerate(IDS[:3])]
    grounds = Grounds(tuple(others))
    view = next_view(membership.chain, "peer1", grounds, membership.acceptor.rules)
    digest = membership.acceptor.verifier.digest(membership.chain.current, view)
    vote = Stamp("peer1", "").sign(Vote("accept", 1, BALLOT, digest))
    assert isinstance(await membership.handle(AskPromise(Stamp("peer1", "").sign(Prepare(1, BALLOT)))), Promised)
    reply = await membership.handle(Propose(Proposal(view, vote, grounds)))
    assert isinstance(reply, Objection if objects else Voted)


async def test_a_word_that_is_not_signed_takes_nobody_further(tmp_path: Path) -> None:
    """A member that told its neighbours of rounds on its disk, and signed nothing, made them keep each checkpoint; and
    could promise to have none of these rounds, so that all went back to the beginning."""
    edges = Edges({id: f"{id}:1" for id in IDS})
    edges.use(0, ["peer1"], ["peer1"])
    durability = Durability("peer0", edges, 9, Stamp("peer0", ""))
    durability.announce(4)
    durability.record_first_hand("peer1", 4)
    assert durability.low_watermark == durability.least == -1
    durability.record_signed("peer1", 3, "peer1", "")
    assert durability.low_watermark == 3


async def test_one_that_may_lie_makes_no_member_believe_that_its_disk_is_lost() -> None:
    """Its only receiver said so, and it waited to be taken in anew, without its private state."""
    edges = Edges({id: f"{id}:1" for id in IDS})
    edges.use(0, ["peer1"], [])
    edges.neighbours["peer1"].delivery.knows_lost_rounds = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch_own_regression(edges, Lifecycle(lambda _: None), faulty=1), 1.2)
    with pytest.raises(CheckpointLostError):
        await asyncio.wait_for(watch_own_regression(edges, Lifecycle(lambda _: None)), 3)


async def test_a_relay_is_of_what_was_promised_and_of_nothing_else(tmp_path: Path) -> None:
    """Another text for the same ballot made the member that was asked look silent, and voted out as such."""
    told = list[Event]()
    membership = seated(tmp_path, {"peer2": promised("peer2")}, told)
    prepare = Stamp("peer1", "").sign(Prepare(1, BALLOT))
    await membership.handle(AskPromise(prepare))
    for other in (replace(prepare, signature="junk"), Stamp("peer3", "").sign(Prepare(1, BALLOT))):
        assert isinstance(await membership.handle(Relay(other, ("peer2",))), statements.Refused)
    assert await membership.handle(Relay(prepare, ("peer2",))) == Relayed((promised("peer2"),))
    assert not told


async def test_what_was_announced_in_one_life_binds_in_the_next(tmp_path: Path) -> None:
    membership = seated(tmp_path, {}, [])
    early = Stamp("peer2", "").sign(Announcement(0, 6))
    assert membership.gate
    membership.gate.announcements = lambda: {"peer2": early}  # type: ignore[method-assign]
    membership.open_gate()
    assert membership.announcements() == {"peer2": early}
    late = Stamp("peer2", "").sign(Announcement(0, 4))
    membership.gate.announcements = lambda: {"peer2": late}  # type: ignore[method-assign]
    assert membership.announcements() == {"peer2": early}


async def test_a_member_that_has_not_heard_of_a_view_is_told_and_counts_as_there(tmp_path: Path) -> None:
    membership = seated(tmp_path, {"peer2": Behind(0)}, [])
    membership.chain.extend(View(1, IDS, 0))
    prepare = Stamp("peer1", "").sign(Prepare(2, BALLOT))
    await membership.handle(AskPromise(prepare))
    assert await membership._is_there("peer2", BALLOT)


async def test_one_that_is_behind_by_ever_one_view_less_holds_nobody(tmp_path: Path) -> None:
    """It is sent the views and asked again only for as long as a question may take."""

    class EverNearer(Answered):
        at = -1

        async def ask(self, transport: Transport, member: str, asked: Request) -> Reply:
            await asyncio.sleep(0.02)
            self.at += isinstance(asked, AskPromise)
            return Behind(self.at)

    membership = seated(tmp_path, {}, [])
    for number in range(1, 1000):
        membership.chain.extend(View(number, IDS, 0))
    membership.rpc = EverNearer({})
    membership.timeouts = replace(membership.timeouts, view_rpc_timeout=0.2)
    prepare = Stamp("peer0", "").sign(Prepare(1000, Ballot(1, "peer0")))
    async with asyncio.timeout(5):
        assert isinstance(await membership.ask_informed("peer2", AskPromise(prepare)), Behind)


async def test_ballots_far_above_all_others_come_nearer_seldom(tmp_path: Path) -> None:
    """A thousand in a second made a member deaf for others' for hours."""
    membership = seated(tmp_path, {}, [])
    for signer in ("peer1", "peer1", "peer9", "peer1"):
        prepare = Stamp(signer, "").sign(Prepare(1, Ballot(HIGHEST, signer)))
        with suppress(InvalidError):
            assert isinstance(await membership.handle(AskPromise(prepare)), statements.Refused)
    assert not membership.acceptor.is_beyond(Ballot(2 * JUMP, "peer2"))
    assert membership.acceptor.is_beyond(Ballot(2 * JUMP + 1, "peer2"))


async def without_peer3(membership: Membership) -> Proposal:
    """What peer1 proposes when peer3 has not answered; `membership` has promised."""
    await membership.handle(AskPromise(Stamp("peer1", "").sign(Prepare(1, BALLOT))))
    grounds = Grounds(tuple(promised(id).promise for id in IDS[:3]))
    view = next_view(membership.chain, "peer1", grounds, membership.acceptor.rules)
    digest = membership.acceptor.verifier.digest(membership.chain.current, view)
    return Proposal(view, Stamp("peer1", "").sign(Vote("accept", 1, BALLOT, digest)), grounds)


async def test_one_that_has_just_started_votes_for_nobodys_exclusion(tmp_path: Path) -> None:
    """Nor does a lock that nothing changes stand for what is proposed after it."""
    membership = seated(tmp_path, {}, [])
    proposal = await without_peer3(membership)
    assert membership.gate
    membership.gate.transport = None
    assert isinstance(await membership.handle(Propose(proposal)), Objection)


async def test_one_between_two_views_promises_what_it_had_and_asks_whom_it_is_to_leave_out(tmp_path: Path) -> None:
    """It may be there for longer than `absence`: training that goes on, or a large model to load. No heartbeat comes
    meanwhile, which says nothing of the others."""
    acceptor = Acceptor(Memory("peer0"), Rules(IDS, rounds=9, faulty=1), Stamp("peer0", ""))
    questions = Answered({"peer3": Behind(-1)})
    membership = Membership(ViewStore(tmp_path / "views.json", acceptor.memory), acceptor, questions, [].append)
    gate = membership.open_gate()
    neighbour = Mock(id="peer3", state="suspected", signs=Mock(last_heartbeat=0.0))
    edges = Mock(neighbours={"peer3": neighbour}, gone_on=())
    edges.current.return_value = ["peer3"]
    gate.attach(Mock(edges=edges, durability=Mock(own=3, announcements=dict)), 3)
    assert gate.lost_neighbours(5, {}) == ["peer3"]
    gate.leave()
    assert gate.lost_neighbours(5, {}) == []
    with membership.between_views(cast("Transport", object())):
        prepare = Stamp("peer1", "").sign(Prepare(1, BALLOT))
        reply = await membership.handle(AskPromise(prepare))
        assert isinstance(reply, Promised)
        assert reply.promise.statement.durable == 3
        assert await membership._is_there("peer3", Ballot(9, "peer1")), "it answers"
    membership.chain.extend(View(1, IDS[:3], 3))
    assert membership.chain.valid(3, 0) == 2
    assert gate.progress(membership.chain) == MemberProgress(2, 2), "no void round"
    membership.memory.entered = 1
    assert membership.open_gate().progress(membership.chain) == MemberProgress(2, 2), "while it loads"


async def test_one_that_loads_passes_nothing_on_and_asks_for_itself_then(tmp_path: Path) -> None:
    """It cannot ask yet: that counted as no answer, and it voted to leave out one that it had never asked."""
    membership = seated(tmp_path, {"peer3": promised("peer3")}, [])
    assert membership.gate
    connected, membership.gate.transport = membership.gate.transport, None
    prepare = Stamp("peer1", "").sign(Prepare(1, BALLOT))
    assert isinstance(await membership.handle(AskPromise(prepare)), Promised)
    assert await membership.handle(Relay(prepare, ("peer3",))) == Relayed(())
    membership.gate.transport = connected
    assert await membership._is_there("peer3", BALLOT)


async def test_whose_connections_change_while_it_asks_votes_for_nobodys_exclusion(tmp_path: Path) -> None:
    """It may have asked on those of a view that was over, on which nobody answered any more."""
    membership = seated(tmp_path, {}, [])
    proposal = await without_peer3(membership)
    gate = membership.gate
    assert gate
    gate._all_came = True
    assert await membership._objection(proposal) is None, "peer3 does not answer"

    async def answer(member: str, _ballot: Ballot) -> bool:
        gate.transport = cast("Transport", object())
        return False

    membership._is_there = answer  # type: ignore[method-assign]
    found = await membership._objection(proposal)
    assert found
    assert "from one view to another" in found.why


async def test_only_who_has_a_turn_can_end_it(tmp_path: Path) -> None:
    """Else whoever says so in its place would cut short what others decide."""
    told = list[Event]()
    membership = seated(tmp_path, {}, told)
    assert isinstance(await membership.handle(AskPromise(Stamp("peer1", "").sign(Prepare(1, BALLOT)))), Promised)
    outdoing = AskPromise(Stamp("peer2", "").sign(Prepare(1, Ballot(BALLOT.counter + 1, "peer2"))))
    assert isinstance(await membership.handle(outdoing), statements.Refused)
    assert isinstance(await membership._handle_from("peer2", Yield(1, BALLOT)), statements.Denied)
    assert isinstance(await membership.handle(outdoing), statements.Refused)
    assert await membership._handle_from("peer1", Yield(1, BALLOT)) == statements.Heard()
    assert isinstance(await membership.handle(outdoing), Promised)
    assert [event.caller for event in told if isinstance(event, CallerRefused)] == ["peer2"]


async def test_a_question_that_a_liar_resets_cancels_no_other_s_wait(tmp_path: Path) -> None:
    """It could send a proposer its own proposal back, and end it by a reset: the proposer waits for the same answer."""
    asked = asyncio.Event()

    class Slow(ViewRpc):
        async def ask(self, transport: Transport, member: str, asked_for: Request) -> Reply:
            asked.set()
            await asyncio.sleep(0.05)
            raise DisconnectedError("no answer")

    acceptor = Acceptor(Memory("peer0"), Rules(IDS, rounds=9, faulty=1), Stamp("peer0", ""))
    rpc = Slow(Identity("peer0", {}, manifest="", settings={}), {})
    membership = Membership(ViewStore(tmp_path / "views.json", acceptor.memory), acceptor, rpc, list[Event]().append)
    membership.open_gate().transport = cast(Transport, object())
    prepare = Stamp("peer0", "").sign(Prepare(1, Ballot(1, "peer0")))
    liar_s, own = (membership._promise_of("peer3", prepare) for _ in range(2))
    await asked.wait()
    liar_s.cancel()
    assert await asyncio.wait_for(own, 5) is None


async def test_who_is_welcomed_while_it_is_asked_answers_then(tmp_path: Path) -> None:
    """Its answer would come too late for those who ask, and they could leave it out."""
    acceptor = Acceptor(Memory("peer0"), Rules(IDS, rounds=9, faulty=1), Stamp("peer0", ""))
    rpc = ViewRpc(Identity("peer0", {}, manifest="", settings={}), {}, timeouts=Timeouts(view_rpc_timeout=60))
    membership = Membership(ViewStore(tmp_path / "views.json", acceptor.memory), acceptor, rpc, list[Event]().append)
    gate, edges = membership.open_gate(), Edges({id: f"{id}:1" for id in IDS})
    edges.use(0, ["peer1"], ["peer3"])
    gate.attach(Mock(edges=edges, durability=Mock(own=-1, announcements=dict)), -1)
    prepare = Stamp("peer1", "").sign(Prepare(1, BALLOT))
    asked = asyncio.create_task(membership.handle(AskPromise(prepare)))
    await asyncio.sleep(0)
    edges.on_handshake("send", "peer1")
    assert isinstance(await asyncio.wait_for(asked, 30), Promised)


async def test_a_liar_that_comes_and_goes_does_not_have_its_own_turns_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It resets one question and answers a later one, with heartbeats all the time; and then it proposes again."""
    answers, now = False, 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    async def reply(member: str, asked: Request) -> Reply:
        if not answers:
            raise DisconnectedError("closed by the other end")
        return Decided(())

    membership = seated(tmp_path, Scripted(reply, Timeouts()), [])
    turns = 0
    for counter in range(1, 41):
        prepare = Stamp("peer3", "").sign(Prepare(1, Ballot(counter, "peer3")))
        turns += isinstance(await membership.handle(AskPromise(prepare)), Promised)
        now += 4.1
        for answers in (False, True):
            if not answers or now - membership.answered.get("peer3", 0) > membership.acceptor.rules.absence:
                await membership.ask("peer3", Ask(0))
    assert turns == 4, "of 164 s, with a pause of 8, 24, 56 and 120 s after each"


async def test_late_answers_do_not_outlast_a_proposer_s_turn(tmp_path: Path) -> None:
    """It refuses connections for nearly as long as a question may take, and then is behind, and says so late."""
    clock = asyncio.get_running_loop().time
    began = clock()

    async def reply(member: str, asked: Request) -> Reply:
        if clock() < began + 0.9 * UNHURRIED.view_rpc_timeout:
            raise DisconnectedError(REFUSED)
        await asyncio.sleep(0.9 * UNHURRIED.view_rpc_timeout)
        return Heard() if isinstance(asked, Decided) else Behind(0)

    membership = seated(tmp_path, Scripted(reply, UNHURRIED), [])
    membership.chain.extend(View(1, IDS, 0))
    proposer = Proposer(membership, ReportIntervals())
    async with asyncio.timeout(UNHURRIED.decision_timeout):
        prepare = Stamp("peer0", "").sign(Prepare(2, Ballot(1, "peer0")))
        await proposer._ask_patiently("peer3", AskPromise(prepare))


async def test_a_voter_does_not_wait_for_one_that_has_left_for_longer_than_its_proposer_does(tmp_path: Path) -> None:
    async def reply(member: str, asked: Request) -> Reply:
        await asyncio.sleep(10)
        raise DisconnectedError("no answer in 10 s")

    membership = seated(tmp_path, Scripted(reply, UNHURRIED), [], ids=(*IDS, "peer4"))
    membership.chain.extend(View(1, IDS, 5, planned=True))
    async with asyncio.timeout(UNHURRIED.view_rpc_timeout):
        assert not await membership._is_there("peer4", BALLOT)


async def test_who_leaves_and_enters_again_and_again_has_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time costs all others two decisions, and the file in which they keep these grew without bound."""
    now, told = [100.0], list[Event]()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
    membership = seated(tmp_path, {}, told)
    proposer, gate = Proposer(membership, ReportIntervals()), membership.gate
    assert gate
    gate.lost_neighbours = lambda *_: []  # type: ignore[method-assign,assignment]

    async def decide_on(members: tuple[str, ...]) -> None:
        present = membership.chain.current
        view = View(present.number + 1, members, first=1)
        vote = Vote("commit", view.number, BALLOT, membership.acceptor.verifier.digest(present, view))
        votes = tuple(Stamp(id, "").sign(vote) for id in IDS[:3])
        assert await membership.handle(Decided((Decision(view, BALLOT, votes),))) == Heard()

    async def asks_to_enter() -> bool:
        await membership.handle(Enter(Stamp("peer3", "").sign(Entry(membership.chain.current.number, private=-1))))
        return proposer._desired_change(gate) is not None

    for _ in range(ADMISSIONS):
        await decide_on(IDS[:3])
        assert await asks_to_enter()
        await decide_on(IDS)
    await decide_on(IDS[:3])
    assert not await asks_to_enter()
    assert [event.caller for event in told if isinstance(event, CallerRefused)] == ["peer3"]
    now[0] += ADMIT_AGAIN_S
    assert await asks_to_enter()
