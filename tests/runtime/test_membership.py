"""What a member hears of views stands, whatever becomes of the connection; what it alone can know, it objects to; and
which views.json it goes on from."""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from peer.errors import FailedError
from peer.network.streams.handshake import Identity
from peer.network.transport import DisconnectedError, Transport
from peer.network.view_rpc import ViewRpc
from peer.runtime.membership.gate import DynamicMembershipGate
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.view_store import ViewStore
from peer.spec.recordings import VIEWS
from peer.telemetry.events import CallerRefused, Event, ViewDecided
from peer.views import statements
from peer.views.decision import Acceptor, Attempt, MemberProgress, MembershipChange, Memory, Rules
from peer.views.signing import Keyring
from peer.views.statements import (
    HIGHEST,
    Announcement,
    Ask,
    AskPromise,
    Ballot,
    Consent,
    Decided,
    Decision,
    Denied,
    Evidence,
    Expel,
    Heard,
    Objection,
    Prepare,
    Promised,
    Propose,
    Reply,
    Request,
    Signed,
    Statement,
    Vote,
    Voted,
    canonical,
)
from peer.views.view import View

ALL = ("peer0", "peer1", "peer2", "peer3")
FIRST, SECOND = View(0, ALL, 0), View(1, ALL[:3], 3)
RULES = Rules(ALL, rounds=60, faulty=1, min_members=2)
AT_FIVE = MemberProgress(durable=5, started=7)


class Signing(Keyring):
    """Nobody can sign as another, though without certificates."""

    signs = True

    def sign(self, statement: Statement) -> Signed[Statement]:
        return Signed(self.id, statement, f"by{self.id}")

    def is_valid(self, signed: Signed[Statement]) -> bool:
        return signed.signature == f"by{signed.signer}"


def acceptor(id: str = "peer0") -> Acceptor:
    return Acceptor(Memory(id), RULES, Signing(id, "federation"))


def decision(view: View, by: tuple[str, ...] = ALL, before: View = FIRST) -> Decision:
    vote = Vote("commit", view.number, Ballot(1, "peer0"), acceptor().verifier.digest(before, view))
    return Decision(view, vote.ballot, tuple(Signing(id, "").sign(vote) for id in by))


@dataclass
class SlowRegister(ViewStore):
    """On a disk that waits for `let_go`."""

    path: Path
    memory: Memory
    let_go: threading.Event = field(default_factory=threading.Event)
    writing: list[bytes] = field(default_factory=list)
    at_once: int = 0
    """The most writes that were under way at a time."""

    def write(self, content: bytes) -> None:
        self.writing.append(content)
        self.at_once = max(self.at_once, len(self.writing))
        assert self.let_go.wait(10)
        super().write(content)
        self.writing.remove(content)


class FakeQuestions(ViewRpc):
    """Members that answer at once."""

    def __init__(self, answers: Callable[[str, Request], Reply | None] = lambda _id, _asked: None) -> None:
        super().__init__(Identity("peer0", {}, manifest="", settings={}), {})
        self._answers = answers

    async def ask(self, transport: Transport, member: str, asked: Request) -> Reply:
        if (reply := self._answers(member, asked)) is None:
            raise DisconnectedError("nobody answers")
        return reply


@dataclass
class FakeGate:
    """In view 0, after the start of round 7."""

    announced: Mapping[str, Signed[Announcement]] = field(default_factory=dict)
    started: int = 7
    may_exclude: bool = True
    view: View = FIRST
    transport: object = field(default_factory=object)
    dropped: int = -1

    def announcements(self) -> Mapping[str, Signed[Announcement]]:
        return self.announced

    def lost_neighbours(self, *_: object) -> list[str]:
        return []

    def progress(self, _chain: object) -> MemberProgress:
        return AT_FIVE

    def block_rounds(self, _promised: int) -> None:
        pass

    def allow_rounds(self) -> None:
        pass


