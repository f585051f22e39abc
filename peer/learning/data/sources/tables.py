"""CSV and Parquet tables: numeric features and one label column."""

import csv
import importlib
import io
import warnings
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal, cast

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from peer.errors import InputError
from peer.learning.data.dataset import Dataset
from peer.learning.data.samples import Array, Names
from peer.learning.data.sources.arrays import Labelled, dataset, hold_out, labelled
from peer.learning.data.sources.base import OnDisk, Source
from peer.learning.data.sources.row_groups import RowGroups
from peer.learning.data.sources.unpacking import Unpacked, check_unpacked
from peer.learning.tasks import Task

if TYPE_CHECKING:
    import pandas


_NUMBERS = {
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("bool", "float", "double", "halffloat"),
}
"""Arrow's types."""
_VALUE = 8
"""Bytes of a value in memory."""
_PLAINLY = "write it without compression and dictionaries"


class Table(Source):
    """Each row is a sample; every column but the label is a numeric feature, taken as it is.

    Labels are integers from 0, or strings, which are numbered in sorted order.
    """

    path: Path
    """The file."""
    label: str = "label"
    """Name of the column that holds the class, or the number to foretell."""
    holdout: float = Field(default=0.2, gt=0, lt=1)
    """Share of the rows held out for testing."""
    class_names: tuple[str, ...] | None = Field(default=None, min_length=1)
    """The labels of classes 0, 1, ..., as text; give it where a file may lack some class, or where another
    order is wanted. Not given: whole numbers are the classes' own, texts are numbered in sorted order."""

    _suffix: ClassVar[str]

    def _read(self, task: Task) -> Dataset:
        where = str(self.path)
        frame = self._frame()
        if self.label not in frame.columns:
            found = ", ".join(map(str, frame.columns))
            raise InputError(f"{where}: there is no column {self.label!r} to take labels from; it has {found}")
        if len(frame) == 0:
            raise InputError(f"{where}: there are no rows after the header")
        self._refuse_missing(frame)
        y, names = self._classes(frame[self.label]) if task.has_classes else (frame[self.label].to_numpy(), ())
        features = frame.drop(columns=self.label)
        samples = labelled(self._features(features), y, where, task, "the table", self.label)
        joined = dataset(*hold_out(samples, self.holdout, self.seed, where), where, len(names) if names else None)
        classes = names or (_numbers(joined.classes) if task.has_classes else ())
        return replace(joined, names=Names(tuple(map(str, features.columns)), classes))

    def _frame(self) -> "pandas.DataFrame":
        if not self.path.is_file():
            raise InputError(f"there is no file {self.path}")
        try:
            return self._parse(importlib.import_module("pandas"))
        except ImportError as error:
            raise InputError(
                f"reading {self.name} files needs pandas and pyarrow ({error}); "
                "install them with: pip install -c constraints.txt 'dfl[tables]'"
            ) from error
        # pandas' and Arrow's own errors for what they cannot parse are ValueErrors; in a damaged Parquet file's schema
        # they also stumble over absent keys, unknown types and widths that Arrow has not got.
        except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, NotImplementedError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{self.path} is no {self.name} file, or is truncated: {reason}") from error

    @abstractmethod
    def _parse(self, pandas: Any) -> "pandas.DataFrame":
        """The table as pandas reads it."""

    def _classes(self, column: "pandas.Series[Any]") -> tuple[Array, tuple[str, ...]]:
        """The class of every row, and the classes' names where they are not numbers."""
        values = column.to_numpy()
        if self.class_names is None and values.dtype.kind in "biuf":
            self._refuse(column, (values < 0) | (values != np.floor(values)), "and a class is a whole number from 0")
            return values, ()
        texts = [str(value) for value in values]
        names = self.class_names or tuple(sorted(set(texts)))
        numbers = {name: number for number, name in enumerate(names)}
        self._refuse(column, [text not in numbers for text in texts], "which is not in class_names")
        return np.array([numbers[text] for text in texts], dtype=np.int64), names

    def _refuse_missing(self, frame: "pandas.DataFrame") -> None:
        missing = np.argwhere(frame.isna().to_numpy())
        if len(missing):
            row, column = missing[0]
            raise InputError(
                f"{self.path}: column {frame.columns[column]!r} has no value in {self._place(row)}; "
                "fill it in or leave the row out"
            )

    def _features(self, frame: "pandas.DataFrame") -> Array:
        """float32 (rows, columns); every column must be numeric and finite."""
        for column in (frame[name] for name in frame.columns):
            values = column.to_numpy()
            if values.dtype.kind not in "biuf":
                numbers = importlib.import_module("pandas").to_numeric(column.astype(str), errors="coerce")
                self._refuse(column, numbers.isna(), "which is no number; correct it, or leave the row or column out")
                raise InputError(f"{self.path}: column {column.name!r} holds {values.dtype} and no numbers; convert it")
            with np.errstate(over="ignore"):
                self._refuse(column, ~np.isfinite(values.astype(np.float32)), "which is not finite as float32")
        return frame.to_numpy(dtype=np.float32)

    def _refuse(self, column: "pandas.Series[Any]", wrong: ArrayLike, why: str) -> None:
        """InputError that names the first value of the column that is wrong."""
        rows = np.flatnonzero(np.asarray(wrong))
        if len(rows):
            value = column.iloc[rows[0]]
            shown = repr(value) if isinstance(value, str) else str(value)
            raise InputError(f"{self.path}: column {column.name!r} holds {shown} in {self._place(rows[0])}, {why}")

    def _place(self, row: int) -> str:
        """Where a row, counted from 0, is found by who looks for it."""
        return f"row {row + 1}"


