"""A user's codec: what it may give, and what becomes of bytes that another peer made up."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from faults.quantisers import Dividing, Drawing, Forgetful, Learnt, Picky, Short, Steps, Upscaled
from hypothesis import given, settings
from hypothesis import strategies as st
from strangers import offer_wrong_then_right

from peer.network.limits import Limits
from peer.network.streams.link import Inbox
from peer.network.streams.stream import pageable
from peer.network.wire.codec import Codec, CodedBlock
from peer.network.wire.frames import BadFrameError, Frame, Heading, Key, decode, encode_frame
from peer.network.wire.manifest import Manifest, NotDeclaredError, PayloadSpec, unpack_blocks

BLOCKS = (CodedBlock(9, Picky()), CodedBlock(3, Steps()))
LENGTH = (4 + 9) + (4 + 3)
FRAME = 64
QUICK = settings(max_examples=200, deadline=None)


class Endless(Steps):
    """Has a length of another kind."""

    def length(self, values: int) -> Any:
        return values / 2


def coded(values: list[float], block: CodedBlock) -> bytes:
    return block.pack(torch.tensor(values)).numpy().tobytes()


@QUICK
@given(st.binary(min_size=LENGTH, max_size=LENGTH))
def test_whatever_is_written_is_refused_or_finite(data: bytes) -> None:
    with suppress(ValueError):
        for block, values in zip(BLOCKS, unpack_blocks(BLOCKS, memoryview(data)), strict=True):
            assert values.shape == (block.size,)
            assert values.dtype == torch.float32
            assert values.isfinite().all()


RIGHT = coded([0.0] * 9, BLOCKS[0]) + coded([1.0, -1.0, 0.5], BLOCKS[1])
WRONG = {
    "raises": (b"\0\0\0\0\1", "`decode` raises KeyError$"),
    "exits": (b"\0\0\0\0\2", "`decode` raises SystemExit$"),
    "too many values": (b"\0\0\0\0\3", "something else than 9 values on the CPU"),
    "other values": (b"\0\0\0\0\4", "something else than float32 values"),
    "not finite": (b"\0\0\x80\x7f\x05", "`decode` gives values that are not finite"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_decoded_is_refused_at_the_wire(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, why = WRONG[name]
    offer_wrong_then_right(monkeypatch, "codec", BLOCKS, (begin + RIGHT[len(begin) :], why), RIGHT)


def test_a_message_is_judged_once() -> None:
    """Its last frame, sent again, buys no other judgement; a lack of memory here is no word against its sender."""
    calls: list[int] = []

    class Counted(Steps):
        def decode(self, content: torch.Tensor, values: int) -> torch.Tensor:
            calls.append(values)
            if len(calls) == 1:
                raise MemoryError
            raise ValueError

    block = CodedBlock(2 * FRAME, Counted())
    payload = PayloadSpec("v", block.length, 0, 1, 9, "codec", blocks=(block,))
    inbox = Inbox(Limits(frame=FRAME), pageable)
    heading = Heading(Key(0, 1, 0), 0, 0, 0, 0, block.length)

    def frame(number: int) -> Frame:
        part = bytes(block.length)[number * FRAME : (number + 1) * FRAME]
        return decode(encode_frame(heading, number, b"", memoryview(part)))

    for number in range(2):
        assert inbox.add(frame(number), payload) == "new"
    with pytest.raises(BadFrameError, match="not enough memory to decode it"):
        inbox.add(frame(2), payload)
    for _ in range(5):
        with pytest.raises(NotDeclaredError, match="`decode` raises ValueError"):
            inbox.add(frame(2), payload)
    assert len(calls) == 2


def test_what_arrives_cannot_be_changed_by_decoding_it() -> None:
    """A message is kept as it came: its digest has been taken, and others may get it from here."""
    content = bytearray(RIGHT[:4] + b"\4" + RIGHT[5:])
    with suppress(ValueError):
        [*unpack_blocks(BLOCKS, memoryview(content))]
    assert content[4] == 4


@pytest.mark.parametrize(
    ("codec", "why"),
    [
        (Forgetful(), "`encode` gives other bytes the second time; draw from its `generator` alone"),
        (Dividing(), "`decode` gives values that are not finite"),
        (Short(), r"`encode` gives torch.uint8 \(504,\); by `length` it is torch.uint8 \(500,\)"),
        (Drawing(), "`decode` gives other values the second time; it must not draw"),
        (Upscaled(), "it loses more of a vector than it keeps"),
        (Endless(), "`length` gives 250.0 for 500 values; it is a whole number from 1 up"),
    ],
)
def test_what_is_wrong_with_a_codec_is_found_before_it_is_used(codec: Codec, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        CodedBlock(500, codec).rehearse()  # so many that no two draws are alike
    for right in (Steps(), Learnt()):
        CodedBlock(500, right).rehearse()


def test_weights_of_a_codec_are_not_learnt() -> None:
    block = CodedBlock(3, Learnt())
    assert not block.unpack(memoryview(coded([1.0, -1.0, 0.5], block))).requires_grad


def test_peers_whose_codecs_differ_have_other_manifests() -> None:
    def manifest(codec: Callable[[], Codec]) -> str:
        return Manifest((PayloadSpec("v", 13, 0, 1, 9, "codec", blocks=(CodedBlock(9, codec()),)),)).digest

    assert manifest(Steps) == manifest(Steps)
    assert manifest(Steps) != manifest(lambda: Steps(steps=100))
