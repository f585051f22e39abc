"""Members that are lost for longer than `absence` and return, simulated; and that the simulation finds a rule left out.

A failure names its federation and seed; `python -m tests.faults.views FEDERATION SEED` replays it.
"""

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest

from faults.omissions import (
    Omission,
    checkpoints_stay_for_nobody_else,
    messages_of_another_view_count,
    nobody_is_given_what_all_have,
    promises_are_written_after_the_answer,
    the_finished_leave,
    the_token_is_not_passed_on,
    void_rounds_stay,
    void_values_stay,
    who_is_on_its_way_counts_as_silent,
)
from faults.scenarios import HEALING
from faults.simulation import Kill, Order, Outcome, simulate, undisturbed
from faults.views import check, wrong_with
from faults.wires import Stall, Weather
from peer.errors import WrongMessageError
from peer.learning.data.samples import Standardisation
from peer.learning.training.trainer import Trainer
from peer.network.collectives import Arrived
from peer.network.network import Network
from peer.network.streams.link import MessageWriter
from peer.network.wire.frames import Call
from peer.protocols.base import Peer
from peer.protocols.blocks.distillation import Predictions
from peer.protocols.cycle_pdl import CyclePDL
from peer.protocols.fibfl_plus_plus import FibFLPlusPlus
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.view_store import ViewStore
from peer.runtime.rounds import loop
from peer.runtime.rounds.admission import ENTRY
from peer.runtime.rounds.calls import Communicator
from peer.runtime.rounds.learner import Learner
from peer.runtime.runtime import Runtime
from peer.topology import similarity, two_opt
from peer.views.statements import AskPromise, Reply, Request

LONG = 12.0
"""Seconds, longer than `absence`."""
SEEDS = {
    "healing fibfl": 6,
    "healing fedavg": 2,
    "healing alike": 2,
    "healing scaffold": 4,
    "healing gossip": 2,
    "healing quorum": 3,
    "healing rffl": 2,
    "healing cycle-pdl": 3,
    "healing standardised": 4,
    "signed five": 6,
    "signed six": 7,
    "signed codec": 2,
    "healing three": 3,
}
"""With them, and 1 for the others, members are lost and return in each federation. `make chaos` runs more."""
LONG_WITH_IT = {
    "healing scaffold",  # other faults hit it below, as they do these three
    "healing restless",
    "healing gossip",
    "healing standardised",
    "healing fibfl++",  # likewise
    "healing feddyn",  # of the fedavg family, as are these two
    "healing quorum",
    "signed six",
    "healing fedisp",  # has the token of `healing token`
    "healing cffl",  # expels as `healing rffl` does
    "healing cycle-pdl",  # goes round as `healing cycle` does
    "signed four",  # has certificates, as `signed five` has, and liars in test_treason.py
    "signed seven",  # likewise, and other faults below
}
"""Whatever these show of members that are lost and return, another federation shows that takes less time."""
ONCE_HARMFUL = [
    # a round began after the promise to begin none, while that was written down
    pytest.param("healing restless", 1000, marks=pytest.mark.long),
    ("healing gossip", 1008),  # a peer proposed by what its life in the view before had seen
    ("healing three", 1007),  # a view was over before its first round, and its member looked for a checkpoint
    # a member whose disk was emptied was neither welcome nor lost
    pytest.param("healing scaffold", 1010, marks=pytest.mark.long),
    ("healing feddyn", 3010),  # somebody was taken in before the first round, when there was nothing to be given yet
    # a member restarted in the last round waited for neighbours in the next view
    pytest.param("signed seven", 200_010, marks=pytest.mark.long),
    # a member passed on a promise of the view before, and was reported
    pytest.param("signed seven", 200_012, marks=pytest.mark.long),
    # too few would have been left without the lost, and those that asked to enter waited
    pytest.param("healing gossip", 400_003, marks=pytest.mark.long),
    ("healing standardised", 300_010),  # a neighbour called while the data were read, and was reported as a stranger
    ("signed four", 75_112_700_004),  # one waited to enter for one that had lost its disk, whom too few could leave out
    # one that had brought a state and then lost its disk went on with a new one
    pytest.param("signed seven", 81_112_700_020, marks=pytest.mark.long),
    ("healing secrets", 81_112_700_025),  # one that had lost its disk played a view that the others had left behind
    ("healing scaffold", 1011),  # a member asked to enter that had been taken in, and was taken in again when dead
]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG_WITH_IT)) for name in HEALING]
)
def test_random_faults(name: str) -> None:
    seed = SEEDS.get(name, 1)
    outcome, wrong = check(name, seed)
    assert not wrong, f"python -m tests.faults.views {name!r} {seed}: {wrong} after {outcome.kills}"
    assert any("taken in" in view for view in outcome.views), outcome.views


