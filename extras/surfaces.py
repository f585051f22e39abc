"""How far the surfaces of what is found lie from the true ones: `task: surfaces`, segmentation with MONAI's distances.

A distance is of one class in one sample, and defined where it occurs and is found. Where only one of both holds MONAI
has infinity, which no mean could take: such pairs are counted, in `unmatched`, and where neither holds nothing is.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field, FiniteFloat
from torch import Tensor

from extras.monai_bundle import of_monai
from peer import Figure
from peer.errors import InputError
from peer.learning.tasks import Segmentation

COLUMNS = 4
"""Of each class and sample: mean distance, Hausdorff distance, whether both are defined, whether only one is there."""


class Surfaces(Segmentation):
    """Segmentation, judged also by the distance between surfaces, 0 being best, over all classes but the background.

    `surface-distance` is the mean symmetric distance, `hausdorff95` the larger 95th percentile of both directions: the
    mean over the samples, then over the classes. `unmatched` is the share of the samples with a class, true or found,
    in which only one of both has it. An ignored pixel belongs to no class.
    """

    name: str  # type: ignore[assignment]
    spacing: Annotated[tuple[Annotated[FiniteFloat, Field(gt=0)], ...], Field(min_length=1, max_length=3)] = (1.0,)
    """What a step along each axis of the mask measures, such as millimetres: one number for each, or one for all."""

    figures: ClassVar[tuple[Figure, ...]] = (
        *Segmentation.figures,
        *(Figure(name, better="down") for name in ("surface-distance", "hausdorff95", "unmatched")),
    )

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found, known, classes = outputs.argmax(1), self._known(targets), outputs.shape[1]
        more = torch.zeros(len(targets), COLUMNS, classes, dtype=torch.float64)
        for number in range(1, classes):
            a, b = (((one == number) & known).cpu() for one in (found, targets))
            more[:, :, number] = self._between(a, b)
        return torch.cat([super().tally(outputs, targets).cpu(), more.flatten(1)], 1)

    def of_classes(self, sums: Tensor) -> dict[str, Tensor]:
        end = (len(sums) - 2) * COLUMNS // (3 + COLUMNS)
        distance, hausdorff, defined, alone = sums[-end:].view(COLUMNS, -1)
        return super().of_classes(sums[:-end]) | {
            "surface-distance": distance / defined,
            "hausdorff95": hausdorff / defined,
            "unmatched": alone / (defined + alone),
        }

    def _between(self, a: Tensor, b: Tensor) -> Tensor:
        """The columns of one class, (n, COLUMNS): of masks of what is found and of what is true, bool (n, *axes)."""
        (monai, _), axes = of_monai("monai.metrics", "scipy.ndimage"), a.ndim - 1
        if len(self.spacing) not in (1, axes):
            raise InputError(
                f"`spacing` has {len(self.spacing)} numbers, and masks have {axes} axes; give each its own"
            )
        given = {"include_background": True, "spacing": [*self.spacing] * (axes // len(self.spacing))}
        there = torch.stack([a.flatten(1).any(1), b.flatten(1).any(1)])
        columns, both = torch.zeros(len(a), COLUMNS, dtype=torch.float64), there.all(0)
        columns[:, 2], columns[:, 3] = both, there.any(0) & ~both
        if both.any():
            masks = a[both, None], b[both, None]
            columns[both, 0] = monai.compute_average_surface_distance(*masks, symmetric=True, **given)[:, 0].double()
            columns[both, 1] = monai.compute_hausdorff_distance(*masks, percentile=95, **given)[:, 0].double()
        return columns
