"""Rows of a table as found in a CSV or Parquet file, by column. pandas reads them."""

from __future__ import annotations

import csv
import importlib
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._extras import extra
from .._require import did_you_mean, few
from .cells import COMMA_NUMBER, MISSING, Cells, Numbers, Texts

PARQUET = (".parquet", ".pq")
DELIMITERS = (",", ";", "\t", "|")
SAMPLED = 50  # rows read to find the delimiter and the decimal mark
POINT_NUMBER = re.compile(r"[+-]?\d+\.\d+")
WORDS = sorted({form(word) for word in MISSING for form in (str, str.upper, str.title)})  # of a missing number


@dataclass(frozen=True)
class TableRows:
    """Rows of a table.

    :param columns: the cells of each column, (N,).
    :param numbers: row numbers in the file, (N,); 1 is the row below the header.
    :param where: the file, for messages.
    """

    columns: Mapping[str, Cells]
    numbers: NDArray[np.int64]
    where: str

    @classmethod
    def read(cls, path: Path, *, text: Collection[str] = ()) -> TableRows:
        """Read a file.

        :param text: columns that are read as text even if they have only numbers, so that 01 differs from 1.
        """
        if not path.is_file():
            raise FileNotFoundError(f"The table `{path}` is {'a folder' if path.is_dir() else 'missing'}.")
        if path.suffix.lower() in PARQUET:
            mapper = import_pandas().ArrowDtype
            frame, comma = read_parquet(path).to_pandas(types_mapper=mapper, ignore_metadata=True), False
        else:
            frame, comma = _read_csv(path, text)
        if not len(frame) or not len(frame.columns):
            raise ValueError(f"The table `{path}` has no rows.")
        rows = cls.of(frame, f"`{path}`", text=text, decimal_comma=comma)
        del frame
        if "pyarrow" in sys.modules:  # which pandas uses if it is installed
            import_pyarrow()[0].default_memory_pool().release_unused()
        return rows

    @classmethod
    def of(
        cls, columns: Mapping[str, Any], where: str, *, text: Collection[str] = (), decimal_comma: bool = False
    ) -> TableRows:
        """Take columns of any values, such as lists or those of a pandas frame."""
        pandas = import_pandas()
        cells = {
            name: _cells(
                pandas.Series(columns[name], dtype=object if name in text else None), name in text, decimal_comma
            )
            for name in columns
        }
        return cls(cells, np.arange(1, 1 + len(next(iter(cells.values()), ()))), where)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Any) -> TableRows:
        return TableRows({name: cells[rows] for name, cells in self.columns.items()}, self.numbers[rows], self.where)

    def texts(self, column: str) -> Texts:
        """The cells of a column that was read as text. Raises ``ValueError`` if there is none."""
        if column not in self.columns:
            raise ValueError(
                f"{self.where} has no column `{column}`. Found {few(list(self.columns), 20)}."
                f"{did_you_mean(column, self.columns)}"
            )
        cells = self.columns[column]
        assert isinstance(cells, Texts)
        return cells

    def ids(self, column: str | None) -> list[str]:
        """The cells of a column that identifies rows, or the row numbers."""
        return [cell or "" for cell in self.texts(column).tolist()] if column else self.numbers.astype(str).tolist()


def _cells(values: Any, as_text: bool, decimal_comma: bool) -> Cells:
    """Take the values of a pandas series, (N,)."""
    types = import_pandas().api.types
    if not as_text and types.is_numeric_dtype(values.dtype) and not types.is_bool_dtype(values.dtype):
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        return Numbers(np.where(np.isfinite(numbers), numbers, np.nan))
    try:
        codes, different = values.factorize()
    except (TypeError, NotImplementedError):  # lists and other values that have no hash
        codes, different = values.map(str, na_action="ignore").factorize()
    texts = [str(value).strip() for value in different.tolist()]
    values = list(dict.fromkeys(filter(None, texts)))
    if len(values) < len(texts):  # some are empty, or the same without spaces
        place = {text: i for i, text in enumerate(values)}
        codes = np.array([*(place.get(text, -1) for text in texts), -1])[codes]
    return Texts(np.asarray(codes), values, decimal_comma)


def column_names(path: Path) -> list[str]:
    """Read the names of the columns, and nothing else."""
    if path.suffix.lower() in PARQUET:
        return [str(name) for name in import_pyarrow()[1].read_schema(path).names]
    return _header(path, next(csv_rows(path, find_delimiter(path)), []))


