"""A table, CSV or Parquet: one column is the label, the others become features."""

from __future__ import annotations

import csv
import importlib
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from math import isnan
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from .._extras import extra
from .._require import counted, did_you_mean, few, require
from .columns import Cell, Encoder, check_values, finite, is_missing, mostly_numbers
from .dataset import Dataset, Loaded, class_indices, warn_of_same_rows, warn_of_spellings
from .split import stratified_split

Table = dict[str, list[Cell]]  # by column
PARQUET = (".parquet", ".pq")
DELIMITERS = (",", ";", "\t", "|")
FEW_CLASSES = 20  # even in a very small table
SAMPLED = 50  # rows read to find the delimiter
COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+")


def table(
    path: str | Path,
    label: str,
    *,
    true: str | None = None,
    id: str | None = None,
    val: float | str | Path = 0.2,
    seed: int = 0,
    test: str | Path | None = None,
    skip_bad: bool = False,
    encoder: Encoder | None = None,
) -> Loaded:
    """Load the training set, ``val`` (a stratified share of the rows, or a file) and ``test``.

    CSV files may be separated by commas, semicolons, tabs or bars. Numbers are standardised, dates become year, month
    and weekday, free text becomes TF-IDF, and other strings become one-hot. Constant columns and identifiers are
    dropped. The encoding is fitted on the training rows only and stored in the ``encoder`` of the training set;
    ``encoder.use`` describes each column. A few other values among numbers count as missing, with a warning.

    :param label: column of labels. Its sorted values are the class names.
    :param true: column of true labels, for evaluation only.
    :param id: column that identifies rows. By default the row number, starting at 1 below the header.
    :param skip_bad: skip rows without a label.
    :param encoder: the encoding of an earlier run, to use instead of fitting one.
    """
    path = Path(path)
    for name, column in (("id", id), ("true", true)):
        require(column != label, name, f"a different column from the labels, `{label}`", column)
    aside = tuple(name for name in (label, true, id) if name is not None)
    raw = read_as_found(path)
    rows = with_points(raw, path, as_found=aside, encoder=encoder)
    for column in aside:
        if column not in rows:
            raise ValueError(
                f"`{path}` has no column `{column}`. Found {few(list(rows), 20)}.{did_you_mean(column, rows)}"
            )
    rows, numbers = _labelled(rows, label, path, skip_bad)
    ids = _ids(rows, id, numbers)
    if id is not None and 2 * len(set(ids)) < len(ids):
        warnings.warn(
            f"The column `{id}` has only {counted(len(set(ids)), 'different value')} in {len(ids):,} rows, so it does "
            "not identify rows. As the id, it is not used as a feature.",
            stacklevel=2,
        )
    class_names = _class_names(rows[label], label, path)
    warn_of_spellings(class_names, f"in the column `{label}`", "give all their rows the same spelling")
    if words := [name for name in class_names if is_missing(name)]:
        count = "counts as a class" if len(words) == 1 else "count as classes"
        warnings.warn(
            f"In the column `{label}`, {few(words)} {count}. If these labels are missing, empty their cells and skip "
            "the rows with --skip-bad (skip_bad=True in Python).",
            stacklevel=2,
        )

    def indices(part: Table, column: str, numbers: Sequence[int], file: Path) -> Tensor:
        return class_indices(part[column], class_names, f"`{file}`, column `{column}`,", numbers)

    given = indices(rows, label, numbers, path)
    truth = None if true is None else indices(rows, true, numbers, path)

    share, val_file = (val, None) if isinstance(val, float | int) else (0.0, val)
    keep, held_out = stratified_split(given, class_names, val=share, seed=seed)
    trained = keep.tolist()
    known = {name: [cells[i] for i in trained] for name, cells in rows.items()}
    if encoder is None:
        labels = (label,) if true is None else (label, true)
        encoder = Encoder.fit(known, labels=labels, id=id)
        raw = with_points(raw, path, as_found=aside, encoder=encoder)
        again = {name: [cells[number - 1] for number in numbers] for name, cells in raw.items()}
        if again != rows:  # a column with decimal commas is mostly numbers in the file, but not in the training rows
            rows, known = again, {name: [cells[i] for i in trained] for name, cells in again.items()}
            encoder = Encoder.fit(known, labels=labels, id=id)
    if not encoder.columns:
        raise ValueError(
            f"`{path}` has no column to learn from. Expected numbers, categories, dates or text besides `{label}`. "
            f"Found {encoder.use or 'no other column'}."
        )
    features = _encoded(encoder, rows, numbers, path, stacklevel=2)

    def other(file: Path) -> Dataset:
        part = read(file, as_found=aside, encoder=encoder)
        _require_columns(part, (label, *encoder.columns), file)
        part, numbers = _labelled(part, label, file, skip_bad)
        encoded = _encoded(encoder, part, numbers, file, stacklevel=3)
        warn_of_same_rows(encoded, file, features, path)
        given, ids = indices(part, label, numbers, file), _ids(part, id, numbers)
        known = None if true is None or true not in part else indices(part, true, numbers, file)
        return Dataset(encoded, given, class_names, ids, known)

    whole = Dataset(features, given, class_names, ids, truth)
    sets = {"val": whole.subset(held_out)} if share else {}
    for name, file in (("val", val_file), ("test", test)):
        if file is not None:
            sets[name] = other(Path(file))
    return replace(whole.subset(keep), encoder=encoder), sets


