"""Tables: numeric features and one label column. Parquet files, and what CSV files have in common with them.

A Parquet file that is streamed is read a row group at a time.
"""

import importlib
import zlib
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from peer.errors import InputError, suggest
from peer.learning.data.dataset import Dataset, Groups, Labelled, hold_out, join_parts, labelled
from peer.learning.data.samples import Array, Indices, Names, Rule
from peer.learning.data.sources.base import OnDisk, Source
from peer.learning.data.sources.unpacking import check_unpacked
from peer.learning.tasks import Task

if TYPE_CHECKING:
    import pandas

CACHE_BYTES = 64 << 20
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
        while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > CACHE_BYTES:
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


_ARROW_NUMBERS = {
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("bool", "float", "double", "halffloat"),
}
"""Arrow's types."""
_VALUE_BYTES = 8
"""Bytes of a value in memory."""
_PLAINLY = "write it without compression and dictionaries"


class Table(Source):
    """Each row is a sample; every column but the label is a numeric feature, taken as it is.

    Labels are integers from 0, or strings, which are numbered in sorted order.
    """

    path: Path
    """The file."""
    label: str = "label"
    """The column to predict: a class, or a number."""
    columns: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Columns to learn from, in order. Default: all but the label."""
    group: str | None = None
    """A column, such as the patient, whose equal values [stay together](data.md#tables); it is not learnt."""
    when_missing: Literal["refuse", "drop"] = "refuse"
    """What to do with rows that lack a value that is not imputed."""
    holdout: float = Field(default=0.2, gt=0, lt=1)
    """Share held out for testing where there is no test set."""
    class_names: tuple[str, ...] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.group and self.group == self.label:
            raise ValueError(f"`group` and `label` are one column, `{self.label}`; name two")
        if self.group and self.validation:
            raise ValueError("`validation` sets rows aside one by one, and `group` keeps them together; leave out one")
        return self

    _format: ClassVar[str]
    _texts_may_be_numbers: ClassVar[bool] = False
    """Whether a text that reads like a number is one."""

    def _read(self, task: Task) -> Dataset:
        where = str(self.path)
        read = self._chosen(self.frame())
        if len(read) == 0:
            raise InputError(f"{where}: there are no rows after the header")
        columns = self._names([*map(str, read.columns.drop([*self._beside]))])
        frame = self._complete(read, columns.rules)
        y, names = self._targets(frame[self.label], task)
        features = frame.drop(columns=[*self._beside])
        x = columns.with_flags(torch.from_numpy(self.features(features))).numpy()
        samples = labelled(x, y, where, task, "the table", self.label, gaps=bool(columns.rules))
        samples = replace(samples, groups=self._groups(frame))
        left_out = len(read) - len(frame)
        told = f"{left_out} of {len(read)} rows are left out, as a value is missing"
        remarks = (*self._remarks, *([told] if left_out else []), *_gaps(features, columns.rules))
        return replace(self._joined(samples, columns, names), remarks=remarks)

    def _names(self, columns: Sequence[str]) -> Names:
        """The names of columns to learn from, with those that `impute` adds; InputError where it does not fit them."""
        rules = self.impute if isinstance(self.impute, Mapping) else dict.fromkeys(columns, self.impute)
        if unknown := [name for name in rules if name not in columns]:
            why = f"which is not learnt from; {suggest(unknown[0], columns)}"
            raise InputError(f"{self.path}: `impute` has `{unknown[0]}`, {why}")
        names = Names.imputing(columns, {name: rule for name in columns if (rule := rules.get(name))})
        if twice := [name for name in names.columns[len(columns) :] if name in columns]:
            raise InputError(f"{self.path}: `impute` would add a column `{twice[0]}`, and there is one; rename it")
        return names

    def _joined(self, samples: Labelled, columns: Names, classes: tuple[str, ...]) -> Dataset:
        """The data set with some rows held out; `classes` are the classes' names unless they are numbers."""
        where = str(self.path)
        parts = hold_out(samples, self.holdout, self.seed, where)
        joined = join_parts(*parts, where, len(classes) if classes else None)
        numbered = tuple(map(str, range(joined.classes))) if samples.task.has_classes else ()
        return replace(joined, names=replace(columns, classes=classes or numbered))

    @property
    def _beside(self) -> tuple[str, ...]:
        """The columns that are not learnt from, the label last."""
        return (self.group, self.label) if self.group else (self.label,)

    def _groups(self, frame: "pandas.DataFrame") -> Groups | None:
        """The number of each row's group."""
        if self.group is None:
            return None
        _, numbers = np.unique(frame[self.group].astype(str).str.strip().to_numpy(dtype=str), return_inverse=True)
        return numbers.astype(np.int64)

    @property
    def _remarks(self) -> tuple[str, ...]:
        """What to report about how the file was read."""
        return ()

    def _chosen(self, frame: "pandas.DataFrame") -> "pandas.DataFrame":
        """The columns that are wanted, group and label last; rows are numbered from 0."""
        for name in self._beside:
            if name in (self.columns or ()):
                what = "label" if name == self.label else "group"
                raise InputError(f"`columns` has `{name}`, which is the {what}; leave it out there")
        found = [*map(str, frame.columns)]
        self._check_columns((*(self.columns or ()), *self._beside), found)
        return frame.reset_index(drop=True)[
            [*(self.columns or (name for name in frame.columns if name not in self._beside)), *self._beside]
        ]

    def _check_columns(self, wanted: Sequence[str], found: Sequence[str]) -> None:
        """InputError unless the file has the label and all that are wanted."""
        if self.label not in found:
            raise InputError(
                f"{self.path}: there is no column {self.label!r} to take labels from; it has {', '.join(found)}"
            )
        if absent := [name for name in wanted if name not in found]:
            raise InputError(f"{self.path}: there is no column {absent[0]!r}; {suggest(absent[0], found)}")

    def _complete(self, frame: "pandas.DataFrame", imputed: Mapping[str, Rule]) -> "pandas.DataFrame":
        """The rows that lack no value but imputed ones, by their numbers in the file."""
        needed = [name for name in frame.columns if str(name) not in imputed]
        if self.when_missing == "refuse":
            self._refuse_missing(frame[needed])
        complete = frame.dropna(subset=needed)
        if len(complete) == 0:
            raise InputError(f"{self.path}: every row lacks a value; say by `columns` which of them to learn from")
        return complete

    def _targets(self, column: "pandas.Series[Any]", task: Task) -> tuple[Array, tuple[str, ...]]:
        """What is to be foretold of each row, and the classes' names where they are not numbers."""
        return self._classes(column) if task.has_classes else (self._numeric(column), ())

    def frame(self) -> "pandas.DataFrame":
        """All columns of the file, of a streamed one the label's alone; InputError where it cannot be read."""
        if not self.path.is_file():
            raise InputError(f"there is no file {self.path}")
        try:
            return self._parse(importlib.import_module("pandas"))
        except ImportError as error:
            raise InputError(
                f"reading {self._format} files needs pandas and pyarrow ({error}); "
                "install them with: pip install -c constraints.txt 'dfl[tables]'"
            ) from error
        # pandas' and Arrow's own errors for what they cannot parse are ValueErrors; in a damaged Parquet file's schema
        # they also stumble over absent keys, unknown types and widths that Arrow has not got.
        except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, NotImplementedError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{self.path} is not a {self._format} file or is truncated: {reason}") from error

    @abstractmethod
    def _parse(self, pandas: Any) -> "pandas.DataFrame":
        """The table as pandas reads it."""

    def _classes(self, column: "pandas.Series[Any]") -> tuple[Array, tuple[str, ...]]:
        """The class of every row, and the classes' names where they are not numbers."""
        values = column.to_numpy()
        if self.class_names is None and values.dtype.kind in "biuf":
            self._refuse(column, (values < 0) | (values != np.floor(values)), "and a class is a whole number from 0")
            return values.astype(np.int64), ()
        known = {*map(str, values)} & {*(self.class_names or ())}
        if values.dtype.kind == "f" and not known and all(map(float.is_integer, values.tolist())):
            column = column.astype(np.int64)  # beside a missing label pandas makes floats of whole numbers
            values = column.to_numpy()
        texts = [str(value).strip() for value in values]
        names = self.class_names or tuple(sorted(set(texts)))
        numbers = {name: number for number, name in enumerate(names)}
        self._refuse(column, [text not in numbers for text in texts], "which is not in class_names")
        return np.array([numbers[text] for text in texts], dtype=np.int64), names

    def _refuse_missing(self, frame: "pandas.DataFrame") -> None:
        missing = np.argwhere(frame.isna().to_numpy())
        if len(missing):
            row, column = missing[0]
            name = frame.columns[column]
            hint = "" if name in self._beside else "replace such values by `impute`, "
            raise InputError(
                f"{self.path}: column {name!r} has no value in {self._place(row)}; fill it in, {hint}or write "
                "`when_missing: drop` to leave out all such rows"
            )

    def features(self, frame: "pandas.DataFrame") -> Array:
        """float32 (rows, columns), NaN where there is no value; all values must be numeric and finite."""
        found = np.full(frame.shape, np.nan, np.float32)
        for number, name in enumerate(frame.columns):
            if (there := frame[name].notna().to_numpy()).any():
                found[there, number] = self._numeric(frame[name][there].infer_objects())
        return found

    def _numeric(self, column: "pandas.Series[Any]") -> Array:
        """The column's numbers; InputError for the first value that is none, or too large for float32."""
        values = column.to_numpy()
        if values.dtype.kind not in "biuf":
            texts = column.astype(str)
            numbers = self._as_numbers(texts)
            wrong = np.flatnonzero(numbers.isna())
            if len(wrong):
                self._refuse(column, numbers.isna(), self._why_no_number(texts.iloc[wrong[0]]))
            if not self._texts_may_be_numbers:
                raise InputError(f"{self.path}: column {column.name!r} holds {values.dtype} and no numbers; convert it")
            values = numbers.to_numpy(dtype=np.float64)
        with np.errstate(over="ignore"):
            self._refuse(column, ~np.isfinite(values.astype(np.float32)), "which is not finite as float32")
        return values

    def _as_numbers(self, texts: "pandas.Series[str]") -> "pandas.Series[Any]":
        """Convert to float64, NaN for what is not a number."""
        return importlib.import_module("pandas").to_numeric(texts, errors="coerce")  # type: ignore[no-any-return]

    def _why_no_number(self, text: str) -> str:
        """What is wrong with it, and the way out."""
        return "which is not a number; correct it, or say by `columns` which columns to learn from"

    def _refuse(self, column: "pandas.Series[Any]", wrong: ArrayLike, why: str) -> None:
        """InputError that names the first value of the column that is wrong."""
        rows = np.flatnonzero(np.asarray(wrong))
        if len(rows):
            value = column.iloc[rows[0]]
            shown = repr(value) if isinstance(value, str) else str(value)
            raise InputError(
                f"{self.path}: column {column.name!r} holds {shown} in {self._place(column.index[rows[0]])}, {why}"
            )

    def _place(self, row: int) -> str:
        """Say where in the file a user finds a row, which is counted from 0."""
        return f"row {row + 1}"


class Parquet(Table, OnDisk):
    """A Parquet file. Streamed by row groups, 64 MiB kept per process: write groups of some thousand rows."""

    name: Literal["parquet"]
    """A Parquet file of your own."""
    _format: ClassVar[str] = "Parquet"

    def _read(self, task: Task) -> Dataset:
        return self._by_row_groups(task) if self.stream else super()._read(task)

    def _by_row_groups(self, task: Task) -> Dataset:
        """The data set of which only the labels are in memory."""
        where, labels = str(self.path), self.frame()
        if self.columns or self.impute or self.when_missing == "drop":
            raise InputError(
                f"{where}: streamed, all rows and columns are taken; leave out `columns`, `impute` and `when_missing`"
            )
        if len(labels) == 0:
            raise InputError(f"{where}: there are no rows")
        self._refuse_missing(labels)
        y, names = self._targets(labels[self.label], task)
        rows = self._row_groups()
        samples = Labelled(rows, task.read_targets(y, where, self.label), task, groups=self._groups(labels))
        return self._joined(samples, Names(rows.columns), names)

    def _row_groups(self) -> RowGroups:
        from pyarrow import parquet

        described = parquet.read_metadata(self.path)
        for column in described.schema.to_arrow_schema():
            if column.name not in self._beside and str(column.type) not in _ARROW_NUMBERS:
                raise InputError(f"{self.path}: column {column.name!r} holds {column.type} and no numbers; convert it")
        sizes = [described.row_group(number).num_rows for number in range(described.num_row_groups)]
        columns = tuple(name for name in described.schema.to_arrow_schema().names if name not in self._beside)
        largest = max(sizes, default=0) * len(columns) * _VALUE_BYTES
        check_unpacked(self.path, largest, "write it in groups of some thousand rows")
        return RowGroups(self.path, columns, (0, *np.cumsum(sizes).tolist()))

    def _parse(self, pandas: Any) -> "pandas.DataFrame":
        from pyarrow import compute, parquet

        described = parquet.read_metadata(self.path)
        columns, taken = [described.schema.column(number) for number in range(described.num_columns)], None
        if self.stream:
            self._check_columns(self._beside, described.schema.to_arrow_schema().names)
            taken = [*self._beside]
            columns = [column for column in columns if column.path in taken]
        row = sum(max(_VALUE_BYTES, column.length or 0) for column in columns)
        check_unpacked(self.path, described.num_rows * row, _PLAINLY)
        # A text that is in every row stands in the file once, and is read so; in an array it would be there each time.
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        table = parquet.read_table(self.path, columns=taken, read_dictionary=texts)
        for column in (table.column(name) for name in texts if name in table.column_names):
            lengths = [compute.max(compute.binary_length(chunk.dictionary)).as_py() or 0 for chunk in column.chunks]
            check_unpacked(self.path, len(column) * max(lengths, default=0), _PLAINLY)
        return table.to_pandas()  # type: ignore[no-any-return]


def _gaps(features: "pandas.DataFrame", imputed: Mapping[str, Rule]) -> list[str]:
    """How many values are missing in which columns, and what they become, in one sentence if there are any."""
    counts = dict(zip(map(str, features.columns), features.isna().sum().tolist(), strict=True))
    told = ", ".join(f"{count} in `{name}` ({imputed[name]})" for name, count in counts.items() if count)
    return [f"of {len(features)} rows, these lack a value, which is imputed: {told}"] if told else []
