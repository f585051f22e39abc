"""Frames: a 64-byte header, then float64 scalars (in a message's first frame), then float32 values.

All numbers are little-endian. The digest is xxh3-64 over the header before it and everything after it: it
finds damage, not malice. docs/wire.md has the table of offsets.
"""

import struct
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import xxhash
from torch import Tensor

MAGIC = b"DFL1"
HEADER = struct.Struct("<4sHHIIIIQQII8xQ")
FLOATS_PER_FRAME = 1 << 18
"""1 MiB: larger frames delay others, smaller ones cost more CPU a byte."""
MAX_DOUBLES = 4096
MAX_FRAME = HEADER.size + 8 * MAX_DOUBLES + 4 * FLOATS_PER_FRAME

if sys.byteorder != "little":
    raise ImportError("peers exchange little-endian numbers as they lie in memory; this machine is big-endian")


class BadFrameError(Exception):
    """A frame that is not one, or is damaged; says what is wrong with it."""


class Key(NamedTuple):
    """Names a message among all those of one sender: the step counts collectives within a round."""

    view: int
    round: int
    step: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a message, decoded; `scalars` and `values` are views into the received bytes."""

    key: Key
    payload: int
    """Number of the payload in the manifest."""
    index: int
    doubles: int
    """How many scalars the message has; they travel in its frame 0."""
    offset: int
    """Where in the payload's vector the message begins, in floats."""
    length: int
    """How many floats the whole message has."""
    digest: int
    scalars: memoryview
    values: memoryview


def float_bytes(vector: Tensor) -> memoryview:
    """The bytes of a contiguous float32 vector on the CPU, in place."""
    buffer: Any = vector.numpy()
    return memoryview(buffer).cast("B") if vector.numel() else memoryview(bytearray())


def frame_count(length: int) -> int:
    """Frames of a message of `length` floats; at least one."""
    return max(1, -(-length // FLOATS_PER_FRAME))


def encode_frame(
    key: Key, payload: int, index: int, scalars: bytes, offset: int, length: int, values: memoryview
) -> bytes:
    """One frame. `scalars` are the whole message's (they are written into frame 0 only), `values` this frame's."""
    carried = scalars if index == 0 else b""
    head = HEADER.pack(
        MAGIC, payload, len(scalars) // 8, *key, index, offset, length, len(carried) + len(values), 0, 0
    )[:-8]
    digest = xxhash.xxh3_64(head)
    digest.update(carried)
    digest.update(values)
    return b"".join((head, digest.intdigest().to_bytes(8, "little"), carried, values))


def decode(data: bytes) -> Frame:
    """Raise BadFrameError for everything that `encode_frame` cannot have written."""
    if len(data) < HEADER.size:
        raise BadFrameError(f"{len(data)} bytes are too few for a frame")
    magic, payload, doubles, view, round, step, index, offset, length, size, zero, digest = HEADER.unpack_from(data)
    if magic != MAGIC or zero:
        raise BadFrameError("it does not begin like a frame")
    body = memoryview(data)[HEADER.size :]
    if len(body) != size:
        raise BadFrameError(f"{len(body)} bytes follow the header, which says {size}")
    carried = 8 * doubles if index == 0 else 0
    expected = carried + 4 * min(FLOATS_PER_FRAME, length - FLOATS_PER_FRAME * index)
    if doubles > MAX_DOUBLES or index >= frame_count(length) or size != expected:
        raise BadFrameError("its sizes contradict each other")
    found = xxhash.xxh3_64(memoryview(data)[: HEADER.size - 8])
    found.update(body)
    if found.intdigest() != digest:
        raise BadFrameError("its checksum is wrong")
    scalars, values = body[:carried], body[carried:]
    return Frame(Key(view, round, step), payload, index, doubles, offset, length, digest, scalars, values)
