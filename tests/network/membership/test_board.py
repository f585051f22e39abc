"""Peers of one process read on a board what is on whose disk, and keep to the same bound."""

import asyncio

from peer.network.durability import SharedDurability
from peer.network.neighbours import Edges
from peer.network.transport import DurabilityBoard
from peer.views.view import STALENESS_BOUND

RING = tuple(f"peer{i}" for i in range(6))


def members() -> dict[str, SharedDurability]:
    board, made = DurabilityBoard(), {}
    for at, id in enumerate(RING):
        around = [RING[at - 1], RING[(at + 1) % len(RING)]]
        edges = Edges(dict.fromkeys(RING, "here"))
        edges.use(1, around, around)
        made[id] = SharedDurability(id, edges, 20, board)
    return made


async def test_one_that_is_far_away_holds_a_peer_back() -> None:
    everyone = members()
    for id in RING:
        everyone[id].announce(0 if id == "peer3" else 3)
    first = STALENESS_BOUND + 1
    waiting = asyncio.create_task(everyone["peer0"].wait_within_bound(first))
    await asyncio.sleep(0)
    assert everyone["peer0"].behind(first) == {"peer3": 0}
    assert everyone["peer0"].low_watermark == 0
    everyone["peer5"].announce(4)
    await asyncio.sleep(0)
    assert not waiting.done()
    everyone["peer3"].announce(1)
    await asyncio.wait_for(waiting, 5)
    assert everyone["peer0"].behind(first) == {}


async def test_who_has_nothing_on_disk_yet_is_waited_for() -> None:
    everyone = members()
    everyone["peer0"].announce(3)
    assert {*everyone["peer0"].behind(STALENESS_BOUND)} == {*RING} - {"peer0"}
    assert everyone["peer0"].behind(STALENESS_BOUND - 1) == {}


async def test_nobody_tells_of_a_third_and_first_hand_words_stay_so() -> None:
    """What is released rests on a neighbour's own word over its stream (rule R4), not on the board."""
    everyone = members()
    everyone["peer1"].announce(2)
    assert everyone["peer0"].relayed_for("peer5") == {}
    assert everyone["peer0"].of("peer1") == -1
