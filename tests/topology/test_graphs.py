"""Graphs, and FIRMA's ring order (Eq. 8 and Fix A), against brute force and plain sums."""

from itertools import permutations
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from peer.topology import Graph, RingCost, receivers, ring_cost, senders, similarity, two_opt

Matrix = NDArray[np.float64]
MNIST_COUNTS = [
    [7, 127, 573, 5, 0, 229, 443, 20, 1771, 12],
    [0, 800, 0, 0, 56, 0, 3, 4225, 1, 770],
    [74, 0, 684, 0, 21, 0, 1, 1862, 0, 1509],
    [1618, 531, 57, 5522, 0, 0, 291, 3, 7, 3572],
    [3872, 0, 165, 2, 22, 3481, 30, 0, 6, 0],
    [3, 120, 0, 0, 16, 953, 0, 0, 0, 0],
    [0, 5126, 8, 224, 0, 577, 5070, 152, 0, 6],
    [78, 4, 4468, 0, 77, 1, 0, 0, 3118, 0],
    [264, 0, 0, 376, 144, 57, 77, 0, 0, 15],
    [7, 34, 3, 2, 5506, 123, 3, 3, 948, 65],
]
"""Samples of each class (column) at each peer (row)."""
GRAPHS: tuple[Graph, ...] = get_args(Graph)


@st.composite
def proportions(draw: st.DrawFn, low_watermark: int = 1, most: int = 12) -> Matrix:
    peers, classes = draw(st.integers(low_watermark, most)), draw(st.integers(2, 10))
    alpha = draw(st.sampled_from([0.05, 0.1, 0.5, 10.0]))
    return np.random.default_rng(draw(st.integers(0, 2**32))).dirichlet(np.full(classes, alpha), peers)


def cost_by_hand(q: Matrix, order: list[int], cost: RingCost) -> float:
    """Σ over ring edges of cos(q_a, q_b), or of q_a·q_b."""
    total = 0.0
    for a, b in zip(order, np.roll(order, -1), strict=True):
        norms = np.linalg.norm(q[a]) * np.linalg.norm(q[b]) if cost == "cosine" else 1.0
        total += float(np.dot(q[a], q[b]) / norms)
    return total


@pytest.mark.parametrize("cost", ["cosine", "dot"])
@given(q=proportions())
def test_cost_is_the_sum_over_ring_edges(cost: RingCost, q: Matrix) -> None:
    order = [int(i) for i in np.random.default_rng(0).permutation(len(q))]
    assert ring_cost(similarity(q, cost), order) == pytest.approx(cost_by_hand(q, order, cost))


@given(q=proportions())
def test_two_opt_never_raises_the_cost_and_places_everyone_once(q: Matrix) -> None:
    similar = similarity(q, "cosine")
    order = two_opt(similar)
    assert sorted(order) == list(range(len(q)))
    assert ring_cost(similar, order) <= ring_cost(similar, range(len(q))) + 1e-9
    assert two_opt(similar.copy()) == order


@given(q=proportions(low_watermark=4))
def test_no_reversal_lowers_the_cost_any_further(q: Matrix) -> None:
    similar = similarity(q, "cosine")
    order = two_opt(similar)
    low_watermark = ring_cost(similar, order)
    for i in range(len(q) - 1):
        for j in range(i + 2, len(q)):
            changed = order[: i + 1] + order[i + 1 : j + 1][::-1] + order[j + 1 :]
            assert ring_cost(similar, changed) >= low_watermark - 1e-8


@given(q=proportions(low_watermark=4, most=4))
def test_four_peers_get_the_best_of_all_orders(q: Matrix) -> None:
    # All three rings of four are one reversal apart, so a local optimum is the global one.
    similar = similarity(q, "dot")
    best = min(ring_cost(similar, [0, *rest]) for rest in permutations(range(1, 4)))
    assert ring_cost(similar, two_opt(similar)) == pytest.approx(best, abs=1e-8)