@pytest.mark.parametrize(("name", "seed"), ONCE_HARMFUL)
def test_faults_that_once_did_harm(name: str, seed: int) -> None:
    assert not check(name, seed)[1]


@pytest.mark.parametrize(
    ("omission", "name", "seed"),
    [
        (promises_are_written_after_the_answer, "healing fedavg", 1),
        (messages_of_another_view_count, "healing restless", 4),
        (void_rounds_stay, "healing scaffold", 1),
        (void_values_stay, "healing secrets", 1),
        (the_token_is_not_passed_on, "healing token", 32),
    ],
)
def test_a_rule_left_out_is_found(omission: Omission, name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With that seed at the latest commit; what changes the order of a run's steps may have another find it."""
    undisturbed(name)
    omission(monkeypatch)
    assert any(check(name, at)[1] for at in range(seed, seed + 12))


def test_checkpoints_that_stay_for_nobody_else_are_found_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    suffered(GONE, name="healing fibfl", slowest=0.2)
    checkpoints_stay_for_nobody_else(monkeypatch)
    assert wrong_with("healing fibfl", simulate("healing fibfl", 1, [GONE], Weather(0.2)))


def test_who_is_not_given_what_all_have_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Kill("peer2", "send", 60, away=(LONG,), wipe=True)
    suffered(late, name="healing alike")
    nobody_is_given_what_all_have(monkeypatch)
    assert any("otherwise" in wrong for wrong in wrong_with("healing alike", simulate("healing alike", 1, [late])))


def test_who_is_taken_in_with_nothing_gets_the_means_and_deviations_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found, standardise = list[bytes](), Learner.standardise

    def told(self: Learner, standard: Standardisation) -> None:
        found.append(standard.vector.numpy().tobytes())
        standardise(self, standard)

    given, receive_state = list[str](), Communicator.receive_state

    async def taken(self: Communicator, name: str, values: int | None, numbers: int = 0) -> Arrived:
        given.append(name)
        return await receive_state(self, name, values, numbers)

    monkeypatch.setattr(Learner, "standardise", told)
    monkeypatch.setattr(Communicator, "receive_state", taken)
    outcome = suffered(Kill("peer2", "send", 60, away=(LONG,), wipe=True), name="healing standardised")
    assert "peer2 taken in" in outcome.views[-1]
    assert [name for name in given if "means" in name] == [ENTRY]
    assert len({*found}) == 1


def suffered(*kills: Kill, name: str = "healing three", **weather: Any) -> Outcome:
    """Nothing is wrong afterwards."""
    outcome = simulate(name, 1, [*kills], Weather(**weather))
    assert not wrong_with(name, outcome), (kills, outcome)
    assert len(outcome.kills) >= len(kills), ("not all died", kills, outcome.kills)
    return outcome


@pytest.mark.parametrize(("step", "first"), [(40, 1), (60, 2)])
def test_a_ring_of_other_members_is_ordered_anew(step: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a view that begins with round 1, before which the ring of all was ordered."""
    rings, mixes = dict[tuple[str, ...], set[tuple[str, ...]]](), dict[str, Any]()

    async def noted(self: FibFLPlusPlus, peer: Peer) -> None:
        rings.setdefault(peer.members, set()).add(peer.ring)
        mixes[peer.id] = peer.proportions.numpy()
        await round(self, peer)

    round = FibFLPlusPlus.round
    monkeypatch.setattr(FibFLPlusPlus, "round", noted)
    outcome = suffered(Kill("peer4", "send", step, away=(LONG,)), name="healing fibfl++")
    assert f"first={first}," in outcome.views[1]
    assert {len(members) for members in rings} == {4, 5}
    for members, seen in rings.items():
        order = two_opt(similarity(np.stack([mixes[id] for id in members]), "cosine"))
        assert seen == {tuple(members[i] for i in order)}
        assert seen != {members}, "or this shows nothing"


def test_who_relays_other_mixes_ends_nobody_and_is_voted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they order their ring anew: who finds another order than others do says so, and waits; an entrant ends."""
    open_message = Network.open_message

    def lie(
        self: Network, to: Sequence[str], call: Call, length: int, scalars: Sequence[float] = (), offset: int = 0
    ) -> MessageWriter:
        if self.identity.id == "peer1" and self.identity.view and call.name == "proportions":
            scalars = scalars[::-1]
        return open_message(self, to, call, length, scalars, offset)

    said, outwait = set[str](), Runtime._outwait

    async def noted(runtime: Runtime, error: WrongMessageError) -> NoReturn:
        assert "about `order`" in str(error)
        said.add(runtime.peer.id)
        await outwait(runtime, error)

    monkeypatch.setattr(Network, "open_message", lie)
    monkeypatch.setattr(Runtime, "_outwait", noted)
    rest = ("peer0", "peer2", "peer4")
    vote = Order(60, "peer1", rest)
    outcome = simulate("healing fibfl++", 1, [Kill("peer3", "send", 60, away=(200.0,))], orders=(vote,))
    assert said == {*rest, "peer1"}
    assert {id for id, digest in outcome.digests.items() if digest} == {*rest}
    assert (outcome.gone, outcome.faults) == ({"peer1": "voted out"}, [])
    outcome = simulate("healing fibfl++", 1, [Kill("peer4", "send", 60, away=(LONG,))])
    assert {id for id, digest in outcome.digests.items() if not digest} == {"peer4"}
    [fault] = outcome.faults
    assert fault.startswith("peer4 failed: FailedError('peer4 decided otherwise than peer0, peer1, peer2, peer3 about")


def test_who_is_admitted_begins_with_the_opinions_that_it_measures_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """CYCle, Algorithm 1: r is h(s) at first. Until then it has none, of anybody."""
    opinions = list[tuple[float, list[float]]]()

    async def noted(self: CyclePDL, peer: Peer, predictions: Predictions) -> None:
        before = peer.state["reputation"].tolist()
        await measure(self, peer, predictions)
        if peer.round > 1 and peer.id == "peer2":
            found = await peer.compute(self.misalignment, peer, predictions)
            opinions.append((sum(before), [self.trust(found[k]) if k in found else 0.0 for k in peer.members]))
            opinions.append((0.0, peer.state["reputation"].tolist()))

    measure = CyclePDL.measure
    monkeypatch.setattr(CyclePDL, "measure", noted)
    outcome = simulate("healing cycle-pdl", 1, [Kill("peer2", "send", 20, away=(LONG,), wipe=True)])
    assert "('peer2', -1)" in outcome.views[-1]
    (before, measured), (_, first) = opinions[:2]
    assert (before, first) == (0.0, measured)


def test_who_returns_waits_for_no_machine_that_is_lost_to_all() -> None:
    """Two of three members are too few for the protocol, and needed the one that waited for the third to answer."""
    frozen = [
        Stall(*way, start=10.5, end=1000.0)
        for id in ("peer0", "peer1", "peer2")
        for way in ((id, "peer3"), ("peer3", id))
    ]
    outcome = suffered(Kill("peer2", "send", 90, away=(45.0,)), name="signed four", slowest=0.02, stalls=tuple(frozen))
    assert "'peer3 silent for 5 s; peer2 taken in'" in outcome.views[-1]


GONE = Kill("peer2", "send", 60, away=(LONG,))
"""One of three, for so long that the others go on without it."""


@pytest.mark.parametrize(
    "step", [25, 30, 34, 42, *(pytest.param(step, marks=pytest.mark.long) for step in (1, 12, 37))]
)
@pytest.mark.parametrize("victim", ["peer0", "peer1"])
def test_a_member_is_killed_at_each_step_of_a_change(victim: str, step: int) -> None:
    """One of them proposes; peer2 is away, so that the change cannot do without either."""
    assert len(suffered(GONE, Kill(victim, "views", step, away=(0.3,), power=step % 2 == 0)).views) > 1


def test_the_proposer_is_gone_for_long_in_the_middle_of_a_change() -> None:
    for step in (30, 42):
        views = suffered(GONE, Kill("peer1", "views", step, away=(LONG,)), name="healing scaffold").views
        assert "peer1, peer2 silent for 5 s" in views[1]


def test_two_propose_at_once_when_two_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    proposers, handle = set[str](), Membership.handle

    async def noted(self: Membership, request: Request) -> Reply:
        if isinstance(request, AskPromise) and request.prepare.statement.number == 1:
            proposers.add(request.prepare.statement.ballot.proposer)
        return await handle(self, request)

    monkeypatch.setattr(Membership, "handle", noted)
    lost = Kill("peer1", "send", 70, also=("peer3",), away=(LONG, LONG))
    assert len(suffered(lost, name="healing gossip", slowest=0.2).views) > 1
    assert len(proposers) == 2


def test_where_trim_would_leave_nothing_of_too_few_values_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    gossip = HEALING["healing gossip"]
    trimmed = replace(gossip, name="healing trimmed", protocol={"name": "gossip-sgd", "trim": 1})
    monkeypatch.setitem(HEALING, trimmed.name, trimmed)
    outcome = suffered(Kill("peer1", "send", 60, also=("peer3",), away=(LONG, LONG)), name=trimmed.name)
    assert all(outcome.digests.values())


def test_two_of_four_go_on_with_the_first_and_without_it_nobody_does() -> None:
    stalls = tuple(
        Stall(a, b, 3.0, 30.0)
        for one, other in ((("peer0", "peer1"), ("peer2", "peer3")), (("peer2", "peer3"), ("peer0", "peer1")))
        for a in one
        for b in other
    )
    views = suffered(name="healing gossip", stalls=stalls).views
    assert "members=('peer0', 'peer1')" in views[1]


def test_an_emptied_disk_returns_at_once_and_late() -> None:
    for away in (0.3, LONG):
        views = suffered(Kill("peer2", "send", 100, away=(away,), wipe=True), name="healing scaffold").views
        assert any("('peer2', -1)" in view for view in views)


def test_the_newest_checkpoint_of_one_that_has_promised_is_damaged() -> None:
    for step in (30, 34, 42):
        suffered(GONE, Kill("peer1", "views", step, away=(0.3,), damage=True))


def test_the_first_checkpoint_of_one_that_was_taken_in_is_damaged() -> None:
    """It has announced nothing of it, and what it had brought is there still."""
    damaged = Kill("peer2", "disk", 105, away=(0.3,), damage=True)
    outcome = suffered(Kill("peer2", "send", 60, away=(8.0,)), damaged, name="signed five", slowest=0.02)
    assert "damaged 8" in outcome.kills[-1]
    assert len(outcome.views) == 3, "it need not be taken in again"


def test_one_returns_in_the_middle_of_another_loss() -> None:
    gone = Kill("peer2", "send", 60, away=(8.0,))
    suffered(gone, Kill("peer1", "views", 45, away=(LONG,)), name="healing scaffold")


def two_return(name: str, seed: int, later: float, **weather: Any) -> Outcome:
    """The second so many seconds after the first."""
    killed = Kill("peer1", "send", 60, also=("peer2",), away=(8.0, 8.0 + later))
    return simulate(name, seed, [killed], Weather(**weather))


@pytest.mark.parametrize(
    ("name", "seed", "at_once", "laters"),
    [
        ("healing fedavg", 1, True, (0.11, 0.15)),
        ("healing scaffold", 1, False, (0.2,)),
        pytest.param("healing fedavg", 1, True, (0.2,), marks=pytest.mark.long),
        pytest.param("healing scaffold", 1, False, (0.01, 0.06, 0.11), marks=pytest.mark.long),
    ],
)
def test_two_return_one_right_after_the_other(name: str, seed: int, at_once: bool, laters: tuple[float, ...]) -> None:
    """The second may be taken in before the first has played a round: by a view that begins in the same round."""
    for later in laters:
        outcome = two_return(name, seed, later)
        assert not wrong_with(name, outcome)
        assert at_once == (len({re.findall(r"first=\d+", view)[0] for view in outcome.views}) < len(outcome.views))


def test_two_return_and_who_is_on_its_way_counts_as_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not wrong_with("healing fibfl", two_return("healing fibfl", 8, 0.0, closing=1.0))
    who_is_on_its_way_counts_as_silent(monkeypatch)
    assert wrong_with("healing fibfl", two_return("healing fibfl", 8, 0.0, closing=1.0))


def test_one_that_is_taken_in_dies_before_its_view_begins() -> None:
    """Its steps of kind `views` are those of its way back."""
    for step in (36, 44, 52):
        views = suffered(GONE, Kill("peer2", "views", step, away=(LONG,)), name="healing scaffold", slowest=0.2).views
        assert sum("peer2 taken in" in view for view in views) == 2


@pytest.mark.long
def test_one_is_lost_when_all_have_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has finished waits until all have: found if it does not."""
    last = undisturbed("healing fedavg").steps["peer2"]["send"]
    kills = {before: Kill("peer2", "send", last - before, away=(40.0,)) for before in range(16, 27)}
    outcome = suffered(kills[22], name="healing fedavg")
    assert sum(digest is not None for digest in outcome.digests.values()) >= 4, outcome
    the_finished_leave(monkeypatch)
    assert any(wrong_with("healing fedavg", simulate("healing fedavg", 1, [kill])) for kill in kills.values())


def test_a_loss_in_the_first_handshake_where_all_need_not_be_there() -> None:
    views = suffered(Kill("peer3", "callback", 3, away=(LONG,)), name="healing quorum").views
    assert "first=0" in views[1]
    assert "'peer3'" not in views[1].split("first")[0]


def test_a_disk_without_room_for_a_round_cut_short_lets_nobody_train_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process would not end before its training does, which may take hours."""
    called, stop, append = list[str](), Trainer.stop, loop.append_audit

    def stopped(self: Trainer) -> None:
        called.append("stopped")
        stop(self)

    def full(file: Any, line: dict[str, Any]) -> None:
        if "interrupted" in line:
            called.append("full")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "audit.jsonl")
        append(file, line)

    undisturbed("healing three")
    monkeypatch.setattr(Trainer, "stop", stopped)
    monkeypatch.setattr(loop, "append_audit", full)
    ended = [line for line in simulate("healing three", 1, [GONE]).faults if "failed: " in line]
    assert called[:2] == ["stopped", "full"]
    assert all("cannot write audit.jsonl" in line for line in ended), ended


def test_a_disk_without_room_for_a_decision_ends_a_peer_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: ViewStore, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    undisturbed("healing three")
    monkeypatch.setattr(ViewStore, "write", full)
    ended = [line for line in simulate("healing three", 1, [GONE]).faults if "failed: " in line]
    assert ended
    assert all("cannot write" in line and "make room and start again" in line for line in ended), ended
