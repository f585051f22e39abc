"""A message on its way out: cut into frames, encoded once for all who get it."""

import asyncio
import struct
from collections.abc import Iterator, Sequence

from torch import Tensor

from peer.network.streams.outbox import KeptFrame, Outbox
from peer.network.wire.frames import Heading, encode_frame, frame_count, vector_bytes


class MessageWriter:
    """Puts a message into the outboxes of its receivers, block by block in order; `frame` bytes to a frame."""

    def __init__(
        self, boxes: Sequence[Outbox], serials: Iterator[int], heading: Heading, scalars: Sequence[float], frame: int
    ) -> None:
        self._boxes, self._serials, self._heading, self._frame = boxes, serials, heading, frame
        self._scalars = struct.pack(f"<{len(scalars)}d", *scalars)
        self._index = 0

    def write(self, block: memoryview) -> None:
        """The next frame's bytes; they are copied once for all receivers."""
        data = encode_frame(self._heading, self._index, self._scalars, block)
        frame = KeptFrame(next(self._serials), self._heading.key, self._index, data)
        for box in self._boxes:
            box.append(frame)
        self._index += 1

    def write_all(self, vector: Tensor) -> None:
        """The whole message, as the vector is now: what changes it afterwards does not change what was sent."""
        for block in self._blocks(vector):
            self.write(block)

    async def write_gradually(self, vector: Tensor) -> None:
        """The whole message of a vector that nobody changes meanwhile: the first frame is under way while the next is
        encoded, which for tens of megabytes saves a tenth of the time."""
        for block in self._blocks(vector):
            self.write(block)
            await asyncio.sleep(0)

    def _blocks(self, vector: Tensor) -> Iterator[memoryview]:
        data = vector_bytes(vector)
        for index in range(frame_count(len(data), self._frame)):
            yield data[self._frame * index : self._frame * (index + 1)]
