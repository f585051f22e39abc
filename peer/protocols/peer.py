"""What a protocol is given: its own vectors, its trainer, the shared seed, the collectives."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from peer.errors import nearest
from peer.learning.data.samples import Samples
from peer.learning.model.layout import Entry
from peer.learning.tasks import Task
from peer.learning.training.trainer import Phase
from peer.protocols.state import State

T = TypeVar("T")
ResourceSource = Literal["measured", "pinned", "replay"]
"""Whence `peer.resources()` has its figures: this machine, the settings, or the record of an earlier run."""
VIEWS = ("model", "extractor", "head")


class Received(NamedTuple):
    """What another peer sent: a vector (float32, or uint8 where it is bytes) and its scalars."""

    vector: Tensor
    scalars: Mapping[str, float]


class Resources(NamedTuple):
    """What this machine, or its container's limits, can give now."""

    cpus: float
    """Free cores."""
    memory: float
    """Free memory in GiB."""
    rates: Mapping[str, float]
    """Bytes a second to each peer, measured on its link; 0 where nothing was measured yet."""


class Peer(ABC):
    """What a protocol may use. Nothing here knows of sockets, clocks or crashes.

    The vectors are live views: writing to `peer.extractor` changes the model. Everything lies on the model's device.
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
    """How many training samples there are."""
    proportions: Tensor
    """q_i: the share of each class among the local samples, float64, shape (classes,); where the task has no classes,
    of each kind of target that its `mix` tells apart, shape (kinds,), or (0,) where there are none."""
    data: Samples
    """The local training samples, in memory or read when they are needed: `in_order(size)` and `batch(positions)` give
    `inputs`, `targets` and `positions`, `labels` every sample's class, int64 (n,)."""
    task: Task
    """What is learnt: `task.loss(outputs, targets)` is the mean loss of a batch, of shape (), cross entropy for
    classification; `task.tally`, `task.results` and `task.score` judge outputs."""
    validation: Samples | None
    """Public samples, the same at every peer, on which nobody is tested; None unless `data.validation` sets some
    aside."""
    model: Tensor
    extractor: Tensor
    head: Tensor
    layout: tuple[Entry, ...]
    """Name, part, shape and place of every tensor in `model`; `entry.view(vector)` is its part of a vector."""
    rehearsal: bool = False
    """In a dry run, which only counts bytes: what is slow to make may be zeros of the same size."""
    state: State
    """What the protocol remembers from round to round, tensors by name; survives a crash."""

    @property
    def position(self) -> int:
        return self.ring.index(self.id)

    @property
    def left(self) -> str:
        return self.ring[self.position - 1]

    @property
    def right(self) -> str:
        return self.ring[(self.position + 1) % len(self.ring)]

    # -- training --

    @abstractmethod
    async def train(self, *phases: Phase) -> float:
        """Local training, phase after phase, in the worker thread; the mean loss of the last one."""

    @abstractmethod
    async def accuracy(self) -> float:
        """The task's score on the local training samples, in 0..1, in eval mode: the accuracy, for classification."""

    @abstractmethod
    def logits(self, vector: Tensor, x: Tensor, training: bool = False) -> Tensor:
        """The model's answer to `x` with `vector` (laid out as `model`) for its weights, as `forward` gives it.

        Differentiable in both and computed in their dtype. The model itself stays as it is, BatchNorm's statistics too.
        With `training`, dropout draws and BatchNorm takes the batch's statistics. Long: call it inside `compute`.
        """

    @abstractmethod
    def batches(self, size: int, epochs: int = 1) -> Iterator[Tensor]:
        """Positions in `data`, int64, drawn as a phase's batches are: for a training loop inside `compute`."""

    @abstractmethod
    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """A long calculation, in the worker thread: this peer goes on sending signs of life meanwhile."""

    @abstractmethod
    def forget(self, optimiser: str) -> None:
        """Drop a kept optimiser."""

    # -- communicating: every peer makes the same calls in the same order --

    @abstractmethod
    def exchange(
        self,
        share: str,
        /,
        to: Collection[str] | Mapping[str, Tensor] | None = None,
        of: Collection[str] | None = None,
        **scalars: float,
    ) -> Awaitable[dict[str, Received]]:
        """Send the vector called `share` as it is now to the neighbours; what they sent, by id.

        The call sends, `await` waits for the others: one may train in between. A part of the model, or one of the
        protocol's own in `state`, which may be of another length at every peer.

        to: only these neighbours get it, or, of one of the protocol's own, each the one given here. The others get an
            empty message, so that nobody waits for what will not come; who sent one is not in the result.
        of: only these neighbours may send one, and must; anybody else's is refused where it arrives.
        """

    @abstractmethod
    async def weighted_mean(self, share: str, weight: float) -> None:
        """Σ_k weight_k·v_k / Σ_k weight_k of the vector called `share`, in place, by ring all-reduce.

        2(N−1)/N·p values leave each peer; all end with the same bits. With weight 0 a peer adds nothing.
        """

    @abstractmethod
    async def all_gather(self, share: str, /, **scalars: float) -> dict[str, Received]:
        """Every peer's vector called `share` and its scalars, relayed round the ring, by id in the spec's order."""

    @abstractmethod
    async def gather(self, record: str, values: Tensor) -> dict[str, Tensor]:
        """Every peer's float64 record, relayed round the ring, by id in the spec's order."""

    @abstractmethod
    async def agree(self, record: str, decision: Tensor | None) -> None:
        """Make sure that all peers decided alike, before it is acted on; end this peer and name who did not.

        Last bits differ between kinds of CPU. `record` is declared with one number, a digest of the tensor. None:
        this peer decides nothing and only relays.
        """

    @abstractmethod
    async def pass_token(self, share: str) -> None:
        """Hand the vector called `share` to the right neighbour."""

    @abstractmethod
    async def receive_token(self, share: str) -> Tensor:
        """The vector that the left neighbour handed over in this round."""

    @abstractmethod
    async def reorder(self, order: tuple[str, ...], cost_before: float, cost_after: float) -> None:
        """Sit in another ring order from here on; all peers compare theirs first. Costs are for the report."""

    # -- what a replay must find again --

    @abstractmethod
    async def once(self, make: Callable[[], Tensor]) -> Tensor:
        """What `make` returns, called in the worker thread: something drawn in secret, measured or encrypted.

        It is on disk before this returns, and read back from there when the round is replayed after a crash: so a
        message that depends on it is the same again. Everything that is not a function of the peer's state, the shared
        seed and received messages has to go through here.
        """

    @abstractmethod
    async def resources(self) -> Resources:
        """What this machine can give, once a round: measured, or from where the protocol's `resources_from` says.

        The same on replay, and noted as `resources` (cores, GiB, then the rates in the order of `members`).
        """

    @abstractmethod
    def shared_generator(self, purpose: str) -> np.random.Generator:
        """NumPy's generator of random numbers, from which all peers draw alike in a round: `.permutation(5)`, say."""

    @abstractmethod
    def note(self, **values: float | Sequence[float]) -> None:
        """Numbers of this round for its trace, its event and the summary, such as γ_r."""

    def __getattr__(self, name: str) -> Any:
        known = [known for known in (*Peer.__annotations__, *vars(Peer)) if not known.startswith("_")]
        raise AttributeError(f"`peer` has no `{name}`; {nearest(name, known)}")

    def __setattr__(self, name: str, value: Any) -> None:
        """The vectors are views of the model and are written into; `peer.extractor += v` does that as well."""
        if name in VIEWS:
            if isinstance(value, Tensor) and value.data_ptr() == getattr(self, name).data_ptr():
                return
            raise AttributeError(
                f"`peer.{name}` is a view of the model and cannot be replaced; write into it: peer.{name}.copy_(...)"
            )
        super().__setattr__(name, State(value) if name == "state" else value)
