"""What is known of a neighbour, in words."""

import pytest

from peer.network.neighbours import Neighbour


@pytest.mark.parametrize(
    ("now", "said"), [("refused: x", "refused: x"), ("no route", "no route (before that: refused: x)")]
)
async def test_an_earlier_refusal_is_told_once(now: str, said: str) -> None:
    neighbour = Neighbour("peer1", "127.0.0.1:9301")
    neighbour.mark_refused("refused: x")
    neighbour.mark_unreachable(now)
    assert neighbour.reach.outbound.reason == neighbour.reason == said
