"""A class for each pixel."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from peer.errors import InputError
from peer.learning.tasks.base import Figure, Targets, Task
from peer.learning.tasks.trial import misshapen

_MANY_CLASSES = 1000


class Segmentation(Task):
    """Cross entropy of logits (n, classes, H, W) and classes int64 (n, H, W); the answers are the largest logits'
    classes, (n, H, W).

    Every figure is made of all pixels of all samples together, but the ignored: `dice` is the mean over the classes of
    2·|A∩B| / (|A|+|B|), `iou` of |A∩B| / |A∪B|, `pixels` the share of pixels that are right. A class that neither
    occurs nor is found does not count; where none counts, all is right.
    """

    name: Literal["segmentation"]
    """A class for each pixel."""
    dice_weight: Annotated[float, Field(ge=0)] = 0.0
    """How much of 1 − soft dice, the mean over the batch's classes, is added to the cross entropy."""
    background: bool = True
    """Whether class 0 counts in `dice` and `iou`."""
    ignore: int | None = None
    """The number of pixels that are nobody's, often 255: neither learnt nor judged."""

    figures: ClassVar[tuple[Figure, ...]] = (Figure("dice"), Figure("iou"), Figure("pixels"))
    outputs_by_largest: ClassVar[bool] = True

    def targets(self, y: Targets, where: str, name: str) -> Targets:
        if y.ndim == 4 and 1 in (y.shape[1], y.shape[3]):
            y = y[:, 0] if y.shape[1] == 1 else y[..., 0]
        if y.ndim != 3:
            raise InputError(f"{where}: {name} must be of shape (n, H, W), a class for each pixel, not {y.shape}")
        if y.dtype.kind not in "biu":
            raise InputError(f"{where}: the classes in {name} must be integers from 0, but they are {y.dtype}")
        masks = y.astype(np.int64)
        wrong = np.flatnonzero(((masks < 0) & (masks != self.ignore)).any((1, 2)))
        if len(wrong):
            raise InputError(f"{where}: the classes in {name} must not be negative, but sample {wrong[0]} has one")
        return masks

    def outputs(self, parts: Sequence[Targets], given: int | None, where: str) -> int:
        largest = max(int(masks[masks != self.ignore].max(initial=0)) for masks in parts)
        if given is not None and largest >= given:
            raise InputError(
                f"{where}: class {largest} does not fit {given} classes, numbered from 0; where it is nobody's, write "
                f"`ignore: {largest}` into `task`"
            )
        if largest >= _MANY_CLASSES:
            raise InputError(f"{where}: class {largest} is no class number; number the classes from 0")
        return given or largest + 1

    def kinds(self, outputs: int) -> int:
        return outputs

    def mix(self, targets: Targets, outputs: int) -> NDArray[Any]:
        return np.bincount(targets[targets != self.ignore], minlength=outputs)

    def outputs_in_words(self, count: int) -> str:
        return f"{count} class{'es' * (count != 1)} a pixel"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.ignore is None:
            loss = functional.cross_entropy(outputs, targets)
        else:
            total = functional.cross_entropy(outputs, targets, reduction="sum", ignore_index=self.ignore)
            loss = total / self._known(targets).sum().clamp(min=1)
        return loss + self.dice_weight * self._soft_dice_loss(outputs, targets) if self.dice_weight else loss

    def _soft_dice_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        known = self._known(targets)[:, None]
        found, true = outputs.softmax(1) * known, _planes(targets, outputs.shape[1]) & known
        both, sizes = (found * true).sum((0, 2, 3)), (found + true).sum((0, 2, 3))
        return 1 - ((2 * both + 1) / (sizes + 1)).mean()

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        known = self._known(targets)
        found = outputs.argmax(1)
        right = ((found == targets) & known).sum((1, 2))[:, None]
        a = _planes(found, outputs.shape[1]) & known[:, None]
        b = _planes(targets, outputs.shape[1]) & known[:, None]
        planes = [plane.sum((2, 3)) for plane in (a & b, a, b)]
        return torch.cat([right, known.sum((1, 2))[:, None], *planes], 1)

    def results(self, sums: Tensor, samples: int) -> dict[str, float]:
        right, pixels = sums[:2].tolist()
        both, found, true = sums[2:].view(3, -1)[:, 0 if self.background else 1 :]
        counts = found + true > 0
        dice, iou = 2 * both / (found + true), both / (found + true - both)
        return {
            "dice": float(dice[counts].mean()) if counts.any() else 1.0,
            "iou": float(iou[counts].mean()) if counts.any() else 1.0,
            "pixels": right / pixels if pixels else 1.0,
        }

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def misfit(self, outputs: object, targets: Tensor, classes: int) -> str | None:
        shape = (classes, *targets.shape[1:])
        return misshapen(outputs, shape, "a logit for each class of each pixel")

    def _known(self, targets: Tensor) -> Tensor:
        return torch.ones_like(targets, dtype=torch.bool) if self.ignore is None else targets != self.ignore


def _planes(classes: Tensor, count: int) -> Tensor:
    """(n, H, W) → bool (n, count, H, W): where each class is."""
    return classes[:, None] == torch.arange(count, device=classes.device)[:, None, None]
