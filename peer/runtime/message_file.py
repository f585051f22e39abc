"""The frames of one round with their receivers, as one safetensors file."""

import json

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from peer.network.streams.outbox import Frames
from peer.network.wire.frames import decode


def packed(frames: Frames) -> bytes:
    tensors = {f"{number:08d}": np.frombuffer(data, np.uint8) for number, (_, data) in enumerate(frames)}
    receivers = json.dumps([to for to, _ in frames])
    return safetensors.numpy.save(tensors, {"receivers": receivers})


def unpacked(content: bytes) -> Frames:
    """ValueError or KeyError where that is no such file."""
    try:
        tensors = safetensors.numpy.load(content)
        size = int.from_bytes(content[:8], "little")
        receivers = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["receivers"])
    except (SafetensorError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return [(to, tensors[f"{number:08d}"].tobytes()) for number, to in enumerate(receivers)]


def check_frames(content: bytes) -> None:
    """By the frames' own checksums: BadFrameError, ValueError or KeyError where they are damaged."""
    for _, data in unpacked(content):
        decode(data)
