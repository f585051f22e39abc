"""What a protocol is given, and what it is: `Peer`, and `Protocol`. All that a protocol's file needs.

A peer gives its own vectors, its trainer, the shared seed and the collectives, and knows of no sockets, clocks or
crashes. A protocol has hyperparameters, declarations and one round; what it remembers from round to round stands in
`peer.state`, tensors by name, as nothing else survives a crash.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import ConfigDict
from torch import Tensor

from peer.errors import InputError, suggest
from peer.learning.data.samples import Samples
from peer.learning.model.layout import PARTS, ModelPart, TensorSlot
from peer.learning.named_tensors import NamedTensors
from peer.learning.tasks import Task
from peer.learning.training.phase import Phase
from peer.plugins import user_code_errors
from peer.protocols.declarations import Declarations, Record, Share
from peer.settings import Settings
from peer.topology import Graph


class State(NamedTensors):
    """`peer.state`; raises TypeError at once for anything but a tensor."""

    called: ClassVar[str] = "peer.state"


T = TypeVar("T")
ResourceSource = Literal["measured", "pinned", "replay"]
"""The source of `peer.resources()`: this machine, the settings, or the record of an earlier run."""


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
    """The members of the present view, in the order of the spec."""
    ring: tuple[str, ...]
    """The members, in the present order of the ring."""
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
    """Public samples, the same at every peer and part of no test set; None unless `data.validation` sets some
    aside."""
    model: Tensor
    extractor: Tensor
    head: Tensor
    layout: tuple[TensorSlot, ...]
    """Name, part, shape and place of every tensor in `model`; `entry.view(vector)` is its part of a vector."""
    rehearsal: bool = False
    """Whether this is a dry run, which only counts bytes: what is slow to make may be zeros of the same size."""
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
        """A long calculation, in the worker thread: the peer keeps sending heartbeats meanwhile. What it draws from
        `random`, `numpy.random` and torch's CPU generator is the same in each run, and at no two peers."""

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
            empty message, so that they do not wait in vain; senders of one are not in the result.
        of: only these neighbours may send one, and must; those of others are refused on arrival.
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
        """Check that all peers decided alike, before acting on it; end this peer and name those that did not.

        Last bits differ between kinds of CPU. `record` is declared with one number, a digest of the tensor. None:
        this peer decides nothing and only relays.
        """

    @abstractmethod
    async def pass_token(self, share: str) -> None:
        """Send the vector called `share` to the right neighbour."""

    @abstractmethod
    async def receive_token(self, share: str) -> Tensor:
        """Return the vector that the left neighbour passed in this round."""

    @abstractmethod
    async def reorder(self, order: tuple[str, ...], cost_before: float, cost_after: float) -> None:
        """Use another ring order from here on; all peers compare theirs first. The costs are for the report."""

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
        raise AttributeError(f"`peer` has no `{name}`; {suggest(name, known)}")

    def __setattr__(self, name: str, value: Any) -> None:
        """The vectors are views of the model and are written into; `peer.extractor += v` does that as well."""
        if name in PARTS:
            if isinstance(value, Tensor) and value.data_ptr() == getattr(self, name).data_ptr():
                return
            raise AttributeError(
                f"`peer.{name}` is a view of the model and cannot be replaced; write into it: peer.{name}.copy_(...)"
            )
        super().__setattr__(name, State(value) if name == "state" else value)


Init = Literal["shared", "independent"]


