"""Peers that misbehave because the spec says so: what they do to their labels, and to the vectors that leave them.

No protocol knows about it: labels are flipped when data are loaded, and vectors are changed as they leave.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from peer.learning.model.model import Model
from peer.learning.randomness import torch_generator
from peer.protocols.declarations import Share
from peer.spec.blocks import Behaviour, Noise, SignFlip, Stale


def flip_labels(labels: Tensor, rate: float, classes: int, seed: int, peer: str) -> Tensor:
    """Return labels (n,) of which ⌊rate·n + ½⌋, drawn for this peer, are replaced by others from 0 … classes−1.

    With one class there is no other, and nothing changes.
    """
    generator = torch_generator(seed, peer, 0, "label-flip")
    chosen = torch.randperm(len(labels), generator=generator)[: int(rate * len(labels) + 0.5)]
    flipped = labels.clone()
    if classes > 1:
        shift = torch.randint(1, classes, (len(chosen),), generator=generator)
        flipped[chosen] = (labels[chosen] + shift) % classes
    return flipped


class SimulatedAdversary:
    """Turns a vector into the one that is sent in its place: without a behaviour, and for bytes, the vector itself.

    In vectors that are laid out like a part of the model only trained values change: BatchNorm's statistics leave as
    they are, as a negative variance would end the run of every neighbour.
    """

    def __init__(self, behaviour: Behaviour | None, model: Model, seed: int, peer: str) -> None:
        self._behaviour, self._model, self._seed, self._peer = behaviour, model, seed, peer
        self._round = self._count = 0
        self._start: Tensor | None = None
        self._first: dict[str, Tensor] = {}

    def begin(self, round: int) -> None:
        """Begin a round: sign flips change the direction from the model as it is now."""
        self._round, self._count = round, 0
        if isinstance(self._behaviour, SignFlip):
            self._start = self._model.vector.detach().clone()

    def state_dict(self) -> dict[str, Tensor]:
        """What must survive a crash: CPU tensors, which never change."""
        return dict(self._first)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._first = dict(state)

    def transform(self, share: Share, vector: Tensor) -> Tensor:
        """Return what is sent in place of `vector` (float32 or uint8, one-dimensional), which is not modified."""
        if share.bytes:
            return vector
        match self._behaviour:
            case Noise(scale=scale):
                return self._noisy(share, vector, scale)
            case Stale():
                return self._stale(share, vector)
            case SignFlip():
                return self._flipped(share, vector)
        return vector

    def _noisy(self, share: Share, vector: Tensor, scale: float) -> Tensor:
        generator = torch_generator(self._seed, self._peer, self._round, f"noise {self._count}")
        self._count += 1
        noise = torch.randn(vector.shape, generator=generator).mul_(scale).to(vector.device)
        return self._trained(share, vector, vector + noise)

    def _stale(self, share: Share, vector: Tensor) -> Tensor:
        # Receivers may each get their own vector under one name, and of different lengths.
        name = f"{share.vector}/{vector.numel()}"
        if name not in self._first:
            self._first[name] = vector.detach().to("cpu", copy=True)
        return self._first[name].to(vector.device, copy=True)

    def _flipped(self, share: Share, vector: Tensor) -> Tensor:
        if share.own:
            return self._trained(share, vector, -vector)
        assert self._start is not None
        assert share.part
        return self._trained(share, vector, 2 * self._start[self._model.part(share.part)] - vector)

    def _trained(self, share: Share, vector: Tensor, changed: Tensor) -> Tensor:
        """`changed` where the model is trained, `vector` elsewhere."""
        if share.part is None:
            return changed
        sent, offset = vector.clone(), self._model.part(share.part).start
        for where in self._model.trainable(share.part):
            place = slice(where.start - offset, where.stop - offset)
            sent[place] = changed[place]
        return sent
