"""Vectors on their way out: as a misbehaving peer would send them, finite, as `wire` says, and kept in the trace."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from peer.errors import DivergedError
from peer.learning.transfer import Fetched, Transfers
from peer.protocols.declarations import Share
from peer.runtime.behaviour import Misbehaviour
from peer.runtime.encodings import Collective, Encoding
from peer.telemetry.trace import Trace

T = TypeVar("T")
U = TypeVar("U")


class Departures:
    """What leaves one peer, each vector once however many get it; DivergedError where one is not finite.

    A vector is fetched as the call finds it, and looked at and encoded when it is here.
    """

    def __init__(self, peer: str, misbehaviour: Misbehaviour, encoding: Encoding, transfers: Transfers) -> None:
        self._peer, self._misbehaviour, self._encoding = peer, misbehaviour, encoding
        self._transfers = transfers
        self.round = 0
        self.trace: Trace | None = None

    def begin(self, round: int) -> None:
        self.round = round
        self._misbehaviour.begin(round)

    def exchanges(self, name: str, vector: Callable[[], Tensor], numbers: Mapping[str, float]) -> None:
        """An exchange is about to begin, of the vector that `vector` gives."""
        if self.trace and self.trace.shared == name:
            self.trace.passes(vector())
            self.trace.facts |= numbers

    def fetch(self, share: Share, vector: Tensor) -> Fetched:
        """A vector on its way to the CPU."""
        if self.trace and self.trace.shared == share.vector:
            self.trace.communicates(vector)
        return self._transfers.fetch(self._as_sent(share, vector))

    def fetch_each(self, share: Share, vectors: Mapping[str, Tensor]) -> dict[str, Fetched]:
        """The vectors of an exchange, by receiver."""
        return each_once(vectors, lambda vector: self.fetch(share, vector))

    def plain(self, share: Share, fetched: Fetched) -> Tensor:
        """A vector on the CPU, as it leaves before it is encoded."""
        sent = fetched.vector
        if sent.is_floating_point() and not bool(torch.isfinite(sent.sum())):
            raise DivergedError(
                f"{self._peer}: its {share.vector} is not finite in round {self.round}; lower the learning rate"
            )
        return sent

    def _as_sent(self, share: Share, vector: Tensor) -> Tensor:
        """Another vector if this peer misbehaves by the spec; a trace has both."""
        sent = self._misbehaviour.leaving(share, vector)
        if self.trace and self.trace.shared == share.vector and sent is not vector:
            self.trace.sends(sent)
        return sent

    def encoded(self, collective: Collective, share: Share, fetched: Fetched) -> Tensor:
        """A vector as it travels."""
        return self._encode(collective, share, self.plain(share, fetched))

    def each_encoded(self, share: Share, fetched: Mapping[str, Fetched], each_its_own: bool) -> dict[str, Tensor]:
        """Of an exchange the vectors as they travel, by receiver."""
        # All are looked at before one is encoded: what an encoding keeps must not hold what never left.
        plain = each_once(fetched, lambda one: self.plain(share, one))
        return each_once(plain, lambda vector: self._encode("exchange", share, vector, each_its_own))

    def _encode(self, collective: Collective, share: Share, vector: Tensor, each_its_own: bool = False) -> Tensor:
        try:
            return self._encoding.encode(collective, share, vector, each_its_own)
        except OverflowError as error:
            raise DivergedError(
                f"{self._peer}: its {share.vector} has values {error} in round {self.round}; lower the learning rate"
            ) from None


def each_once(given: Mapping[str, T], make: Callable[[T], U]) -> dict[str, U]:
    """What is made of each, by receiver: of what several receivers get once, in the order of the first of them."""
    made = {at: make(one) for at, one in {id(one): one for one in given.values()}.items()}
    return {to: made[id(one)] for to, one in given.items()}