def _require_columns(rows: Table, names: Sequence[str], path: Path) -> None:
    if absent := [name for name in names if name not in rows]:
        columns = "column" if len(absent) == 1 else "columns"
        raise ValueError(f"`{path}` has no {columns} {few(absent)}, which the network is trained on.")


def _encoded(encoder: Encoder, rows: Table, numbers: Sequence[int], path: Path, *, stacklevel: int) -> Tensor:
    """Encode rows, and warn about values that are not the numbers or dates they should be."""
    _require_columns(rows, list(encoder.columns), path)
    for name, column in encoder.columns.items():
        if column.kind != "category":  # where rare values are expected
            check_values(name, column, rows[name], f"`{path}`", numbers, stacklevel=stacklevel + 1)
    return encoder.features(rows)


def _labelled(rows: Table, label: str, path: Path, skip: bool) -> tuple[Table, list[int]]:
    """Return the rows with a label, and their numbers from 1. Unless ``skip``, other rows raise ``ValueError``."""
    numbers = [number for number, cell in enumerate(rows[label], 1) if cell is not None]
    missing, total = len(rows[label]) - len(numbers), len(rows[label])
    if missing and not skip:
        have, them = ("has", "it") if missing == 1 else ("have", "them")
        raise ValueError(
            f"{missing:,} of {total:,} rows of `{path}` {have} no label in the column `{label}`; the first is row "
            f"{rows[label].index(None) + 1}. Fill {them} in, or skip {them} with --skip-bad (skip_bad=True in Python)."
        )
    if missing:
        warnings.warn(f"Skipped {missing:,} of {total:,} rows of `{path}` without a label.", stacklevel=3)
    return {name: [cells[number - 1] for number in numbers] for name, cells in rows.items()}, numbers


def _class_names(cells: Sequence[Cell], label: str, path: Path) -> tuple[str, ...]:
    """Return the class names, sorted as numbers if all are numbers, otherwise as text."""
    names = {cell for cell in cells if cell is not None}
    if len(names) < 2:
        raise ValueError(f"The column `{label}` of `{path}` should have two classes or more. Found {len(names)}.")
    if len(names) > max(FEW_CLASSES, len(cells) / 2):
        raise ValueError(
            f"The column `{label}` of `{path}` should have labels that repeat. Found {len(names):,} "
            f"different values in {len(cells):,} rows. Choose another column with --label (label=... in Python)."
        )
    numbers = {name: finite(name) for name in sorted(names)}
    return tuple(sorted(numbers, key=lambda name: numbers[name]) if not any(map(isnan, numbers.values())) else numbers)


def _ids(rows: Table, id: str | None, numbers: Sequence[int]) -> list[str]:
    return [cell or "" for cell in rows[id]] if id is not None and id in rows else [str(number) for number in numbers]


def read(path: Path, *, as_found: Collection[str | None] = (), encoder: Encoder | None = None) -> Table:
    """Read the cells by column, with decimal commas replaced as by :func:`with_points`."""
    return with_points(read_as_found(path), path, as_found=as_found, encoder=encoder)