def member(
    directory: Path, questions: ViewRpc | None = None, gate: FakeGate | None = None
) -> tuple[Membership, list[Event]]:
    """peer0, and what it reports."""
    one, told = acceptor(), list[Event]()
    register = ViewStore(directory / VIEWS, one.memory)
    made = Membership(register, one, questions or FakeQuestions(), told.append)
    made.gate = cast("DynamicMembershipGate | None", gate)
    return made, told


async def test_who_asks_may_go_before_the_answer_is_on_disk(tmp_path: Path) -> None:
    """Two that wrote views.json at a time ended a peer: the first took away what the second was about to rename."""
    one, told = acceptor(), list[Event]()
    register = SlowRegister(tmp_path / VIEWS, one.memory)
    membership = Membership(register, one, FakeQuestions(), told.append)
    moved = asyncio.create_task(membership.wait_view_over(FIRST))
    gone = asyncio.create_task(membership.handle(Decided((decision(SECOND),))))
    while not register.writing:  # noqa: ASYNC110 (a thread tells this loop nothing)
        await asyncio.sleep(0.01)
    gone.cancel()
    stays = asyncio.create_task(membership.handle(Expel(1, "peer2")))
    await asyncio.sleep(0.05)
    assert len(register.writing) == 1
    register.let_go.set()
    assert await stays == Heard()
    await asyncio.wait([gone])
    assert gone.cancelled()
    async with asyncio.timeout(10):
        await moved
    assert register.at_once == 1
    kept = json.loads((tmp_path / VIEWS).read_text())
    assert [one["view"]["number"] for one in kept["decisions"]] == [1]
    assert [one["statement"]["id"] for one in kept["consents"]] == ["peer2"]
    assert told == [ViewDecided(**SECOND.as_json())]


# What others say that is not so.


@pytest.mark.parametrize(
    "views",
    [(View(0, ("peer3",), 0),), (View(1, ("peer3",), 0),), tuple(View(n, ("peer3",), 0) for n in range(1, 41))],
    ids=["another-view-0", "another-chain", "forty"],
)
async def test_who_is_told_another_chain_names_the_teller_and_goes_on(tmp_path: Path, views: tuple[View, ...]) -> None:
    lie = Decided(tuple(decision(view, by=("peer3",)) for view in views))
    membership, told = member(tmp_path, FakeQuestions(lambda _id, _asked: lie))
    with membership.between_views(cast("Transport", object())):
        for _ in range(3):
            assert await membership.ask("peer3", Ask(0)) is None, "it counts as no answer"
    assert membership.chain.since(-1) == (FIRST,)
    (refused,) = told
    assert isinstance(refused, CallerRefused)
    assert (refused.caller, refused.kind) == ("peer3", "views")
    assert "it was not believed" in refused.reason
    assert not (tmp_path / VIEWS).exists()


async def test_a_true_view_that_is_told_with_a_false_one_is_on_disk_and_reported(tmp_path: Path) -> None:
    false = View(2, ("peer0",), 0)
    membership, told = member(tmp_path)
    moved = asyncio.create_task(membership.wait_view_over(FIRST))
    told_both = Decided((decision(SECOND), decision(false, by=("peer3",), before=SECOND)))
    assert isinstance(await membership._handle_from("peer3", told_both), Denied)
    async with asyncio.timeout(10):
        await moved
    assert [type(event) for event in told] == [ViewDecided, CallerRefused]
    assert [one.view for one in ViewStore.open(tmp_path, "peer0").memory.decisions] == [SECOND]


@pytest.mark.parametrize("expelled", [(), ("peer0",)])
async def test_who_is_voted_out_while_it_leaves_has_not_left(tmp_path: Path, expelled: tuple[str, ...]) -> None:
    """Else it would end well, and say that it may come back."""
    one, _ = member(tmp_path)
    one.leave_request.submit()
    without = View(1, ALL[1:], 3, planned=True)
    consents = tuple(Signing(id, "").sign(Consent("peer0")) for id in ALL[1:]) if expelled else ()
    out = decision(View(2, ALL[1:], 3, expelled=expelled), ALL[1:], without)
    await one.handle(Decided((decision(without), replace(out, evidence=Evidence(consents)))))
    assert one.has_left != bool(expelled)


