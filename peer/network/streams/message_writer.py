"""A message on its way out: cut into frames, encoded once for all who get it."""

import asyncio
from collections.abc import Iterator, Sequence

from torch import Tensor

from peer.network.streams.outbox import Outbox, Outgoing
from peer.network.wire.frames import FLOATS_PER_FRAME, Key, encode_frame, float_bytes, frame_count


class MessageWriter:
    """A message on its way into the outboxes, block by block in order."""

    def __init__(
        self,
        boxes: Sequence[Outbox],
        serials: Iterator[int],
        key: Key,
        payload: int,
        scalars: bytes,
        offset: int,
        length: int,
    ) -> None:
        self._boxes, self._serials, self._key, self._payload = boxes, serials, key, payload
        self._scalars, self._offset, self._length = scalars, offset, length
        self._index = 0

    def write(self, block: Tensor) -> None:
        """The next frame's float32 values, on the CPU; its bytes are copied once for all receivers."""
        data = encode_frame(
            self._key,
            self._payload,
            self._index,
            self._scalars,
            self._offset,
            self._length,
            float_bytes(block),
        )
        frame = Outgoing(next(self._serials), self._key, self._index, data)
        for box in self._boxes:
            box.append(frame)
        self._index += 1

    async def write_all(self, vector: Tensor) -> None:
        """The whole message, yielding between frames so that sending begins at once."""
        for index in range(frame_count(self._length)):
            self.write(vector[FLOATS_PER_FRAME * index : FLOATS_PER_FRAME * (index + 1)])
            await asyncio.sleep(0)
