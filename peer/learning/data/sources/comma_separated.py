"""CSV files as people have them: of any separator, decimal sign and encoding."""

import codecs
import csv
import gzip
import io
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, ClassVar, Literal, cast

from pydantic import AfterValidator

from peer.errors import InputError
from peer.learning.data.sources.tables import Table
from peer.learning.data.sources.unpacking import check_gzip

if TYPE_CHECKING:
    import pandas

SEPARATORS = ",;\t|"
"""Among which that of a file is looked for."""
MISSING = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""Texts for missing values, as pandas has them."""
UNCLOSED_QUOTE = "EOF inside string"
"""Part of the message by which pandas reports it."""
_SWAPPED = str.maketrans(",.", ".,")


def _encoding(name: str) -> str:
    try:
        known = codecs.lookup(name)._is_text_encoding
    except LookupError:
        known = False
    if not known:
        raise ValueError(f"there is no encoding `{name}`; write utf-8, cp1252 or latin-1, say")
    return name


def _separator(text: str) -> str:
    if len(text) != 1 or text in '"\r\n':
        raise ValueError(f"{text!r} does not separate columns; write one character, such as `;`")
    return text


class Csv(Table):
    """With a header line; .gz is unpacked. Spaces around names and texts do not count."""

    name: Literal["csv"]
    """A CSV file of your own."""
    separator: Annotated[str, AfterValidator(_separator)] | None = None
    r"""Such as `;`, or `"\t"` for a tab. Default: comma, semicolon, tab or `|`, by the header."""
    decimal: Literal[".", ","] = "."
    """Decimal sign."""
    encoding: Annotated[str, AfterValidator(_encoding)] | None = None
    """Such as `cp1252`. Default: UTF-8, or UTF-16 with a mark."""
    missing: tuple[str, ...] | None = None
    """Texts for missing values, `["", "-", "-999"]`. Default: empty, NA, N/A, NaN, null, None and the like."""

    _format: ClassVar[str] = "CSV"
    _texts_may_be_numbers: ClassVar[bool] = True

    def _parse(self, pandas: Any) -> "pandas.DataFrame":
        if self.path.suffix == ".gz":
            check_gzip(self.path)
        try:
            return self._rows(pandas)
        except UnicodeDecodeError as error:
            raise InputError(self._undecodable()) from error

    def _rows(self, pandas: Any) -> "pandas.DataFrame":
        separator, header = self._header()
        with warnings.catch_warnings():
            # pandas only warns that it drops the surplus fields, or takes them for row names.
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            try:
                with self._open() as file:
                    frame = pandas.read_csv(
                        file,
                        sep=separator,
                        decimal=self.decimal,
                        encoding=self._written_in,
                        names=header,
                        header=0,
                        na_values=self._missing(separator),
                        keep_default_na=False,
                        skipinitialspace=True,
                        low_memory=False,
                        index_col=False,
                    )
            except (pandas.errors.ParserWarning, pandas.errors.ParserError) as error:
                wrong = self._unclosed(separator) if UNCLOSED_QUOTE in str(error) else self._misfit(separator)
                if wrong:
                    raise InputError(f"{self.path}: {wrong}") from error
                raise
        # A row that is too short has nothing in its last column.
        if frame[header[-1]].isna().any() and (misfit := self._misfit(separator)):
            raise InputError(f"{self.path}: {misfit}")
        return frame  # type: ignore[no-any-return]

    def _missing(self, separator: str) -> list[str]:
        """Texts for missing values, also as they stand in the file with spaces around them, which pandas keeps."""
        known = {text.strip() for text in (MISSING if self.missing is None else self.missing)}
        spaced = (fields for _, fields in self._records(separator) if " " in "".join(fields))
        return [*known, *{field for fields in spaced for field in fields if field.strip() in known}]

    def _header(self) -> tuple[str, list[str]]:
        """The separator, and the columns' names; InputError where one has none, or two have the same."""
        tried = {one: next(self._records(one), (1, []))[1] for one in self.separator or SEPARATORS}
        found = {one: [name.strip() for name in names] for one, names in tried.items()}
        chosen = max(found, key=lambda one: (self.label in found[one], len(found[one])))
        names = found[chosen]
        if not any(names):
            raise InputError(f"{self.path} is not a CSV file or is truncated: there is no header line")
        counts = Counter(names)
        for number, name in enumerate(names, 1):
            if not name:
                raise InputError(f"{self.path}: column {number} has no name in the header; give it one")
            if counts[name] > 1:
                raise InputError(f"{self.path}: two columns are called {name!r}; give each a name of its own")
        return chosen, names

    def texts(self, columns: Collection[str]) -> dict[str, list[str]]:
        """These columns as they are written, a text for each row."""
        separator, header = self._header()
        rows = [fields for _, fields in islice(self._records(separator), 1, None)]
        return {name: [row[at] for row in rows] for at, name in enumerate(header) if name in columns}

    @property
    def _remarks(self) -> tuple[str, ...]:
        """What to report about settings that were detected."""
        separator, _ = self._header()
        named = {"\t": "tabs"}.get(separator, f"`{separator}`")
        return (f"columns are separated by {named}",) if separator != (self.separator or ",") else ()

    @property
    def _written_in(self) -> str:
        """The encoding; a byte order mark is not part of the first name."""
        if self.encoding:
            return "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
        with self._open() as file:
            begun = file.read(2)
        return "utf-16" if begun in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"

    def _open(self) -> BinaryIO:
        return cast(BinaryIO, gzip.open(self.path)) if self.path.suffix == ".gz" else self.path.open("rb")

    def _text(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(self._open(), encoding=self._written_in, newline="")

    def _misfit(self, separator: str) -> str | None:
        """Which row has more or fewer fields than the header has names; None if none has."""
        records = self._records(separator)
        _, header = next(records, (1, []))
        found = ((line, len(fields)) for line, fields in records if len(fields) != len(header))
        with suppress(ValueError):
            for line, fields in found:
                if fields > len(header):
                    hint = "put quotation marks around a value that holds a separator, or give every column a name"
                else:
                    hint = "add what is missing, or leave the row out"
                return f"line {line} has {fields} fields and the header has {len(header)} names; {hint}"
        return None

    def _unclosed(self, separator: str) -> str:
        """Say in which row a quotation mark opens that is never closed."""
        last = line = 1
        # csv.Error: the rest is longer than 128 kB
        with suppress(csv.Error), self._text() as file:
            reader = csv.reader(file, delimiter=separator, skipinitialspace=True)
            for _ in reader:
                last, line = line, reader.line_num + 1
            line = last
        return f"the row of line {line} has a quotation mark that is not closed; close it, or take it out"

    def _undecodable(self) -> str:
        with self._open() as file:
            content = file.read()
        begin, written_in = 0, self._written_in
        try:
            content.decode(written_in)
        except UnicodeDecodeError as error:
            begin = error.start
        line = content[:begin].decode(written_in, "ignore").count("\n") + 1
        named = self.encoding or written_in.removesuffix("-sig").upper()
        if self.encoding is None and written_in == "utf-16":  # as its mark says
            return f"{self.path} is not a CSV file in {named}: line {line} is damaged or cut off; save it as UTF-8"
        return (
            f"{self.path} is not a CSV file in {named}: line {line} has a letter in another encoding; say in which, "
            "such as `encoding: cp1252` for what older programs wrote in Western Europe"
        )

    def _as_numbers(self, texts: "pandas.Series[str]") -> "pandas.Series[Any]":
        return super()._as_numbers(texts.str.translate(_SWAPPED) if self.decimal == "," else texts)

    def _why_no_number(self, text: str) -> str:
        other, sign = (",", "comma") if self.decimal == "." else (".", "point")
        with suppress(ValueError):
            float(text.translate(_SWAPPED) if self.decimal == "." else text)
            if other in text and "_" not in text:  # Python alone takes 1_000
                return f'which is not a number; write `decimal: "{other}"` if it has a decimal {sign}'
        return super()._why_no_number(text)

    def _place(self, row: int) -> str:
        """The line on which the row begins, as an editor counts them: the header is on the first that is not blank."""
        line = row + 2
        with suppress(ValueError):
            separator, _ = self._header()
            line, _ = next(islice(self._records(separator), row + 1, None), (line, []))
        return f"line {line}"

    def _records(self, separator: str) -> Iterator[tuple[int, list[str]]]:
        """Every record but blank ones, the header first, and the line on which it begins."""
        # csv.Error: a field of more than 128 kB
        with suppress(csv.Error), self._text() as file:
            reader, line = csv.reader(file, delimiter=separator, skipinitialspace=True), 1
            for fields in reader:
                if len(fields) > 1 or "".join(fields).strip():
                    yield line, fields
                line = reader.line_num + 1
