"""Vectors on their way out: as a misbehaving peer would send them, finite, as `wire` says, and kept in the trace."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from peer.errors import DivergedError
from peer.learning.device import fetched
from peer.protocols.declarations import Share
from peer.runtime.behaviour import Misbehaviour
from peer.runtime.encodings import Collective, Encoding
from peer.telemetry.trace import Trace


class Departures:
    """What leaves one peer, each vector once however many get it; DivergedError where one is not finite."""

    def __init__(self, peer: str, misbehaviour: Misbehaviour, encoding: Encoding) -> None:
        self._peer, self._misbehaviour, self._encoding = peer, misbehaviour, encoding
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

    def plain(self, share: Share, vector: Tensor) -> Tensor:
        """A vector on the CPU, as it leaves before it is encoded."""
        if self.trace and self.trace.shared == share.vector:
            self.trace.communicates(vector)
        sent = self._as_sent(share, vector)
        if sent.is_floating_point() and not bool(torch.isfinite(sent.sum())):
            raise DivergedError(
                f"{self._peer}: its {share.vector} is not finite in round {self.round}; lower the learning rate"
            )
        return fetched(sent)

    def _as_sent(self, share: Share, vector: Tensor) -> Tensor:
        """Another vector if this peer misbehaves by the spec; a trace has both."""
        sent = self._misbehaviour.leaving(share, vector)
        if self.trace and self.trace.shared == share.vector and sent is not vector:
            self.trace.sends(sent)
        return sent

    def encoded(self, collective: Collective, share: Share, vector: Tensor) -> Tensor:
        """A vector as it travels."""
        return self._encode(collective, share, self.plain(share, vector))

    def each_encoded(self, share: Share, vectors: Mapping[str, Tensor], each_its_own: bool) -> dict[str, Tensor]:
        """Of an exchange the vectors as they travel, by receiver."""
        # All are looked at before one is encoded: what an encoding keeps must not hold what never left.
        plain = {id(vector): self.plain(share, vector) for vector in unlike(vectors)}
        found = {at: self._encode("exchange", share, vector, each_its_own) for at, vector in plain.items()}
        return {to: found[id(vector)] for to, vector in vectors.items()}

    def _encode(self, collective: Collective, share: Share, vector: Tensor, each_its_own: bool = False) -> Tensor:
        try:
            return self._encoding.encode(collective, share, vector, each_its_own)
        except OverflowError as error:
            raise DivergedError(
                f"{self._peer}: its {share.vector} has values {error} in round {self.round}; lower the learning rate"
            ) from None


def unlike(vectors: Mapping[str, Tensor]) -> list[Tensor]:
    """Each tensor once, in the order of the receivers."""
    return [*{id(vector): vector for vector in vectors.values()}.values()]