async def test_a_ballot_far_above_all_others_is_not_promised(tmp_path: Path) -> None:
    membership, _ = member(tmp_path, gate=FakeGate())
    far = AskPromise(Signing("peer3", "").sign(Prepare(1, Ballot(HIGHEST, "peer3"))))
    assert isinstance(await membership._handle_from("peer3", far), statements.Refused)
    assert not membership.is_deciding
    honest = AskPromise(Signing("peer1", "").sign(Prepare(1, Ballot(1, "peer1"))))
    assert isinstance(await membership._handle_from("peer1", honest), Promised)


# What only this member knows.


def proposal(lost: str = "", standing: MemberProgress = AT_FIVE, **wish: Any) -> tuple[Propose, dict[str, Acceptor]]:
    """By peer1, and all who have promised."""
    acceptors = {id: acceptor(id) for id in ALL}
    attempt = Attempt(acceptors["peer1"], None, MembershipChange(**wish))
    while attempt.state != "proposing":
        for id, request in attempt.requests().items():
            attempt.on_no_reply(id) if id == lost else attempt.on_reply(id, acceptors[id].handle(request, standing))
    asked = attempt.requests()["peer0"]
    assert isinstance(asked, Propose)
    return asked, acceptors


async def test_a_proposer_cannot_omit_a_member_that_answers(tmp_path: Path) -> None:
    asked, acceptors = proposal(lost="peer2")

    def answers(id: str, request: Request) -> Reply | None:
        return acceptors[id].handle(request, AT_FIVE)

    membership, _ = member(tmp_path, FakeQuestions(answers), FakeGate())
    ballot = asked.proposal.vote.statement.ballot
    prepare = Signing("peer1", "").sign(Prepare(1, ballot))
    assert isinstance(await membership.handle(AskPromise(prepare)), Promised)
    assert await membership.handle(asked) == Objection("peer2 answers peer0")
    assert membership.acceptor.slot.vote is None
    silent, _ = member(tmp_path, FakeQuestions(), FakeGate())
    assert isinstance(await silent.handle(AskPromise(prepare)), Promised)
    assert isinstance(await silent.handle(asked), Voted), "who answers nobody is left out"


async def test_a_proposer_cannot_omit_the_voter_itself(tmp_path: Path) -> None:
    acceptors = {id: acceptor(id) for id in ALL}
    attempt = Attempt(acceptors["peer1"], None, MembershipChange())
    while attempt.state != "proposing":
        for id, request in attempt.requests().items():
            attempt.on_no_reply(id) if id == "peer0" else attempt.on_reply(id, acceptors[id].handle(request, AT_FIVE))
    membership, _ = member(tmp_path, gate=FakeGate())
    assert await membership.handle(attempt.requests()["peer1"]) == Objection("peer0 answers peer0")


async def test_before_the_run_has_begun_nobody_is_left_out(tmp_path: Path) -> None:
    membership, _ = member(tmp_path, gate=FakeGate(may_exclude=False))
    asked, _ = proposal(lost="peer2", standing=MemberProgress(durable=-1, started=-1))
    assert await membership.handle(asked) == Objection("the run has not begun, so no member counts as lost")


