"""The encoding of a table: fitted on its training rows, stored as JSON, applied to any rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._require import did_you_mean, few, printable
from .._warn import warn
from .cells import Cells, Numbers, Texts, date_format
from .columns import Category, Date, Number
from .rows import TableRows
from .text import Text, TfIdf

MOST_CATEGORIES = 100
LEAST_NUMBERS = 0.95  # share of numbers among the values of a column of numbers
WORDS_OF_TEXT = 3  # minimum mean number of words per cell for text
FEWEST_UNIQUE = 20  # minimum number of rows for a column of unique values to count as an identifier
NEARLY = 0.95  # share of different values from which a column counts as unique
ID_NAME = re.compile(r"(?i:id|.*[ _.-]id)|.*[a-z](Id|ID)")
ROWS_AT_ONCE = 4096  # rows encoded at a time, to save memory

Column = Number | Category | Date | Text
KINDS: dict[str, Any] = {kind.kind: kind for kind in (Number, Category, Date, Text, TfIdf)}


@dataclass(frozen=True)
class Encoder:
    """The encoding of a table, fitted on its training rows. New rows are encoded in exactly the same way."""

    columns: Mapping[str, Column]
    dropped: Mapping[str, str]  # column to reason
    labels: tuple[str, ...] = ()  # columns of given and true labels
    id: str | None = None  # the column that identifies rows

    @classmethod
    def fit(cls, rows: TableRows, *, labels: tuple[str, ...] = (), id: str | None = None) -> Encoder:
        fitted = {name: fit_column(cells, name) for name, cells in rows.columns.items() if name not in (*labels, id)}
        columns = {name: column for name, column in fitted.items() if not isinstance(column, str)}
        return cls(columns, {name: why for name, why in fitted.items() if isinstance(why, str)}, labels, id)

    @property
    def text_columns(self) -> set[str]:
        """The columns that have to be read as text."""
        others = {name for name, column in self.columns.items() if column.kind != "number"}
        return others.union(self.labels, () if self.id is None else (self.id,))

    @property
    def uses(self) -> dict[str, str]:
        """How each column is used: those that are kept, then those that are dropped."""
        kept = {name: column.use for name, column in self.columns.items()}
        return kept | {name: f"dropped, {reason}" for name, reason in self.dropped.items()}

    @property
    def use(self) -> str:
        """How each column is used, in one line: "age: number; city: 2 categories; unit: dropped, constant"."""
        return "; ".join(f"{name}: {use}" for name, use in self.uses.items())

    def features(self, rows: TableRows, progress: Callable[[int, int], object] | None = None) -> Tensor:
        """Encode rows: -> (N, F) float32. Other columns than those of the encoding are ignored.

        :param progress: receives how many rows are done, and how many there are.
        """

        def block(start: int, end: int) -> list[Any]:
            return [column.features(rows.columns[name][start:end]) for name, column in self.columns.items()]

        features = np.empty((len(rows), sum(part.shape[1] for part in block(0, 0))), np.float32)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            np.concatenate(block(start, start + ROWS_AT_ONCE), axis=1, out=features[start : start + ROWS_AT_ONCE])
            if progress is not None:
                progress(min(start + ROWS_AT_ONCE, len(rows)), len(rows))
        return torch.from_numpy(features)

    def check(self, rows: TableRows, *, categories: bool = True) -> None:
        """Warn about values that cannot be encoded. Raise ``ValueError`` if all are, or a column is missing.

        :param categories: warn about unseen categories, too.
        """
        if absent := [name for name in self.columns if name not in rows.columns]:
            unused = [name for name in rows.columns if name not in self.columns]
            raise ValueError(
                f"{rows.where} has no {'column' if len(absent) == 1 else 'columns'} {few(absent)}, which the run was "
                f"trained on. Found {few(list(rows.columns), 20)}.{did_you_mean(absent[0], unused)}"
            )
        for name, column in self.columns.items():
            cells, category = rows.columns[name], column.kind == "category"
            odd = np.flatnonzero(column.odd(cells)) if categories or not category else np.empty(0)
            if not len(odd) or not isinstance(cells, Texts):
                continue
            where, one = f"Column `{name}` of {rows.where}", len(odd) == 1
            first = f"`{printable(cells.values[cells.codes[odd[0]]])}` in row {rows.numbers[odd[0]]}"
            if len(odd) == len(cells) and not category:
                raise ValueError(f"{where} should have {column.kind}s, as in training. Found {first}.")
            expected = "among the training categories" if category else f"a {column.kind}" if one else f"{column.kind}s"
            example = f"{':' if one else ', for example'} {first}. {'It counts' if one else 'They count'} as missing."
            share = f"{len(odd):,} of {len(cells):,} values {'is' if one else 'are'} not {expected}"
            warn(f"{where}: {share}{example}")

    def to_json(self) -> dict[str, Any]:
        columns = {name: _to_json(column) for name, column in self.columns.items()}
        return {"columns": columns, "dropped": dict(self.dropped), "labels": list(self.labels), "id": self.id}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Encoder:
        columns = {name: _from_json(column) for name, column in stored["columns"].items()}
        return cls(columns, dict(stored["dropped"]), tuple(stored["labels"]), stored["id"])


def _to_json(part: Any) -> Any:
    if type(part) not in KINDS.values():
        return part
    return {"kind": part.kind} | {field.name: _to_json(getattr(part, field.name)) for field in fields(part)}


def _from_json(stored: Any) -> Any:
    if isinstance(stored, Mapping):
        return KINDS[stored["kind"]](**{name: _from_json(part) for name, part in stored.items() if name != "kind"})
    return tuple(stored) if isinstance(stored, list) else stored


def fit_column(cells: Cells, name: str = "") -> Column | str:
    """Decide what kind of column this is and fit it; a string is the reason why the column is dropped.

    Numbers come first, and a few other values among them count as missing. Then come dates. Other strings are text if
    they have several words, an identifier if nearly every one is unique, and categories otherwise.
    ``name`` is for integers: unique ones are an identifier if the column is called ``id`` or ``customer_id``, and a
    number otherwise.
    """
    missing = cells.missing()
    present, flagged = cells[~missing], bool(missing.any())
    count = len(present)
    if not count:
        return "empty"
    if isinstance(present, Numbers) or _mostly_numbers(present):
        numbers = present.numbers()[~np.isnan(present.numbers())]
        flagged |= len(numbers) < count
        whole = ID_NAME.fullmatch(name) is not None and bool((numbers == numbers.round()).all())
        if whole and count >= FEWEST_UNIQUE and len(np.unique(numbers)) >= NEARLY * count:
            return "unique"
        return Number.fit(numbers, flagged=flagged) or "constant"
    different = len(present.values)
    if different == 1 and not flagged:
        return "constant"
    if (format := date_format(present.values)) is not None:
        return Date.fit(present, format, flagged=flagged)
    common = present.values
    if different > MOST_CATEGORIES:
        common = [str(value) for value, _ in Counter(present.tolist()).most_common(MOST_CATEGORIES)]
    values = Category(tuple(sorted(common)))
    unique = count >= FEWEST_UNIQUE and different >= NEARLY * count
    if present.each([len(value.split()) for value in present.values], 0).mean() >= WORDS_OF_TEXT:
        repeats = not unique and different <= max(MOST_CATEGORIES, count / 2)
        words = TfIdf.fit([str(text) for text in present.tolist()])
        if words is not None:
            return Text(words, values if repeats else None)
        return values if repeats else "no repeated words"
    if unique:
        return "unique" if different == count else "nearly unique"
    return values


def _mostly_numbers(present: Texts) -> bool:
    """Return True if nearly all values are numbers, and the other ones have fewer different values."""
    others = np.isnan(present.numbers())
    numbers = len(present) - int(others.sum())
    return numbers >= LEAST_NUMBERS * len(present) and 2 * len(present[others].values) < len(present.values)
