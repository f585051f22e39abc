"""What a collective takes: only what was declared leaves, and what does not belong names its sender."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
import torch
from communicating import all_of, exchange, members, vectors

from peer.errors import FailedError
from peer.network.collectives import Collectives, Expected, Neighbourhood
from peer.network.wire.frames import Call
from peer.network.wire.manifest import NotDeclaredError
from peer.topology import receivers, senders


async def test_scalars_are_counted_beside_the_bytes_of_tensors() -> None:
    """At both ends, whether they travel as a record or with a vector of several frames."""
    floats = 2**18 + 5
    values = vectors(3, floats)
    async with members(3, floats) as made:
        await all_of(made, lambda i, m: m.collectives.gather(m.around, "record", (1.0, 2.0, 3.0)))
        await all_of(made, lambda i, m: exchange(m, values[i], {"a": 0.5, "b": 0.25}))
        assert [m.network.audit.tensor_bytes for m in made] == [4 * floats] * 3
        lines = [m.network.audit.close(1) for m in made]
    record, vector = ({"bytes": 0, "scalar_bytes": 2 * 24}, {"bytes": 4 * floats, "scalar_bytes": 16})
    for i, line in enumerate(lines):
        to, sender = f"peer{(i + 1) % 3}", f"peer{(i - 1) % 3}"
        assert line["sent"] == [
            {"to": to, "vector": "record", "head_bytes": 0, **record},
            {"to": to, "vector": "v", "head_bytes": 0, **vector},
        ]
        assert line["received"] == [
            {"from": sender, "vector": "record", **record},
            {"from": sender, "vector": "v", **vector},
        ]


async def test_what_is_not_declared_does_not_leave() -> None:
    async with members(3, 8) as made:
        member = made[0]
        with pytest.raises(NotDeclaredError, match="no vector or record called `head`"):
            await member.collectives.pass_token(member.around, "head", torch.zeros(8))
        with pytest.raises(NotDeclaredError, match="which has 32"):
            await member.collectives.pass_token(member.around, "v", torch.zeros(9))
        left = Neighbourhood(member.around.ring, ("peer2",), ("peer2",))
        with pytest.raises(NotDeclaredError, match="is no receiver"):
            await exchange(replace(member, around=left), torch.zeros(8))
        assert member.sent() == {}


async def test_one_call_more_than_a_neighbour_makes_is_told_when_that_is_in_a_later_round() -> None:
    async with members(3, 8, "ring") as made:
        await all_of(made, lambda i, m: exchange(m, torch.ones(8)))
        one_more = exchange(made[0], torch.ones(8))
        for other in made[1:]:
            other.network.begin_round(2)
            exchange(replace(other, collectives=Collectives(other.network, 2)), torch.ones(8))
        with pytest.raises(
            FailedError, match=r"peer\d has gone on to round 2, and this peer still calls exchange\(`v`\)"
        ):
            await one_more


EXCHANGE = Call(1, 1 << 16, "exchange", "v", ("a",))


@pytest.mark.parametrize(
    ("call", "floats", "scalars", "why"),
    [
        (EXCHANGE, 7, [1.0], "sent 28 bytes with 1 number of `v` in round 1, where 32 bytes with 1 number belong"),
        (EXCHANGE, 0, [1.0], "sent 0 bytes with 1 number of `v` in round 1, where 32 bytes"),
        (EXCHANGE, 0, [], "sent 0 bytes with 0 numbers of `v` in round 1, where 32 bytes"),
        (EXCHANGE, 8, [], "sent 32 bytes with 0 numbers of `v` in round 1, where 32 bytes with 1 number"),
        (EXCHANGE, 8, [1.0, 2.0], "sent 32 bytes with 2 numbers of `v` in round 1, where 32 bytes with 1 number"),
        (
            replace(EXCHANGE, name="record"),
            0,
            [1.0],
            r"sent `record` in round 1 where this peer calls exchange\(`v`, a",
        ),
        (replace(EXCHANGE, scalars=("b",)), 8, [1.0], "sent numbers of other names, or by another call, in round 1"),
        (replace(EXCHANGE, collective="token"), 8, [1.0], "sent numbers of other names, or by another call, in round"),
    ],
)
async def test_a_message_of_another_kind_ends_its_receiver_and_names_its_sender(
    call: Call, floats: int, scalars: list[float], why: str
) -> None:
    """The manifest says what is the most that may travel; a collective knows exactly what belongs under its key."""
    async with members(2, 8) as (honest, other):
        other.network.open_message([honest.id], call, 4 * floats, scalars).write_all(torch.ones(floats))
        with pytest.raises(FailedError, match=f"peer1 {why}.*compare its code with this peer's"):
            await exchange(honest, torch.ones(8), {"a": 1.0})


@pytest.mark.parametrize("any_length", [False, True])
async def test_of_any_length_is_not_of_any_kind(any_length: bool) -> None:
    async with members(2, 8) as (honest, other):
        other.network.open_message([honest.id], EXCHANGE, 12, [1.0]).write_all(torch.ones(3))
        required = Expected(None if any_length else 32, ["peer1"], ["peer1"])
        waiting = exchange(honest, torch.ones(8), {"a": 1.0}, expected=required)
        if any_length:
            assert (await waiting)["peer1"].vector.tolist() == [1.0] * 3
        else:
            with pytest.raises(FailedError, match="sent 12 bytes with 1 number of `v` in round 1, where 32 bytes"):
                await waiting


@pytest.mark.parametrize("collective", ["weighted_mean", "all_gather", "token"])
async def test_a_neighbour_that_sends_other_numbers_is_named(collective: str) -> None:
    """Not as an IndexError of the honest peer's."""
    async with members(2, 8) as (honest, other):
        step = 1 << 31 if collective == "token" else 1 << 16
        names = ("weight",) if collective == "weighted_mean" else ()
        scalars = [] if collective == "weighted_mean" else [1.0]
        other.network.open_message(
            [honest.id], Call(1, step, collective, "v", names), 16 if names else 32, scalars, 16 if names else 0
        ).write_all(torch.ones(4 if names else 8))
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "weighted_mean": lambda: honest.collectives.weighted_mean(honest.around, "v", torch.ones(8), 1.0),
            "all_gather": lambda: honest.collectives.all_gather(honest.around, "v", torch.ones(8), {}, 32),
            "token": lambda: honest.collectives.receive_token(honest.around, "v", 32),
        }
        with pytest.raises(FailedError, match=r"peer1 sent .* numbers? of `v` in round 1, where .* belong"):
            await calls[collective]()


async def test_one_heartbeat_a_pair_whichever_way_the_tensors_go() -> None:
    """On a directed ring that is turned round, and for a peer that is started again after that."""
    async with members(3, 1) as made:
        ring = made[0].around.ring[::-1]
        for member in made:
            around = Neighbourhood(
                ring, receivers("directed ring", ring, member.id), senders("directed ring", ring, member.id)
            )
            member.network.set_edges(1, around.receivers, around.senders)
        pairs = {(one.id, other.id) for one in made for other in made if one.id < other.id}

        def dialled() -> set[tuple[str, str]]:
            heartbeats = [one.network._heartbeats for one in made]
            return {(all.state.identity.id, id) for all in heartbeats for id in ring if all.of(id).dialled}

        while dialled() != pairs:  # noqa: ASYNC110
            await asyncio.sleep(0)  # `members` ends it all when this takes too long
