"""Graphs of neighbours (ring, exponential, complete) and the 2-opt ring order (FIRMA, Fix A).

Peers that only dial out open all connections themselves, so no two of them can be neighbours.
"""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Graph = Literal["none", "directed ring", "ring", "exponential", "complete"]
RingCost = Literal["cosine", "dot"]


def receivers(graph: Graph, ring: Sequence[str], peer: str) -> tuple[str, ...]:
    """The peers to which `peer` sends, nearest left first; every graph but the directed ring is symmetric."""
    size, position = len(ring), ring.index(peer)
    offsets = {
        "none": [],
        "directed ring": [1],
        "ring": [-1, 1],
        "exponential": [sign << k for k in range(size.bit_length()) if 1 << k < size for sign in (-1, 1)],
        "complete": list(range(1, size)),
    }[graph]
    found = dict.fromkeys(ring[(position + offset) % size] for offset in offsets)
    found.pop(peer, None)
    return tuple(found)


def senders(graph: Graph, ring: Sequence[str], peer: str) -> tuple[str, ...]:
    """The peers from which `peer` receives."""
    if graph == "directed ring":
        left = ring[ring.index(peer) - 1]
        return (left,) if left != peer else ()
    return receivers(graph, ring, peer)


def neighbours(graph: Graph, ring: Sequence[str], peer: str) -> tuple[str, ...]:
    """The peers with which `peer` is connected, in either direction."""
    return tuple(dict.fromkeys((*receivers(graph, ring, peer), *senders(graph, ring, peer))))


def similarity(proportions: NDArray[np.float64], cost: RingCost) -> NDArray[np.float64]:
    """Pairwise q_i·q_j (`dot`), or divided by the norms (`cosine`, FIRMA Eq. 8); shape (N, N)."""
    if cost == "cosine":
        proportions = proportions / np.linalg.norm(proportions, axis=1, keepdims=True)
    return proportions @ proportions.T


def ring_cost(similar: NDArray[np.float64], order: Sequence[int]) -> float:
    """FIRMA Eq. 8: the similarity of adjacent peers, summed round the ring."""
    return float(sum(similar[a, b] for a, b in zip(order, [*order[1:], order[0]], strict=True)))


def two_opt(similar: NDArray[np.float64]) -> list[int]:
    """A ring order in which neighbours differ: 2-opt from the identity, sweeping on after every gain."""
    size = len(similar)
    order = list(range(size))
    improved = size > 3
    while improved:
        improved = False
        for i in range(size - 1):
            for j in range(i + 2, size):
                if (i, j) == (0, size - 1):
                    continue
                a, b, c, d = order[i], order[i + 1], order[j], order[(j + 1) % size]
                gain = similar[a, b] + similar[c, d] - similar[a, c] - similar[b, d]
                if gain > 1e-9:
                    order[i + 1 : j + 1] = order[i + 1 : j + 1][::-1]
                    improved = True
    return order


def unreachable_pair(graph: Graph, ring: Sequence[str], dial_out: Collection[str]) -> tuple[str, str] | None:
    """The first two neighbours of which neither can be dialled."""
    apart = (peer for peer in ring if peer in dial_out)
    pairs = ((peer, other) for peer in apart for other in neighbours(graph, ring, peer) if other in dial_out)
    return next(pairs, None)


def unreachable_pair_problem(pair: tuple[str, str]) -> str:
    """Why two peers cannot be neighbours, and what to do."""
    one, other = pair
    return (
        f"`{one}` and `{other}` are neighbours and both only dial out (`dials_out`): neither can reach the other; give "
        "one of them an `address`, or put a peer that has one between them"
    )
