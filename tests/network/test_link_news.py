"""A reason that was told and holds no longer is replaced, once the new one has lasted."""

import asyncio

from peer.network.limits import Limits, Timeouts
from peer.network.neighbours import Neighbour, SignsOfLife
from peer.network.streams.heartbeat import LinkReporter
from peer.telemetry.events import Event, LinkChanged


async def test_another_reason_for_the_same_state() -> None:
    told: list[Event] = []
    news, other = (
        LinkReporter(Limits(), Timeouts(suspect_after=0.05), told.append),
        Neighbour("peer1", "127.0.0.1:7701"),
    )
    news.change(other, "down", "connection closed")
    for why in ("connection refused", "timed out", "no route"):
        other.mark_unreachable(why)
        news.catch_up(other)
    assert [str(event) for event in told] == ["link to peer1: down (connection closed)"]
    while len(told) == 1:
        await asyncio.sleep(0.01)
        news.catch_up(other)
    assert isinstance(told[1], LinkChanged)
    assert (told[1].state, told[1].reason) == ("down", "no route")
    news.change(other, "up", "")
    news.catch_up(other)
    assert [str(event) for event in told[2:]] == ["link to peer1: up"]


async def test_nothing_is_said_of_a_block_that_is_none() -> None:
    """A neighbour that was reached, or whose complaint is over, gives no trouble; one that cannot be reached does."""
    other = Neighbour("peer1", "10.0.0.1:7701", signs=SignsOfLife(alive=True))
    assert other.missing_handshake_reason(["send"]) == "not yet connected"
    assert other.missing_handshake_reason(["receive"]) == "it is reached, but has not reached this peer yet"
    other.mark_unreachable("timed out")
    later = other.reach.outbound.since + 1
    assert (
        other.problem(later)
        == other.missing_handshake_reason(["send"])
        == (
            "it reaches this peer, but this peer cannot reach it at 10.0.0.1:7701: timed out; open port 7701 at peer1, "
            "or correct that address"
        )
    )
    other.mark_reachable()
    assert not other.problem(later)