@dataclass(frozen=True)
class StateContract:
    """What a protocol declares of `peer.state`.

    Which names are equal at all peers, have a row for each member, or never change; and what of it a peer that is taken
    in during a run gets from its left neighbour.
    """

    protocol: "Protocol"

    @property
    def held_by_all(self) -> tuple[str, ...]:
        """The vectors that have the same bits at every peer after a round."""
        return (*((self.protocol.common,) if self.protocol.common else ()), *self.protocol.replicated)

    @property
    def handed_over(self) -> tuple[str, ...]:
        """The vectors that an admitted peer gets."""
        return (*((self.protocol.passed_on,) if self.protocol.passed_on else ()), *self.held_by_all)

    def is_unchanging(self, name: str) -> bool:
        """Whether what stands in `peer.state` under that name is set once."""
        return any(_stands_for(declared, name) for declared in self.protocol.unchanging)

    def never_kept(self, names: Collection[str]) -> list[str]:
        """What of `unchanging` stands for none of these names."""
        declared = self.protocol.unchanging
        return [one for one in declared if not any(_stands_for(one, name) for name in names)]

    def check(self, peer: Peer) -> None:
        """InputError unless the peer's state is as declared, after a round."""
        called, replicated, by_peer = f"`{self.protocol.name}`", self.protocol.replicated, self.protocol.by_peer
        for name in (*replicated, *by_peer):
            if name not in peer.state:
                raise InputError(
                    f"{called} declares `{name}` as replicated or by_peer and keeps nothing under that name; "
                    f"write peer.state[{name!r}] = ... in its rounds"
                )
        if why := peer.state.aliasing_problem(peer.model):
            raise InputError(f"{called} {why}")
        for name in by_peer:
            shape, wanted = tuple(peer.state[name].shape), (len(peer.members),)
            if shape[:1] != wanted:
                raise InputError(
                    f"{called} declares `{name}` as by_peer, and its shape is {shape}; it needs a row for "
                    f"each of the {len(peer.members)} members"
                )
            if name in replicated and shape != wanted:
                raise InputError(
                    f"{called} declares `{name}` as replicated and by_peer, and its shape is {shape}; such a "
                    "row is one number"
                )


def _stands_for(declared: str, name: str) -> bool:
    return name == declared or (declared.endswith("/") and name.startswith(declared))