async def test_what_a_member_has_announced_is_held_against_its_promise(tmp_path: Path) -> None:
    """So that nobody goes back for it: the next proposal leaves it out."""
    announced = Signing("peer2", "").sign(Announcement(0, 6))
    membership, _ = member(tmp_path, gate=FakeGate({"peer2": announced}))
    asked, _ = proposal(leaves=True)
    objection = await membership.handle(asked)
    assert objection == Objection("peer2 has announced a later round than it promises", (announced,))
    no_more = FakeGate({"peer2": Signing("peer2", "").sign(Announcement(0, 5))})
    membership, _ = member(tmp_path, gate=no_more)
    prepare = Signing("peer1", "").sign(Prepare(1, asked.proposal.vote.statement.ballot))
    assert isinstance(await membership.handle(AskPromise(prepare)), Promised)
    assert isinstance(await membership.handle(asked), Voted)


async def test_no_view_is_planned_from_a_round_that_has_begun(tmp_path: Path) -> None:
    asked, _ = proposal(leaves=True)
    assert asked.proposal.view
    assert asked.proposal.view.first == 8
    membership, _ = member(tmp_path, gate=FakeGate(started=8))
    assert await membership.handle(asked) == Objection("peer0 has begun round 8")


# What is on disk.


def opened(directory: Path, content: bytes) -> Membership:
    (directory / VIEWS).write_bytes(content)
    store = ViewStore.open(directory, "peer0")
    one = store.acceptor(RULES, Signing("peer0", "federation"))
    return Membership(store, one, FakeQuestions(), list[Event]().append)


def kept(**changes: Any) -> bytes:
    """With SECOND decided."""
    return canonical({**asdict(Memory("peer0", decisions=[decision(SECOND)])), **changes})


async def test_a_member_goes_on_from_what_it_has_kept(tmp_path: Path) -> None:
    membership = opened(tmp_path, kept(entered=1, promised=4))
    assert (membership.view, membership.memory.promised) == (SECOND, 4)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"3",
        b'["acceptor"]',
        b"[" * 100_000,
        kept()[:-1],
        kept(promised=1_000_002),
        kept(promised=-2),
        kept(entered=-1),
        kept(entered=2),
        kept(version=1),
        kept(slot={"number": 1, "promised": {"counter": HIGHEST + 1, "proposer": "peer3"}}),
        kept(slot={"number": 1, "promised": {"counter": 0, "proposer": "peer3"}}),
    ],
    ids=lambda content: content[-30:].decode(),
)
async def test_a_damaged_register_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(FailedError) as error:
        opened(tmp_path, content)
    path = tmp_path / VIEWS
    assert str(error.value).startswith(f"{path}: is damaged (")
    assert str(error.value).endswith(f"remove {tmp_path} and start this peer again: then the others admit it again")


async def test_a_register_of_an_earlier_version_says_what_to_do(tmp_path: Path) -> None:
    old = {"acceptor": {"chain": [FIRST.as_json()], "slots": []}, "entered": 0, "promised": -1}
    with pytest.raises(FailedError, match=r"was written by an earlier version of dfl.*finish the run with that"):
        opened(tmp_path, json.dumps(old).encode())


@pytest.mark.parametrize("more", [{}, {"slot": "of another shape"}])
async def test_a_register_of_a_later_format_is_not_to_be_removed(tmp_path: Path, more: dict[str, Any]) -> None:
    later = json.loads(kept()) | {"version": 99} | more
    with pytest.raises(FailedError, match=r"views format 99, and dfl .* reads 2; continue the run with that release"):
        opened(tmp_path, json.dumps(later).encode())


async def test_a_copy_of_anothers_register_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FailedError, match="belongs to peer1, not to peer0"):
        opened(tmp_path, kept(id="peer1"))


@pytest.mark.parametrize("by", [(), ALL[:2], ("peer0", "peer0", "peer0")], ids=["none", "two", "one"])
async def test_a_view_without_its_votes_is_not_gone_on_from(tmp_path: Path, by: tuple[str, ...]) -> None:
    lacking = replace(decision(SECOND, by=by or ALL), votes=decision(SECOND, by=by).votes if by else ())
    with pytest.raises(FailedError, match=r"without proof that it was decided \(votes by too few members\).*remove"):
        opened(tmp_path, kept(decisions=[asdict(lacking)]))
