"""A table's file: its cells, and a copy with new labels in which everything else is unchanged."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..data.table import PARQUET, any_length, cells, delimiter_of, import_pyarrow, read_parquet

if TYPE_CHECKING:
    from ..training.source import Source

BOM = "\ufeff"


def read_table(path: Path, labelled: str | None = None) -> TableFile:
    """Read a CSV file, with any of the usual delimiters, or a Parquet file.

    :param labelled: a column; rows without a value there are skipped, as ``ogc.data.table`` skips rows without a label.
    """
    if not path.is_file():
        raise FileNotFoundError(f"The table `{path}` is missing.")
    return ParquetFile(path, labelled) if path.suffix.lower() in PARQUET else CsvFile(path, labelled)


def table_of(source: Source) -> TableFile:
    """Read a run's table: the rows that it was trained on and validated with."""
    assert source.path is not None
    return read_table(source.path, source.label if source.skip_bad else None)


class CsvFile:
    """A CSV file: its original text, one piece per row, and the cells of each row, without blank lines."""

    def __init__(self, path: Path, labelled: str | None = None) -> None:
        self.path, self.delimiter = path, delimiter_of(path)
        try:
            text = path.read_bytes().decode("utf-8")
            found = list(records(text.removeprefix(BOM), self.delimiter))
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"`{path}` is not a CSV file in UTF-8: {error}.") from error
        self.bom = BOM if text.startswith(BOM) else ""
        self.pieces = [piece for _, piece in found]
        # index of the header's piece, then of the rows'
        self.places = [place for place, (cells, _) in enumerate(found) if cells]
        self.columns, *self.rows = [cells for cells, _ in found if cells] or [[]]
        self.columns = [name.strip() for name in self.columns]
        self.numbers = list(range(1, len(self.rows) + 1))  # of the rows, as everywhere: 1 is below the header
        if labelled is not None:
            self.numbers = [number for number, label in enumerate(self.labels(labelled), 1) if label]
            self.places = [self.places[0], *(self.places[number] for number in self.numbers)]
            self.rows = [self.rows[number - 1] for number in self.numbers]

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: int) -> dict[str, str]:
        """Return the cells of a row by column. Missing ones are empty."""
        return dict(zip(self.columns, self.rows[index], strict=False))

    def labels(self, column: str) -> list[str]:
        """Return the cells of a column, stripped like class names."""
        at = self.columns.index(column)
        return [cells[at].strip() if at < len(cells) else "" for cells in self.rows]

    def with_labels(self, column: str, labels: Mapping[int, str]) -> bytes:
        """Return the file with new labels in some rows. Each label must occur in the column."""
        at, pieces = self.columns.index(column), self.pieces.copy()
        for index, label in labels.items():
            place = self.places[index + 1]
            pieces[place] = replaced(pieces[place], at, self.rows[index][at].strip(), label, self.delimiter)
            cells = [*self.rows[index][:at], label, *self.rows[index][at + 1 :]]
            [(again, _)] = records(pieces[place], self.delimiter)
            if [*again[:at], again[at].strip(), *again[at + 1 :]] != cells:
                number = self.numbers[index]
                raise ValueError(f"Row {number} of `{self.path}` cannot be changed without changing other cells.")
        return (self.bom + "".join(pieces)).encode()


def records(text: str, delimiter: str = ",") -> Iterator[tuple[list[str], str]]:
    """Yield the cells of each row and its text, including the end of line. Cells may have any length."""
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(text, newline=""):
            taken.append(line)
            yield line

    with any_length():
        for cells in csv.reader(lines(), delimiter=delimiter):
            yield cells, "".join(taken)
            taken.clear()


def replaced(piece: str, at: int, old: str, new: str, delimiter: str) -> str:
    """Replace the label in one cell of a row's text. Its quotes and surrounding blanks are kept."""
    comma = re.escape(delimiter)
    plain = rf"[^{comma}\r\n]*"
    one = rf'(?>"(?:[^"]|"")*"{plain}|{plain})'
    found = re.match(rf"(?:{one}{comma}){{{at}}}({one})", piece)
    assert found is not None  # the row has a cell there
    (start, end), there = found.span(1), found[1]
    quoted = there.startswith('"')
    inner, fresh = (text.replace('"', '""') if quoted else text for text in (old, new))
    keeps = inner in there and (quoted or cell(new, delimiter) == new)
    there = there.replace(inner, fresh, 1) if keeps else cell(new, delimiter)
    return piece[:start] + there + piece[end:]


def cell(text: str, delimiter: str = ",") -> str:
    """Quote a cell for a CSV file if necessary."""
    special = delimiter in text or any(mark in text for mark in '"\r\n') or text != text.strip()
    return '"' + text.replace('"', '""') + '"' if special else text


class ParquetFile:
    """A Parquet file, with the methods of :class:`CsvFile`."""

    def __init__(self, path: Path, labelled: str | None = None) -> None:
        self.table = read_parquet(path)
        self.columns = self.table.column_names
        self.numbers = list(range(1, self.table.num_rows + 1))
        if labelled is not None:
            labels = cells({labelled: self.table.column(labelled).to_pylist()})[labelled]
            self.numbers = [number for number, label in enumerate(labels, 1) if label is not None]

    def __len__(self) -> int:
        return len(self.numbers)

    def row(self, index: int) -> dict[str, str]:
        found = ((name, self.table.column(name)[self.numbers[index] - 1].as_py()) for name in self.columns)
        return {name: "" if value is None else str(value) for name, value in found}

    def labels(self, column: str) -> list[str]:
        values = self.table.column(column).to_pylist()
        return [str(values[number - 1]).strip() for number in self.numbers]

    def with_labels(self, column: str, labels: Mapping[int, str]) -> bytes:
        pyarrow, parquet = import_pyarrow()
        at, values = self.columns.index(column), self.table.column(column).to_pylist()
        named = {str(value).strip(): value for value in reversed(values)}
        for index, label in labels.items():
            values[self.numbers[index] - 1] = named[label]
        field = self.table.schema.field(at)
        changed = self.table.set_column(at, field, pyarrow.array(values, type=field.type))
        buffer = io.BytesIO()
        parquet.write_table(changed, buffer)
        return buffer.getvalue()


TableFile = CsvFile | ParquetFile
