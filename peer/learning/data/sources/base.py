"""What every data source has in common: its name, its order and its split."""

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from peer.errors import InputError
from peer.learning.data.batch_reader import BatchReader, Collate
from peer.learning.data.dataset import Dataset, as_streamed, is_read_one_by_one, set_aside
from peer.learning.data.drift import Drift, Stage
from peer.learning.data.partition import AnyPartition, Iid
from peer.learning.data.samples import Rule, check_columns
from peer.learning.data.transforms import Steps, transforms_by_use
from peer.learning.randomness import draw
from peer.learning.tasks import Classification, Task
from peer.settings import Settings, Wanted, names_peers, of_peer, spelled


def _true_or_whose(given: Any) -> Any:
    return {True: "own", False: None}[given] if isinstance(given, bool) else given


class Source(Settings):
    """Where samples come from. One class a kind of source; `load` reads what it names."""

    name: str
    """One below, or your `module:function`."""
    seed: int = Field(default=42, ge=0)
    """For the order of samples, held-out part and split."""
    partition: AnyPartition = Iid()
    """The split among the peers."""
    limit: int | None = Field(default=None, ge=1)
    """Use only so many training samples."""
    validation: float = Field(default=0.0, ge=0, lt=1)
    """Share of test samples that all peers have, to judge models."""

    drift: tuple[Drift, ...] = ()
    """Changes of the data during the run. In the federation's data only."""

    transforms: Steps = ()
    """For each training sample: classes of `torchvision.transforms.v2`, `[RandomHorizontalFlip, {RandomCrop: {size: 28,
    padding: 2}}]`, or your `module:name`."""
    test_transforms: Steps = ()
    """The same for all other samples."""
    standardize: Annotated[Literal["own", "federation"] | None, BeforeValidator(_true_or_whose)] = None
    """[Bring columns to one scale](data.md#columns-of-one-scale), by each peer's training samples (`own`, `true`) or
    all (`federation`)."""
    impute: Annotated[
        Rule | Annotated[dict[str, Rule], Field(min_length=1)] | None,
        Wanted("`mean`, `median` or `category`, or one for each of some columns, such as {age: median}"),
    ] = None
    """Replace [missing values](data.md#missing-values) of all columns, or of some: `{age: median}`. In the federation's
    data only."""
    class_names: tuple[str, ...] | None = ()
    """Names of classes 0, 1, ..., or of labels. Of a table the labels as text, of an `image-folder` the folders;
    default there: whole numbers as they are, others sorted."""
    workers: int = Field(default=0, ge=0, le=64)
    """Processes per peer that read and transform ahead."""

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
        """The stages between drifts, that of round 1 first."""
        found = [Stage(1, self.partition)]
        for change in self.drift:
            given = {key: getattr(change, key) for key in ("partition", "rotate", "labels")}
            changed = {key: value for key, value in given.items() if value is not None}
            found.append(replace(found[-1], since=change.round, **changed))
        return found

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
        """Open the data for a task; large sets stay on disk until samples are taken. InputError if unusable."""
        dataset = self._limited(self._named(self._read(task)))
        dataset = set_aside(dataset, self.validation, self.seed, self.name) if self.validation else dataset
        opened = self._streamed(dataset)
        if self.impute and (opened.stream or not opened.names.rules):
            raise InputError(
                f"{self.name}: `impute` is for tables in memory; leave it out, or take `csv` or `parquet` without "
                "`stream` and transforms"
            )
        if self.standardize:
            check_columns(opened.shape, self.name)
        return opened

    def _count(self, classes: int | None) -> int | None:
        """How many classes or labels there are to be by `classes` or `class_names`; None if neither says."""
        return classes or len(self.class_names or ()) or None

    def _named(self, dataset: Dataset) -> Dataset:
        names, count = dataset.names.classes or self.class_names or (), dataset.classes
        if names and not len(names) == len({*names}) == count:
            wanted = f"a different one for each of {dataset.task.outputs_in_words(count)}, in order"
            raise InputError(f"{self.name}: `class_names` are {', '.join(names)}; give {wanted}")
        return replace(dataset, names=replace(dataset.names, classes=names))

    def _streamed(self, dataset: Dataset) -> Dataset:
        if self.stays_on_disk or self.transforms or self.test_transforms or is_read_one_by_one(dataset):
            steps = transforms_by_use(self.transforms, self.test_transforms)
            reader = BatchReader(self.name, {}, dataset.task, 1.0, steps, self._collate())
            return as_streamed(dataset, reader, self.workers)
        if self.workers:
            raise InputError(f"{self.name}: all samples are in memory, and `workers` would do nothing; leave it out")
        return dataset

    @property
    def stays_on_disk(self) -> bool:
        """Whether samples are read when they are needed."""
        return False

    def _collate(self) -> Collate | None:
        """What makes a batch of samples; None for torch's own."""
        return None

    def _limited(self, dataset: Dataset) -> Dataset:
        if self.limit is None or self.limit >= len(dataset.train_targets):
            return dataset
        kept, _ = draw(len(dataset.train_targets), self.limit, self.seed)
        return replace(dataset, parts={**dataset.parts, "train": dataset.parts["train"].at(kept)})

    @abstractmethod
    def _read(self, task: Task) -> Dataset:
        """The data set as it lies on disk."""


class OnDisk(Source):
    """A source that need not be taken into memory."""

    stream: bool = False
    """Read batches when needed."""

    @property
    def stays_on_disk(self) -> bool:
        return self.stream
