"""What every data source has in common: its name, its order and its split."""

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from peer.learning.data.drift import Drift, Stage, stages
from peer.learning.data.partition import AnyPartition, Iid
from peer.learning.data.samples import Dataset
from peer.learning.data.sources.arrays import Rows
from peer.learning.data.validation import set_aside
from peer.learning.tasks import Classification, Task
from peer.peer_paths import names_peers, of_peer, spelled
from peer.settings import Settings


class Source(Settings):
    """Where samples come from. One class a kind of source; `load` reads what it names."""

    name: str
    """Which data set: a name from the list of data sets, or `module:function` of your own."""
    seed: int = Field(default=42, ge=0)
    """Fixes the order of the samples, what is held out and the split; the federation's `seed` does not touch
    them."""
    partition: AnyPartition = Iid()
    """How the samples are dealt to the peers; `kind: iid` when not given."""
    limit: int | None = Field(default=None, ge=1)
    """Use only this many training samples, drawn by `seed`, for quick runs; not given, all."""
    validation: float = Field(default=0.0, ge=0, lt=1)
    """Share of the test samples set aside as public validation samples, drawn by `seed`: every peer has the same
    ones, for protocols that judge models by them, and nobody is tested on them. A peer with its own data takes
    them from the federation's data too."""

    drift: tuple[Drift, ...] = ()
    """What changes during the run: `[{round: 5, partition: {...}}, {round: 8, rotate: 90}]`, in the order of the
    rounds. Training, test and validation samples change alike. Only in the federation's data: a peer with its own
    data follows it, but for `partition`."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        rounds = [change.round for change in self.drift]
        if rounds != sorted(set(rounds)):
            raise ValueError(f"`drift` has the rounds {', '.join(map(str, rounds))}; put them in order, each once")
        return self

    @model_validator(mode="after")
    def _spelled(self) -> Self:
        for path in self._places.values():
            spelled(path)
        return self

    @property
    def stages(self) -> list[Stage]:
        """From drift to drift, that of round 1 first."""
        return stages(self.partition, self.drift)

    def relative_to(self, base: Path) -> Self:
        """A copy whose relative paths are taken from the folder `base`; `~` is the home folder."""
        return self.model_copy(update={key: base / path.expanduser() for key, path in self._places.items()})

    @property
    def names_peers(self) -> bool:
        """Whether a path differs from peer to peer: `{id}` in it stands for the peer's id."""
        return any(map(names_peers, self._places.values()))

    def of_peer(self, id: str) -> Self:
        """A copy with that id in its paths."""
        return self.model_copy(update={key: of_peer(path, id) for key, path in self._places.items()})

    @property
    def _places(self) -> dict[str, Path]:
        return {key: value for key, value in self if isinstance(value, Path)}

    def load(self, task: Task = Classification()) -> Dataset:
        """Open the data for a task; large sets stay on disk until samples are taken. InputError for what is no use."""
        dataset = self._limited(self._read(task))
        return set_aside(dataset, self.validation, self.seed, self.name) if self.validation else dataset

    def _limited(self, dataset: Dataset) -> Dataset:
        if self.limit is None or self.limit >= len(dataset.train_targets):
            return dataset
        drawn = np.random.default_rng(self.seed).permutation(len(dataset.train_targets))[: self.limit]
        kept = np.sort(drawn)
        inputs = Rows(dataset.train_inputs, kept)
        return replace(dataset, train_inputs=inputs, train_targets=dataset.train_targets[kept])

    @abstractmethod
    def _read(self, task: Task) -> Dataset:
        """The data set as it lies on disk."""
