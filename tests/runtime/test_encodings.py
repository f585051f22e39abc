"""What leaves of a vector with `wire: top-k`, what waits, and where it is refused."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.errors import InputError
from peer.protocols.blocks.vectors import places_of_largest
from peer.protocols.declarations import Share
from peer.runtime.rounds.encodings import Collective, Encoding, new_encoding
from peer.spec.blocks import Bfloat16, Coded, TopK

SIZES = {"extractor": 30, "head": 7, "model": 37}
UPDATE = Share("update", like="model", update=True)
QUICK = settings(max_examples=60, deadline=None)


def top_k(share: float = 0.1, initial: Tensor | None = None) -> Encoding:
    return new_encoding(TopK(share=share), SIZES, initial)


def coded(sizes: Mapping[str, int] = SIZES) -> Encoding:
    return new_encoding(Coded(kind="codec", name="faults.quantisers:Steps"), sizes)


def nothing() -> Tensor:
    raise AssertionError("an update needs nothing of the receiver's own")


def as_it_is(tensor: Tensor) -> Tensor:
    return tensor


@QUICK
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(0, 30))
def test_the_largest_are_those_of_a_stable_sort(numbers: list[int], count: int) -> None:
    count = min(count, len(numbers))
    expected = sorted(np.argsort([-abs(number) for number in numbers], kind="stable")[:count].tolist())
    assert places_of_largest(torch.tensor(numbers, dtype=torch.float32), count).tolist() == expected


def test_of_updates_nothing_is_lost() -> None:
    """What was sent in all, and what still waits, is the sum of all updates."""
    sender, receiver = top_k(), top_k()
    generator, meant, sent = torch.Generator().manual_seed(3), torch.zeros(37), torch.zeros(37)
    for _ in range(12):
        update = torch.randn(37, generator=generator)
        travels = sender.encode("all_gather", UPDATE, update)
        assert travels.nbytes == sender.length(UPDATE, 37) == 4 * 3 + 4 + 4 * 1 + 1
        arrived = receiver.decode(UPDATE, travels, nothing, as_it_is)
        assert int((arrived != 0).sum()) == 3 + 1
        meant, sent = meant + update, sent + arrived
    np.testing.assert_allclose(sent + sender.state["all_gather/update"], meant, atol=1e-5)


@pytest.mark.parametrize("collective", ["exchange", "all_gather", "token"])
def test_what_a_codec_loses_goes_with_the_next(collective: Collective) -> None:
    sender, receiver, share = coded(), coded(), Share("model")
    generator, meant, sent = torch.Generator().manual_seed(3), torch.zeros(37), torch.zeros(37)
    for _ in range(12):
        vector = torch.randn(37, generator=generator)
        travels = sender.encode(collective, share, vector)
        assert travels.nbytes == sender.length(share, 37) == 4 + 30 + 4 + 7
        meant, sent = meant + vector, sent + receiver.decode(share, travels, nothing, as_it_is)
    np.testing.assert_allclose(sent + sender.state[f"{collective}/model"], meant, atol=1e-5)
    assert not torch.equal(sent, meant)


def test_a_codec_replays_the_same_bytes() -> None:
    """From what is kept between messages; what is drawn is drawn again."""
    share, vectors = Share("extractor"), torch.randn(3, 30, generator=torch.Generator().manual_seed(3))
    sender, again = coded(), coded()
    sender.encode("exchange", share, vectors[0])
    again.state = {name: tensor.clone() for name, tensor in sender.state.items()}
    for vector in vectors[1:]:
        assert torch.equal(sender.encode("exchange", share, vector), again.encode("exchange", share, vector))


def test_a_codec_s_message_for_one_neighbour_alone_leaves_nothing_to_another() -> None:
    sender, own = coded(), Share("own", like="model")
    first, second = (sender.encode("exchange", own, torch.ones(37), each_its_own=True) for _ in range(2))
    assert torch.equal(first, second)
    assert not sender.state


@pytest.mark.parametrize("initial", [None, torch.ones(37)])
@pytest.mark.parametrize("part", ["extractor", "head", "model"])
def test_a_vector_that_rests_is_told_whole_and_each_value_once(part: str, initial: Tensor | None) -> None:
    """A receiver keeps its own values until others come."""
    sender, share, size = top_k(0.2, initial), Share(part), SIZES[part]
    vector = torch.linspace(1.5, 3, size)
    seen = torch.full((size,), float("nan"))
    for turn in range(5):
        before = seen.clone()
        seen = sender.decode(share, sender.encode("exchange", share, vector), seen.clone, as_it_is)
        kept = before[~before.isnan()]
        assert len(kept) == pytest.approx(turn * size / 5, abs=2 * turn)
        assert torch.equal(seen[~before.isnan()], kept)
    assert torch.equal(seen, vector)


def test_what_all_know_at_the_start_is_not_told() -> None:
    initial = torch.arange(37.0)
    for part, begin in (("extractor", 0), ("head", 30), ("model", 0)):
        sender, share = top_k(0.05, initial), Share(part)
        vector = initial[begin : begin + SIZES[part]].clone()
        vector[4] += 0.001
        travels, before = sender.encode("exchange", share, vector), torch.zeros(SIZES[part])
        seen = sender.decode(share, travels, before.clone, as_it_is)
        assert seen[4] == vector[4]


def test_vectors_of_a_protocol_s_own_that_are_no_updates_travel_whole() -> None:
    sender, own = top_k(), Share("own", size=5)
    vector = torch.arange(5.0)
    assert sender.encode("exchange", own, vector) is vector
    assert sender.decode(own, vector, nothing, as_it_is) is vector
    assert sender.length(own, 5) == 20
    sealed = Share("sealed", size=9, bytes=True)
    for other in (new_encoding(Bfloat16(), SIZES), coded()):
        assert other.encode("exchange", sealed, vector) is vector
        assert other.length(sealed, 9) == 9
    assert coded().encode("exchange", own, vector) is vector
    assert coded().length(own, 5) == 20


@pytest.mark.parametrize(
    ("collective", "share", "each", "why"),
    [
        ("weighted_mean", Share("model"), False, "the mean of `model` needs all; write `wire: bfloat16`"),
        ("weighted_mean", UPDATE, False, "the mean of `update` needs all"),
        ("token", Share("model"), False, "`model` is handed on as a whole"),
        ("all_gather", Share("head"), False, "after `all_gather` of `head` no two would have the same"),
        ("exchange", Share("model", whole=True), False, "`model` is of use only as a whole"),
        ("exchange", UPDATE, True, "`update` is another vector for each neighbour"),
    ],
)
def test_top_k_is_refused_where_the_rest_would_be_missed(
    collective: Collective, share: Share, each: bool, why: str
) -> None:
    with pytest.raises(InputError, match=why):
        top_k().check(collective, share, each)
    new_encoding(Bfloat16(), SIZES).check(collective, share, each)


def test_what_goes_to_one_neighbour_alone_leaves_no_rest_to_another() -> None:
    half, share = new_encoding(Bfloat16(), SIZES), Share("own", size=4)
    vector = torch.tensor([1.001, 2.002])
    first, second = (half.encode("exchange", share, vector, each_its_own=True) for _ in range(2))
    assert torch.equal(first, second)
    assert not half.state
    assert half.decode(share, first, nothing, as_it_is).dtype == torch.float32


@pytest.mark.parametrize("make", [lambda: new_encoding(Bfloat16(), SIZES), top_k, coded])
def test_what_is_not_finite_as_it_travels_is_told(make: Callable[[], Encoding]) -> None:
    sender, vector = make(), torch.full((37,), 3.4e38)
    with pytest.raises(OverflowError, match="beyond"):
        sender.encode("exchange", UPDATE, vector)


def test_a_codec_is_refused_for_the_parts_of_a_mean_alone() -> None:
    with pytest.raises(InputError, match=r"the mean of `model` is taken part by part .*; write `wire: bfloat16`"):
        coded().check("weighted_mean", Share("model"))
    for collective in ("exchange", "all_gather", "token"):
        coded().check(collective, UPDATE, each_its_own=True)


def test_a_part_without_values_is_nothing_to_a_codec() -> None:
    sizes = {"extractor": 30, "head": 0, "model": 30}
    sender = coded(sizes)
    assert sender.encode("exchange", Share("model"), torch.ones(30)).nbytes == sender.length(Share("model"), 30) == 34
    assert sender.encode("exchange", Share("head"), torch.ones(0)).nbytes == sender.length(Share("head"), 0) == 0
    assert sender.decode(Share("head"), torch.empty(0, dtype=torch.uint8), nothing, as_it_is).shape == (0,)


def test_an_update_is_declared_with_what_it_is_like() -> None:
    for wrong in ({"update": True}, {"update": True, "size": 3}, {"update": True, "like": "head", "bytes": True}):
        with pytest.raises(ValueError, match="update goes with like='model'"):
            Share("change", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="leave out size, bytes, like and update"):
        Share("model", update=True)
