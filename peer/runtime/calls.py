"""What a protocol's call asks for, checked against what it declares: the same in a run and in a dry run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from math import isfinite
from typing import NamedTuple, SupportsFloat

from torch import Tensor

from peer.errors import InputError
from peer.learning.model.model import Model
from peer.network.collectives.collectives import Neighbourhood
from peer.protocols.base import Peer, Phase, Protocol
from peer.protocols.declarations import Share
from peer.runtime.encodings import Encoding
from peer.runtime.sendable import Of, Sendable, To
from peer.topology.graphs import Graph, receivers, senders

MAX_PENDING = 3
"""Exchanges of a peer under way at a time: one fewer than the messages of a sender for which a receiver has room."""


class Exchange(NamedTuple):
    """An exchange that may be made."""

    share: Share
    vectors: Mapping[str, Tensor]
    """Which vector each receiver gets; who gets none is left out."""
    numbers: Mapping[str, float]
    """The scalars beside it, in the order in which they travel."""
    around: Neighbourhood
    each_its_own: bool
    """Whether no two receivers get the same vector."""


@dataclass(frozen=True)
class Calls:
    """Refuses wrong calls, by an InputError with the way out: a method for each that a protocol can make.

    `peer` is the one that calls.
    """

    protocol: str
    graph: Graph
    sendable: Sendable
    encoding: Encoding

    @classmethod
    def of(cls, protocol: Protocol, rounds: int, model: Model, encoding: Encoding) -> "Calls":
        """The calls of a protocol in a run of so many rounds."""
        sendable = Sendable(protocol.name, protocol.declarations(rounds), model)
        return cls(protocol.name, protocol.graph, sendable, encoding)

    def neighbourhood(self, peer: Peer) -> Neighbourhood:
        """The ring's order, and to whom and from whom messages go, in the present round."""
        return Neighbourhood(
            peer.ring, receivers(self.graph, peer.ring, peer.id), senders(self.graph, peer.ring, peer.id)
        )

    def exchange(
        self, peer: Peer, name: str, to: To, of: Of, scalars: Mapping[str, float], *, pending: int
    ) -> Exchange:
        """`pending`: how many exchanges are under way already."""
        share = self.sendable.share(peer, name)
        numbers = self.sendable.numbers(share, scalars, peer.round)
        self._check_pending(pending, peer.round)
        around = self.neighbourhood(peer)
        vectors = self.sendable.addressed(share, peer, around.receivers, to)
        if of is not None:
            self._check_senders(share, peer.round, around.senders, of)
        each_its_own = isinstance(to, Mapping)
        self.encoding.check("exchange", share, each_its_own)
        return Exchange(share, vectors, numbers, around, each_its_own)

    def weighted_mean(self, peer: Peer, name: str, weight: float) -> tuple[Share, Tensor]:
        share = self.sendable.share(peer, name)
        self._check_ring("weighted_mean", peer.round)
        self._check_mean(share, peer.round, weight)
        self.encoding.check("weighted_mean", share)
        return share, self.sendable.vector(share, peer)

    def all_gather(
        self, peer: Peer, name: str, scalars: Mapping[str, float]
    ) -> tuple[Share, Tensor, Mapping[str, float]]:
        share = self.sendable.share(peer, name)
        numbers = self.sendable.numbers(share, scalars, peer.round)
        self._check_ring("all_gather", peer.round)
        self.encoding.check("all_gather", share)
        return share, self.sendable.vector(share, peer), numbers

    def gather(self, peer: Peer, record: str, values: Tensor) -> list[float]:
        self._check_ring("gather", peer.round)
        return self.sendable.record(peer, record, values)

    def pass_token(self, peer: Peer, name: str) -> tuple[Share, Tensor]:
        share = self.sendable.share(peer, name)
        self._check_ring("pass_token", peer.round)
        self.encoding.check("token", share)
        return share, self.sendable.vector(share, peer)

    def receive_token(self, peer: Peer, name: str) -> Share:
        share = self.sendable.share(peer, name)
        self._check_ring("receive_token", peer.round)
        return share

    def train(self, peer: Peer, phases: Sequence[object]) -> None:
        """What the trainer is to do."""
        if wrong := [phase for phase in phases if not isinstance(phase, Phase)] or not phases:
            given = f"a {type(wrong[0]).__name__}" if isinstance(wrong, list) else "nothing"
            raise InputError(
                f"`{self.protocol}` gives `train` {given} in round {peer.round}; give it phases: "
                "await peer.train(*self.local())"
            )

    def compute(self, peer: Peer, function: object, called: str = "compute") -> None:
        """What is to run in the worker thread."""
        if iscoroutinefunction(function) or not callable(function):
            given = "an async function" if callable(function) else f"a {type(function).__name__}"
            raise InputError(
                f"`{self.protocol}` gives `{called}` {given} in round {peer.round}; give it a plain function and its "
                f"arguments: await peer.{called}(f{', x' * (called == 'compute')})"
            )

    def once(self, peer: Peer, made: object) -> Tensor:
        """What was made for `once`."""
        if not isinstance(made, Tensor):
            raise InputError(
                f"`{self.protocol}` draws a {type(made).__name__} by `once` in round {peer.round}; return a tensor: "
                "torch.tensor(...)"
            )
        return made

    def _check_senders(self, share: Share, round: int, senders: Collection[str], of: Collection[str]) -> None:
        self.sendable.check_ids(share, round, "of", of)
        if strangers := sorted(set(of) - set(senders)):
            raise InputError(
                f"`{self.protocol}` waits for `{share.vector}` of {', '.join(strangers)} in round {round}, and the "
                f"neighbours are {', '.join(senders) or 'none'}; wait for neighbours only"
            )

    def _check_mean(self, share: Share, round: int, weight: float) -> None:
        name = f"`{self.protocol}` takes the mean of `{share.vector}` in round {round}"
        if share.bytes:
            raise InputError(f"{name}, which is declared as bytes; a mean is of float32 values")
        if not (isinstance(weight, SupportsFloat) and isfinite(weight) and weight >= 0):
            raise InputError(f"{name} with weight {weight}; a weight is a number from 0 up")

    def _check_pending(self, pending: int, round: int) -> None:
        """A receiver has room for four messages of a sender: with more under way, both could wait for ever."""
        if pending >= MAX_PENDING:
            raise InputError(
                f"`{self.protocol}` has {pending} exchanges under way in round {round} and begins another; `await` one "
                "of them first"
            )

    def _check_ring(self, collective: str, round: int) -> None:
        if self.graph == "none":
            raise InputError(
                f"`{self.protocol}` calls `{collective}` in round {round}, and its graph is `none`; let `graph` return "
                "another, such as `ring`"
            )
