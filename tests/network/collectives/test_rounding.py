"""Means that travel as bfloat16: half the bytes, the same bits for all, and right over time by error feedback."""

import numpy as np
import pytest
import strangers
import torch
from communicating import Member, all_of, members, vectors
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.errors import FailedError
from peer.network.collectives import MOST_LEFT, Rounding
from peer.network.wire.frames import Heading, Key, encode_frame
from peer.network.wire.manifest import Manifest, NotDeclaredError, PayloadSpec, vector_bytes

LOSS = 2.0**-8
"""By how much a rounded value is wrong at most, relatively: a bfloat16 has eight binary places."""
QUICK = settings(max_examples=60, deadline=None)


async def means(made: list[Member], values: list[Tensor], weights: list[float], rests: list[Tensor]) -> list[Tensor]:
    """Each peer's."""
    found = [value.clone() for value in values]
    await all_of(
        made,
        lambda i, m: m.collectives.weighted_mean(m.around, "v", found[i], weights[i], Rounding(rests[i])),
    )
    return found


def nothing(values: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(value) for value in values]


@pytest.mark.parametrize(("size", "floats"), [(2, 1), (3, 1000), (5, 103), (5, 4)])
async def test_all_end_with_the_same_bits_within_the_bound_and_send_half(size: int, floats: int) -> None:
    """Each of the N − 1 sums is rounded, and the mean: of no more than what was added up."""
    values, weights = vectors(size, floats), [3.0, 0.0, 170.0, 12.5, 1.0][:size]
    exact = np.average([v.double().numpy() for v in values], axis=0, weights=weights)
    largest = np.average([v.double().abs().numpy() for v in values], axis=0, weights=weights)
    async with members(size, floats, kind="bfloat16") as made:
        found = await means(made, values, weights, nothing(values))
        sent = [sum(m.sent().values()) for m in made]
    for mean in found:
        assert mean.numpy().tobytes() == found[0].numpy().tobytes()
        assert (np.abs(mean.numpy() - exact) <= 1.1 * size * LOSS * largest).all()
        assert torch.equal(mean, mean.bfloat16().float())
    assert sum(sent) == 2 * (size - 1) * floats * 2


async def test_what_is_lost_is_made_up_for_in_later_rounds() -> None:
    """With the rest kept, the average of T means is wrong by a T-th; without, it stays as wrong as the first."""
    size, floats, rounds = 3, 200, 24
    values, weights = vectors(size, floats), [300.0, 100.0, 50.0]
    exact = np.average([v.double().numpy() for v in values], axis=0, weights=weights)
    kept, errors = nothing(values), dict[str, float]()
    async with members(size, floats, kind="bfloat16") as made:
        for name in ("kept", "dropped"):
            total = np.zeros(floats)
            for _ in range(rounds):
                rests = kept if name == "kept" else nothing(values)
                total += (await means(made, values, weights, rests))[0].double().numpy()
            errors[name] = float(np.abs(total / rounds - exact).mean())
    assert errors["kept"] < errors["dropped"] / (rounds / 3)


async def test_a_value_beyond_bfloat16_is_told() -> None:
    values = [torch.tensor([3.4e38, 0.0]), torch.zeros(2)]
    with pytest.raises(FailedError, match="`v` times its weight 1, rounded as it travels, is not finite in round 1"):
        async with members(2, 2, kind="bfloat16") as made:
            await means(made, values, [1.0, 1.0], nothing(values))


async def test_a_part_whose_sum_is_beyond_bfloat16_alone_is_passed_on() -> None:
    """It once ended whoever received it, unnamed, though each value and their sum are finite."""
    values = [torch.tensor([float(torch.finfo(torch.bfloat16).max), 1e36]), torch.zeros(2), torch.zeros(2)]
    async with members(3, 2, kind="bfloat16") as made:
        for mean in await means(made, values, [1.0, 1.0, 1.0], nothing(values)):
            assert torch.isfinite(mean).all()


@pytest.mark.parametrize("weight", [1e12, 1e37])
async def test_an_invented_weight_does_not_outlast_its_round(weight: float) -> None:
    """The errors that all keep are in its units, and ruined their means for good."""
    values = vectors(3, 200)
    rests, largest = nothing(values), max(float(one.abs().max()) for one in values)
    async with members(3, 200, kind="bfloat16") as made:
        await means(made, values, [1.0, weight, 1.0], rests)
        found = await means(made, values, [1.0, 1.0, 1.0], rests)
    exact = torch.stack(values).mean(0)
    assert (found[0] - exact).abs().max() <= (MOST_LEFT + 3 * LOSS) * largest


async def test_a_rest_that_a_lie_has_spoiled_before_counts_for_nothing() -> None:
    values = vectors(3, 200)
    rests = [torch.full((200,), wrong) for wrong in (float("nan"), float("inf"), -float("inf"))]
    async with members(3, 200, kind="bfloat16") as made:
        found = await means(made, values, [1.0, 1.0, 1.0], rests)
        honest = await means(made, values, [1.0, 1.0, 1.0], nothing(values))
    assert torch.equal(found[0], honest[0])


def bfloat16(values: np.ndarray) -> np.ndarray:
    """To the nearest number whose last 16 bits are 0, of two the even one."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


@QUICK
@given(st.lists(st.floats(-1e6, 1e6, width=32, allow_subnormal=False), min_size=1, max_size=8), st.integers(0, 99))
def test_the_sum_of_what_was_sent_is_the_sum_of_what_was_meant(values: list[float], seed: int) -> None:
    """But for the rest; what would change its sign by it is sent as 0."""
    generator, rest = np.random.default_rng(seed), torch.zeros(len(values))
    meant = sent = np.zeros(len(values))
    for _ in range(10):
        vector = torch.tensor(values) * torch.from_numpy(generator.uniform(0, 1, len(values))).float()
        before = rest.clone().numpy()
        rounded = Rounding(rest).round(vector).float().numpy()
        wanted = vector.numpy() + before
        same = np.sign(wanted) == np.sign(vector.numpy())
        np.testing.assert_array_equal(rounded, bfloat16(np.where(same, wanted, 0)))
        meant, sent = meant + vector.double().numpy(), sent + rounded
    largest = np.abs(values)
    np.testing.assert_allclose(meant - sent, rest.double().numpy(), atol=float(largest.max()) * 1e-5)
    assert (np.abs(rest.numpy()) <= 10 * LOSS * largest + 1e-30).all()


def test_a_variance_that_falls_stays_one() -> None:
    rest = torch.tensor([-0.004, 0.004])
    rounded = Rounding(rest).round(torch.tensor([1e-4, 0.0]))
    assert (rounded >= 0).all()
    assert rounded[1] == 0


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
async def test_rounded_values_that_are_not_finite_are_refused_at_the_wire(
    wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "MANIFEST", Manifest((PayloadSpec("v", 3, 0, 1, 9, "bfloat16"),)))

    def frame(values: Tensor, length: int) -> bytes:
        return encode_frame(Heading(Key(0, 1, 0), 0, 0, 0, 0, length), 0, b"", vector_bytes(values.bfloat16())[:length])

    door = strangers.Door()
    with pytest.raises(NotDeclaredError, match="not finite"):
        await door.offer(frame(torch.tensor([1.0, wrong, 1.0]), 6))
    with pytest.raises(NotDeclaredError, match="bytes 0 to 5 of `v`, which has 6"):
        await door.offer(frame(torch.ones(3), 5))
    assert door.bytes_held == 0
    await door.offer(frame(torch.ones(3), 6))
    assert door.bytes_held == 6
