"""Random and exhaustive faults in simulated federations: all end in the bits of the undisturbed run.

A failure names its scenario and seed; `python -m tests.faults.plans SCENARIO SEED` replays it.
`make chaos` runs all federations with 200 seeds, and with 6 in peace.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from faults.liars import Lies, TwoTongued
from faults.plans import check, in_peace
from faults.scenarios import SCENARIOS, specification
from faults.simulation import Kill, Outcome, Simulation, simulate, undisturbed
from faults.wires import Stall, Weather
from peer.network.durability import Durability
from peer.network.network import Network
from peer.network.wire.messages import Beat
from peer.runtime import checkpoints
from peer.runtime.checkpoints import Journal
from peer.runtime.in_process import run_in_process

ALIKE = {
    "fibfl+", "fibfl++", "fibfl++ model",  # `fibfl` and `fibfl++ reordering` make the same calls
    "restless 2",  # `restless`
    "rdfl", "ring-median",  # one exchange a round, as `fibfl` has
    "fedprox", "feddyn", "ri-fedavg", "fedrep",  # sums, as `fedavg` and `scaffold` have
    "dp-fedavg",  # `dp-fedavg secret`, whose noise cannot be drawn again
    "gossip complete", "gossip ring",  # `gossip exponential`
    "vpdl", "cycle-gossip",  # `cycle-pdl` distils as the one does, and judges as the other
    "cgsv",  # `rffl`
    "bfloat16",  # the calls are those of `every call`, the codec's rest is kept in `top-k`
    "stopping early, restless",  # `stopping early` and `restless`
    "dialling out, directed",  # `dialling out` and `fedavg`
}  # fmt: skip
"""Federations whose calls others make, too: `make test` runs these in peace alone, and `make test-long` with faults."""


def seeds(names: Iterable[str], count: int) -> list[Any]:
    """Names, each with so many seeds: one of them is quick, in turn one with which nobody lies and one with liars."""
    return [
        pytest.param(name, seed, marks=[pytest.mark.long] * (name in ALIKE or seed != number % 2))
        for number, name in enumerate(names)
        for seed in range(count)
    ]


@pytest.mark.parametrize(("name", "seed"), seeds(SCENARIOS, 2))
def test_random_faults(name: str, seed: int) -> None:
    """In every second plan somebody lies, up to all but one."""
    outcome, wrong = check(name, seed)
    assert not wrong, f"python -m tests.faults.plans {name!r} {seed}: {wrong} after {outcome.kills}"


@pytest.mark.parametrize(
    ("name", "quick_or_slow"),
    [
        pytest.param(name, number % 2, marks=[pytest.mark.long] * (name not in ALIKE))
        for number, name in enumerate(SCENARIOS)
    ],
)
def test_in_peace_nobody_waits_in_vain_at_the_end(name: str, quick_or_slow: int) -> None:
    """On a quick network or a slow one; the others ran above on one of middling speed (`undisturbed`)."""
    assert not in_peace(name, quick_or_slow)


def refusals(name: str, seeds: range, cut: float = 0.0) -> dict[tuple[float, int], list[str]]:
    """What is wrong by speed of the network and seed, and that anybody was refused is: nobody is away, nobody lies."""
    runs = {(slowest, seed): Weather(slowest, cut) for slowest in (0.002, 0.02, 0.2) for seed in seeds}
    faults = {run: simulate(name, run[1], [], weather).faults for run, weather in runs.items()}
    return {run: found for run, found in faults.items() if found}


@pytest.mark.parametrize("name", ["fibfl++", "fibfl++ reordering"])
def test_nobody_is_refused_where_the_ring_is_reordered(name: str) -> None:
    """The demo's protocol. Neighbours that part both know it: none of them waits for repeats, and dials."""
    assert not refusals(name, range(1))


@pytest.mark.long
@pytest.mark.parametrize("cut", [0.0, 0.02])
@pytest.mark.parametrize("name", ["fibfl++", "fibfl++ reordering", "restless", "dialling out, restless"])
def test_nobody_is_refused_whenever_the_ring_is_reordered(name: str, cut: float) -> None:
    """This holds even if streams break, so that a last beat may be lost with its stream."""
    assert not refusals(name, range(8), cut)


