"""What a protocol's call asks for, checked against what it declares: the same in a run and in a dry run.

`DeclaredVectors` looks up by their names which vectors and numbers may leave a peer, and checks them against their
declarations; `CallChecker` has a method for each call that a protocol can make. What a protocol notes of a round is
made plain JSON by `plain_notes`. Whatever is refused is refused by an InputError with the way out, before anything has
left.
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from math import isfinite
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
import torch
from torch import Tensor

from peer.errors import InputError
from peer.learning.model.layout import PARTS
from peer.learning.model.model import Model
from peer.learning.training.phase import Phase
from peer.network.collectives import Neighbourhood
from peer.protocols.base import Peer, Protocol
from peer.protocols.declarations import Declarations, Share
from peer.runtime.encodings import Encoding
from peer.telemetry.events import Note
from peer.topology import Graph, receivers, senders

To = Collection[str] | Mapping[str, Tensor] | None
Of = Collection[str] | None


@dataclass(frozen=True)
class DeclaredVectors:
    """Turns names into what is sent; every refusal is an InputError that says what to declare."""

    protocol: str
    declared: Declarations
    model: Model

    def share(self, peer: Peer, name: str) -> Share:
        """The declaration of that vector for the present round."""
        return self.declared.share(name, peer.round)

    def vector(self, share: Share, peer: Peer) -> Tensor:
        """The vector that a share names, as declared: a part of the peer's model, or one in its state."""
        if share.own and share.vector not in peer.state:
            raise InputError(
                f"`{self.protocol}` sends `{share.vector}` in round {peer.round}, which is neither {', '.join(PARTS)} "
                f"nor kept in `peer.state`; write peer.state[{share.vector!r}] = ... before"
            )
        found: Tensor = peer.state[share.vector] if share.own else getattr(peer, share.vector)
        self.check(share, found, peer.round)
        return found

    def length(self, share: Share) -> int | None:
        """Values of the vector at every peer; None where each may send one of its own length."""
        if share.bytes or share.part is None:
            return None
        return self.model.sizes[share.part]

    def check(self, share: Share, vector: Tensor, round: int) -> None:
        self.declared.check(share, vector, round, self.model.sizes["model"])
        length = self.length(share)
        if share.own and length is not None and vector.numel() != length:
            raise InputError(
                f"`{self.protocol}` sends `{share.vector}` in round {round} with {vector.numel()} values, and declares "
                f"it like={share.like!r}, which has {length}; make it as long or leave out `like`"
            )

    def addressed(self, share: Share, peer: Peer, receivers: Collection[str], to: To) -> dict[str, Tensor]:
        """Which vector each receiver gets in an exchange; who gets none is left out."""
        if to is None:
            return dict.fromkeys(receivers, self.vector(share, peer)) if receivers else {}
        self.check_ids(share, peer.round, "to", to)
        if strangers := sorted(set(to) - set(receivers)):
            raise InputError(
                f"`{self.protocol}` sends `{share.vector}` to {', '.join(strangers)} in round {peer.round}, and the "
                f"neighbours are {', '.join(receivers) or 'none'}; send to neighbours only"
            )
        if not isinstance(to, Mapping):
            chosen = [receiver for receiver in receivers if receiver in to]
            return dict.fromkeys(chosen, self.vector(share, peer)) if chosen else {}
        if not share.own:
            raise InputError(
                f"`{self.protocol}` gives each neighbour a `{share.vector}` of its own in round {peer.round}; that "
                "goes with a vector of the protocol's own: declare one under another name"
            )
        for vector in to.values():
            self.check(share, vector, peer.round)
        return {receiver: to[receiver] for receiver in receivers if receiver in to}

    def check_ids(self, share: Share, round: int, which: str, ids: Collection[str]) -> None:
        """`ids` are those that an exchange goes to, or is awaited of, as `which` says."""
        if not isinstance(ids, Collection) or isinstance(ids, Tensor):
            raise InputError(
                f"`{self.protocol}` exchanges `{share.vector}` in round {round} with {which}={type(ids).__name__}; "
                'name the vector alone, and numbers by their names: peer.exchange("extractor", loss=0.3)'
            )
        if isinstance(ids, str):
            raise InputError(
                f"`{self.protocol}` exchanges `{share.vector}` in round {round} with {which}={ids!r}; write a list of "
                f"ids: {which}=[{ids!r}]"
            )

    def numbers(self, share: Share, scalars: Mapping[str, float], round: int) -> dict[str, float]:
        """The scalars beside a vector in the order in which they travel: as many as declared, and finite."""
        self.declared.check_scalars(share, scalars, round)
        numbers = {name: float(scalars[name]) for name in sorted(scalars)}
        if wrong := [name for name, value in numbers.items() if not isfinite(value)]:
            raise InputError(
                f"`{self.protocol}` sends {wrong[0]}={numbers[wrong[0]]} beside `{share.vector}` in round {round}; "
                "only finite numbers leave a peer"
            )
        return numbers

    def record(self, peer: Peer, name: str, values: Tensor) -> list[float]:
        """The numbers of a record, as many as declared, and finite."""
        if not isinstance(values, Tensor):
            raise InputError(
                f"`{self.protocol}` gathers `{name}` in round {peer.round} with a {type(values).__name__}; give a "
                "tensor: torch.tensor([...])"
            )
        length = self.declared.record(name, peer.round).length(self.model, len(peer.members))
        self.declared.check_record(name, values, peer.round, length)
        numbers: list[float] = values.double().flatten().tolist()
        if not all(map(isfinite, numbers)):
            raise InputError(
                f"`{self.protocol}` gathers `{name}` in round {peer.round} with numbers that are not finite"
            )
        return numbers