def with_points(
    columns: Table, path: Path, *, as_found: Collection[str | None] = (), encoder: Encoder | None = None
) -> Table:
    """Replace decimal commas by decimal points in columns of numbers. Only files with semicolons may have them.

    :param as_found: columns to keep unchanged.
    :param encoder: knows which columns have numbers. Others are columns of numbers if nearly all values are.
    """
    if path.suffix.lower() in PARQUET or delimiter_of(path) != ";":
        return columns
    known = {name: False for name in as_found if name is not None}
    known |= {} if encoder is None else {name: column.kind == "number" for name, column in encoder.columns.items()}
    return {name: _with_points(column, known.get(name)) for name, column in columns.items()}


def read_as_found(path: Path) -> Table:
    """Read the cells by column, as stripped text, ``None`` where a cell is empty."""
    if not path.is_file():
        raise FileNotFoundError(f"The table `{path}` is {'a folder' if path.is_dir() else 'missing'}.")
    found = read_parquet(path).to_pydict() if path.suffix.lower() in PARQUET else _read_csv(path, delimiter_of(path))
    if not found or not next(iter(found.values())):
        raise ValueError(f"The table `{path}` has no rows.")
    return cells(found)


def cells(columns: Mapping[str, Iterable[object]]) -> Table:
    """Turn values of any type into cells."""
    return {name: [_cell(value) for value in values] for name, values in columns.items()}


def _cell(value: object) -> Cell:
    return None if value is None or value != value else str(value).strip() or None  # NaN is not itself


def _with_points(cells: list[Cell], numbers: bool | None) -> list[Cell]:
    """Replace decimal commas in a column of numbers. ``None``: it is one if nearly all values are then numbers."""
    if numbers is False or not any(cell is not None and COMMA_NUMBER.fullmatch(cell) for cell in cells):
        return cells
    replaced = [cell.replace(",", ".") if cell and COMMA_NUMBER.fullmatch(cell) else cell for cell in cells]
    numbers = numbers or mostly_numbers([cell for cell in replaced if cell and not is_missing(cell)])
    return replaced if numbers else cells


@contextmanager
def any_length() -> Iterator[None]:
    """Allow cells of more than 131,072 characters, the default limit of the csv module."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def delimiter_of(path: Path) -> str:
    """Find the delimiter of a CSV file: the one that gives the most columns, the same number in each of the first rows.

    If there is none, it is the most frequent one in the header. A ``.tsv`` file has tabs.
    """
    if path.suffix.lower() == ".tsv":
        return "\t"
    headers = {}
    for delimiter in DELIMITERS:
        with _opened(path) as file:
            rows = list(islice((row for row in csv.reader(file, delimiter=delimiter) if row), SAMPLED))
        widths = [len(row) for row in rows] or [1]
        headers[delimiter] = (len(set(widths)) == 1 and widths[0] > 1, widths[0])
    return max(headers, key=lambda delimiter: headers[delimiter])


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file, any_length():
            yield file
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"`{path}` cannot be read as CSV in UTF-8: {error}. To fix this, save it as CSV with the encoding UTF-8."
        ) from error


def _read_csv(path: Path, delimiter: str) -> Mapping[str, Sequence[object]]:
    with _opened(path) as file:
        header, *rows = [row for row in csv.reader(file, delimiter=delimiter) if row] or [[]]
    names = [name.strip() for name in header]
    if "" in names:
        raise ValueError(
            f"Column {names.index('') + 1} of `{path}` has no name. If it is an index, remove it, because the "
            "order of the rows is not a feature. Otherwise name it."
        )
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"The header of `{path}` has {few(doubled)} more than once.")
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(f"Row {number} of `{path}` should have {len(names)} cells. Found {len(row)}.")
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def import_pyarrow() -> tuple[Any, Any]:
    """Return the modules ``pyarrow`` and ``pyarrow.parquet``."""
    with extra("parquet", "Parquet files need pyarrow", "pyarrow"):
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")


def read_parquet(path: Path) -> Any:
    """Read a Parquet file as a table of pyarrow."""
    pyarrow, parquet = import_pyarrow()
    try:
        return parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"`{path}` cannot be read as Parquet: {error}.") from error
