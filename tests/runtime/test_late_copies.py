"""Vectors that take their time from the device to the CPU: order, bits and errors are those of vectors that were there.

The copies are made late, by who waits for them; before that only zeros are there. So it is on a GPU, of which there is
none here.
"""

import asyncio
import threading
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from faults.scenarios import specification
from faults.simulation import undisturbed
from torch import Tensor

from peer.errors import DivergedError
from peer.learning.device import HostCopy, Transfers
from peer.runtime.in_process import run_in_process
from peer.runtime.rounds.calls import Communicator, SendQueue


class Late:
    """A copy that `opened` lets be made, in place of an event of CUDA's."""

    opened: ClassVar[threading.Event]

    def __init__(self, vector: Tensor, into: Tensor) -> None:
        self._vector, self._into = vector, into

    def synchronize(self) -> None:
        self.opened.wait()
        self._into.copy_(self._vector)


def fetch(_: Transfers, vector: Tensor) -> HostCopy:
    now = vector.detach().clone()
    there = torch.zeros_like(now)
    return HostCopy(there, Late(now, there))  # type: ignore[arg-type]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    Late.opened = threading.Event()
    monkeypatch.setattr(Transfers, "fetch", fetch)
    return Late.opened


async def test_a_call_waits_for_its_vector_and_for_the_calls_before_it(opened: threading.Event) -> None:
    sending, sent, here = SendQueue(), list[str](), torch.ones(3)
    assert await sending.enqueue([HostCopy(here)], lambda: sent.append("at once")) is None
    first = sending.enqueue([fetch(Transfers(here.device), here)], lambda: sent.append("first"))
    second = sending.enqueue([], lambda: sent.append("second"))
    await asyncio.wait({first, second}, timeout=0)
    assert sent == ["at once"]
    opened.set()
    await second
    assert sent == ["at once", "first", "second"]


async def test_what_went_wrong_is_told_to_all_who_wait(opened: threading.Event) -> None:
    def diverge() -> None:
        raise DivergedError("too far")

    opened.set()
    sending = SendQueue()
    first = sending.enqueue([fetch(Transfers(torch.device("cpu")), torch.ones(3))], diverge)
    second = sending.enqueue([], lambda: None)
    for one in (first, second):
        with pytest.raises(DivergedError, match="too far"):
            await one


@pytest.mark.parametrize("name", ["every call", "bfloat16", "top-k", "fedisp", "misbehaving"])
def test_late_copies_change_no_bits(name: str, opened: threading.Event, tmp_path: Path) -> None:
    opened.set()
    runtimes = asyncio.run(run_in_process(specification(name), tmp_path))
    assert {id: runtime.setup.model.sha256() for id, runtime in runtimes.items()} == undisturbed(name).digests


def test_training_goes_on_while_a_vector_is_under_way(
    opened: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`EveryCall` sends before it trains, and awaits what came afterwards: only there are the copies made."""
    received = Communicator._received

    async def opening(*arguments: object) -> object:
        opened.set()
        return await received(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Communicator, "_received", opening)
    runtimes = asyncio.run(run_in_process(specification("every call"), tmp_path))
    assert {id: one.setup.model.sha256() for id, one in runtimes.items()} == undisturbed("every call").digests
