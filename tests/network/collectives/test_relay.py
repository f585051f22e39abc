"""What goes round the ring over memory pipes to everybody: records, vectors, and the token."""

import asyncio

import numpy as np
import pytest
import torch
from communicating import Member, all_of, exchange, members, vectors
from torch import Tensor

from peer.network.wire.manifest import TopKBlock, pack_top_k


@pytest.mark.parametrize("size", [1, 2, 3, 6])
async def test_gather_gives_everyone_everything(size: int) -> None:
    async with members(size, 1) as made:
        found = await all_of(made, lambda i, m: m.collectives.gather(m.around, "record", (float(i), i / 3, -1e300)))
        assert all(m.network.audit.tensor_bytes == 0 for m in made)
    for records in found:
        assert records == {f"peer{i}": (float(i), i / 3, -1e300) for i in range(size)}


async def test_the_token_goes_round() -> None:
    async with members(4, 3) as made:

        async def circulate(i: int, m: Member) -> Tensor:
            token = torch.zeros(3) if i == 0 else (await m.collectives.receive_token(m.around, "v", 12)).vector
            token = token + 10**i
            await m.collectives.pass_token(m.around, "v", token)
            return (await m.collectives.receive_token(m.around, "v", 12)).vector if i == 0 else token

        tokens = await all_of(made, circulate)
        sent = [m.sent() for m in made]
    assert [int(token[0]) for token in tokens] == [1111, 11, 111, 1111]  # type: ignore[index]
    assert sent == [{f"peer{(i + 1) % 4}": 12} for i in range(4)]


@pytest.mark.parametrize("floats", [0, 1, 17, 2**18 + 5])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_all_gather_gives_everyone_every_vector(size: int, floats: int) -> None:
    values = vectors(size, max(floats, 1))
    values = [value[:floats] for value in values]
    async with members(size, max(floats, 1)) as made:
        found = await all_of(
            made, lambda i, m: m.collectives.all_gather(m.around, "v", values[i], {"i": float(i)}, 4 * floats)
        )
        sent = [m.sent() for m in made]
    for i, everyone in enumerate(found):
        assert isinstance(everyone, dict)
        assert {id: one.scalars for id, one in everyone.items()} == {f"peer{j}": (float(j),) for j in range(size)}
        assert all(torch.equal(one.vector, values[int(id[4:])]) for id, one in everyone.items())
        assert sent[i] == ({f"peer{(i + 1) % size}": 4 * floats * (size - 1)} if size > 1 else {})


async def test_all_gather_of_lengths_of_their_own() -> None:
    values = [torch.full((3 * i,), float(i)) for i in range(4)]
    async with members(4, 9) as made:
        found = await all_of(made, lambda i, m: m.collectives.all_gather(m.around, "v", values[i], {}, None))
    for everyone in found:
        assert all(torch.equal(one.vector, values[int(id[4:])]) for id, one in everyone.items())  # type: ignore[attr-defined]


async def test_bytes_are_carried_as_they_are() -> None:
    """This includes bytes that would be NaN as float32, and lengths that are not multiples of four."""
    secret = torch.tensor([255] * 7, dtype=torch.uint8)
    async with members(3, 8, "ring", kind="uint8") as made:
        found = await all_of(made, lambda i, m: exchange(m, secret))
        gathered = await made_all_gather(made, secret)
        assert made[0].sent() == {"peer1": 7 + 2 * 7, "peer2": 7}
    for received in (*found, *gathered):
        assert all(torch.equal(one.vector, secret) for one in received.values())  # type: ignore[attr-defined]


def made_all_gather(made: list[Member], vector: Tensor) -> "asyncio.Future[list[object]]":
    return all_of(made, lambda i, m: m.collectives.all_gather(m.around, "v", vector, {}, None))


async def test_part_of_a_vector_that_is_none_is_refused_before_it_is_passed_on() -> None:
    """What is wrong shows only at the end of its second frame: or who relays it would be the one who is refused."""
    block = TopKBlock(2_000_000, 300_000)
    forged = torch.zeros(block.length, dtype=torch.uint8)
    whole = pack_top_k(block, np.arange(300_000), np.ones(300_000, np.float32))
    honest = torch.frombuffer(bytearray(whole), dtype=torch.uint8)
    async with members(3, block.length, kind="top-k", blocks=(block,)) as made:

        async def gather(i: int, m: Member) -> None:
            vector = forged if i == 0 else honest.clone()
            await m.collectives.all_gather(m.around, "v", vector, {}, block.length)

        running = all_of(made, gather)
        refusing = made[0].network.edges.neighbours["peer1"]
        while not refusing.delivery.rejection.reason:  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0.01)
        assert "so many different ones in ascending order" in refusing.delivery.rejection.reason
        assert {key.step & 0xFFFF for key in made[2].network.inbox("peer1").messages} == {0}
        assert not made[1].network.edges.neighbours["peer2"].delivery.rejection
        running.cancel()
