"""Members that leave or are voted out, simulated with faults beside; and that the simulation finds a rule left out.

A failure names its federation and seed; `python -m tests.faults.departures FEDERATION SEED` replays it.
"""

import pytest

from faults.departures import check
from faults.omissions import who_leaves_goes_at_once
from faults.simulation import Kill, Order, Outcome, simulate
from faults.views import wrong_with
from faults.wires import Weather

SEEDS = [pytest.param("healing restless", 1, marks=pytest.mark.long), ("healing quorum", 1)]
"""`make chaos` runs more."""
SLOW = ("healing fibfl", 7)
"""One waits for a slow member that leaves while others are already in the next view."""
ONCE_HARMFUL = [
    ("healing fibfl", 100_005),  # one that left held another for lost; that one was back, and waited for it
    ("healing cycle", 200_008),  # one that was to leave came back late, and waited for neighbours in the next view
    ("signed four", 200_000),  # one that had left was admitted while another needed it for a round before
    ("healing three", 50_000_000_008),  # one restarted in the last round of a view waited for one that had left
    ("healing scaffold", 70_000_000_000),  # one killed as it entered a view went back again after a power cut
    ("healing three", 48_112_800_005),  # two restarted in round 0 waited for one that had left to begin
    ("signed codec", 61_112_700_036),  # one whose evaluation outlasted its view by `absence` was left out
    ("healing cffl", 72_112_700_013),  # two of four voted each other out, and the rest was no quorum
    ("signed codec", 77_112_700_001),  # a hello that a heartbeat had overtaken was taken for a lost disk
    # one restarted in the last round of a view waited to begin the round after
    pytest.param("signed seven", 200_010, marks=pytest.mark.long),
]
LEAVES = Order(2.4, "peer2")


def suffered(name: str, *orders: Order, kills: tuple[Kill, ...] = (), slowest: float = 0.02) -> Outcome:
    """Nothing is wrong afterwards."""
    outcome = simulate(name, 1, [*kills], Weather(slowest), orders=orders)
    assert not wrong_with(name, outcome), (orders, kills, outcome)
    assert len(outcome.kills) >= len(kills), ("not all died", kills, outcome.kills)
    return outcome


@pytest.mark.parametrize(("name", "seed"), [*SEEDS, SLOW, *ONCE_HARMFUL])
def test_random_orders_and_faults(name: str, seed: int) -> None:
    outcome, wrong = check(name, seed)
    assert not wrong, f"python -m tests.faults.departures {name!r} {seed}: {wrong} after {outcome.kills}"


@pytest.mark.parametrize("slowest", [0.2])
def test_who_leaves_costs_nobody_a_round(slowest: float) -> None:
    outcome = suffered("healing scaffold", LEAVES, slowest=slowest)
    assert outcome.gone == {"peer2": "left"}
    assert len(outcome.views) == 2
    assert "planned=True" in outcome.views[1]


def test_who_leaves_without_its_last_rounds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    who_leaves_goes_at_once(monkeypatch)
    assert len(simulate("healing scaffold", 1, [], Weather(0.2), orders=(LEAVES,)).views) > 2


@pytest.mark.parametrize("step", [7, *(pytest.param(step, marks=pytest.mark.long) for step in (19, 31, 49)), 43])
def test_one_is_killed_while_it_leaves(step: int) -> None:
    """Its wish is forgotten with it, or it had left and asks to be taken in."""
    outcome = suffered("healing scaffold", LEAVES, kills=(Kill("peer2", "views", step, away=(0.3,)),))
    assert ("peer2 taken in" in outcome.views[-1]) == (step > 31)


@pytest.mark.parametrize("step", [16])
def test_another_is_lost_while_one_leaves(step: int) -> None:
    suffered("healing scaffold", LEAVES, kills=(Kill("peer1", "views", step, away=(12.0,)),))


def test_of_three_neighbours_that_leave_the_one_in_the_middle_is_lost() -> None:
    """None of those who have a say sees that: the two beside it go, so that the rest goes back."""
    leaving = tuple(Order(2.0 + 0.1 * number, f"peer{number}") for number in (1, 2, 3))
    suffered("healing fedavg", *leaving, kills=(Kill("peer2", "views", 30, away=(40.0,)),), slowest=0.2)


def test_one_is_voted_out_by_a_majority_only() -> None:
    few, enough = Order(2.0, "peer2", ("peer1", "peer3")), Order(2.0, "peer2", ("peer0", "peer1", "peer3"))
    assert suffered("healing scaffold", few).gone == {}
    outcome = suffered("healing scaffold", enough)
    assert outcome.gone == {"peer2": "voted out"}
    assert "expelled=('peer2',)" in outcome.views[-1]


def test_a_consent_outlives_a_crash_and_counts_with_one_that_comes_later() -> None:
    orders = Order(2.0, "peer2", ("peer1", "peer3")), Order(5.0, "peer2", ("peer0",))
    kill = Kill("peer1", "send", 120, away=(0.3,), power=True)
    assert suffered("healing scaffold", *orders, kills=(kill,)).gone == {"peer2": "voted out"}