@pytest.mark.parametrize("peers", [5, 6, 7])
def test_small_rings_come_close_to_the_best_of_all_orders(peers: int) -> None:
    saved, possible = 0.0, 0.0
    for seed in range(10):
        q = np.random.default_rng(seed).dirichlet(np.full(10, 0.1), peers)
        similar = similarity(q, "cosine")
        best = min(ring_cost(similar, [0, *rest]) for rest in permutations(range(1, peers)))
        start = ring_cost(similar, range(peers))
        saved += start - ring_cost(similar, two_opt(similar))
        possible += start - best
    assert saved > 0.9 * possible


@pytest.mark.parametrize("peers", [1, 2, 3])
def test_up_to_three_peers_stay_where_they_are(peers: int) -> None:
    q = np.random.default_rng(1).dirichlet(np.ones(5), peers)
    assert two_opt(similarity(q, "cosine")) == list(range(peers))


def test_pairs_of_alike_peers_are_parted() -> None:
    q = np.repeat(np.eye(3), 2, axis=0)
    similar = similarity(q, "cosine")
    assert ring_cost(similar, range(6)) == 3
    assert ring_cost(similar, two_opt(similar)) == 0


def test_a_gain_is_taken_at_once_and_the_sweep_goes_on() -> None:
    """The rule of FIRMA's Fix A, followed literally: whole costs, first gain, no restart."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        similar = similarity(rng.dirichlet(np.full(10, 0.2), 9), "dot")
        order, changed = list(range(9)), True
        while changed:
            changed = False
            for i in range(8):
                for j in range(i + 2, 9):
                    tried = order[: i + 1] + order[j:i:-1] + order[j + 1 :]
                    if (i, j) != (0, 8) and ring_cost(similar, tried) < ring_cost(similar, order) - 1e-9:
                        order, changed = tried, True
        assert two_opt(similar) == order


def test_the_published_ring_comes_from_the_dot_product() -> None:
    """MNIST's 60,000 labels dealt by Dirichlet 0.1 to ten peers, data seed 42: FIRMA prints 1.2812 and 0.0583."""
    counts = np.array(MNIST_COUNTS)
    q = counts / counts.sum(1, keepdims=True)
    similar = similarity(q, "dot")
    assert ring_cost(similar, range(10)) == pytest.approx(1.2812, abs=5e-5)
    assert two_opt(similar) == [0, 8, 7, 6, 9, 3, 5, 2, 4, 1]
    assert ring_cost(similar, two_opt(similar)) == pytest.approx(0.0583, abs=5e-5)
    cosine = similarity(q, "cosine")
    assert ring_cost(cosine, range(10)) == pytest.approx(2.6555, abs=5e-5)
    assert two_opt(cosine) != two_opt(similar)


def test_equal_proportions_leave_the_order() -> None:
    assert two_opt(similarity(np.full((8, 10), 0.1), "cosine")) == list(range(8))


def names(count: int) -> list[str]:
    return [f"peer{i}" for i in range(count)]


@pytest.mark.parametrize("size", range(1, 18))
def test_exponential_graph_reaches_powers_of_two(size: int) -> None:
    ring = names(size)
    for i, peer in enumerate(ring):
        reached = {(i + sign * 2**k) % size for k in range(6) if 2**k < size for sign in (1, -1)}
        found = receivers("exponential", ring, peer)
        assert {*found} == {ring[j] for j in reached - {i}}
        assert len({*found}) == len(found)


@pytest.mark.parametrize("size", range(1, 9))
def test_complete_ring_and_empty_graphs(size: int) -> None:
    ring = names(size)
    for i, peer in enumerate(ring):
        assert {*receivers("complete", ring, peer)} == {*ring} - {peer}
        assert {*receivers("ring", ring, peer)} == {ring[i - 1], ring[(i + 1) % size]} - {peer}
        assert {*receivers("directed ring", ring, peer)} == {ring[(i + 1) % size]} - {peer}
        assert receivers("none", ring, peer) == senders("none", ring, peer) == ()


@pytest.mark.parametrize("graph", GRAPHS)
@given(size=st.integers(1, 20))
def test_who_is_sent_to_receives(graph: Graph, size: int) -> None:
    ring = names(size)
    sent = {(peer, other) for peer in ring for other in receivers(graph, ring, peer)}
    assert sent == {(other, peer) for peer in ring for other in senders(graph, ring, peer)}
