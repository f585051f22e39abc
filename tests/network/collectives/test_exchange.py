"""Vectors to neighbours over memory pipes: to all, to some, to each its own, and before anybody waits."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import torch
from communicating import Member, all_of, exchange, members, vectors

from peer.network.collectives import Arrived, Expected, Outgoing
from peer.network.wire.frames import Key
from peer.topology import Graph


@pytest.mark.parametrize("graph", ["ring", "exponential", "complete"])
@pytest.mark.parametrize("size", [2, 3, 6])
async def test_exchange_brings_each_neighbour_s_vector_and_scalars(graph: Graph, size: int) -> None:
    values = vectors(size, 17)
    async with members(size, 17, graph) as made:
        found = await all_of(made, lambda i, m: exchange(m, values[i], {"a": float(i), "b": 0.1 * i}))
        sent = [m.sent() for m in made]
    for i, (member, received) in enumerate(zip(made, found, strict=True)):
        assert isinstance(received, dict)
        assert tuple(received) == member.around.senders
        for sender, (vector, scalars) in received.items():
            j = int(sender.removeprefix("peer"))
            assert torch.equal(vector, values[j])
            assert scalars == (float(j), 0.1 * j)
        assert sent[i] == dict.fromkeys(member.around.receivers, 4 * 17)


async def test_what_was_sent_does_not_follow_later_changes() -> None:
    """Passes blend in place as soon as both neighbours' frames are here."""
    values = vectors(3, 8)
    first = [value.clone() for value in values]

    async def two_passes(i: int, m: Member) -> tuple[object, object]:
        one = await exchange(m, values[i])
        values[i].mul_(2)
        return one, await exchange(m, values[i])

    async with members(3, 8, "ring") as made:
        found = await all_of(made, two_passes)
    for one, two in found:  # type: ignore[misc]
        for sender in one:
            j = int(sender.removeprefix("peer"))
            assert torch.equal(one[sender][0], first[j])
            assert torch.equal(two[sender][0], 2 * first[j])


async def test_the_call_sends_before_it_is_awaited() -> None:
    """What changes the vector afterwards does not change what was sent, and the others need not wait for `await`."""
    values = vectors(3, 1000)
    first = [value.clone() for value in values]
    async with members(3, 1000, "ring") as made:
        waiting = [exchange(m, values[i]) for i, m in enumerate(made)]
        for value in values:
            value.zero_()
        found = await asyncio.gather(*waiting)
    for received in found:
        for sender, one in received.items():
            assert torch.equal(one.vector, first[int(sender.removeprefix("peer"))])


@pytest.mark.parametrize("size", [3, 5])
async def test_some_get_the_vector_and_all_others_an_empty_message(size: int) -> None:
    """Peer i sends to those whose number is larger: everybody hears of everybody, and nobody waits in vain."""
    values = vectors(size, 17)

    def call(i: int, m: Member) -> Coroutine[Any, Any, dict[str, Arrived]]:
        to = [other for other in m.around.receivers if int(other[4:]) > i]
        return exchange(m, values[i], {"a": 1.0}, to=to, expected=Expected(4 * 17, (), m.around.senders))

    async with members(size, 17, "complete") as made:
        found = await all_of(made, call)
        sent = [m.sent() for m in made]
    for i, received in enumerate(found):
        assert {*received} == {f"peer{j}" for j in range(i)}  # type: ignore[misc]
        assert sent[i] == {f"peer{j}": 4 * 17 * (j > i) for j in range(size) if j != i}


async def test_each_neighbour_may_get_a_vector_of_its_own() -> None:
    async with members(3, 5, "ring") as made:

        def call(i: int, m: Member) -> Coroutine[Any, Any, dict[str, Arrived]]:
            own = {other: torch.full((5,), 10.0 * i + int(other[4:])) for other in m.around.receivers}
            everyone = Expected(20, m.around.senders, m.around.senders)
            return m.collectives.exchange(m.around, "v", Outgoing(own, {}), everyone)

        found = await all_of(made, call)
    for i, received in enumerate(found):
        for sender, one in received.items():  # type: ignore[attr-defined]
            assert one.vector.tolist() == [10.0 * int(sender[4:]) + i] * 5


@pytest.mark.parametrize("early", [True, False])
async def test_a_vector_of_a_peer_that_was_not_to_send_is_refused_at_the_wire(early: bool) -> None:
    """Before or after it is known that it was not to come: the sender is told, and the receiver takes nothing."""
    async with members(3, 8, "ring") as (honest, *others):
        only = Expected(32, ["peer1"], ["peer1"])
        if early:
            sent = [exchange(m, torch.ones(8)) for m in others]
            for m in others:
                await honest.network.inbox(m.id).message(Key(0, 1, 1 << 16), 32)
            received = exchange(honest, torch.ones(8), expected=only)
        else:
            received = exchange(honest, torch.ones(8), expected=only)
            sent = [exchange(m, torch.ones(8)) for m in others]
        for one in (received, *sent):
            one.close()
        refusing = others[1].network.edges.neighbours["peer0"]
        while not refusing.delivery.rejection.reason:  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0.01)
        assert "refused: `v` was not to come from this sender in round 1 (`of`)" in refusing.delivery.rejection.reason
        assert honest.network.inbox("peer2").held == 0
