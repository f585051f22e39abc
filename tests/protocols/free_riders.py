"""CGSV, RFFL and CFFL whose last peer learns nothing and tells noise; and a model with running statistics."""

from typing import Literal

import torch
from torch import Tensor

from peer.protocols.base import Peer
from peer.protocols.cffl import CFFL
from peer.protocols.cgsv import CGSV
from peer.protocols.rffl import RFFL


def noise(peer: Peer) -> Tensor:
    """Uniform in −1..1: RFFL's own free rider."""
    drawn = peer.shared_generator("free rider").uniform(-1, 1, len(peer.model))
    return torch.from_numpy(drawn).float()


class RiddenCGSV(CGSV):
    name: Literal["free_riders:RiddenCGSV"] = "free_riders:RiddenCGSV"  # type: ignore[assignment]

    async def change(self, peer: Peer) -> Tensor:
        return await super().change(peer) if peer.id != peer.members[-1] else noise(peer)


class RiddenRFFL(RFFL):
    name: Literal["free_riders:RiddenRFFL"] = "free_riders:RiddenRFFL"  # type: ignore[assignment]

    async def change(self, peer: Peer) -> Tensor:
        return await super().change(peer) if peer.id != peer.members[-1] else noise(peer)


class RiddenCFFL(CFFL):
    name: Literal["free_riders:RiddenCFFL"] = "free_riders:RiddenCFFL"  # type: ignore[assignment]

    async def change(self, peer: Peer) -> Tensor:
        return await super().change(peer) if peer.id != peer.members[-1] else noise(peer)
