"""A peer that wants a decision for which too few members are here says so: who is away, how many it takes, how long."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.network.streams.handshake import Identity
from peer.network.transport import REFUSED, DisconnectedError, Transport
from peer.network.view_rpc import ViewRpc
from peer.runtime.lifecycle import ReportIntervals
from peer.runtime.membership import proposer
from peer.runtime.membership.gate import DynamicMembershipGate
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.proposer import CHANGE_AGAIN, CHANGES, ExcludedError, Proposer
from peer.runtime.membership.view_store import ViewStore
from peer.telemetry.events import Event, Shortage, Waiting
from peer.views.decision import Acceptor, MembershipChange, Memory, Rules
from peer.views.signing import Keyring
from peer.views.statements import Ask, Consent, Decided, Entry, Evidence, Expel, Reply, Request, Signed
from peer.views.view import View

HOUR = 3600


def ids(peers: int) -> tuple[str, ...]:
    return tuple(f"peer{at}" for at in range(peers))


class Left(ViewRpc):
    """Only these members answer."""

    def __init__(self, id: str, here: Sequence[str], addresses: dict[str, str]) -> None:
        super().__init__(Identity(id, {}, manifest="", settings={}), addresses)
        self.here = {*here}

    async def ask(self, transport: Transport, member: str, asked: Request) -> Reply:
        if member not in self.here:
            raise DisconnectedError(REFUSED)
        return Decided(())


class Waiter:
    """A peer that waits for a decision, as peer3 is silent; a virtual second passes from one look to the next."""

    def __init__(
        self,
        directory: Path,
        patch: pytest.MonkeyPatch,
        peers: int = 5,
        here: Sequence[str] = (),
        min_members: int = 1,
        id: str = "peer1",
    ) -> None:
        self.now, self.told = 1000.0, list[tuple[float, Waiting]]()
        self._sleep, self._patch = asyncio.sleep, patch
        patch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        patch.setattr(proposer.asyncio, "sleep", self._second)  # type: ignore[attr-defined]
        acceptor = Acceptor(
            Memory(id), Rules(ids(peers), rounds=9, min_members=min_members, absence=4), Keyring(id, "")
        )
        self.questions = Left(id, here, {id: f"{id}:7700" for id in ids(peers)})
        register = ViewStore(directory / "views.json", acceptor.memory)
        self.membership = Membership(register, acceptor, self.questions, self._report)
        self.gate: DynamicMembershipGate = self.membership.open_gate()
        self.gate.transport = object()  # type: ignore[assignment]
        self.gate.started = 3
        self.gate.lost_neighbours = lambda *_: ["peer3"]  # type: ignore[method-assign,assignment]
        self.gate.has_met = lambda _: True  # type: ignore[method-assign,assignment]

    async def _second(self, _seconds: float) -> None:
        self.now += 1
        await self._sleep(0)

    def _report(self, event: Event) -> None:
        if isinstance(event, Waiting):
            self.told.append((self.now - 1000, event))

    async def waits(self, seconds: float) -> list[float]:
        """When something was told, in seconds from the beginning, until so many have passed."""
        until = self.now + seconds
        looking = asyncio.create_task(Proposer(self.membership, ReportIntervals())._look_for_the_missing())
        while self.now < until:
            await self._sleep(0)
        looking.cancel()
        return [at for at, _ in self.told]

    async def begins(self) -> float:
        """How many seconds it leaves to other members before it proposes."""
        proposed = asyncio.get_running_loop().create_future()

        async def propose(self: Proposer, wish: MembershipChange, gate: DynamicMembershipGate) -> None:
            if not proposed.done():
                proposed.set_result((self._clock(), [*wish.suspects]))

        self._patch.setattr(Proposer, "_propose", propose)
        # As long as a virtual second: it has not stood still.
        self.membership.timeouts = replace(self.membership.timeouts, poll=1.0)
        first, deciding = self.now + 1, asyncio.create_task(Proposer(self.membership, ReportIntervals())._decide())
        at, suspects = await proposed
        deciding.cancel()
        assert suspects == self.gate.lost_neighbours(4, {})
        return float(at - first)


async def test_it_says_for_whom_it_waits_at_once_and_then_ever_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = Waiter(tmp_path, monkeypatch, here=["peer0"])
    assert await waiter.waits(3 * HOUR) == [2, 62, 182, 422, 902, 1862, 3782, 3782 + HOUR]
    (_, first), (_, second), *_ = waiter.told
    away = ", ".join(f"{id} at {id}:7700 (connection refused)" for id in ("peer2", "peer3", "peer4"))
    assert str(first) == (f"too few members for a decision: 2 of 5 are here, 3 are needed; waiting for {away}")
    assert str(second) == (
        f"too few members for a decision: 2 of 5 are here, 3 are needed; after 61 s still waiting for {away}"
    )
    assert waiter.gate.waiting
    assert [one.id for one in waiter.gate.waiting.awaited] == ["peer2", "peer3", "peer4"]


async def test_it_says_when_enough_are_here_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiter = Waiter(tmp_path, monkeypatch, here=["peer0"])
    waits = asyncio.create_task(waiter.waits(30))
    while not waiter.told:
        await waiter._sleep(0)
    waiter.questions.here.add("peer4")
    await waits
    [_, (_, over)] = waiter.told
    assert str(over) == "enough members are here for a decision"
    assert (over.awaited, waiter.gate.waiting) == ((), None)


async def test_who_has_nothing_to_decide_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiter = Waiter(tmp_path, monkeypatch)
    waiter.gate.lost_neighbours = lambda *_: []  # type: ignore[method-assign,assignment]
    assert await waiter.waits(60) == []
    assert waiter.gate.waiting is None


async def test_enough_for_a_quorum_may_be_too_few_for_the_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = Waiter(tmp_path, monkeypatch, 4, here=["peer0"], min_members=3)
    await waiter.waits(3)
    assert [event.shortage for _, event in waiter.told] == [Shortage(2, 4, 3, "", 1.0)]


async def test_half_is_enough_with_the_tie_breaker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiter = Waiter(tmp_path, monkeypatch, 4, here=["peer2"])
    await waiter.waits(3)
    [(_, event)] = waiter.told
    assert event.shortage == Shortage(2, 4, 3, "peer0", 1.0)
    assert str(event).startswith(
        "too few members for a decision: 2 of 4 are here, 3 are needed (2 with peer0); waiting"
    )
    waiter.questions.here.add("peer0")
    waiter.questions.here.remove("peer2")
    waiter.told.clear()
    await waiter.waits(9)
    assert not waiter.told, "exactly half, and peer0 is among them"


async def test_one_that_answers_and_promises_nothing_is_waited_for_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could keep the others from telling why nothing is decided."""
    waiter = Waiter(tmp_path, monkeypatch, here=["peer0", "peer4"])
    monkeypatch.setattr(waiter.membership, "is_withholding", lambda id: id == "peer4")
    await waiter.waits(3)
    [(_, event)] = waiter.told
    assert "peer4 at peer4:7700 (it answers, and promises nothing)" in str(event)


