"""Rows of a table as found in a CSV or Parquet file, by column. pandas reads them."""

from __future__ import annotations

import csv
import importlib
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
NOT_A_NUMBER = ["", *MISSING, *map(str.upper, MISSING), *map(str.title, MISSING)]


@dataclass(frozen=True)
class TableRows:
    """Rows of a table: the cells of each column, (N,), and the row numbers in the file, (N,), from 1 below the header.

    ``where`` names the file in messages.
    """

    columns: Mapping[str, Cells]
    numbers: NDArray[np.int64]
    where: str

    @classmethod
    def read(cls, path: Path, *, text: Collection[str] = ()) -> TableRows:
        """Read a file. The columns in ``text`` are read as text even if they have only numbers: 01 is not 1."""
        if not path.is_file():
            raise FileNotFoundError(f"The table `{path}` is {'a folder' if path.is_dir() else 'missing'}.")
        if path.suffix.lower() in PARQUET:
            mapper = import_library("pandas").ArrowDtype
            frame, comma = read_parquet(path).to_pandas(types_mapper=mapper, ignore_metadata=True), False
        else:
            frame, comma = _read_csv(path, text)
        if not len(frame):
            raise ValueError(f"The table `{path}` has no rows.")
        rows = cls.of(frame, f"`{path}`", text=text, decimal_comma=comma)
        del frame
        if "pyarrow" in sys.modules:  # pandas has used it, and it keeps the memory
            import_library("pyarrow").default_memory_pool().release_unused()
        return rows

    @classmethod
    def of(
        cls, columns: Mapping[str, Any], where: str, *, text: Collection[str] = (), decimal_comma: bool = False
    ) -> TableRows:
        """Take columns of any values, such as lists or those of a pandas frame."""
        series, cells = import_library("pandas").Series, {}
        for name in columns:
            as_text = name in text
            cells[name] = _cells(series(columns[name], dtype=object if as_text else None), as_text, decimal_comma)
        return cls(cells, np.arange(1, 1 + len(next(iter(cells.values()), ()))), where)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Any) -> TableRows:
        return TableRows({name: cells[rows] for name, cells in self.columns.items()}, self.numbers[rows], self.where)

    def texts(self, column: str) -> Texts:
        """Return the cells of a column that was read as text. Raises ``ValueError`` if it is missing."""
        cells, names = self.columns.get(column), few(list(self.columns), 20)
        if not isinstance(cells, Texts):
            near = did_you_mean(column, self.columns)
            raise ValueError(f"{self.where} has no column `{column}`. Found {names}.{near}")
        return cells

    def ids(self, column: str | None) -> list[str]:
        """Return the cells of a column that identifies rows, or the row numbers."""
        return [cell or "" for cell in self.texts(column).tolist()] if column else self.numbers.astype(str).tolist()


def _cells(values: Any, as_text: bool, decimal_comma: bool) -> Cells:
    """Take the values of a pandas series, (N,)."""
    types = import_library("pandas").api.types
    if not as_text and types.is_numeric_dtype(values.dtype) and not types.is_bool_dtype(values.dtype):
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        return Numbers(np.where(np.isfinite(numbers), numbers, np.nan))
    try:
        codes, different = values.factorize()
    except (TypeError, NotImplementedError):  # lists and other values that have no hash
        codes, different = values.map(str, na_action="ignore").factorize()
    texts = [str(value).strip() for value in different.tolist()]
    kept = list(dict.fromkeys(filter(None, texts)))
    if len(kept) < len(texts):  # some are empty, or the same without spaces
        place = {text: i for i, text in enumerate(kept)}
        codes = np.array([*(place.get(text, -1) for text in texts), -1])[codes]
    return Texts(np.asarray(codes, np.int32), kept, decimal_comma)


def column_names(path: Path) -> list[str]:
    """Read the names of the columns, and nothing else."""
    if path.suffix.lower() in PARQUET:
        return list(map(str, import_library("pyarrow.parquet").read_schema(path).names))
    return _header(path, next(read_cells(path, find_delimiter(path)), []))


