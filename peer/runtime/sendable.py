"""Which vectors and numbers may leave a peer: looked up by their names, and checked against their declarations."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import isfinite

from torch import Tensor

from peer.errors import InputError
from peer.learning.model.model import PARTS, Model
from peer.protocols.base import Peer
from peer.protocols.declarations import Declarations, Share

To = Collection[str] | Mapping[str, Tensor] | None
Of = Collection[str] | None


@dataclass(frozen=True)
class Sendable:
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
