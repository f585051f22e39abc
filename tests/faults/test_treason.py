"""Liars with keys of their own among real peers, simulated; and that what once did harm does none.

A failure names its federation and seed; `python -m tests.faults.treason FEDERATION SEED` replays it.
"""

import asyncio
from contextlib import suppress

import pytest
from torch import Tensor

from faults.clock import in_life
from faults.simulation import Kill, Simulation, simulate
from faults.treason import SIGNED, check
from faults.wires import Weather
from peer.network.transport import REFUSED, DisconnectedError, Transport
from peer.network.view_rpc import ViewRpc
from peer.network.wire.codec import CodedBlock
from peer.runtime.membership import membership
from peer.runtime.membership.proposer import Proposer
from peer.views.statements import AskPromise, Ballot, Confirm, Decided, Prepare, Propose, Refused, Reply, Request

SEED = 3
"""The seed for each federation; `make chaos` runs more."""
ONCE_HARMFUL = [
    ("signed six", 2000),  # the only receiver of a member said that this one had lost its disk, and it believed that
    ("signed seven", 1),  # members started again before their first checkpoint let nobody be lost
]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name == "signed six")) for name in SIGNED]
)
def test_liars_end_hold_up_and_divide_nobody(name: str) -> None:
    outcome, wrong = check(name, SEED)
    assert not wrong, f"python -m tests.faults.treason {name!r} {SEED}: {wrong} after {outcome.kills}"


def test_what_a_liar_s_codec_never_gave_is_refused_and_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes on the stream and in the place of what others wait for, to some and not to others."""
    refused: list[str] = []
    unpack = CodedBlock.unpack

    def counted(block: CodedBlock, content: memoryview) -> Tensor:
        try:
            return unpack(block, content)
        except ValueError as error:
            refused.append(str(error))
            raise

    monkeypatch.setattr(CodedBlock, "unpack", counted)
    unseen = {"`decode` raises ValueError", "`decode` raises SystemExit", "something else than", "not finite"}
    for seed in range(1, 31):  # which lie a seed tells shifts with each change of the simulation's draws
        assert not check("signed codec", seed)[1], seed
        unseen = {why for why in unseen if not any(why in one for one in refused)}
        if not unseen:
            return
    raise AssertionError(f"no liar gave what was refused with {unseen}: {refused}")


@pytest.mark.parametrize(("name", "seed"), ONCE_HARMFUL)
def test_lies_that_once_did_harm(name: str, seed: int) -> None:
    assert not check(name, seed)[1]


class Delayer:
    """peer5, which lets its own attempts rest, holds each phase of others' as long as it can, and promises to voters
    what it does not promise to proposers; of all other questions it answers each member's once in `absence`."""

    ID, DEAD, ABSENCE = "peer5", "peer2", 5.0

    def __init__(self) -> None:
        self._ask, self._run = ViewRpc.ask, Proposer.run
        self._since: dict[tuple[str, Request], float] = {}
        self._answered: dict[str, float] = {}

    async def ask(self, rpc: ViewRpc, transport: Transport, member: str, asked: Request) -> Reply:
        me, now = rpc._identity.id, asyncio.get_running_loop().time()
        if member != self.ID or me == self.ID:
            return await self._ask(rpc, transport, member, asked)
        if isinstance(asked, AskPromise):
            if asked.prepare.statement.ballot.proposer != me:
                self._answered[me] = now
                return await self._ask(rpc, transport, member, asked)
            if now - self._since.setdefault((me, asked), now) < 1.9:
                raise DisconnectedError(REFUSED)
        if isinstance(asked, AskPromise | Propose | Confirm):
            await asyncio.sleep(2.0)
        elif now - self._answered.setdefault(me, now - self.ABSENCE) > self.ABSENCE:
            self._answered[me] = now
            return await self._ask(rpc, transport, member, asked)
        raise DisconnectedError("no answer")

    async def run(self, proposer: Proposer) -> None:
        membership, counter = proposer._membership, 0
        if membership.id != self.ID:
            return await self._run(proposer)
        await asyncio.sleep(5)
        while True:
            await asyncio.sleep(0.1)
            for id in {*membership.others} - {self.DEAD}:
                counter += 1
                ballot = Ballot(counter, self.ID)
                prepare = membership.keyring.sign(Prepare(membership.chain.current.number + 1, ballot))
                with suppress(DisconnectedError, AttributeError):  # between two views it has no transport
                    reply = await self._ask(membership.rpc, membership.transport, id, AskPromise(prepare))  # type: ignore[arg-type]
                    counter = max(counter, reply.promised.counter if isinstance(reply, Refused) else 0)
                    if isinstance(reply, Decided):
                        await membership.handle(reply)


@pytest.mark.long
def test_one_that_comes_and_goes_and_answers_late_does_not_stop_all_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once had its own turns forgotten, and each phase of others' attempts outlast their turns."""
    delayer, decided = Delayer(), list[float]()
    monkeypatch.setattr(ViewRpc, "ask", lambda *given: delayer.ask(*given))
    monkeypatch.setattr(Proposer, "run", lambda proposer: delayer.run(proposer))

    def look(simulation: Simulation) -> None:
        if len(simulation.views) > 1 or simulation.loop.time() - simulation.began > 300:
            decided.append(simulation.loop.time() - simulation.began)
            simulation.ended.set()

    simulate("signed six", 1, [Kill(Delayer.DEAD, "send", 60, away=(5000.0,))], Weather(0.02), look)
    assert decided[0] < 300


@pytest.mark.long
def test_one_that_leaves_and_enters_again_and_again_is_kept_out_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each time costs the others two decisions: without a pause it did so for as long as they had rounds to play."""
    monkeypatch.setattr(membership, "ADMISSIONS", 2)
    restless = "peer5"

    def look(simulation: Simulation) -> None:
        life, lives = simulation.lives.get(restless), simulation.lived.get(restless)
        if life and life.dead and len(simulation.done) == 1:
            simulation.done.discard(restless)
            simulation._start(restless)
        elif life and not life.dead and lives and (its := lives._membership) and its.gate and its.gate.has_begun:
            in_life(life).run(lives.leave, lambda: None)

    outcome = simulate("signed six", 1, [], Weather(0.02), look)
    assert sum("peer5 taken in" in view for view in outcome.views) == 2
    assert len(outcome.views) == 6
    assert len({digest for id, digest in outcome.digests.items() if id != restless}) == 1
    assert outcome.digests["peer0"]
    assert all(restless in fault for fault in outcome.faults), outcome.faults
