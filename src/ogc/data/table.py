"""A table, CSV or Parquet: one column is the label, the others become features."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isnan
from pathlib import Path

import torch
from torch import Tensor

from .columns import Cell, finite, fit
from .dataset import Dataset, Loaded
from .paths import few
from .split import stratified_split

Table = dict[str, list[Cell]]  # by column


def table(
    path: str | Path,
    label: str,
    *,
    true: str | None = None,
    id: str | None = None,
    val: float | str | Path = 0.2,
    seed: int = 0,
    test: str | Path | None = None,
) -> Loaded:
    """The training set, and ``val`` (a share of the rows that keeps classes in proportion, or a file) and ``test``.

    Numeric columns are standardised, missing numbers become the mean and an indicator; other columns become one-hot
    with a slot for rare, unseen and missing values; constant columns are left out. All this is learnt from the
    training rows alone. Class names are the values of the column ``label``, sorted. The column ``true`` is for
    measuring only. The ids are the column ``id``, or the numbers of the rows, the first below the header being 1.
    """
    path = Path(path)
    rows = _read(path)
    for column in (label, *((true,) if true is not None else ()), *((id,) if id is not None else ())):
        if column not in rows:
            raise ValueError(f"`{path}` has no column `{column}`, but {few(list(rows), 20)}.")
    class_names = _class_names(rows[label], label, path)
    given = _labels(rows[label], class_names, label, path)
    truth = None if true is None else _labels(rows[true], class_names, true, path)
    ids = _ids(rows, id)

    split = isinstance(val, float | int)
    keep, held_out = stratified_split(given, class_names, val=val if isinstance(val, float | int) else 0, seed=seed)
    fitted = {
        name: column
        for name, cells in rows.items()
        if name not in (label, true, id) and (column := fit([cells[i] for i in keep.tolist()])) is not None
    }
    if not fitted:
        raise ValueError(f"`{path}` has no column to learn from: all but `{label}` are constant or not there.")

    def features(part: Mapping[str, Sequence[Cell]]) -> Tensor:
        return torch.cat([column.features(part[name]) for name, column in fitted.items()], dim=1)

    def subset(index: Tensor, inputs: Tensor) -> Dataset:
        known = None if truth is None else truth[index]
        return Dataset(inputs[index], given[index], class_names, [ids[i] for i in index.tolist()], known)

    def other(file: Path) -> Dataset:
        part = _read(file)
        if absent := [name for name in (label, *fitted) if name not in part]:
            raise ValueError(f"`{file}` has no column {few(absent)}, which `{path}` has.")
        known = _labels(part[true], class_names, true, file) if true is not None and true in part else None
        return Dataset(
            features(part), _labels(part[label], class_names, label, file), class_names, _ids(part, id), known
        )

    inputs = features(rows)
    sets = {"val": subset(held_out, inputs)} if split and val else {}
    files = {"val": None if split else val, "test": test}
    sets |= {name: other(Path(str(file))) for name, file in files.items() if file is not None}
    return subset(keep, inputs), sets


def _class_names(cells: Sequence[Cell], label: str, path: Path) -> tuple[str, ...]:
    """Sorted as numbers if all are numbers, as text otherwise."""
    names = {cell for cell in cells if cell is not None}
    if len(names) < 2:
        raise ValueError(f"The column `{label}` of `{path}` should have two classes or more. Found {len(names)}.")
    numbers = {name: finite(name) for name in sorted(names)}
    return tuple(sorted(numbers, key=lambda name: numbers[name]) if not any(map(isnan, numbers.values())) else numbers)


def _labels(cells: Sequence[Cell], class_names: Sequence[str], column: str, path: Path) -> Tensor:
    index = {name: i for i, name in enumerate(class_names)}
    for number, cell in enumerate(cells, 1):
        if cell is None:
            raise ValueError(f"Row {number} of `{path}` has no value in the column `{column}`.")
        if cell not in index:
            raise ValueError(f"The label `{cell}` in row {number} of `{path}`, column `{column}`, is none to train on.")
    return torch.tensor([index[cell] for cell in cells if cell is not None], dtype=torch.int64)


def _ids(rows: Table, id: str | None) -> list[str]:
    if id is not None and id in rows:
        return [cell or "" for cell in rows[id]]
    return [str(number) for number in range(1, len(next(iter(rows.values()))) + 1)]


def _read(path: Path) -> Table:
    """The cells by column, as stripped text; ``None`` where there is nothing."""
    if not path.is_file():
        raise FileNotFoundError(f"The table `{path}` is not there.")
    found = _read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _read_csv(path)
    if not found or not next(iter(found.values())):
        raise ValueError(f"The table `{path}` has no rows.")
    return {name: [_cell(value) for value in values] for name, values in found.items()}


def _cell(value: object) -> Cell:
    return None if value is None or value != value else str(value).strip() or None  # NaN is not itself


@contextmanager
def any_length() -> Iterator[None]:
    """Cells of more than 131,072 characters, which the csv module refuses to read otherwise."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _read_csv(path: Path) -> Mapping[str, Sequence[object]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file, any_length():
            header, *rows = [
                row for row in csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",") if row
            ] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"`{path}` is no CSV file in UTF-8: {error}.") from error
    names = [name.strip() for name in header]
    if "" in names:
        raise ValueError(
            f"Column {names.index('') + 1} of `{path}` has no name. An index that was saved along would be a feature "
            "that gives the order away: name it, or leave it out."
        )
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"The header of `{path}` has {few(doubled)} more than once.")
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(f"Row {number} of `{path}` should have {len(names)} cells. Found {len(row)}.")
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def _read_parquet(path: Path) -> Mapping[str, Sequence[object]]:
    try:
        pyarrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError('pyarrow, which reads Parquet, is missing: pip install "torch-ogc[cli]" pyarrow') from error
    try:
        columns: Mapping[str, Sequence[object]] = parquet.read_table(path).to_pydict()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"`{path}` cannot be read as Parquet: {error}.") from error
    return columns
