"""What each site has, before anything is trained: `protocol: statistics`.

Two all-gathers in round 1: first each site's numbers of samples and classes, and each column's missing values, mean and
deviation; then its histograms, whose bins all find alike from the first. What speaks of fewer than `smallest` samples
leaves no peer, nor what it could be told from within one run:

- a small count is hidden, with others of its class or column, so that their sum leaves it open (`hidden`);
- of a column nothing is told where few samples have a value, or lack one, or where few make most of its deviation;
- of a column of few different values nothing, if one of them is rare, nor of others of the same values, such as the
  rest of a one-hot code (`secret`).

Samples are counted, not people. Runs over data that differ by few samples tell of these.

A column is a number of the inputs; of images and volumes, for each channel, the mean and the deviation of a sample's
intensities; where the task has no classes, a number of the targets; and of volumes that a data set reads, the distance
of voxels and the number of them along each axis, as they lie in the file (`VOXELS`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, default_collate

from peer import Peer, Phase, Protocol, Received, Share
from peer.errors import InputError
from peer.learning.data.batch_loader import StreamedSamples
from peer.learning.data.batch_reader import Collate
from peer.learning.data.samples import Batch, Samples
from peer.topology import Graph

HIDDEN = -1.0
"""In the place of a count from which fewer than `smallest` samples could be told apart."""
FEW = -2.0
"""In the place of a column's missing values, where nothing is told of it."""
BATCH = 256
FEW_VALUES = 20
"""A column of no more different values is one of kinds: of such, a rare one must not be told from the mean."""
MOST = 1e9
"""More samples no site has."""
VOXELS = tuple(f"axis {at}, {what}" for what in ("spacing", "size") for at in range(3))
"""The last columns, where samples are volumes that a data set reads."""


