"""Random streams, each derived by hashing from what it is for: none depends on the use of another."""

import hashlib
import random
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from operator import index
from types import FunctionType, MethodType, ModuleType
from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


def draw_groups(groups: NDArray[Any], count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw whole groups until they have `count` positions or more: those drawn and the rest, each ascending.

    `groups` (n,) says to which each position belongs.
    """
    _, of = np.unique(groups, return_inverse=True)
    sizes = np.bincount(of)
    order = np.random.default_rng(seed).permutation(len(sizes))
    enough = np.searchsorted(np.cumsum(sizes[order]), count) + 1
    drawn = np.isin(of, order[:enough])
    return np.flatnonzero(drawn), np.flatnonzero(~drawn)


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


def draw_from(seed: int, held: Sequence["Generator"] = ()) -> None:
    """Begin a stream in all three generators and in those that user code holds; inside `sample_streams`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    for number, one in enumerate(held):
        own = derive(seed, "held", number)
        match one:
            case np.random.Generator():
                one.bit_generator.state = type(one.bit_generator)(own).state
            case np.random.RandomState():
                one.seed(own % 2**32)
            case torch.Generator():
                one.manual_seed(own)
            case random.Random():
                one.seed(own)


Generator = np.random.Generator | np.random.RandomState | torch.Generator | random.Random
MAX_LOOKED_AT = 20_000
"""Objects in which generators are looked for."""
MAX_ITEMS = 1_000
"""Items of one container that are looked at."""
PLAIN = (str, bytes, int, float, complex, np.ndarray, np.generic, Tensor, ModuleType, type(None))
"""What holds no generator."""
LIBRARIES = sys.stdlib_module_names | {"torch", "torchvision", "numpy", "PIL", "pydantic", "peer"}
"""Whose functions and classes are not looked through: they draw from the process's generators."""


def generators_in(*roots: object) -> list[Generator]:
    """The generators from which these objects may draw, each once, in the order in which they are found.

    They are looked for in attributes, containers and bound arguments at any depth, and in the closures and the global
    names of the functions and methods that are found there. MAX_LOOKED_AT objects are looked at.
    """
    found, seen, ahead = list[Generator](), dict[int, object](), deque(roots)
    while ahead and len(seen) < MAX_LOOKED_AT:
        one = ahead.popleft()
        if isinstance(one, PLAIN) or id(one) in seen:
            continue
        seen[id(one)] = one  # kept, so that its id is not given to another
        if isinstance(one, Generator):
            found.append(one)
        else:
            ahead += _held_by(one)
    return found


def _held_by(one: object) -> Iterator[object]:
    match one:
        case type():
            if _is_users(one.__module__):
                yield from (*one.__bases__, *vars(one).values())
            return
        case FunctionType():
            if not _is_users(one.__module__):
                return
            yield from one.__defaults__ or ()
            yield from (one.__globals__[name] for name in one.__code__.co_names if name in one.__globals__)
            for cell in one.__closure__ or ():
                with suppress(ValueError):  # not filled yet
                    yield cell.cell_contents
        # By the built-in's own methods: a subclass's may run code of theirs, such as imports. No sets: their order is
        # another in a worker.
        case dict():
            yield from islice(dict.values(one), MAX_ITEMS)
        case list():
            yield from islice(list.__iter__(one), MAX_ITEMS)
        case tuple():
            yield from islice(tuple.__iter__(one), MAX_ITEMS)
        case deque():
            yield from islice(deque.__iter__(one), MAX_ITEMS)
        case partial():
            yield from (one.func, *one.args, *one.keywords.values())
        case MethodType():
            yield from (one.__self__, one.__func__)
        case property() | staticmethod() | classmethod():
            yield from (getattr(one, "fget", None), getattr(one, "__func__", None))
    yield type(one)
    # Not by `getattr`, which may run code of theirs.
    with suppress(AttributeError):
        yield from object.__getattribute__(one, "__dict__").values()
    for kind in type(one).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with suppress(AttributeError):
                yield object.__getattribute__(one, name)


def _is_users(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in LIBRARIES
