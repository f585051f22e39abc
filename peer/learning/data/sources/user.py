"""Data from a function of the user's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, JsonValue

from peer.errors import InputError
from peer.learning.data.batch_reader import Collate, TorchDataset
from peer.learning.data.dataset import Dataset, Groups, Labelled, hold_out, join_parts, labelled
from peer.learning.data.samples import Names
from peer.learning.data.sources.base import Source
from peer.learning.tasks import Task
from peer.plugins import check_options, load_function, user_input_errors

NAME = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"


class UserSource(Source):
    """`function(**options)` returns (x, y), or (x_train, y_train, x_test, y_test), as in an npz file; or a map-style
    `torch.utils.data.Dataset`, or two (train, test), read when needed. With validation samples: six arrays or three
    data sets, those in the middle. With groups, each of which [stays together](data.md#tables): (x, y, groups), or
    `groups` of the training data set, a value a sample.

    It runs in every peer and must return the same each time: `dfl-launch check` calls it twice.
    """

    name: str = Field(pattern=NAME)
    """`module:function`, the module being importable where the peer runs."""
    root: Path | None = None
    """A folder, passed to the function as `pathlib.Path`."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Further keyword arguments of the function."""
    holdout: float = Field(default=0.2, gt=0, lt=1)
    """Share held out for testing where there is no test set."""
    classes: int | None = Field(default=None, ge=1)
    """As for `npz`; required for a torch data set with `segmentation`."""
    collate: str | None = Field(default=None, pattern=NAME)
    """`module:function` that makes (inputs, targets) from a list of samples, whatever these are."""

    def _read(self, task: Task) -> Dataset:
        returned = self._call()
        if given := _torch_data_sets(returned):
            return self._one_by_one([TorchDataset(one, self.name, self._collate()) for one in given], task)
        if self.collate:
            raise InputError(f"{self.name} returned arrays, of which torch makes batches; leave out `collate`")
        if not isinstance(returned, tuple | list) or len(returned) not in (2, 3, 4, 6):
            several = isinstance(returned, tuple | list)
            raise InputError(
                f"{self.name} must return (x, y), (x, y, groups), (x_train, y_train, x_test, y_test), the same with "
                "x_validation, y_validation in the middle, or up to three torch data sets, "
                f"not {f'{len(returned)} values' if several else f'a {type(returned).__name__}'}"
            )
        try:
            arrays = [np.asarray(part) for part in returned]
        except ValueError as error:
            raise InputError(f"{self.name} returned rows of different lengths: {error}") from error
        groups = _groups(arrays.pop(), len(arrays[1]), self.name) if len(arrays) == 3 else None
        columns = [tuple(map(str, getattr(part, "columns", ()))) for part in returned[: len(arrays) : 2]]
        if all(columns) and len(set(columns)) > 1:
            told = " and ".join(", ".join(names) for names in dict.fromkeys(columns))
            raise InputError(f"{self.name} returned training and test samples with other columns: {told}")
        purposes = ("", "_validation", "_test") if len(arrays) == 6 else ("", "_test")
        parts = [
            labelled(x, y, self.name, task, f"x{purpose}", f"y{purpose}")
            for x, y, purpose in zip(arrays[::2], arrays[1::2], purposes, strict=False)
        ]
        parts[0] = replace(parts[0], groups=groups)
        train, *held, test = parts if parts[1:] else hold_out(parts[0], self.holdout, self.seed, self.name)
        made = join_parts(train, test, self.name, self._count(self.classes), *held)
        return replace(made, names=Names(columns[0]))

    def _one_by_one(self, given: list[TorchDataset], task: Task) -> Dataset:
        """The data set, of which nothing is read but classes, and a few targets of a task without."""
        if task.outputs_by_largest and not task.has_classes and self._count(self.classes) is None:
            raise InputError(
                f"{self.name} returned a torch data set, whose targets are not all read to count the classes; say how "
                f"many there are, such as `data: {{name: {self.name}, classes: 3}}`"
            )
        found = [one.targets(task) for one in given]
        known = found if task.has_classes else [np.zeros(one.shape[0], np.int64) for one in given]
        parts = [Labelled(one, targets, task) for one, targets in zip(given, known, strict=True)]
        if (groups := getattr(given[0].dataset, "groups", None)) is not None:
            parts[0] = replace(parts[0], groups=_groups(groups, len(parts[0].targets), self.name))
        train, *held, test = parts if parts[1:] else hold_out(parts[0], self.holdout, self.seed, self.name)
        count = task.outputs(found, self._count(self.classes), self.name)
        return Dataset({"train": train, "test": test, **({"held": held[0]} if held else {})}, count, task)

    def _collate(self) -> Collate | None:
        return load_function(self.collate) if self.collate else None

    def _call(self) -> Any:
        function = load_function(self.name)
        arguments: dict[str, Any] = {**self.options} if self.root is None else {"root": self.root, **self.options}
        check_options(function, self.name, arguments)
        with user_input_errors(f"{self.name} failed"):
            return function(**arguments)


def _groups(given: Any, samples: int, name: str) -> Groups:
    """The groups as numbers (n,); InputError unless each sample has one."""
    groups = np.asarray(given)
    if groups.shape != (samples,):
        raise InputError(f"{name}: `groups` must have a value for each of {samples} samples, not {groups.shape}")
    lacking = [number for number, one in enumerate(groups.tolist()) if one is None or one != one]
    if lacking:
        raise InputError(f"{name}: sample {lacking[0]} has no group; give it one of its own, or leave it out")
    groups = groups.astype(str) if groups.dtype == object else groups
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def _torch_data_sets(returned: Any) -> tuple[Any, ...]:
    """The one to three of them that a function returned; none if it returned something else."""
    given = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    return given if len(given) in (1, 2, 3) and all(isinstance(one, torch.utils.data.Dataset) for one in given) else ()