class Statistics(Protocol):
    """Counts, means, deviations, missing values and histograms of each site, seen by all. Nothing is trained."""

    smallest: int = Field(default=5, ge=1, le=1_000_000)
    """Of fewer samples nothing is told."""
    bins: int = Field(default=8, ge=3, le=64)
    """Bins of a histogram."""
    most_columns: int = Field(default=500, ge=1, le=10_000)
    """Data of more columns are refused."""
    flagged: bool = False
    """Whether the second half of the columns says where those of the first half are missing: `impute: category`."""

    paper: ClassVar[str] = "none: statistics before training"
    graph: ClassVar[Graph] = "directed ring"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        first = range(1, 2)
        return (
            Share("counts", size=2 + MOST_CLASSES + 3 * self.most_columns, rounds=first),
            Share("histograms", size=self.bins * self.most_columns, rounds=first),
        )

    def local(self) -> tuple[Phase, ...]:
        return ()

    def why_figures_stay(self) -> str:
        return "nothing is trained"

    async def round(self, peer: Peer) -> None:
        if peer.round > 1:
            return
        columns = await peer.compute(self.columns, peer)
        secret = await peer.compute(self.secret, columns)
        peer.state["counts"] = await peer.compute(self.counts, peer, columns, secret)
        told = await peer.all_gather("counts")
        sites = {id: one for id, given in told.items() if (one := self.read(peer, given, columns.shape[1])) is not None}
        edges = self.edges(sites, columns.shape[1])
        peer.state["histograms"] = await peer.compute(self.histograms, columns, secret, edges)
        drawn = await peer.all_gather("histograms")
        peer.note(edges=edges.flatten().tolist(), **({"volumes": 1.0} if volumes_in(peer.data) else {}))
        for id, site in sites.items():
            peer.note(**{f"counts of {id}": site.tolist()})
            if (bins := self.read_bins(drawn[id], columns.shape[1])) is not None:
                peer.note(**{f"histograms of {id}": bins.tolist()})

    def columns(self, peer: Peer) -> Tensor:
        """(n, columns) float64, NaN for what is missing."""
        parts = []
        for batch, voxels in with_voxels(peer.data, min(BATCH, peer.task.evaluation_batch)):
            found = numbers_of(batch.inputs)
            if self.flagged:
                values, missing = found.tensor_split(2, 1)
                if values.shape != missing.shape or not bool(((missing == 0) | (missing == 1)).all()):
                    raise InputError(f"{peer.id}: `flagged` goes with `impute: category` in `data`; leave it out")
                found = torch.where(missing > 0, torch.nan, values)
            if not peer.task.has_classes and batch.targets.is_floating_point() and batch.targets.ndim < 3:
                found = torch.cat([found, batch.targets.reshape(len(found), -1).double()], 1)
            parts.append(torch.cat([of_samples(found, len(batch.positions)), voxels], 1))
        columns = torch.cat(parts).cpu()
        if columns.shape[1] > self.most_columns:
            raise InputError(
                f"{peer.id}: the data have {columns.shape[1]} columns; write `most_columns: {columns.shape[1]}` into "
                "`protocol`"
            )
        return columns

    def counts(self, peer: Peer, columns: Tensor, secret: Sequence[bool]) -> Tensor:
        """(2 + classes + 3·columns,) float32: samples, the number of classes, the samples of each, and of each column
        its missing values, mean and deviation."""
        n, of_classes = len(columns), classes_of(peer)
        found = [torch.tensor([n if n >= self.smallest else HIDDEN, len(of_classes)]), self.hidden(of_classes)]
        for values, hidden in zip(columns.T, secret, strict=True):
            known = values[~values.isnan()]
            moments = (len(values) - len(known), float(known.mean()), float(known.std(correction=0)))
            found.append(torch.tensor((FEW, 0.0, 0.0) if hidden else moments))
        return torch.cat([one.float() for one in found]).nan_to_num()

    def secret(self, columns: Tensor) -> list[bool]:
        """Of which columns (n, columns) nothing may be told."""
        secret, kinds, rare = list[bool](), list[tuple[float, ...]](), set[tuple[float, ...]]()
        for values in columns.T:
            known = values[~values.isnan()]
            different, times = np.unique(known.numpy(), return_counts=True)
            kinds.append(tuple(different.tolist()) if len(different) <= FEW_VALUES else ())
            few = len(known) < self.smallest or 0 < len(values) - len(known) < self.smallest
            apart = torch.zeros(1) if few else (known - known.mean()) ** 2
            secret.append(few or bool(apart.max() * self.smallest > apart.sum() * (1 + 1e-9)))
            if kinds[-1] and (times < self.smallest).any():
                rare.add(kinds[-1])
        return [one or kind in rare for one, kind in zip(secret, kinds, strict=True)]

    def hidden(self, counts: Tensor) -> Tensor:
        """The counts, float64 (k,), of which the small ones are HIDDEN, and as many others as leave these open: their
        sum is known, and that each is at least 1."""
        small = (counts > 0) & (counts < self.smallest)
        for at in counts.argsort(stable=True).tolist():
            if not small.any() or (int(small.sum()) > 1 and counts[small].sum() - small.sum() >= self.smallest):
                break
            small[at] |= counts[at] > 0
        return torch.where(small, HIDDEN, counts)

    def edges(self, sites: Mapping[str, Tensor], columns: int) -> Tensor:
        """(bins − 1, columns) float64: where bins meet, round the median of the sites' means and half a median
        deviation apart, on a grid: so that neither one site nor one sample moves them by a little."""
        told = torch.stack([site[len(site) - 3 * columns :].reshape(columns, 3) for site in sites.values()])
        known = torch.where((told[..., :1] == FEW), torch.nan, told[..., 1:])
        mean, deviation = known.nanmedian(0).values.nan_to_num().T
        step = 2 ** (deviation / 2).clamp(min=1e-30).log2().ceil()
        places = torch.arange(self.bins - 1, dtype=torch.float64)[:, None] - (self.bins - 2) // 2
        edges: Tensor = ((mean / step).round() + places) * step
        return edges

    def histograms(self, columns: Tensor, secret: Sequence[bool], edges: Tensor) -> Tensor:
        """(columns·bins,) float32."""
        found = []
        for values, bounds, hidden in zip(columns.T, edges.T, secret, strict=True):
            inside = torch.bucketize(values[~values.isnan()], bounds.contiguous(), right=True)
            counted = torch.bincount(inside, minlength=self.bins).double()
            found.append(torch.full((self.bins,), HIDDEN) if hidden else self.hidden(counted))
        return torch.cat([torch.empty(0), *found]).float()

    def read(self, peer: Peer, given: Received, columns: int) -> Tensor | None:
        """What a site tells of itself, float64; None unless it can be: of one that lies, nothing is told."""
        site, classes = given.vector.cpu().double(), len(classes_of(peer))
        if len(site) != 2 + classes + 3 * columns or int(site[1]) != classes:
            return None
        missing, means, deviations = site[2 + classes :].reshape(columns, 3).T
        possible = _are_counts(site[: 2 + classes]) and _are_counts(torch.where(missing == FEW, HIDDEN, missing))
        if volumes_in(peer.data):
            possible &= bool(((means > 0) | (missing == FEW))[-len(VOXELS) :].all())
        return site if possible and bool((deviations >= 0).all()) and bool(site.isfinite().all()) else None

    def read_bins(self, given: Received, columns: int) -> Tensor | None:
        bins = given.vector.cpu().double()
        return bins if len(bins) == self.bins * columns and _are_counts(bins) else None