MAX_PENDING = 3
"""Exchanges of a peer under way at a time: one fewer than the messages of a sender for which a receiver has room."""


class CheckedExchange(NamedTuple):
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
class CallChecker:
    """Refuses wrong calls, by an InputError with the way out: a method for each that a protocol can make.

    `peer` is the one that calls.
    """

    protocol: str
    graph: Graph
    sendable: DeclaredVectors
    encoding: Encoding

    @classmethod
    def of(cls, protocol: Protocol, rounds: int, model: Model, encoding: Encoding) -> "CallChecker":
        """The calls of a protocol in a run of so many rounds."""
        sendable = DeclaredVectors(protocol.name, protocol.declarations(rounds), model)
        return cls(protocol.name, protocol.graph, sendable, encoding)

    def neighbourhood(self, peer: Peer) -> Neighbourhood:
        """The ring's order, and to whom and from whom messages go, in the present round."""
        return Neighbourhood(
            peer.ring, receivers(self.graph, peer.ring, peer.id), senders(self.graph, peer.ring, peer.id)
        )

    def exchange(
        self, peer: Peer, name: str, to: To, of: Of, scalars: Mapping[str, float], *, pending: int
    ) -> CheckedExchange:
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
        return CheckedExchange(share, vectors, numbers, around, each_its_own)

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


def plain_notes(protocol: str, values: Mapping[str, object], round: int) -> dict[str, Note]:
    """Numbers, or lists of them; InputError for anything else. What is not finite is None."""
    if "round" in values:
        raise InputError(f"`{protocol}` notes a `round`; that name is the round's own: choose another")
    found = {}
    for name, value in values.items():
        try:
            found[name] = _plain_note(value)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"`{protocol}` notes a {type(value).__name__} as `{name}` in round {round}; note a number or a list "
                "of numbers"
            ) from None
    return found


def _plain_note(value: object) -> Note:
    plain = value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value
    if isinstance(plain, Sequence) and not isinstance(plain, str):
        return [_finite(one) for one in plain]
    return _finite(plain)


def _finite(value: Any) -> float | None:
    """JSON has no other numbers, and for a norm that is infinite no run should end."""
    if isinstance(value, str):
        raise TypeError("float() would read it")
    number = float(value)
    return number if isfinite(number) else None


ProtocolState = MutableMapping[str, Tensor]


def first_rows(protocol: Protocol, state: ProtocolState, count: int) -> None:
    """Before anything is known of so many members."""
    for name, first in protocol.by_peer.items():
        state[name] = torch.full((count,), first, dtype=row_dtype(first))


def row_dtype(first: float | bool) -> torch.dtype:
    """Of rows that begin so."""
    return torch.bool if isinstance(first, bool) else torch.float64
