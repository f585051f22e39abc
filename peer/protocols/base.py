"""What a protocol is, and what it is given: the whole interface between a paper and the runtime."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from peer.learning.training.trainer import Phase
from peer.settings import Settings
from peer.topology.graphs import Graph

T = TypeVar("T")
Init = Literal["shared", "independent"]


@dataclass(frozen=True)
class Share:
    """A vector that may leave the peer, and the rounds in which it may (0 is the set-up before round 1)."""

    vector: str
    scalars: int = 0
    """How many float64 numbers travel beside it."""
    rounds: range | None = None
    """None: in every round."""


@dataclass(frozen=True)
class Record:
    """A few float64 numbers that every peer tells all others by `gather`."""

    name: str
    size: int | Literal["classes"] = 1
    """How many numbers, no fewer and no more."""


class Received(NamedTuple):
    """What one neighbour sent: a float32 vector and its scalars."""

    vector: Tensor
    scalars: Mapping[str, float]


class Peer(ABC):
    """What a protocol may use: its own vectors, its trainer, the shared seed, the collectives.

    The vectors are live views: writing to `peer.extractor` changes the model. Nothing here knows of
    sockets, clocks or crashes.
    """

    id: str
    members: tuple[str, ...]
    """Everyone, in the order of the spec."""
    ring: tuple[str, ...]
    """Everyone, in the ring's present order."""
    round: int
    """From 1; 0 during `start`."""
    rounds: int
    samples: int
    proportions: Tensor
    """q_i: the share of each class among the local samples, float64, shape (classes,)."""
    model: Tensor
    extractor: Tensor
    head: Tensor
    state: dict[str, Tensor]
    """What the protocol remembers from round to round; survives a crash."""

    @property
    def position(self) -> int:
        return self.ring.index(self.id)

    @property
    def left(self) -> str:
        return self.ring[self.position - 1]

    @property
    def right(self) -> str:
        return self.ring[(self.position + 1) % len(self.ring)]

    @abstractmethod
    async def train(self, *phases: Phase) -> float:
        """Local training, phase after phase, in the worker thread; the mean loss of the last one."""

    @abstractmethod
    async def accuracy(self) -> float:
        """Accuracy on the local training samples, in eval mode."""

    @abstractmethod
    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """A long calculation, in the worker thread: this peer goes on sending signs of life meanwhile."""

    @abstractmethod
    def forget(self, optimiser: str) -> None:
        """Drop a kept optimiser."""

    @abstractmethod
    async def exchange(self, share: str, **scalars: float) -> dict[str, Received]:
        """Send the vector called `share` as it is now to every neighbour; what each of them sent, by id.

        One of the protocol's own, in `state`, may be of another length at every peer, up to the model's.
        """

    @abstractmethod
    async def weighted_mean(self, share: str, weight: float) -> None:
        """Σ_k weight_k·v_k / Σ_k weight_k of the vector called `share`, in place, by ring all-reduce.

        2(N−1)/N·p values leave each peer; all end with the same bits. With weight 0 a peer adds nothing.
        """

    @abstractmethod
    async def gather(self, record: str, values: Tensor) -> dict[str, Tensor]:
        """Every peer's float64 record, relayed round the ring, by id in the spec's order."""

    @abstractmethod
    async def pass_token(self, share: str) -> None:
        """Hand the vector called `share` to the right neighbour."""

    @abstractmethod
    async def receive_token(self, share: str) -> Tensor:
        """The vector that the left neighbour handed over in this round."""

    @abstractmethod
    async def reorder(self, order: tuple[str, ...], cost_before: float, cost_after: float) -> None:
        """Sit in another ring order from here on; all peers compare theirs first. Costs are for the report."""

    @abstractmethod
    def shared_generator(self, purpose: str) -> np.random.Generator:
        """Random numbers that all peers draw alike in this round."""

    @abstractmethod
    def note(self, **values: float) -> None:
        """Numbers of this round for its trace and its report, such as γ_r."""


class Protocol(Settings):
    """One paper's method: its hyperparameters as fields, its declarations, and one round.

    A protocol object never changes; what it remembers stands in `peer.state`. That makes a crashed
    peer's replay of a round end in the same bits.
    """

    name: str
    paper: ClassVar[str]
    """Paper and algorithm or equation."""
    min_peers: ClassVar[int] = 2
    init: ClassVar[Init] = "shared"
    """Whether all peers start from the same weights unless the spec says otherwise."""
    records: ClassVar[tuple[Record, ...]] = ()

    @property
    def graph(self) -> Graph:
        """Along which edges messages travel."""
        return "ring"

    @property
    def leaves(self) -> str:
        """In words, for people: what leaves the peer."""
        shares = [share.vector + (" with a number" if share.scalars else "") for share in self.shares(rounds=10)]
        return ", ".join([*shares, *(record.name for record in self.records)]) or "nothing"

    def why_rounds_are_fixed(self) -> str | None:
        """Why a run cannot be given more rounds later; None if it can."""
        return None

    @abstractmethod
    def shares(self, rounds: int) -> tuple[Share, ...]:
        """The vectors that may leave the peer in a run of so many rounds; all others cannot."""

    @abstractmethod
    def local(self) -> tuple[Phase, ...]:
        """One round's local training; `solo` trains by it too."""

    async def start(self, peer: Peer, init: Init) -> None:
        """Before round 1; `init` says whether the peers' weights are still the same."""

    @abstractmethod
    async def round(self, peer: Peer) -> None:
        """One round: train, communicate, blend."""
