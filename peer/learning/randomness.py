"""Random streams, each derived by hashing from what it is for: none depends on the use of another."""

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from operator import index
from typing import SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray

_GLOBAL_STREAM = threading.RLock()


def derive(seed: int, *path: SupportsIndex | str) -> int:
    """A 64-bit seed from the run's seed and what the stream is for, e.g. `derive(42, "peer3", 7, "order")`.

    SHA-256 over the parts' `repr`, joined by a separator: 1 and "1" differ, and so do ("a", "b") and ("ab",).
    """
    text = "\x1f".join(repr(part if isinstance(part, str) else index(part)) for part in (seed, *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def torch_generator(seed: int, peer: str, round: int, purpose: str) -> torch.Generator:
    """The torch stream (on the CPU, whatever the model's device) of one peer, round and purpose."""
    return torch.Generator().manual_seed(derive(seed, peer, round, purpose))


def draw(total: int, count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw `count` of `total` positions: those drawn and the rest, each ascending."""
    order = np.random.default_rng(seed).permutation(total)
    return np.sort(order[:count]), np.sort(order[count:])


@contextmanager
def global_stream(seed: int | None, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generator for the block (None: go on as it is) and put it back afterwards.

    Layers such as dropout, and the initialisation of every layer, draw from the one generator of the process.
    The lock keeps peers that share a process out of each other's stream; code that draws nothing need not enter.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with _GLOBAL_STREAM, torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.manual_seed(seed)
        yield


@contextmanager
def sample_streams() -> Iterator[None]:
    """Let code inside the block draw from the process's generators of Python, NumPy and torch, by `draw_from`.

    They are put back afterwards.
    """
    with global_stream(None):
        python, numpy = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def draw_from(seed: int) -> None:
    """Begin a stream in all three generators; inside `sample_streams`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
