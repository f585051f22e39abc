"""Frames: a 64-byte header, then float64 scalars (in a message's first frame), then bytes of a vector.

All numbers are little-endian. The digest is xxh3-64 over the header before it and everything after it: it finds
damage, not malice. docs/wire.md has the table of offsets.

A `Key` names a message. Every peer makes the same collective calls in the same order, so the number of a `Call` within
the round identifies its messages at all peers.
"""

import struct
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import xxhash

from peer.text import plural

MAGIC = b"DFL2"
HEADER = struct.Struct("<4sHHIIIIIQQI8xQ")
MAX_DOUBLES = 4096

if sys.byteorder != "little":
    raise ImportError("peers exchange little-endian numbers as they lie in memory; this machine is big-endian")


class BadFrameError(Exception):
    """Bytes that are not a frame, or a damaged one; the text says what is wrong."""


class Key(NamedTuple):
    """Names a message among all those of one sender; the step counts collective calls within a round."""

    view: int
    round: int
    step: int


class Heading(NamedTuple):
    """What all frames of a message have in common."""

    key: Key
    payload: int
    """The number of the payload in the manifest."""
    call: int
    """A checksum of the collective and the names of its scalars (`Call.tag`), which shows if peers differ in a call."""
    doubles: int
    """How many scalars the message has; they travel in frame 0."""
    offset: int
    """The byte of the payload's vector at which the message begins."""
    length: int
    """How many bytes of the vector the whole message has."""


class MessageShape(NamedTuple):
    """What every peer sends in a call."""

    length: int | None
    """Bytes of the vector; None: any number."""
    scalars: int = 0
    offset: int = 0
    """Where in the vector the message begins, in bytes."""
    may_be_empty: bool = False
    """Whether the message may also be empty."""

    def __str__(self) -> str:
        start = f" from byte {self.offset} on" if self.offset else ""
        return f"{self.length} bytes{start} with {plural(self.scalars, 'number')}"


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
        """Raise BadFrameError unless the message is cut into frames of `size` bytes of the vector."""
        heading = self.heading
        values = min(size, heading.length - size * self.index)
        if self.index >= frame_count(heading.length, size) or len(self.values) != values:
            raise BadFrameError("its sizes contradict each other")


def frame_count(length: int, size: int) -> int:
    """The number of frames of a message of `length` bytes with `size` bytes per frame; at least 1."""
    return max(1, -(-length // size))


def largest_frame(size: int) -> int:
    """The most bytes of a frame that carries up to `size` bytes of a vector."""
    return HEADER.size + 8 * MAX_DOUBLES + size


def encode_frame(heading: Heading, index: int, scalars: bytes, values: memoryview) -> bytes:
    """Encode a frame. scalars: the whole message's, written only into frame 0. values: this frame's."""
    carried = scalars if index == 0 else b""
    key, payload, call, doubles, offset, length = heading
    size = len(carried) + len(values)
    head = HEADER.pack(MAGIC, payload, doubles, *key, call, index, offset, length, size, 0)[:-8]
    digest = xxhash.xxh3_64(head)
    digest.update(carried)
    digest.update(values)
    return b"".join((head, digest.intdigest().to_bytes(8, "little"), carried, values))


def decode(data: bytes) -> Frame:
    """Decode a frame; BadFrameError if it is none, or damaged. `Frame.check` checks how its message was cut."""
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
    """A collective call, the same at every peer; it has up to 65,536 steps from `step` on."""

    round: int
    step: int
    collective: str
    name: str
    """The name of the vector or record."""
    scalars: tuple[str, ...] = ()
    """The names of the scalars that go with it, in the order in which they are sent."""

    def at(self, step: int) -> "Call":
        """A later step of the same call."""
        return replace(self, step=self.step + step)

    @cached_property
    def tag(self) -> int:
        """The checksum of the names that travels, so that peers notice if they name scalars differently."""
        return xxhash.xxh32_intdigest("\0".join((self.collective, *self.scalars)).encode())

    def __str__(self) -> str:
        names = "".join(f", {name}" for name in self.scalars)
        return f"{self.collective}(`{self.name}`{names})"
