"""Some values and their places: the shortest of two ways, and nothing a stranger writes gets past the reader."""

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strangers import offer_wrong_then_right

from peer.network.wire.manifest import TopKBlock, pack_top_k, unpack_blocks

FEW, MANY = TopKBlock(1000, 3), TopKBlock(20, 5)
"""One whose places are numbers, one with a bitmap."""
BLOCKS = (FEW, MANY)
QUICK = settings(max_examples=100, deadline=None)


def content(places: list[int], values: list[float]) -> bytes:
    """A block of numbered places, and an honest one with a bitmap behind it."""
    numbered = struct.pack(f"<{len(places)}I{len(values)}f", *places, *values)
    return numbered + pack_top_k(MANY, np.arange(5), np.ones(5, np.float32))


@QUICK
@given(st.data())
def test_what_is_packed_is_unpacked(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 300))
    places = np.array(sorted(data.draw(st.sets(st.integers(0, max(size - 1, 0)), max_size=size))), np.int64)
    values = np.random.default_rng(size).standard_normal(len(places)).astype(np.float32)
    block = TopKBlock(size, len(places))
    packed = pack_top_k(block, places, values)
    assert len(packed) == block.length <= 4 * len(places) + min(4 * len(places), (size + 7) // 8)
    ((found, numbers),) = unpack_blocks([block], memoryview(packed))
    assert found.tolist() == places.tolist()
    assert numbers.tolist() == values.tolist()


@QUICK
@given(st.binary(min_size=sum(block.length for block in BLOCKS), max_size=sum(block.length for block in BLOCKS)))
def test_whatever_is_written_is_refused_or_right(data: bytes) -> None:
    with suppress(ValueError):
        for block, (places, values) in zip(BLOCKS, unpack_blocks(BLOCKS, memoryview(data)), strict=True):
            assert len({*places.tolist()}) == len(values) == block.kept
            assert places.min() >= 0
            assert places.max() < block.size
            assert np.isfinite(values).all()


WRONG = {
    "out of range": (content([1, 2, 1000], [1.0] * 3), "place 1000 of 1000"),
    "far out of range": (content([1, 2, 2**32 - 1], [1.0] * 3), "place 4294967295 of 1000"),
    "twice": (content([1, 1, 2], [1.0] * 3), "so many different ones in ascending order"),
    "not in order": (content([2, 1, 3], [1.0] * 3), "in ascending order"),
    "not finite": (content([1, 2, 3], [1.0, float("nan"), 1.0]), "not finite"),
    "one bit more": (content([1, 2, 3], [1.0] * 3)[:24] + b"\x3f\0\0" + bytes(20), "so many different ones"),
    "a bit behind the end": (content([1, 2, 3], [1.0] * 3)[:24] + b"\x0f\0\x80" + bytes(20), "place 23 of 20"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_message_that_is_no_part_of_a_vector_is_refused_at_the_wire(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_wrong_then_right(monkeypatch, "top-k", BLOCKS, WRONG[name], content([0, 1, 999], [1.0, -1.0, 0.0]))
