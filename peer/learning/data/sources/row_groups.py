"""The rows of a Parquet file, read a row group at a time."""

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from peer.errors import InputError
from peer.learning.data.samples import Array, Indices

KEPT = 64 << 20
"""Bytes of row groups that each process keeps, those used last."""


@dataclass
class RowGroups:
    """float32 (rows, columns) of a file whose columns are numbers; InputError where one is not finite."""

    path: Path
    columns: tuple[str, ...]
    starts: tuple[int, ...]
    """The first row of each group, and how many rows there are."""
    _kept: OrderedDict[int, Array] = field(default_factory=OrderedDict, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.starts[-1], len(self.columns)

    def __getitem__(self, indices: Indices, /) -> Array:
        rows = np.empty((len(indices), len(self.columns)), np.float32)
        groups = np.searchsorted(self.starts, indices, side="right") - 1
        for group in np.unique(groups):
            here = groups == group
            rows[here] = self._group(int(group))[indices[here] - self.starts[group]]
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": OrderedDict()}

    def _group(self, number: int) -> Array:
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        values = self._read(number)
        self._kept[number] = values
        while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > KEPT:
            self._kept.popitem(last=False)
        return values

    def _read(self, number: int) -> Array:
        from pyarrow import ArrowException, parquet

        try:
            table = parquet.ParquetFile(self.path).read_row_group(number, columns=[*self.columns])
            values = [column.to_numpy() for column in table.columns]
            found = np.stack([one.astype(np.float32) for one in values], axis=1)
        except (ArrowException, OSError, ValueError, TypeError) as error:
            raise InputError(f"{self.path}: row group {number} cannot be read: {error}") from error
        wrong = np.argwhere(~np.isfinite(found))
        if len(wrong):
            row, column = wrong[0]
            raise InputError(
                f"{self.path}: column {self.columns[column]!r} has no finite value in row "
                f"{self.starts[number] + row + 1}; fill it in or leave the row out"
            )
        return found
