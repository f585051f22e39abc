"""What the peers of one process hold once for all of them."""

from functools import cached_property

import torch
from torch import Tensor

from peer.learning.data.shard import CommonData
from peer.spec.federation import Spec


class Common:
    """The federation's data, and room for gradients."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._gradients: dict[int, Tensor] = {}

    @cached_property
    def data(self) -> CommonData:
        """Read when a peer without data of its own wants them; InputError when they are no use."""
        return CommonData(self._spec.data, self._spec.ids, self._spec.task)

    def gradient(self, vector: Tensor) -> Tensor:
        """One of that vector's size: the peers train one after the other, and none keeps anything there."""
        size = len(vector)
        if size not in self._gradients:
            self._gradients[size] = torch.zeros_like(vector)
        return self._gradients[size]