def _read_csv(path: Path, text: Collection[str]) -> tuple[Any, bool]:
    """Return a pandas frame, and whether its numbers may have decimal commas."""
    pandas, delimiter = import_library("pandas"), find_delimiter(path)
    sample = list(islice(read_cells(path, delimiter), SAMPLED))
    names = _header(path, sample[0] if sample else [])
    if _has_lone_returns(path):  # after which pandas may lose an empty cell
        _check_widths(path, delimiter, len(names))
        return pandas.DataFrame(islice(read_cells(path, delimiter), 1, None), columns=names), delimiter == ";"
    commas = delimiter == ";" and any(COMMA_NUMBER.fullmatch(cell.strip()) for row in sample for cell in row)
    options: dict[str, Any] = {"sep": delimiter, "decimal": "," if commas else ".", "encoding": "utf-8-sig"}
    options |= {"header": 0, "names": names, "index_col": False, "low_memory": False, "keep_default_na": False}
    if pandas.__version__ < "3.1":  # which reads numbers exactly
        options["float_precision"] = "round_trip"
    options["na_values"] = {name: [""] if name in text else NOT_A_NUMBER for name in names}
    frame, problem = None, "its quotes do not match"
    try:
        with warnings.catch_warnings(action="error", category=pandas.errors.ParserWarning):
            frame = pandas.read_csv(path, dtype={name: str for name in names if name in text}, **options)
            kinds = {name: pandas.api.types.infer_dtype(frame[name]) for name in names}
            if odd := [name for name, kind in kinds.items() if kind not in ("integer", "floating", "string", "empty")]:
                frame[odd] = pandas.read_csv(path, usecols=odd, dtype=str, **options)  # True and true stay different
    except (pandas.errors.ParserError, pandas.errors.ParserWarning, UnicodeDecodeError) as error:
        problem = str(error)
    if frame is None or bool(frame[names[-1]].isna().any()):  # pandas fills in the last cells of short rows
        rows = _check_widths(path, delimiter, len(names))
        if frame is None or rows != len(frame):
            raise _unreadable(path, problem)
    return frame, delimiter == ";"


def _check_widths(path: Path, delimiter: str, width: int) -> int:
    """Raise ``ValueError`` for the first row with another number of cells. Return the number of rows."""
    number = 0
    for number, row in enumerate(read_cells(path, delimiter)):
        if len(row) != width:
            raise ValueError(f"Row {number} of `{path}` should have {width} cells. Found {len(row)}.")
    return number


def _has_lone_returns(path: Path) -> bool:
    """Return True if some line ends with a carriage return alone, or a quoted cell has one."""
    end = b""
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            if b"\r" in end + chunk and re.search(rb"\r[^\n]", end + chunk):
                return True
            end = chunk[-1:]
    return False


def find_delimiter(path: Path) -> str:
    """Find the delimiter of a CSV file: the one that gives the most columns, the same number in each of the first rows.

    If there is none, it is the most frequent one in the header. A ``.tsv`` file has tabs.
    """

    def columns(delimiter: str) -> tuple[bool, int]:
        widths = [len(row) for row in islice(read_cells(path, delimiter), SAMPLED)] or [1]
        return widths[0] > 1 and len(set(widths)) == 1, widths[0]

    return "\t" if path.suffix.lower() == ".tsv" else max(DELIMITERS, key=columns)


def read_cells(path: Path, delimiter: str) -> Iterator[list[str]]:
    """Yield the rows of a CSV file, the header first."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from filter(is_row, csv_reader(file, delimiter))
    except (UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, error) from error


def csv_reader(lines: Iterable[str], delimiter: str) -> Any:
    """Return a reader of the csv module for cells of any length, as in pandas."""
    csv.field_size_limit(2**31 - 1)
    return csv.reader(lines, delimiter=delimiter)


def is_row(cells: Sequence[str]) -> bool:
    """Return False for a line that is empty or blank, which pandas skips as well."""
    return len(cells) > 1 or cells == [""] or bool("".join(cells).strip(" \t"))


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


def read_parquet(path: Path) -> Any:
    """Read a Parquet file as a table of pyarrow."""
    parquet = import_library("pyarrow.parquet")
    try:
        return parquet.read_table(path)
    except (import_library("pyarrow").ArrowException, OSError) as error:
        raise ValueError(f"`{path}` cannot be read as Parquet: {error}.") from error


def import_library(name: str) -> Any:
    """Import pandas, pyarrow or a module of it."""
    needs = ("cli", "Tables need pandas") if name == "pandas" else ("parquet", "Parquet files need pyarrow")
    with extra(*needs, name.partition(".")[0]):
        return importlib.import_module(name)
