"""The manifest: every vector and record that may travel, by name and size. Nothing else gets onto the wire.

A `top-k` message has some values of a vector and their places, in a block for each part of the vector. A block has the
places, then the values, which are float32 in ascending order of their places. Places are a bitmap of the block (the
first place is the lowest bit of the first byte) or, if that is shorter, uint32 numbers. All numbers are little-endian.
So a message's length is known beforehand, and the manifest can tell whether bytes are such a message.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.network.wire.codec import CodedBlock

Places = NDArray[np.int64]
Values = NDArray[np.float32]
Unpacked = TypeVar("Unpacked", covariant=True)
TOP_K_WIDTH = 4
"""Bytes of a value, and of a place that is a number."""


class TopKBlock(NamedTuple):
    """The form of a block: some of `size` consecutive values."""

    size: int
    """The number of values."""
    kept: int
    """The number of values that are sent."""

    @property
    def bitmap(self) -> bool:
        return -(-self.size // 8) <= TOP_K_WIDTH * self.kept

    @property
    def places_length(self) -> int:
        """The bytes that the places take."""
        return -(-self.size // 8) if self.bitmap else TOP_K_WIDTH * self.kept

    @property
    def length(self) -> int:
        """The bytes of the whole block."""
        return self.places_length + TOP_K_WIDTH * self.kept

    def unpack(self, content: memoryview) -> tuple[Places, Values]:
        """The places and values; ValueError if the bytes, which are untrusted, are no such block."""
        places = _places(self, content[: self.places_length])
        values = np.frombuffer(content[self.places_length :], "<f4")
        if not np.isfinite(values).all():
            raise ValueError("its values are not finite")
        return places, values


def pack_top_k(block: TopKBlock, places: Places, values: Values) -> bytes:
    """Encode a block. places: (block.kept,), ascending. values: (block.kept,), in the order of the places."""
    if not block.bitmap:
        return places.astype("<u4").tobytes() + values.astype("<f4").tobytes()
    chosen = np.zeros(block.size, np.bool_)
    chosen[places] = True
    return np.packbits(chosen, bitorder="little").tobytes() + values.astype("<f4").tobytes()


class Block(Protocol[Unpacked]):
    """The form of a part of an encoded message."""

    @property
    def length(self) -> int: ...

    def unpack(self, content: memoryview) -> Unpacked: ...


def unpack_blocks(blocks: Sequence[Block[Unpacked]], content: memoryview) -> Iterator[Unpacked]:
    """Yield what is in each block; ValueError if the content is not these blocks.

    content: untrusted; any bytes of any length.
    """
    if len(content) != sum(block.length for block in blocks):
        raise ValueError("its length is not that of its blocks")
    start = 0
    for block in blocks:
        yield block.unpack(content[start : start + block.length])
        start += block.length


def _places(block: TopKBlock, content: memoryview) -> Places:
    if block.bitmap:
        places = np.flatnonzero(np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little"))
    else:
        places = np.frombuffer(content, "<u4").astype(np.int64)
    if len(places) != block.kept or bool((np.diff(places) <= 0).any()):
        raise ValueError("its places are not so many different ones in ascending order")
    if block.kept and places[-1] >= block.size:
        raise ValueError(f"it has a value at place {places[-1]} of {block.size}")
    return places


Kind = Literal["float32", "bfloat16", "top-k", "codec", "uint8"]
DTYPES: dict[Kind, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "top-k": torch.uint8,
    "codec": torch.uint8,
    "uint8": torch.uint8,
}
INFINITIES: dict[Kind, tuple[str, str, int]] = {
    "float32": ("<u4", "<i4", 0x7F800000),
    "bfloat16": ("<u2", "<i2", 0x7F80),
}
"""For each kind of numbers, the integer types as which to read their bits, and the bits of infinity."""


def vector_bytes(vector: Tensor) -> memoryview:
    """The bytes of a contiguous CPU vector, without a copy."""
    buffer: Any = vector.view(torch.uint8).numpy()  # numpy has no bfloat16
    return memoryview(buffer) if vector.numel() else memoryview(bytearray())


class NotDeclaredError(Exception):
    """Raised for a message that the manifest does not allow; the text says which and why."""


@dataclass(frozen=True)
class PayloadSpec:
    """One kind of message: a named vector with a few float64 scalars, or scalars alone."""

    name: str
    size: int
    """The number of values of the vector; a message may carry some of them."""
    doubles: int
    """The most float64 scalars of a message."""
    first_round: int
    last_round: int
    kind: Kind = "float32"
    """The kind of values. top-k: some values and their places; codec: as a user's codec encodes them, both in `blocks`;
    uint8: bytes that are not checked."""
    tensors: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    """Name, shape and dtype of the tensors in the vector, in order."""
    head: tuple[int, int] = (0, 0)
    """The range [start, end) of the head in the vector, as declared; its bytes are counted separately."""
    every: int = 1
    """It travels in the first of its rounds and in every `every`-th one after that."""
    blocks: tuple[TopKBlock | CodedBlock, ...] = ()
    """The blocks of an encoded message, one for each part of the vector. A message has all of them, or is empty."""

    @property
    def width(self) -> int:
        """Bytes of one value."""
        return DTYPES[self.kind].itemsize

    def travels(self, round: int) -> bool:
        return round in range(self.first_round, self.last_round + 1, self.every)

    def check_values(self, content: memoryview) -> None:
        """Raise NotDeclaredError unless all values of a frame are finite; kinds that are not numbers may be anything.

        Read as integers, infinities and NaNs are the largest values of their sign.
        """
        if self.kind not in INFINITIES:
            return
        unsigned, signed, infinity = INFINITIES[self.kind]
        bits = np.frombuffer(content, unsigned)
        sign = 1 << (8 * self.width - 1)
        if bits.view(signed).max(initial=0) >= infinity or bits.max(initial=0) >= sign | infinity:
            raise NotDeclaredError("its values are not finite")

    def check_content(self, content: memoryview) -> None:
        """Raise NotDeclaredError unless the bytes of a whole message are the payload's blocks, if it has any."""
        if not self.blocks or not len(content):
            return
        try:
            for _ in unpack_blocks(self.blocks, content):
                pass
        except ValueError as error:
            raise NotDeclaredError(f"`{self.name}` is no such part of a vector: {error}") from None

    def head_bytes(self, offset: int, length: int) -> int:
        """How many of the `length` bytes from `offset` on belong to the head."""
        start, end = (self.width * place for place in self.head)
        return max(0, min(offset + length, end) - max(offset, start))


