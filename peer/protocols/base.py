"""What a protocol is: its hyperparameters, its declarations and one round. All that a protocol's file needs."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from peer.errors import InputError
from peer.learning.model.model import Part
from peer.learning.tasks import Task
from peer.learning.training.trainer import Phase
from peer.plugins import user_code_errors
from peer.protocols.declarations import Declarations, Record, Share, words
from peer.protocols.peer import Peer, Received, Resources, ResourceSource
from peer.settings import Settings
from peer.topology.graphs import Graph

__all__ = ["Init", "Peer", "Phase", "Protocol", "Received", "Record", "ResourceSource", "Resources", "Share"]

Init = Literal["shared", "independent"]


class Protocol(Settings):
    """One paper's method: its hyperparameters as fields, its declarations, and one round.

    A protocol object never changes; what it remembers stands in `peer.state`. That makes a crashed
    peer's replay of a round end in the same bits.
    """

    model_config = ConfigDict(validate_default=True)

    name: str
    paper: ClassVar[str]
    """Paper and algorithm or equation."""
    min_peers: ClassVar[int] = 2
    init: ClassVar[Init] = "shared"
    """Whether all peers start from the same weights unless the spec says otherwise."""
    records: ClassVar[tuple[Record, ...]] = ()
    needs_classes: ClassVar[bool] = False
    """Whether the method itself goes by classes: by labels, by class mixes, or by outputs taken as classes' logits.
    Then it is refused for a task that has none. A record of size "classes" says so, too."""
    exact: ClassVar[bool] = False
    """Whether its vectors must arrive as they are: then `wire` is float32."""
    reorders: ClassVar[bool] = False
    """Whether it puts the ring in another order: then any two peers may become neighbours."""
    replicated: ClassVar[tuple[str, ...]] = ()
    """Names in `peer.state` that hold the same bits at every peer after each round."""
    by_peer: ClassVar[Mapping[str, float | bool]] = {}
    """Names in `peer.state` that have a row for each member, in the order of `peer.members`, and what a row is before
    round 1: float64 or bool. Of who leaves the run the row is kept until it comes back; one who was never there is
    taken for the mean of the others."""
    common: ClassVar[Part | None] = None
    """The part of the model that is the same at every peer after each round. Whoever is taken in during a run gets it,
    and what is `replicated`, from its left neighbour."""
    passed_on: ClassVar[Part | None] = None
    """The part of the model that is not the same everywhere, and that whoever is taken in gets as its left neighbour
    has it."""

    unchanging: ClassVar[tuple[str, ...]] = ()
    """Names in `peer.state` that are set once and never change, so that they are written to disk once and not in each
    round. With a slash at its end, all names that begin so."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"`self.{name}` cannot be set, as a protocol never changes; write peer.state[{name!r}] = torch.tensor(...)"
        )

    @property
    def graph(self) -> Graph:
        """Along which edges messages travel."""
        return "ring"

    @property
    def resources_from(self) -> ResourceSource:
        """Whence `peer.resources()` has its figures."""
        return "measured"

    @property
    def leaves(self) -> str:
        """In words, for people: what leaves the peer."""
        return words(self.shares(rounds=10), self.records)

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

    def why_figures_stay(self) -> str | None:
        """Why peers must not tell each other how good their models are; None if they may."""
        return None

    def why_inputs_are_fixed(self) -> str | None:
        """Why training samples must be the same each time, without random `transforms`; None if they need not."""
        return None

    def why_members_are_fixed(self) -> str | None:
        """Why nobody can be lost or taken in during a run (`on_loss: bypass`); None if they can."""
        return None

    def check_samples(self, peer: str, samples: int) -> None:
        """InputError where that peer cannot take part with so many training samples."""

    @abstractmethod
    def shares(self, rounds: int) -> tuple[Share, ...]:
        """The vectors that may leave the peer in a run of so many rounds; all others cannot."""

    @abstractmethod
    def local(self) -> tuple[Phase, ...]:
        """One round's local training; `solo` trains by it too."""

    def training(self, round: int) -> tuple[Phase, ...]:
        """The local training of that round, from 1, where it is not the same in each: so `solo` trains then."""
        return self.local()

    def declarations(self, rounds: int) -> Declarations:
        """All that may leave the peer in a run of so many rounds."""
        return Declarations(self.name, self.shares(rounds), self.records)

    def keeps(self, name: str) -> bool:
        """Whether what stands in `peer.state` under that name never changes."""
        return any(_stands_for(kept, name) for kept in self.unchanging)

    def never_kept(self, names: Iterable[str]) -> list[str]:
        """What of `unchanging` stands for none of these names."""
        held = [*names]
        return [kept for kept in self.unchanging if not any(_stands_for(kept, name) for name in held)]

    def check_state(self, peer: Peer) -> None:
        """InputError unless the peer's state is as declared, after a round."""
        for name in (*self.replicated, *self.by_peer):
            if name not in peer.state:
                raise InputError(
                    f"`{self.name}` declares `{name}` as replicated or by_peer and keeps nothing under that name; "
                    f"write peer.state[{name!r}] = ... in its rounds"
                )
        if why := peer.state.why_not_apart(peer.model):
            raise InputError(f"`{self.name}` {why}")
        for name in self.by_peer:
            shape, wanted = tuple(peer.state[name].shape), (len(peer.members),)
            if shape[:1] != wanted:
                raise InputError(
                    f"`{self.name}` declares `{name}` as by_peer, and its shape is {shape}; it needs a row for each of "
                    f"the {len(peer.members)} members"
                )
            if name in self.replicated and shape != wanted:
                raise InputError(
                    f"`{self.name}` declares `{name}` as replicated and by_peer, and its shape is {shape}; such a row "
                    "is one number"
                )

    async def start(self, peer: Peer, init: Init) -> None:
        """Before round 1; `init` says whether the peers' weights are still the same."""

    def begin_late(self, peer: Peer) -> None:
        """In place of `start`, at a peer that is taken in during a run with nothing but its data: what it keeps for
        itself. It sends nothing."""

    async def begin_view(self, peer: Peer) -> None:
        """Before a round, the second or a later one, from which on the members are others, once those who are taken in
        have what they are given."""

    @abstractmethod
    async def round(self, peer: Peer) -> None:
        """One round: train, communicate, blend."""


def _stands_for(kept: str, name: str) -> bool:
    return name == kept or (kept.endswith("/") and name.startswith(kept))
