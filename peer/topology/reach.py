"""Peers that nobody can dial: they dial their neighbours, so no two of them can be neighbours."""

from collections.abc import Collection, Sequence

from peer.topology.graphs import Graph, receivers, senders


def unreachable_pair(graph: Graph, ring: Sequence[str], dial_out: Collection[str]) -> tuple[str, str] | None:
    """The first two neighbours of which neither can be dialled."""
    for peer in (one for one in ring if one in dial_out):
        for other in (*receivers(graph, ring, peer), *senders(graph, ring, peer)):
            if other in dial_out:
                return peer, other
    return None


def why_not(pair: tuple[str, str]) -> str:
    """Why two neighbours cannot be, and the way out."""
    one, other = pair
    return (
        f"`{one}` and `{other}` are neighbours and both only dial out (`dials_out`): neither can reach the other; give "
        "one of them an `address`, or put a peer that has one between them"
    )