async def test_one_that_comes_and_goes_makes_nobody_talk_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A liar that answers for a while and is silent for a while, for ever."""
    waiter = Waiter(tmp_path, monkeypatch, here=["peer0"])
    ask = waiter.questions.ask

    async def now_and_then(transport: Transport, member: str, asked: Request) -> Reply:
        if member == "peer4" and waiter.now % 20 < 10:
            return Decided(())
        return await ask(transport, member, asked)

    monkeypatch.setattr(waiter.questions, "ask", now_and_then)
    told = await waiter.waits(2 * HOUR)
    beginnings = [at for at, event in waiter.told if event.awaited]
    assert len(beginnings) <= CHANGES + 2 * HOUR / CHANGE_AGAIN
    assert len(told) <= 2 * len(beginnings)


@pytest.mark.parametrize(
    ("least", "done", "seconds", "why"),
    [
        (5, 3, 0, "there are 5 members, and the protocol needs 5"),
        (1, -1, 0, "the run has not begun, so there is nothing to leave; stop it"),
        (1, 9, 0, "it is in its last round, and ends by itself"),
        (1, 3, 61, "the others have not agreed within 60 s"),
        (1, 3, 59, ""),
    ],
)
async def test_one_that_cannot_leave_says_why_and_does_what_it_was_told_to_do_then(
    least: int, done: int, seconds: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter, stopped = Waiter(tmp_path, monkeypatch, min_members=least), list[str]()
    waiter.gate.network, waiter.gate.started = object(), done  # type: ignore[assignment]
    waiter.gate.lost_neighbours = lambda *_: []  # type: ignore[method-assign,assignment]
    waiter.membership.leave_request.submit(lambda: stopped.append("peer1"))
    waiter.now += seconds
    deciding = asyncio.create_task(Proposer(waiter.membership, ReportIntervals())._decide())
    await waiter._sleep(0)
    await waiter._sleep(0)
    assert waiter.membership.leave_request.refusal == why
    assert stopped == ["peer1"] * bool(why)
    deciding.cancel()


async def test_too_few_for_a_moment_end_nobody_for_whom_it_was_so_an_hour_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member's attempt succeeded then, and this one has made none since."""
    waiter = Waiter(tmp_path, monkeypatch)
    waiter.gate.lost_neighbours = lambda *_: []  # type: ignore[method-assign,assignment]
    waiting = Proposer(waiter.membership, ReportIntervals())
    await waiter.membership.ask_all(waiter.membership.others, Ask(0))
    waiting._check_others(in_vain=True)
    waiter.membership.timeouts = replace(waiter.membership.timeouts, poll=1.0)
    deciding = asyncio.create_task(waiting._decide())
    until = waiter.now + HOUR
    while waiter.now < until:
        await waiter._sleep(0)
    deciding.cancel()
    waiting._check_others(in_vain=True)
    waiter.now += waiter.membership.acceptor.rules.patience + 1
    with pytest.raises(ExcludedError, match="connections are refused at peer0, peer2, peer3, peer4"):
        waiting._check_others(in_vain=True)


