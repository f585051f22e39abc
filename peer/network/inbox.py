"""What one neighbour has sent: frames assembled into messages, the first of a key and index wins (rule R5)."""

import asyncio
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from peer.network.codec import FLOATS_PER_FRAME, BadFrameError, Frame, Key, float_bytes, frame_count
from peer.network.manifest import NotDeclaredError


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

    def add(self, frame: Frame) -> bool:
        """Take a frame in; False for one that is here already with other content."""
        shape = (frame.payload, frame.offset, frame.length, frame.doubles)
        if shape != (self.payload, self.offset, self.length, self.doubles):
            return False
        if frame.index < self.next:
            return frame.digest == self._digests[frame.index]
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
        return True

    def consume(self) -> Tensor:
        """The values, handed over: only the digests are kept, to recognise a repeat."""
        values, self.values, self._bytes = self.values, torch.empty(0), float_bytes(torch.empty(0))
        return values

    def block(self, index: int) -> Tensor:
        """The values of one frame, a view."""
        return self.values[FLOATS_PER_FRAME * index : FLOATS_PER_FRAME * (index + 1)]


class Inbox:
    """All messages of one sender since this peer's durable round."""

    def __init__(self) -> None:
        self.messages: dict[Key, Message] = {}
        self._changed = asyncio.Event()

    def add(self, frame: Frame) -> bool:
        message = self.messages.get(frame.key)
        if message is None:
            if frame.index:
                raise BadFrameError(f"frame {frame.index} came before frame 0")
            message = self.messages[frame.key] = Message(frame)
        accepted = message.add(frame)
        self._changed.set()
        return accepted

    async def message(self, key: Key, frames: int = 1) -> Message:
        """The message of that key, once so many of its frames are here."""
        while (message := self.messages.get(key)) is None or message.next < min(frames, frame_count(message.length)):
            self._changed.clear()
            await self._changed.wait()
        return message

    async def whole(self, key: Key) -> Message:
        first = await self.message(key)
        return await self.message(key, frame_count(first.length))

    def forget(self, durable: int) -> None:
        """Rounds up to `durable` are on this peer's own disk: nothing of them is needed any more."""
        for key in [key for key in self.messages if key.round <= durable]:
            del self.messages[key]