class Protocol(Settings):
    """One paper's method: its hyperparameters as fields, its declarations, and one round.

    A protocol object never changes; what it remembers stands in `peer.state`. That makes a crashed
    peer's replay of a round end in the same bits.

    What it declares is read in three ways: what leaves a peer, as `declarations`; what stands in `peer.state`, as its
    `state_contract`; and what it cannot do, hook by hook.
    """

    model_config = ConfigDict(validate_default=True)

    name: str
    paper: ClassVar[str]
    """Paper and algorithm or equation."""
    min_peers: ClassVar[int] = 2
    init: ClassVar[Init] = "shared"
    """Whether all peers start from the same weights unless the spec says otherwise."""
    needs_classes: ClassVar[bool] = False
    """Whether the method itself goes by classes: by labels, by class mixes, or by outputs taken as classes' logits.
    Then it is refused for a task that has none. A record of size "classes" says so, too."""
    resources_from: ClassVar[ResourceSource] = "measured"
    """Where `peer.resources()` gets its figures from; a property where the settings decide."""

    # -- what leaves a peer --

    graph: ClassVar[Graph] = "ring"
    """Along which edges messages travel; a property where the settings decide."""
    reorders: ClassVar[bool] = False
    """Whether it puts the ring in another order: then any two peers may become neighbours."""
    exact: ClassVar[bool] = False
    """Whether its vectors must arrive as they are: then `wire` is float32."""
    records: ClassVar[tuple[Record, ...]] = ()

    @abstractmethod
    def shares(self, rounds: int) -> tuple[Share, ...]:
        """The vectors that may leave the peer in a run of so many rounds; all others cannot."""

    def declarations(self, rounds: int) -> Declarations:
        """All that may leave the peer in a run of so many rounds."""
        return Declarations(self.name, self.shares(rounds), self.records)

    # -- what it remembers in `peer.state`, and what an admitted peer gets --

    replicated: ClassVar[tuple[str, ...]] = ()
    """Names in `peer.state` that hold the same bits at every peer after each round."""
    by_peer: ClassVar[Mapping[str, float | bool]] = {}
    """Names in `peer.state` that have a row for each member, in the order of `peer.members`, and what a row is before
    round 1: float64 or bool. Of a peer that leaves the run the row is kept until it comes back; one that was never
    there is taken for the mean of the others."""
    unchanging: ClassVar[tuple[str, ...]] = ()
    """Names in `peer.state` that are set once and never change, so that they are written to disk once and not in each
    round. With a slash at its end, all names that begin so."""
    common: ClassVar[ModelPart | None] = None
    """The part of the model that is the same at every peer after each round. A peer that is admitted during a run gets
    it, and what is `replicated`, from its left neighbour."""
    passed_on: ClassVar[ModelPart | None] = None
    """The part of the model that is not the same everywhere, and that an admitted peer gets as its left neighbour
    has it."""

    @property
    def state_contract(self) -> StateContract:
        """What it declares of `peer.state`."""
        return StateContract(self)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"`self.{name}` cannot be set, as a protocol never changes; write peer.state[{name!r}] = torch.tensor(...)"
        )

    # -- what it cannot do: a reason, as text, or None where it can --

    @classmethod
    def lacks(cls, task: Task) -> str | None:
        """What it goes by and the task has none of; None if it can be used for the task."""
        sizes = {record.size for record in cls.records}
        if (cls.needs_classes or "classes" in sizes) and not task.has_classes:
            return "classes"
        with user_code_errors(task.name):
            return "kinds of targets" if "kinds" in sizes and not task.kinds(1) else None

    def why_rounds_are_fixed(self) -> str | None:
        """Why a run cannot be given more rounds later; None if it can."""
        return None

    def why_data_are_fixed(self) -> str | None:
        """Why the data must not drift during a run; None if they may."""
        return None

    def why_optimiser_is_fixed(self) -> str | None:
        """Why local training needs the protocol's own optimiser and learning rate; None if others will do."""
        return None

    def why_steps_are_fixed(self) -> str | None:
        """Why each step must be one of a batch's own plain gradient; None if `training` may change what a step is."""
        return None

    def why_training_is_fixed(self) -> str | None:
        """Why local training cannot be a loop of the user's own (`training.loop`); None if it can. A protocol gives a
        loss of its own, say."""
        return self.why_optimiser_is_fixed() or self.why_steps_are_fixed()

    def why_loss_is_fixed(self) -> str | None:
        """Why classes cannot be weighed by `focal`, `class_weights` or `training.sampler`; None if they can."""
        return None

    def why_figures_stay(self) -> str | None:
        """Why peers must not tell each other how good their models are; None if they may."""
        return None

    def why_inputs_are_fixed(self) -> str | None:
        """Why training samples must be the same each time, without random `transforms`; None if they need not."""
        return None

    def least_members(self, peers: int) -> int:
        """How many members of a ring of so many peers must be left, so that all can go on (`on_loss: bypass`)."""
        return self.min_peers

    def why_members_are_fixed(self) -> str | None:
        """Why members cannot be excluded or admitted during a run (`on_loss: bypass`); None if they can."""
        return None

    def check_samples(self, peer: str, samples: int) -> None:
        """Raises InputError if that peer cannot take part with so many training samples."""

    # -- what it does --

    @abstractmethod
    def local(self) -> tuple[Phase, ...]:
        """One round's local training; `solo` trains by it too."""

    def training(self, round: int) -> tuple[Phase, ...]:
        """The local training of that round, from 1, where it is not the same in each: so `solo` trains then."""
        return self.local()

    async def start(self, peer: Peer, init: Init) -> None:
        """Called before round 1; `init` says whether the peers' weights are still the same."""

    def begin_late(self, peer: Peer) -> None:
        """In place of `start`, at a peer that is admitted during a run with nothing but its data: puts what the peer
        keeps for itself into `peer.state`. It sends nothing."""

    async def begin_view(self, peer: Peer) -> None:
        """Called before the first round of a later view, when admitted members have what they are given."""

    @abstractmethod
    async def round(self, peer: Peer) -> None:
        """One round: train, communicate, blend."""
