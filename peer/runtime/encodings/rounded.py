"""Vectors in half the bytes: `wire: bfloat16`."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from peer.network.collectives.rounding import Rounding
from peer.network.wire.manifest import Payload
from peer.protocols.declarations import Share
from peer.runtime.encodings.base import Collective, Encoding, Placed

BFLOAT16 = 2
"""Bytes."""


class Bfloat16(Encoding):
    """Each value rounded to bfloat16; the rest is added to what is sent next."""

    def payload(self, share: Share, payload: Payload) -> Payload:
        if share.bytes:
            return payload
        tensors = tuple((name, shape, "bfloat16") for name, shape, _ in payload.tensors)
        return replace(payload, kind="bfloat16", tensors=tensors)

    def length(self, share: Share, values: int) -> int:
        return values if share.bytes else BFLOAT16 * values

    def rounding(self, share: Share, vector: Tensor) -> Rounding | None:
        return self._rounding("weighted_mean", share, vector)

    def _rounding(self, collective: Collective, share: Share, vector: Tensor) -> Rounding:
        key = f"{collective}/{share.vector}"
        if key not in self.state or self.state[key].shape != vector.shape:
            self.state[key] = torch.zeros_like(vector, device="cpu")
        return Rounding(self.state[key])

    def encode(self, collective: Collective, share: Share, vector: Tensor, each_its_own: bool = False) -> Tensor:
        if share.bytes:
            return vector
        lost = Rounding(torch.zeros_like(vector)) if each_its_own else self._rounding(collective, share, vector)
        rounded = lost.round(vector)
        if not bool(torch.isfinite(rounded.sum())):
            raise OverflowError("beyond bfloat16")
        return rounded

    def decode(self, share: Share, arrived: Tensor, own: Callable[[], Tensor], placed: Placed) -> Tensor:
        return placed(arrived) if share.bytes else placed(arrived).float()
