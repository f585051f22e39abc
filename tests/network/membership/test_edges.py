"""What is known of a neighbour, in words."""

import pytest

from peer.network.neighbours import Edges, Neighbour


@pytest.mark.parametrize(
    ("now", "said"), [("refused: x", "refused: x"), ("no route", "no route (before that: refused: x)")]
)
async def test_an_earlier_refusal_is_told_once(now: str, said: str) -> None:
    neighbour = Neighbour("peer1", "127.0.0.1:9301")
    neighbour.mark_refused("refused: x")
    neighbour.mark_unreachable(now)
    assert neighbour.reach.outbound.reason == neighbour.reason == said


async def test_who_says_that_it_is_in_a_later_view_is_believed_once_this_view_ends() -> None:
    """Else a liar could be taken for one that has been there, before the run has begun."""
    edges = Edges(dict.fromkeys(("peer1", "peer2"), "127.0.0.1:9301"))
    edges.use(0, ("peer1", "peer2"), ())
    edges.neighbours["peer1"].progress.in_later_view = True
    assert edges.gone_on == set()
    assert [one.id for one, _ in edges.missing()] == ["peer1", "peer2"]
    edges.end_after(5)
    assert edges.gone_on == {"peer1"}
    assert [one.id for one, _ in edges.missing()] == ["peer2"]
