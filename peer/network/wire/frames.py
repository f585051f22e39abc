"""Frames: a 64-byte header, then float64 scalars (in a message's first frame), then bytes of a vector.

All numbers are little-endian. The digest is xxh3-64 over the header before it and everything after it: it finds
damage, not malice. docs/wire.md has the table of offsets.

A message is named by its `Key`. Every peer makes the same calls of collectives in the same order, so the number of
a `Call` within the round names its messages at all peers alike.
"""

import struct
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import xxhash

MAGIC = b"DFL2"
HEADER = struct.Struct("<4sHHIIIIIQQI8xQ")
MAX_DOUBLES = 4096

if sys.byteorder != "little":
    raise ImportError("peers exchange little-endian numbers as they lie in memory; this machine is big-endian")


class BadFrameError(Exception):
    """Bytes that are not a frame, or a damaged one; the text says what is wrong."""


class Key(NamedTuple):
    """Names a message among all those of one sender: the step counts collectives within a round."""

    view: int
    round: int
    step: int


class Heading(NamedTuple):
    """What all frames of a message have in common."""

    key: Key
    payload: int
    """Number of the payload in the manifest."""
    call: int
    """Names the collective call and its scalars (`Call.tag`): peers that make different calls find out."""
    doubles: int
    """How many scalars the message has; they travel in its frame 0."""
    offset: int
    """Where in the payload's vector the message begins, in bytes."""
    length: int
    """How many bytes of the vector the whole message has."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a message, decoded; `scalars` and `values` are views into the received bytes."""

    heading: Heading
    index: int
    digest: int
    scalars: memoryview
    values: memoryview

    @property
    def key(self) -> Key:
        return self.heading.key

    def check(self, size: int) -> None:
        """Raise BadFrameError unless the frame is cut as messages are, `size` bytes of the vector to a frame."""
        heading = self.heading
        values = min(size, heading.length - size * self.index)
        if self.index >= frame_count(heading.length, size) or len(self.values) != values:
            raise BadFrameError("its sizes contradict each other")


def frame_count(length: int, size: int) -> int:
    """Frames of a message of `length` bytes, `size` to a frame; at least one."""
    return max(1, -(-length // size))


def largest_frame(size: int) -> int:
    """The most bytes that a frame has which carries up to `size` bytes of a vector."""
    return HEADER.size + 8 * MAX_DOUBLES + size


def encode_frame(heading: Heading, index: int, scalars: bytes, values: memoryview) -> bytes:
    """One frame. `scalars` are the whole message's (they are written into frame 0 only), `values` this frame's."""
    carried = scalars if index == 0 else b""
    head = HEADER.pack(
        MAGIC,
        heading.payload,
        heading.doubles,
        *heading.key,
        heading.call,
        index,
        heading.offset,
        heading.length,
        len(carried) + len(values),
        0,
    )[:-8]
    digest = xxhash.xxh3_64(head)
    digest.update(carried)
    digest.update(values)
    return b"".join((head, digest.intdigest().to_bytes(8, "little"), carried, values))


def decode(data: bytes) -> Frame:
    """Raise BadFrameError for what is not a frame, or not as it was sent; `Frame.check` checks how it was cut."""
    if len(data) < HEADER.size:
        raise BadFrameError(f"{len(data)} bytes are too few for a frame")
    magic, payload, doubles, view, round, step, call, index, offset, length, size, digest = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise BadFrameError("it does not begin like a frame")
    body = memoryview(data)[HEADER.size :]
    if len(body) != size:
        raise BadFrameError(f"{len(body)} bytes follow the header, which says {size}")
    carried = 8 * doubles if index == 0 else 0
    if doubles > MAX_DOUBLES or carried > size:
        raise BadFrameError("its sizes contradict each other")
    found = xxhash.xxh3_64(memoryview(data)[: HEADER.size - 8])
    found.update(body)
    if found.intdigest() != digest:
        raise BadFrameError("its checksum is wrong")
    heading = Heading(Key(view, round, step), payload, call, doubles, offset, length)
    return Frame(heading, index, digest, body[:carried], body[carried:])


@dataclass(frozen=True)
class Call:
    """Every peer makes the same calls in the same order; a call has up to 65,536 steps from `step` on."""

    round: int
    step: int
    collective: str
    name: str
    """Of the vector or record."""
    scalars: tuple[str, ...] = ()
    """Names of the numbers that go with it, in the order in which they are sent."""

    def at(self, step: int) -> "Call":
        """A later step of the same call."""
        return replace(self, step=self.step + step)

    @cached_property
    def tag(self) -> int:
        """What travels of the names: peers that call one another's numbers by other names find out."""
        return xxhash.xxh32_intdigest("\0".join((self.collective, *self.scalars)).encode())

    def __str__(self) -> str:
        names = "".join(f", {name}" for name in self.scalars)
        return f"{self.collective}(`{self.name}`{names})"
