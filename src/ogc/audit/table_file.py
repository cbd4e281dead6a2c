"""A table's file: its cells, and a copy with new labels in which everything else is unchanged."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .._csv import csv_cell
from ..data.rows import (
    PARQUET,
    TableRows,
    column_names,
    csv_reader,
    find_delimiter,
    import_library,
    is_row,
    read_parquet,
)

if TYPE_CHECKING:
    from ..training.source import Source

BOM = "\ufeff"


class Rows(NamedTuple):
    """The rows with a label, on which a run was trained and validated."""

    numbers: list[int]  # in the file: 1 is below the header
    columns: dict[str, list[str]]  # stripped cells, empty if they are missing


def rows_of(source: Source) -> Rows:
    """Read a run's table."""
    assert source.path is not None
    assert source.label is not None
    rows = TableRows.read(source.path, text=column_names(source.path))
    rows = rows[rows.texts(source.label).codes >= 0]
    columns = {name: [cell or "" for cell in rows.texts(name).tolist()] for name in rows.columns}
    return Rows(rows.numbers.tolist(), columns)


def with_labels(path: Path, column: str, labels: Mapping[int, str]) -> bytes:
    """Return a CSV or Parquet file with new labels in the given rows of a column."""
    return (_parquet_with_labels if path.suffix.lower() in PARQUET else _csv_with_labels)(path, column, labels)


def _csv_with_labels(path: Path, column: str, labels: Mapping[int, str]) -> bytes:
    delimiter, text, at, number = find_delimiter(path), path.read_bytes().decode(), 0, 0
    pieces = [BOM if text.startswith(BOM) else ""]
    for _, cells, piece in records(text.removeprefix(BOM), delimiter):
        if is_row(cells) and number == 0:
            at = [name.strip() for name in cells].index(column)
        pieces.append(_replaced(piece, at, labels[number], delimiter) if is_row(cells) and number in labels else piece)
        number += is_row(cells)
    return "".join(pieces).encode()


def records(text: str, delimiter: str = ",") -> Iterator[tuple[int, list[str], str]]:
    """Yield each row of a CSV file: its first line's number, from 1, its cells of any length, and its text."""
    lines = list(io.StringIO(text, newline=""))
    reader, end = csv_reader(lines, delimiter), 0
    for cells in reader:
        yield end + 1, cells, "".join(lines[end : reader.line_num])
        end = reader.line_num


def _replaced(piece: str, at: int, label: str, delimiter: str) -> str:
    """Replace one cell of a row's text."""
    comma = re.escape(delimiter)
    plain = rf"[^{comma}\r\n]*"
    one = rf'(?>"(?:[^"]|"")*(?:"|\Z){plain}|{plain})'  # a quote that is not closed ends with the file
    found = re.match(rf"(?:{one}{comma}){{{at}}}({one})", piece)
    assert found is not None  # the row has a cell there
    return piece[: found.start(1)] + csv_cell(label, delimiter) + piece[found.end(1) :]


def _parquet_with_labels(path: Path, column: str, labels: Mapping[int, str]) -> bytes:
    pyarrow, parquet = import_library("pyarrow"), import_library("pyarrow.parquet")
    table = read_parquet(path)
    at, values = table.column_names.index(column), table.column(column).to_pylist()
    named = {str(value).strip(): value for value in reversed(values) if value is not None}
    for number, label in labels.items():
        values[number - 1] = named[label]
    field = table.schema.field(at)
    if pyarrow.types.is_dictionary(field.type):  # of which all categories are kept, in their order
        categories = table.column(at).unify_dictionaries().chunk(0).dictionary
        place = {value: i for i, value in enumerate(categories.to_pylist())}
        indices = pyarrow.array([place.get(value) for value in values], field.type.index_type)
        changed = pyarrow.DictionaryArray.from_arrays(indices, categories, ordered=field.type.ordered)
    else:
        changed = pyarrow.array(values, type=field.type)
    buffer = io.BytesIO()
    parquet.write_table(table.set_column(at, field, changed), buffer)
    return buffer.getvalue()
