"""Data from a function of the user's."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, JsonValue

from peer.errors import InputError
from peer.learning.data.samples import Dataset, Names
from peer.learning.data.sources.arrays import dataset, hold_out, labelled
from peer.learning.data.sources.base import Source
from peer.learning.tasks import Task
from peer.plugins import in_words, load_object


class UserSource(Source):
    """`function(**options)` returns (x, y), or (x_train, y_train, x_test, y_test), as numpy arrays.

    Arrays are treated as those of an npz file. The function runs in every peer and must return the same
    arrays each time.
    """

    name: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
    """`module:function`, the module being importable where the peer runs."""
    root: Path | None = None
    """A folder; when given, it is passed to the function as `root`."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Further keyword arguments of the function."""
    holdout: float = Field(default=0.2, gt=0, lt=1)
    """Share of the samples held out for testing where the function returns no test samples."""
    classes: int | None = Field(default=None, ge=1)
    """Number of classes, when the largest does not occur; not given, as many as the targets show."""

    def _read(self, task: Task) -> Dataset:
        returned = self._call()
        if not isinstance(returned, tuple | list) or len(returned) not in (2, 4):
            raise InputError(
                f"{self.name} must return (x, y) or (x_train, y_train, x_test, y_test), not {_describe(returned)}"
            )
        try:
            arrays = [np.asarray(part) for part in returned]
        except ValueError as error:
            raise InputError(f"{self.name} returned rows of different lengths: {error}") from error
        columns = [tuple(map(str, getattr(part, "columns", ()))) for part in returned[::2]]
        if all(columns) and len(set(columns)) > 1:
            told = " and ".join(", ".join(names) for names in columns)
            raise InputError(f"{self.name} returned training and test samples with other columns: {told}")
        train = labelled(arrays[0], arrays[1], self.name, task)
        if len(arrays) == 4:
            test = labelled(arrays[2], arrays[3], self.name, task, "x_test", "y_test")
        else:
            train, test = hold_out(train, self.holdout, self.seed, self.name)
        return replace(dataset(train, test, self.name, self.classes), names=Names(columns[0]))

    def _call(self) -> Any:
        function = _find(self.name)
        arguments: dict[str, Any] = {**self.options} if self.root is None else {"root": self.root, **self.options}
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise InputError(f"{self.name} cannot be called with the options given: {error}") from error
        try:
            return function(**arguments)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(f"{self.name} failed: {in_words(error)}") from error


def _find(name: str) -> Callable[..., Any]:
    function = load_object(name)
    if not callable(function):
        raise InputError(f"`{name}` is no function, so it cannot give the data")
    return function  # type: ignore[no-any-return]


def _describe(returned: Any) -> str:
    kind = type(returned).__name__
    return f"{len(returned)} values" if isinstance(returned, tuple | list) else f"a {kind}"
