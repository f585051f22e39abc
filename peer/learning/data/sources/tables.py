"""CSV and Parquet tables: numeric features and one label column."""

import importlib
import warnings
import zlib
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from peer.errors import InputError
from peer.learning.data.samples import Array, Dataset
from peer.learning.data.sources.arrays import dataset, hold_out, labelled
from peer.learning.data.sources.base import Source

if TYPE_CHECKING:
    import pandas


class Table(Source):
    """Each row is a sample; every column but the label is a numeric feature, taken as it is.

    Labels are integers from 0, or strings, which are numbered in sorted order.
    """

    path: Path
    """The file."""
    label: str = "label"
    """Name of the column that holds the class."""
    holdout: float = Field(default=0.2, gt=0, lt=1)
    """Share of the rows held out for testing."""
    class_names: tuple[str, ...] | None = Field(default=None, min_length=1)
    """The labels of classes 0, 1, ..., as text; give it where a file may lack some class, or where another
    order is wanted. Not given: whole numbers are the classes' own, texts are numbered in sorted order."""

    _suffix: ClassVar[str]

    def _read(self) -> Dataset:
        where = str(self.path)
        frame = self._frame()
        if self.label not in frame.columns:
            found = ", ".join(map(str, frame.columns))
            raise InputError(f"{where}: there is no column {self.label!r} to take labels from; it has {found}")
        if len(frame) == 0:
            raise InputError(f"{where}: there are no rows after the header")
        _refuse_missing(frame, where)
        y, classes = self._classes(frame[self.label])
        x = _features(frame.drop(columns=self.label), where)
        train, test = hold_out(labelled(x, y, where, "the table", self.label), self.holdout, self.seed, where)
        return dataset(train, test, where, classes)

    def _frame(self) -> "pandas.DataFrame":
        if not self.path.is_file():
            raise InputError(f"there is no file {self.path}")
        try:
            return self._parse(importlib.import_module("pandas"))
        except ImportError as error:
            raise InputError(
                f"reading {self.name} files needs pandas and pyarrow ({error}); "
                "install them with: pip install 'dfl[tables]'"
            ) from error
        # pandas' and Arrow's own errors for what they cannot parse are ValueErrors; in a damaged Parquet file's schema
        # they also stumble over absent keys, unknown types and widths that Arrow has not got.
        except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, NotImplementedError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{self.path} is no {self.name} file, or is truncated: {reason}") from error

    @abstractmethod
    def _parse(self, pandas: Any) -> "pandas.DataFrame":
        """The table as pandas reads it."""

    def _classes(self, column: "pandas.Series[Any]") -> tuple[Array, int | None]:
        values = column.to_numpy()
        if self.class_names is None and values.dtype.kind in "biuf":
            return values, None
        texts = [str(value) for value in values]
        names = self.class_names or tuple(sorted(set(texts)))
        numbers = {name: number for number, name in enumerate(names)}
        for row, text in enumerate(texts, start=1):
            if text not in numbers:
                raise InputError(f"{self.path}: row {row} has the label {text!r}, which is not in class_names")
        return np.array([numbers[text] for text in texts], dtype=np.int64), len(names)


class Csv(Table):
    """A comma-separated file with a header line; .gz is unpacked."""

    name: Literal["csv"]
    """A CSV file of your own."""

    def _parse(self, pandas: Any) -> "pandas.DataFrame":
        with warnings.catch_warnings():
            # pandas only warns that it drops the surplus fields, or takes them for row names.
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            try:
                return pandas.read_csv(  # type: ignore[no-any-return]
                    self.path, low_memory=False, index_col=False
                )
            except pandas.errors.ParserWarning as error:
                raise InputError(f"{self.path}: the rows have more fields than the header has names") from error


class Parquet(Table):
    """A Parquet file."""

    name: Literal["parquet"]
    """A Parquet file of your own."""

    def _parse(self, pandas: Any) -> "pandas.DataFrame":
        return pandas.read_parquet(self.path, engine="pyarrow")  # type: ignore[no-any-return]


def _refuse_missing(frame: "pandas.DataFrame", where: str) -> None:
    missing = np.argwhere(frame.isna().to_numpy())
    if len(missing):
        row, column = missing[0]
        raise InputError(
            f"{where}: column {frame.columns[column]!r} has no value in row {row + 1}, "
            "counted from 1 after the header; fill it in or leave the row out"
        )


def _features(frame: "pandas.DataFrame", where: str) -> Array:
    """float32 (rows, columns); every column must be numeric and finite."""
    for name, column in frame.items():
        values = column.to_numpy()
        if values.dtype.kind not in "biuf":
            raise InputError(
                f"{where}: column {name!r} is not numeric (row 1 holds {values[0]!r}); "
                "turn it into numbers or leave it out"
            )
        with np.errstate(over="ignore"):
            wrong = np.flatnonzero(~np.isfinite(values.astype(np.float32)))
        if len(wrong):
            raise InputError(f"{where}: column {name!r} has the value {values[wrong[0]]} in row {wrong[0] + 1}")
    return frame.to_numpy(dtype=np.float32)