MOST_CLASSES = 1000


def _are_counts(given: Tensor) -> bool:
    """Whether all are whole numbers from 0, or HIDDEN."""
    return bool(((given >= HIDDEN) & (given <= MOST) & (given == given.round())).all())


def classes_of(peer: Peer) -> Tensor:
    """How many samples each class has, float64 (classes,); (0,) where there are none, or very many."""
    count = len(peer.proportions) if peer.task.has_classes else 0
    if not 0 < count <= MOST_CLASSES:
        return torch.zeros(0, dtype=torch.float64)
    return torch.bincount(peer.data.labels.cpu(), minlength=count).double()


def of_samples(rows: Tensor, samples: int) -> Tensor:
    """(samples, columns): the mean of each sample's rows, of which several crops have several."""
    if len(rows) == samples:
        return rows
    return torch.stack([one.mean(0) for one in rows.tensor_split(samples)])


def numbers_of(inputs: object) -> Tensor:
    """(n, columns) float64 of inputs (n, ...): rows as they are; of channels (n, c, ...) the mean and the deviation of
    each; nothing of tokens or of several inputs."""
    if not isinstance(inputs, Tensor):
        return torch.empty(len(next(iter(inputs.values() if isinstance(inputs, dict) else inputs))), 0).double()  # type: ignore[call-overload]
    if not inputs.is_floating_point():
        return torch.empty(len(inputs), 0).double()
    if inputs.ndim == 2:
        return inputs.double()
    channels = inputs.double().reshape(len(inputs), inputs.shape[1], -1)
    return torch.stack([channels.mean(2), channels.std(2, correction=0)], 2).flatten(1)


def volumes_in(samples: Samples) -> "StreamedSamples | None":
    """The samples, if they are volumes (n, c, x, y, z) that a torch data set reads; else None."""
    if not isinstance(samples, StreamedSamples) or not isinstance(samples.shape, tuple) or len(samples.shape) != 4:
        return None
    return samples if isinstance(samples.stream.reading.parts[samples.part].inputs, Dataset) else None


def with_voxels(samples: Samples, size: int) -> Iterator[tuple[Batch, Tensor]]:
    """All batches in order, each with its samples' `VOXELS`, (n, 6) float64; (n, 0) where they are no volumes."""
    if (volumes := volumes_in(samples)) is None:
        for batch in samples.in_order(size):
            yield batch, torch.empty(len(batch.positions), 0).double()
        return
    stream = volumes.stream
    reading = replace(stream.reading, collate=WithVoxels(stream.reading.collate or default_collate))
    with closing(replace(volumes, stream=type(stream)(reading, stream.workers), turns=0)) as measured:
        for batch in measured.in_order(size):
            inputs, voxels = batch.inputs
            yield batch._replace(inputs=inputs), voxels.double()


@dataclass(frozen=True)
class WithVoxels:
    """A data set's `collate`, with the samples' `VOXELS` beside the inputs."""

    collate: Collate

    def __call__(self, samples: list[Any]) -> tuple[tuple[Any, Tensor], Any]:
        inputs, targets = self.collate(samples)
        return (inputs, torch.tensor([voxels_of(one) for one in samples])), targets


def voxels_of(sample: Any) -> list[float]:
    """`VOXELS` by the metadata of the sample's first tensor that has such, as MONAI's readers give them; NaN otherwise,
    and for what cannot be."""
    told = (getattr(leaf, "meta", None) for leaf in tree_leaves(sample))
    meta = next((one for one in told if isinstance(one, Mapping) and "original_affine" in one), {})
    try:
        affine, size = (np.asarray(meta[key], float) for key in ("original_affine", "spatial_shape"))
        found = [*np.linalg.norm(affine[:3, :3], axis=0), *size.reshape(3)]
    except (LookupError, TypeError, ValueError):
        found = [np.nan] * len(VOXELS)
    # Rounded, as the same spacing is written in more ways than one, and would be another value each time.
    return [float(f"{one:.4g}") if 0 < one < MOST else np.nan for one in found]