# --- CSV --------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path, text: Collection[str]) -> tuple[Any, bool]:
    """Return a pandas frame, and whether its numbers may have decimal commas."""
    pandas, delimiter = import_pandas(), find_delimiter(path)
    sample = list(islice(csv_rows(path, delimiter), SAMPLED))
    names = _header(path, sample[0] if sample else [])
    options: dict[str, Any] = {
        "sep": delimiter,
        "decimal": _decimal_mark(sample) if delimiter == ";" else ".",
        "header": 0,
        "names": names,
        "index_col": False,
        "encoding": "utf-8-sig",
        "low_memory": False,  # one type per column
        "keep_default_na": False,  # None and NA may be labels
        "na_values": {name: ["", *([] if name in text else WORDS)] for name in names},
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = pandas.read_csv(path, dtype={name: str for name in names if name in text}, **options)
            kinds = {name: pandas.api.types.infer_dtype(frame[name]) for name in names}
            if odd := [name for name, kind in kinds.items() if kind not in ("integer", "floating", "string", "empty")]:
                frame[odd] = pandas.read_csv(path, usecols=odd, dtype=str, **options)  # True and true stay different
    except (pandas.errors.ParserError, pandas.errors.ParserWarning, UnicodeDecodeError) as error:
        _check_widths(path, delimiter, len(names))
        raise _unreadable(path, error) from error
    if bool(frame[names[-1]].isna().any()) and _check_widths(path, delimiter, len(names)) != len(frame):
        raise _unreadable(path, "its quotes do not match")  # pandas fills in the last cells of short rows
    return frame, delimiter == ";"


def find_delimiter(path: Path) -> str:
    """Find the delimiter of a CSV file: the one that gives the most columns, the same number in each of the first rows.

    If there is none, it is the most frequent one in the header. A ``.tsv`` file has tabs.
    """

    def columns(delimiter: str) -> tuple[bool, int]:
        widths = [len(row) for row in islice(csv_rows(path, delimiter), SAMPLED)] or [1]
        return widths[0] > 1 and len(set(widths)) == 1, widths[0]

    return "\t" if path.suffix.lower() == ".tsv" else max(DELIMITERS, key=columns)


def csv_rows(path: Path, delimiter: str) -> Iterator[list[str]]:
    """Yield the rows of a CSV file, the header first."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file, any_length():
            yield from filter(is_row, csv.reader(file, delimiter=delimiter))
    except (UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, error) from error


def is_row(cells: Sequence[str]) -> bool:
    """Return False for a line that is empty or blank, which pandas skips as well."""
    return len(cells) > 1 or cells == [""] or bool("".join(cells).strip(" \t"))


@contextmanager
def any_length() -> Iterator[None]:
    """Allow cells of more than 131,072 characters, the default limit of the csv module."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _unreadable(path: Path, error: object) -> ValueError:
    return ValueError(
        f"`{path}` cannot be read as CSV in UTF-8: {error}. To fix this, save it again with that encoding."
    )


def _header(path: Path, header: Sequence[str]) -> list[str]:
    names = [name.strip() for name in header]
    if not names:
        raise ValueError(f"The table `{path}` has no rows.")
    if "" in names:
        raise ValueError(
            f"Column {names.index('') + 1} of `{path}` has no name. Name it, or remove it if it is an index."
        )
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"The header of `{path}` has {few(doubled)} more than once.")
    return names


def _decimal_mark(rows: Sequence[Sequence[str]]) -> str:
    cells = [cell.strip() for row in rows for cell in row]
    commas = sum(COMMA_NUMBER.fullmatch(cell) is not None for cell in cells)
    return "," if commas > sum(POINT_NUMBER.fullmatch(cell) is not None for cell in cells) else "."


def _check_widths(path: Path, delimiter: str, width: int) -> int:
    """Raise ``ValueError`` for the first row with another number of cells. Return the number of rows."""
    number = 0
    for number, row in enumerate(csv_rows(path, delimiter)):
        if len(row) != width:
            raise ValueError(f"Row {number} of `{path}` should have {width} cells. Found {len(row)}.")
    return number


# --- Parquet, and the libraries ---------------------------------------------------------------------------------------


def read_parquet(path: Path) -> Any:
    """Read a Parquet file as a table of pyarrow."""
    pyarrow, parquet = import_pyarrow()
    try:
        return parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"`{path}` cannot be read as Parquet: {error}.") from error


def import_pyarrow() -> tuple[Any, Any]:
    """Return the modules ``pyarrow`` and ``pyarrow.parquet``."""
    with extra("parquet", "Parquet files need pyarrow", "pyarrow"):
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")


def import_pandas() -> Any:
    """Return the module ``pandas``."""
    with extra("cli", "Tables need pandas", "pandas"):
        return importlib.import_module("pandas")