class Csv(Table):
    """A comma-separated file with a header line; .gz is unpacked."""

    name: Literal["csv"]
    """A CSV file of your own."""

    def _parse(self, pandas: Any) -> "pandas.DataFrame":
        with warnings.catch_warnings():
            # pandas only warns that it drops the surplus fields, or takes them for row names.
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            try:
                with self._open() as file:
                    return pandas.read_csv(file, low_memory=False, index_col=False)  # type: ignore[no-any-return]
            except pandas.errors.ParserWarning as error:
                raise InputError(f"{self.path}: {self._surplus()}; give every column a name") from error

    def _open(self) -> BinaryIO:
        return cast(BinaryIO, Unpacked(self.path)) if self.path.suffix == ".gz" else self.path.open("rb")

    def _surplus(self) -> str:
        """Which row has more fields than the header has names."""
        records = self._records()
        _, header = next(records, (1, []))
        found = ((line, len(fields)) for line, fields in records if len(fields) > len(header))
        line, fields = next(found, (2, len(header) + 1))
        return f"line {line} has {fields} fields and the header has {len(header)} names"

    def _place(self, row: int) -> str:
        """The line on which the row begins, as an editor counts them: the header is on the first that is not blank."""
        line = row + 2
        with suppress(ValueError):
            line, _ = next(islice(self._records(), row + 1, None), (line, []))
        return f"line {line}"

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Every record but blank ones, the header first, and the line on which it begins."""
        # csv.Error: a field of more than 128 kB
        with suppress(csv.Error), io.TextIOWrapper(self._open(), encoding="utf-8-sig", newline="") as file:
            reader, line = csv.reader(file), 1
            for fields in reader:
                if len(fields) > 1 or "".join(fields).strip():
                    yield line, fields
                line = reader.line_num + 1


class Parquet(Table, OnDisk):
    """A Parquet file. Streamed, it is read by row groups, of which each process keeps 64 MiB: of a larger file write
    small ones, of some thousand rows."""

    name: Literal["parquet"]
    """A Parquet file of your own."""

    def _read(self, task: Task) -> Dataset:
        return self._by_row_groups(task) if self.stream else super()._read(task)

    def _by_row_groups(self, task: Task) -> Dataset:
        """The data set of which only the labels are in memory."""
        where, labels = str(self.path), self._frame()
        if len(labels) == 0:
            raise InputError(f"{where}: there are no rows")
        self._refuse_missing(labels)
        column = labels[self.label]
        y, names = self._classes(column) if task.has_classes else (column.to_numpy(), ())
        rows = self._row_groups()
        samples = Labelled(rows, task.targets(y, where, self.label), task)
        joined = dataset(*hold_out(samples, self.holdout, self.seed, where), where, len(names) if names else None)
        classes = names or (_numbers(joined.classes) if task.has_classes else ())
        return replace(joined, names=Names(rows.columns, classes))

    def _row_groups(self) -> RowGroups:
        from pyarrow import parquet

        described = parquet.read_metadata(self.path)
        for field in described.schema.to_arrow_schema():
            if field.name != self.label and str(field.type) not in _NUMBERS:
                raise InputError(f"{self.path}: column {field.name!r} holds {field.type} and no numbers; convert it")
        sizes = [described.row_group(number).num_rows for number in range(described.num_row_groups)]
        columns = tuple(name for name in described.schema.to_arrow_schema().names if name != self.label)
        return RowGroups(self.path, columns, (0, *np.cumsum(sizes).tolist()))

    def _parse(self, pandas: Any) -> "pandas.DataFrame":
        from pyarrow import compute, parquet

        described = parquet.read_metadata(self.path)
        if self.stream:
            known = described.schema.to_arrow_schema().names
            if self.label not in known:
                raise InputError(
                    f"{self.path}: there is no column {self.label!r} to take labels from; it has {', '.join(known)}"
                )
            return parquet.read_table(self.path, columns=[self.label]).to_pandas()  # type: ignore[no-any-return]
        columns = [described.schema.column(number) for number in range(described.num_columns)]
        row = sum(max(_VALUE, column.length or 0) for column in columns)
        check_unpacked(self.path, described.num_rows * row, _PLAINLY)
        # A text that is in every row stands in the file once, and is read so; in an array it would be there each time.
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        table = parquet.read_table(self.path, read_dictionary=texts)
        for column in (table.column(name) for name in texts if name in table.column_names):
            lengths = [compute.max(compute.binary_length(chunk.dictionary)).as_py() or 0 for chunk in column.chunks]
            check_unpacked(self.path, len(column) * max(lengths, default=0), _PLAINLY)
        return table.to_pandas()  # type: ignore[no-any-return]


def _numbers(classes: int) -> tuple[str, ...]:
    """The names of classes that are numbers: as `class_names` would give them."""
    return tuple(map(str, range(classes)))