async def test_a_sentence_names_some_and_an_event_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiter = Waiter(tmp_path, monkeypatch, 40, here=["peer0"])
    await waiter.waits(3)
    [(_, event)] = waiter.told
    assert str(event).endswith("peer9 at peer9:7700 (connection refused) and 30 more")
    assert [one.id for one in event.awaited] == [id for id in ids(40) if id not in ("peer0", "peer1")]


@given(st.integers(1, 12), st.integers(0, 3), st.data())
def test_so_many_as_are_needed_are_a_quorum_and_fewer_are_none(size: int, faulty: int, data: st.DataObject) -> None:
    view = View(0, ids(size), 0)
    here = data.draw(st.sets(st.sampled_from(view.members), max_size=size))
    needed, tie_breaker = view.needed(here, faulty)
    more = [id for id in view.members if id not in {*here, tie_breaker}]
    grown = [*here, *more[: max(needed - len(here), 0)]]
    assert len(grown) < needed or view.is_quorum(grown, faulty)
    assert view.is_quorum(here, faulty) or len(here) < needed
    if tie_breaker and len(here) == needed - 2:
        assert view.is_quorum([*here, tie_breaker], faulty)


@pytest.mark.parametrize(("id", "seconds"), [("peer0", 0), ("peer2", 20), ("peer4", 30), ("peer8", 60)])
async def test_members_that_see_the_same_loss_begin_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id: str, seconds: float
) -> None:
    """Nobody waits for the one that is lost, nor for more than six."""
    monkeypatch.setattr(proposer, "RANK_DELAY_S", 10)
    assert await Waiter(tmp_path, monkeypatch, peers=9, id=id).begins() == seconds


async def test_a_member_that_is_asked_to_admit_one_begins_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer that asks has asked it alone."""
    monkeypatch.setattr(proposer, "RANK_DELAY_S", 10)
    waiter = Waiter(tmp_path, monkeypatch, peers=9, id="peer8")
    waiter.gate.lost_neighbours = lambda *_: []  # type: ignore[method-assign,assignment]
    entry = Keyring("peer9", "").sign(Entry(0, private=2))
    waiter.membership.admission_requests["peer9"] = entry
    assert await waiter.begins() == 0


async def test_only_as_many_go_in_one_view_as_the_rest_can_decide_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four that were voted out at once left two, who could decide nothing and ignored both for ever."""
    membership = Waiter(tmp_path, monkeypatch, peers=4).membership
    one = Proposer(membership, ReportIntervals())
    for accused in ("peer3", "peer0"):
        await membership.handle(Expel(0, accused))
        for by in {*ids(4)} - {accused, "peer1"}:
            one._take(by, Evidence(consents=(Signed(by, Consent(accused), ""),)))
    assert [*one.to_expel] == ["peer0"]
    membership.answered["peer0"] = one._clock()
    assert [*one.to_expel] == ["peer3"], "one that is here may yet promise"
    membership.chain.extend(View(1, ids(3), 4))
    assert [*one.to_expel] == ["peer3", "peer0"], "one that is away is not to come back"
