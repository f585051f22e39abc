"""What one neighbour has sent: frames assembled into messages, the first of a key and index wins (rule R5)."""

import asyncio
from collections.abc import Callable
from math import isfinite
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from peer.network.limits import Limits
from peer.network.wire.frames import BadFrameError, Frame, Heading, Key, frame_count, vector_bytes
from peer.network.wire.manifest import DTYPES, NotDeclaredError, Payload

Memory = Callable[[int, torch.dtype], Tensor]
"""Where an arriving vector of so many values is put together, on the CPU, whatever was in it."""
Fate = Literal["new", "repeat", "conflict"]
"""What became of a frame: kept, here already, or here already with other content (the first one counts)."""


def pageable(size: int, dtype: torch.dtype) -> Tensor:
    """Memory as any other."""
    return torch.empty(size, dtype=dtype)


class Message:
    """A message that is arriving: float64 scalars with frame 0, and the vector's values frame by frame."""

    def __init__(self, heading: Heading, payload: Payload, frame: int, memory: Memory) -> None:
        self.heading, self._payload, self._frame = heading, payload, frame
        self.values = memory(heading.length // payload.width, DTYPES[payload.kind])
        self.scalars: tuple[float, ...] = ()
        self._bytes = vector_bytes(self.values)
        self._digests: list[int] = []
        self.released = False
        """Handed over to who waited for it."""

    @property
    def next(self) -> int:
        """The first missing frame."""
        return len(self._digests)

    @property
    def complete(self) -> bool:
        return self.has(self.heading.length)

    @property
    def bytes(self) -> int:
        """Of its vector and its numbers, as far as they are here or there is a place for them."""
        return self.values.nbytes + 8 * len(self.scalars)

    @property
    def empty(self) -> bool:
        """Nothing was sent but the word that nothing is: neither values nor scalars."""
        return not self.heading.length and not self.heading.doubles

    def has(self, count: int) -> bool:
        """Whether its first `count` bytes are here, or all if it has fewer."""
        return self.next >= frame_count(min(count, self.heading.length), self._frame)

    def add(self, frame: Frame) -> Fate:
        """Take a frame in, unless it is here already."""
        if frame.heading != self.heading:
            return "conflict"
        if frame.index < self.next:
            return "repeat" if frame.digest == self._digests[frame.index] else "conflict"
        if frame.index > self.next:
            raise BadFrameError(f"frame {frame.index} came before frame {self.next}")
        if frame.index == 0:
            self.scalars = tuple(np.frombuffer(frame.scalars, "<f8").tolist())
        start = self._frame * frame.index
        self._bytes[start : start + len(frame.values)] = frame.values
        if not all(map(isfinite, self.scalars)) or not self._is_finite(start, len(frame.values)):
            raise NotDeclaredError("its values are not finite")
        if frame.index + 1 == frame_count(self.heading.length, self._frame):
            self._payload.check_content(self._bytes)
        self._digests.append(frame.digest)
        return "new"

    def _is_finite(self, start: int, count: int) -> bool:
        """A sum shows every NaN and infinity at a fraction of the cost of looking for them; bytes are not numbers."""
        return not self._payload.numbers or isfinite(float(self.block(start, count).sum()))

    def release(self) -> tuple[Tensor, tuple[float, ...]]:
        """The values and the scalars, kept here no longer."""
        values, scalars, nothing = self.values, self.scalars, torch.empty(0)
        self.values, self.scalars, self._bytes = nothing, (), vector_bytes(nothing)
        self.released = True
        return values, scalars

    def block(self, start: int, count: int) -> Tensor:
        """The values of `count` bytes from `start` on, a view."""
        width = self._payload.width
        return self.values[start // width : (start + count) // width]


class Inbox:
    """All messages of one sender from this peer's present round on."""

    def __init__(self, limits: Limits, memory: Memory) -> None:
        self._limits, self._memory = limits, memory
        self.messages: dict[Key, Message] = {}
        self.awaited: Key | None = None
        """The message that the protocol waits for now."""
        self.held = 0
        """Bytes of all vectors and numbers that wait to be consumed."""
        self._waiting = 0
        """In how many messages they are."""
        self._silent: set[Key] = set()
        self._changed = asyncio.Event()

    def add(self, frame: Frame, payload: Payload) -> Fate:
        """Keep a frame; BadFrameError or NotDeclaredError when it is none that an honest neighbour sends."""
        frame.check(self._limits.frame)
        if frame.key in self._silent and (frame.heading.length or frame.heading.doubles):
            raise NotDeclaredError(
                f"`{payload.name}` was not to come from this sender in round {frame.key.round} (`of`)"
            )
        message = self.messages.get(frame.key)
        if message is None:
            if frame.index:
                raise BadFrameError(f"frame {frame.index} came before frame 0")
            message = Message(frame.heading, payload, self._limits.frame, self._memory)
        fate = message.add(frame)
        if frame.key not in self.messages:  # not before: what is refused must leave room for what is right
            self.messages[frame.key] = message
            self.held += message.bytes
            self._waiting += 1
        self._changed.set()
        return fate

    def silence(self, key: Key) -> bool:
        """Take nothing but an empty message under that key from now on; whether another one is here already."""
        self._silent.add(key)
        message = self.messages.get(key)
        if message is None or message.empty:
            return False
        self._drop(key)
        return True

    async def room(self, count: int) -> None:
        """Wait until no more than so many bytes wait to be consumed, with what each message takes besides.

        Nobody waits in vain: a protocol has at most three exchanges under way that it does not wait for, so what is
        needed next from this sender is here already, or there is room for it.
        """
        while self.held + self._limits.message * self._waiting > count:
            self._changed.clear()
            await self._changed.wait()

    def consume(self, message: Message) -> tuple[Tensor, tuple[float, ...]]:
        """A message's values and scalars, handed over: only the digests are kept, to recognise a repeat."""
        self._hand_over(message)
        released = message.release()
        self._changed.set()
        return released

    def _hand_over(self, message: Message) -> None:
        self._waiting -= not message.released
        self.held -= message.bytes

    def _drop(self, key: Key) -> None:
        self._hand_over(self.messages.pop(key))

    async def message(self, key: Key, count: int) -> Message:
        """The message of that key, once its first `count` bytes are here, or all if it has fewer."""
        while (message := self.messages.get(key)) is None or not message.has(count):
            self.awaited = key
            self._changed.clear()
            await self._changed.wait()
        self.awaited = None
        return message

    def forget(self, before: int) -> None:
        """Drop the messages of rounds before that one: this life of the peer is past them."""
        for key in [key for key in self.messages if key.round < before]:
            self._drop(key)
        self._silent = {key for key in self._silent if key.round >= before}
        self._changed.set()
