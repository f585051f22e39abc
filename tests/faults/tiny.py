"""A model of a few numbers, a data set of a few samples, and protocols for tests: of changing edges, of long rounds."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from peer.learning.model.zoo import Square
from peer.protocols.base import Init, Peer
from peer.protocols.blocks.vectors import blend
from peer.protocols.declarations import Record
from peer.protocols.fedavg import FedAvg
from peer.protocols.feddyn import FedDyn
from peer.protocols.fedisp import FedISP
from peer.protocols.fibfl import FibFL
from peer.runtime.rounds.calls import Communicator

CLASSES = 3
Arrays = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]


def model(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """20 numbers in the extractor, 15 in the head."""
    return nn.Sequential(nn.Linear(shape[0], 4), nn.Tanh()), nn.Linear(4, classes)


def square(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """A polynomial, which can be evaluated on encrypted inputs."""
    return nn.Sequential(nn.Linear(shape[0], 4), Square()), nn.Linear(4, classes)


def wide(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """20,800 numbers in the extractor, 81 KiB: two thirds of a second at 1 Mbit/s."""
    inputs = int(np.prod(shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 320), nn.ReLU()), nn.Linear(320, classes)


def data(samples: int = 48) -> Arrays:
    """(x_train, y_train, x_test, y_test); three clouds of four numbers."""
    generator = np.random.default_rng(7)
    y = generator.integers(0, CLASSES, samples)
    y[: 3 * CLASSES] = np.tile(np.arange(CLASSES), 3)
    x = generator.normal(y[:, None], 1.0, (samples, 4)).astype(np.float32)
    return x[6:], y[6:], x[:6], y[:6]


def clouds() -> Arrays:
    """Such data with enough samples to hold some back."""
    return data(260)


class Restless(FibFL):
    """FibFL whose peers sit down in another, drawn order before every `every`-th round."""

    name: Literal["tiny:Restless"] = "tiny:Restless"  # type: ignore[assignment]
    every: int = 1
    """Rounds between two orders."""

    paper: ClassVar[str] = "none: for tests of changing edges"
    init: ClassVar[Init] = "independent"
    reorders: ClassVar[bool] = True
    records: ClassVar[tuple[Record, ...]] = (Record("order"),)

    async def round(self, peer: Peer) -> None:
        if peer.round % self.every == 0:
            drawn = peer.shared_generator("seats").permutation(len(peer.members))
            await peer.reorder(tuple(peer.members[i] for i in drawn), 0.0, 0.0)
        await super().round(peer)


class Alike(FedAvg):
    """FedAvg whose peers make sure, before each round, that they begin it with the same model."""

    name: Literal["tiny:Alike"] = "tiny:Alike"  # type: ignore[assignment]
    records: ClassVar[tuple[Record, ...]] = (Record("begins with"),)

    async def round(self, peer: Peer) -> None:
        await peer.agree("begins with", peer.model)
        await super().round(peer)


class Counting(FedISP):
    """FedISP whose token counts the steps that it was taken through."""

    name: Literal["tiny:Counting"] = "tiny:Counting"  # type: ignore[assignment]

    async def start(self, peer: Peer, init: Init) -> None:
        peer.model.zero_()

    async def step(self, peer: Peer) -> None:
        await peer.compute(peer.model.add_, 1.0)


class Talkative(FibFL):
    """A record that goes to the right alone, then more vectors to both neighbours than one has room for at once."""

    name: Literal["tiny:Talkative"] = "tiny:Talkative"  # type: ignore[assignment]
    records: ClassVar[tuple[Record, ...]] = (Record("accuracy"),)

    async def round(self, peer: Peer) -> None:
        await peer.train(*self.local())
        await peer.gather("accuracy", torch.tensor([await peer.accuracy()]))
        for _ in range(12):
            received = await peer.exchange("extractor")
            blend(peer.extractor, 0.5, [(0.25, received[peer.left].vector), (0.25, received[peer.right].vector)])


class Paced(FibFL):
    """FibFL with a pause in each round until the file named by HURRY is there; two peers are enough for it.

    Who is told so by SKIPS sends nothing in that round.
    """

    name: Literal["tiny:Paced"] = "tiny:Paced"  # type: ignore[assignment]
    pause: float = 0.1
    """Seconds."""

    min_peers: ClassVar[int] = 2

    async def round(self, peer: Peer) -> None:
        await peer.compute(self._rest)
        if os.environ.get("SKIPS") != str(peer.round):
            await super().round(peer)

    def _rest(self) -> None:
        if not Path(os.environ.get("HURRY", "")).is_file():
            time.sleep(self.pause)


class Halting(FibFL):
    """FibFL; who is told so by HALT trains no further in that round."""

    name: Literal["tiny:Halting"] = "tiny:Halting"  # type: ignore[assignment]

    async def round(self, peer: Peer) -> None:
        if os.environ.get("HALT") == str(peer.round):
            await peer.compute(time.sleep, 120)
        await super().round(peer)


class Stingy(FedDyn):
    """FedDyn with a pause; who is told so by STINGY hands an entrant a vector of that many values."""

    name: Literal["tiny:Stingy"] = "tiny:Stingy"  # type: ignore[assignment]

    async def round(self, peer: Peer) -> None:
        await peer.compute(time.sleep, 0.25)
        await super().round(peer)


if "STINGY" in os.environ:
    send_state = Communicator.send_state

    async def send_little(self: Communicator, name: str, vector: Tensor, numbers: Sequence[float] = ()) -> None:
        await send_state(self, name, vector[: int(os.environ["STINGY"])], numbers)

    Communicator.send_state = send_little  # type: ignore[method-assign]