@dataclass(frozen=True)
class Manifest:
    """All payloads in the order that frames number them."""

    payloads: tuple[PayloadSpec, ...]
    data: tuple[str, ...] = ()
    """The facts in which the peers' data must agree: if each has its own data, they may differ by mistake."""

    @cached_property
    def digest(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True, default=lambda codec: codec.model_dump(mode="json"))
        return hashlib.sha256(text.encode()).hexdigest()

    def number(self, name: str, round: int) -> int:
        """The number of the payload called `name`; NotDeclaredError if it may not travel in this round."""
        named = [number for number, payload in enumerate(self.payloads) if payload.name == name]
        for number in named:
            if self.payloads[number].travels(round):
                return number
        if named:
            raise NotDeclaredError(f"`{name}` is not declared to travel in round {round}")
        raise NotDeclaredError(f"no vector or record called `{name}` is declared to leave a peer")

    def payload(self, name: str, round: int) -> PayloadSpec:
        """The payload called `name`; NotDeclaredError if it may not travel in this round."""
        return self.payloads[self.number(name, round)]

    def check(self, number: int, round: int, doubles: int, offset: int, length: int) -> PayloadSpec:
        """The payload of a frame with this header; NotDeclaredError unless as declared. offset, length: bytes."""
        if number >= len(self.payloads):
            raise NotDeclaredError(f"payload number {number} is not declared")
        payload = self.payloads[number]
        if not payload.travels(round):
            raise NotDeclaredError(f"`{payload.name}` is not declared to travel in round {round}")
        if doubles > payload.doubles:
            raise NotDeclaredError(f"{doubles} scalars came with `{payload.name}`, declared are {payload.doubles}")
        if offset % payload.width or length % payload.width or offset + length > payload.width * payload.size:
            raise NotDeclaredError(
                f"bytes {offset} to {offset + length} of `{payload.name}`, which has {payload.width * payload.size}"
            )
        if payload.blocks and length not in (0, payload.size):
            raise NotDeclaredError(f"{length} bytes of `{payload.name}`, which has {payload.size} or none")
        return payload

    @property
    def largest(self) -> int:
        """The bytes of the largest message."""
        return max((payload.width * payload.size + 8 * payload.doubles for payload in self.payloads), default=0)
