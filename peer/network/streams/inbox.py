"""What one neighbour has sent: frames assembled into messages, the first of a key and index wins (rule R5)."""

import asyncio
from math import isfinite
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from peer.network.limits import Limits
from peer.network.wire.frames import FLOATS_PER_FRAME, BadFrameError, Frame, Key, float_bytes, frame_count
from peer.network.wire.manifest import NotDeclaredError

Fate = Literal["new", "repeat", "conflict"]
"""What became of a frame: kept, here already, or here already with other content (the first one counts)."""


class Message:
    """A message that is arriving: float64 scalars with frame 0, and float32 values frame by frame."""

    def __init__(self, frame: Frame) -> None:
        self.payload, self.offset, self.length, self.doubles = (
            frame.payload,
            frame.offset,
            frame.length,
            frame.doubles,
        )
        self.values = torch.empty(frame.length, dtype=torch.float32)
        self.scalars: tuple[float, ...] = ()
        self._bytes = float_bytes(self.values)
        self._digests: list[int] = []

    @property
    def next(self) -> int:
        """The first missing frame."""
        return len(self._digests)

    @property
    def complete(self) -> bool:
        return self.next == frame_count(self.length)

    def add(self, frame: Frame) -> Fate:
        """Take a frame in, unless it is here already."""
        shape = (frame.payload, frame.offset, frame.length, frame.doubles)
        if shape != (self.payload, self.offset, self.length, self.doubles):
            return "conflict"
        if frame.index < self.next:
            return "repeat" if frame.digest == self._digests[frame.index] else "conflict"
        if frame.index > self.next:
            raise BadFrameError(f"frame {frame.index} came before frame {self.next}")
        if frame.index == 0:
            self.scalars = tuple(np.frombuffer(frame.scalars, "<f8").tolist())
        start = 4 * FLOATS_PER_FRAME * frame.index
        self._bytes[start : start + len(frame.values)] = frame.values
        # A sum shows every NaN and infinity at a fraction of the cost of looking for them.
        if not (isfinite(sum(self.scalars)) and isfinite(float(self.block(frame.index).sum()))):
            raise NotDeclaredError("its values are not finite")
        self._digests.append(frame.digest)
        return "new"

    def release(self) -> Tensor:
        """The values, kept here no longer."""
        values, self.values, self._bytes = self.values, torch.empty(0), float_bytes(torch.empty(0))
        return values

    def block(self, index: int) -> Tensor:
        """The values of one frame, a view."""
        return self.values[FLOATS_PER_FRAME * index : FLOATS_PER_FRAME * (index + 1)]


class Inbox:
    """All messages of one sender from this peer's present round on."""

    def __init__(self, limits: Limits = Limits()) -> None:
        self._limits = limits
        self.messages: dict[Key, Message] = {}
        self.awaited: Key | None = None
        """The message that the protocol waits for now."""
        self._changed = asyncio.Event()

    def add(self, frame: Frame) -> Fate:
        """Keep a frame; BadFrameError or NotDeclaredError when it is none that an honest neighbour sends."""
        message = self.messages.get(frame.key)
        if message is None:
            if frame.index:
                raise BadFrameError(f"frame {frame.index} came before frame 0")
            if len(self.messages) >= self._limits.messages:
                raise NotDeclaredError(f"more than {self._limits.messages} messages in the rounds under way")
            message = self.messages[frame.key] = Message(frame)
        fate = message.add(frame)
        self._changed.set()
        return fate

    @property
    def floats_held(self) -> int:
        """Length of all vectors that wait to be consumed."""
        return sum(message.values.numel() for message in self.messages.values())

    async def room(self, floats: int) -> None:
        """Wait until no more than so many floats wait to be consumed.

        Nobody waits in vain: messages are consumed in the order in which they are sent, so what is needed next
        from this sender is here already.
        """
        while self.floats_held > floats:
            self._changed.clear()
            await self._changed.wait()

    def consume(self, message: Message) -> Tensor:
        """A message's values, handed over: only the digests are kept, to recognise a repeat."""
        values = message.release()
        self._changed.set()
        return values

    async def message(self, key: Key, frames: int) -> Message:
        """The message of that key, once so many of its frames are here, or all if it has fewer."""
        while (message := self.messages.get(key)) is None or message.next < min(frames, frame_count(message.length)):
            self.awaited = key
            self._changed.clear()
            await self._changed.wait()
        self.awaited = None
        return message

    def forget(self, before: int) -> None:
        """Drop the messages of rounds before that one: this life of the peer is past them."""
        for key in [key for key in self.messages if key.round < before]:
            del self.messages[key]
        self._changed.set()