@pytest.mark.parametrize(("name", "seed"), seeds(["fibfl", "fibfl++", "fedavg", "gossip ring", "restless"], 3))
def test_random_faults_where_messages_are_left_on_disk(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of large models are left on disk, and read there when they are asked for again."""
    monkeypatch.setattr(checkpoints, "LARGE_BYTES", 0)
    outcome, wrong = check(name, seed)
    assert not wrong, (wrong, outcome.kills)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("fedavg", 3090),  # a checkpoint held optimiser state that the next round changed while it was written
        ("fibfl", 4),  # the floor was known only to peers that had left or forgotten
        ("solo", 3),  # a peer that resumed from its only whole checkpoint waited for itself
    ],
)
def test_faults_that_once_did_harm(name: str, seed: int) -> None:
    assert not check(name, seed)[1]


@pytest.mark.parametrize("name", ["fibfl", "fibfl++", "fedavg", "fedisp", "gossip complete"])
def test_the_undisturbed_run_ends_like_the_real_in_process_network(name: str, tmp_path: Path) -> None:
    runtimes = asyncio.run(run_in_process(specification(name), tmp_path))
    assert {id: runtime.setup.model.sha256() for id, runtime in runtimes.items()} == undisturbed(name).digests


def died_at(name: str, kind: str, count: int, **how: Any) -> Outcome:
    """peer1 dies at that step; with nothing else wrong, the bits are the undisturbed run's."""
    outcome = simulate(name, 1, [Kill("peer1", kind, count, **how)])
    assert not outcome.faults, (kind, count, outcome)
    assert outcome.kills, f"{kind} {count} never came"
    assert outcome.digests == undisturbed(name).digests, (kind, count, outcome)
    return outcome


@cache
def steps_of_peer1(name: str) -> Counter[str]:
    """In the run of that seed in which nothing goes wrong: up to the death `died_at` has the same steps."""
    return simulate(name, 1, []).steps["peer1"]


def steps(name: str, kind: str, every: int = 1) -> range:
    found = range(1, steps_of_peer1(name)[kind] - 3, every)
    assert found, f"peer1 of {name} has no step of kind {kind}"
    return found


def one_in(seldom: int, often: int) -> pytest.MarkDecorator:
    """How many steps there are to one death: so many in `make test`, and fewer in `make test-long`."""
    return pytest.mark.parametrize("every", [seldom, pytest.param(often, marks=pytest.mark.long)])


@pytest.mark.parametrize("name", ["pair", "restless 2"])
@pytest.mark.parametrize("kind", ["send", "receive"])
@one_in(3, 1)
def test_death_at_message_boundaries(name: str, kind: str, every: int) -> None:
    for count in steps(name, kind, every * (4 if name == "pair" else 25)):
        died_at(name, kind, count)


@pytest.mark.parametrize("power", [False, True])
@one_in(3, 1)
def test_death_at_every_step_of_writing_a_checkpoint(power: bool, every: int) -> None:
    for count in steps("solo", "disk", every * (3 - power)):
        died_at("solo", "disk", count, power=power)


@one_in(7, 3)
def test_death_while_training_and_evaluating(every: int) -> None:
    for count in steps("fibfl+", "blocking", every):
        died_at("fibfl+", "blocking", count)


@one_in(9, 3)
def test_everybody_dies_with_the_newest_checkpoint_damaged(every: int) -> None:
    everyone = tuple(SCENARIOS["fedisp"].ids)
    for count in steps("fedisp", "blocking", every):
        died_at("fedisp", "blocking", count, also=everyone, damage=True)


def test_a_link_that_is_dead_for_longer_than_several_rounds() -> None:
    stalls = (Stall("peer0", "peer1", 0.8, 60), Stall("peer1", "peer0", 0.8, 60))
    outcome = simulate("fibfl", 3, [], Weather(stalls=stalls))
    assert not outcome.faults
    assert outcome.digests == undisturbed("fibfl").digests
    assert 60 < outcome.seconds < 75, "the ring moves on soon after the link is back"


@pytest.mark.parametrize("away", [7, 60])
@pytest.mark.parametrize("ways", [1, 2])
def test_after_an_outage_a_link_is_back_within_two_seconds_of_the_network(away: int, ways: int) -> None:
    """What was lost in it is sent again up to twice as late, and nobody waits for that."""
    end = 0.8 + away
    stalls = (Stall("peer0", "peer1", 0.8, end), Stall("peer1", "peer0", 0.8, end))[:ways]
    states: dict[int, set[str]] = {}

    def look(simulation: Simulation) -> None:
        at = int(simulation.loop.time() - simulation.began)
        edges = [runtime.network.edges for runtime in simulation.runtimes.values()]
        states[at] = {one.state for each in edges for one in each.neighbours.values()}

    outcome = simulate("fibfl", 3, [], Weather(stalls=stalls), look)
    assert not outcome.faults
    assert outcome.digests == undisturbed("fibfl").digests
    # A stream whose signs of life are not read for 10 s ends, and is told as down.
    assert ("suspected" if away < 10 else "down") in states[int(end)]
    assert states[int(end) + 3] <= {"up", "left"}


def test_an_outbox_in_memory_only_is_found_out() -> None:
    """What the simulation is worth: it finds the plausible simpler design to be wrong."""
    with patch.object(Network, "load_frames", lambda self, frames: None):
        assert any(check("pair", seed)[1] for seed in range(6))


def test_hearsay_that_is_believed_is_found_out() -> None:
    """What one peer says of another would release messages that are asked for yet."""

    def believe(self: Durability, teller: str, others: Mapping[str, int]) -> None:
        for peer, at in others.items():
            self.record_first_hand(peer, min(at, self._rounds))

    with patch.object(Durability, "record_relayed", believe):
        assert any(check("restless", seed)[1] for seed in (1, 3, 5))


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("name", ["fibfl", "signed four"])
def test_who_always_claims_that_another_is_done_stops_nobody(
    name: str, some: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all streams, or on those alone that it has opened; where members sign, also by a signature that is none."""

    def claim(self: Lies, beat: Beat) -> Beat:
        beat.others["peer2"] = self.rounds
        if beat.announced:
            beat.announced.add(id="peer2", round=self.rounds, signature=b"none")
        return beat

    monkeypatch.setattr(Lies, "beat", claim)
    if some:
        monkeypatch.setattr(TwoTongued, "_reply", lambda self, reply: reply.SerializeToString())
    outcome = simulate(name, 1, [], Weather(0.02, liars=("peer0",)))
    assert not [fault for fault in outcome.faults if not fault.startswith("peer0 reports")], "the liar's are its own"
    assert len(outcome.digests) >= 4
    assert all(outcome.digests.values())


@pytest.mark.parametrize("some", [False, True])
def test_a_false_farewell_hides_the_silence_after_it_from_nobody(some: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On all streams, or on those alone that it has opened: the others go on without it, as without any lost one."""

    def farewell(self: Lies, beat: Beat) -> Beat:
        if beat.round > self.rounds - 3:
            beat.state, beat.durable = "done", self.rounds
        return beat

    monkeypatch.setattr(Lies, "beat", farewell)
    if some:
        monkeypatch.setattr(TwoTongued, "_reply", lambda self, reply: reply.SerializeToString())
    silent = Kill("peer0", "send", undisturbed("signed four").steps["peer0"]["send"] - 20, away=(5000.0,))

    def look(simulation: Simulation) -> None:
        if simulation.loop.time() - simulation.began > 120:
            simulation.ended.set()

    outcome = simulate("signed four", 1, [silent], Weather(0.02, liars=("peer0",)), look)
    assert [id for id, digest in outcome.digests.items() if not digest] == ["peer0"]
    assert "peer0 silent for 5 s" in outcome.views[-1]


def test_what_is_drawn_again_on_replay_is_found_out() -> None:
    """The secrets' scenario fails without the journal: a replayed round would send other bytes."""
    with patch.object(Journal, "recall", lambda self, round, number: None):
        assert any(check("secrets", seed)[1] for seed in range(6))


@pytest.mark.parametrize("kind", ["disk", "blocking"])
@one_in(13, 4)
def test_death_around_what_is_drawn_once(kind: str, every: int) -> None:
    for number, count in enumerate(steps("secrets", kind, every)):
        outcome = simulate("secrets", 1, [Kill("peer1", kind, count, power=number % 2 == 0)])
        assert not outcome.faults, (kind, count, outcome)
        assert len({*outcome.digests.values()}) == 1, (kind, count, outcome)


def test_a_run_is_determined_by_its_seed() -> None:
    once, again = check("restless 2", 7)[0], check("restless 2", 7)[0]
    assert (once.kills, once.seconds, once.steps) == (again.kills, again.seconds, again.steps)
