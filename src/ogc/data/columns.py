"""Columns of a table as features: fitted on the training rows, stored as JSON, applied to any rows.

Each kind of column is one small class with ``use`` (a description of how the column is used), ``features`` (cells to
numbers, N -> (N, k) float32) and ``unexpected`` (the rows whose value cannot be encoded and counts as missing).
:func:`fit` decides which kind a column is. scikit-learn's ``ColumnTransformer`` does the same arithmetic, but can only
be stored as pickle, so scikit-learn computes only TF-IDF here.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .._extras import extra
from .._require import printable

Cell = str | None  # None: missing
Table = Mapping[str, Sequence[Cell]]  # by column
MOST_CATEGORIES = 100
MOST_WORDS = 500
TEXT_SCALE = 3.0  # norm of the features of a text: with 1 they are too weak next to other columns, see docs/log.md
LARGEST = 1e6  # limit in standard deviations, safe for float32 and a network
MISSING = frozenset({"na", "n/a", "null", "none", "?", "-"})
NUMBERS = 0.95  # minimum share of numbers among the values of a column of numbers
WORDS_OF_TEXT = 3  # minimum mean number of words per cell for varied strings to count as text
FEWEST_UNIQUE = 20  # minimum number of rows for a column of unique values to count as an identifier
DATES = ("ISO", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?")
TIME = re.compile(r" \d\d?:\d\d(:\d\d)?( [AaPp][Mm])?$")
ID_NAME = re.compile(r"(?i:id|.*[ _.-]id)|.*[a-z](Id|ID)")


@dataclass(frozen=True)
class Number:
    """(x - mean) / std over the training rows. A missing number becomes the mean.

    ``std`` is ``None`` for a column whose only information is which cells are missing. ``flagged`` adds an indicator of
    missing cells; it is set if the training rows have any.
    """

    kind: ClassVar = "number"
    mean: float
    std: float | None
    flagged: bool

    @property
    def use(self) -> str:
        return "number" if self.std is not None else "number, present or missing"

    def features(self, cells: Sequence[Cell]) -> Tensor:
        numbers = torch.tensor([finite(cell) for cell in cells], dtype=torch.float64)
        missing = numbers.isnan()
        kept = []
        if self.std is not None:
            scaled = (numbers - self.mean) / self.std
            kept.append(scaled.masked_fill(missing, 0).clamp(-LARGEST, LARGEST))
        if self.flagged:
            kept.append(missing.double())
        return torch.stack(kept, dim=1).float() if kept else torch.empty(len(cells), 0)

    def unexpected(self, cells: Sequence[Cell]) -> list[int]:
        return [row for row, cell in _present(cells) if math.isnan(finite(cell))]


@dataclass(frozen=True)
class Category:
    """One-hot over the most frequent training values, with one more slot for rare, unseen and missing values."""

    kind: ClassVar = "category"
    values: tuple[str, ...]

    @property
    def use(self) -> str:
        return f"{len(self.values)} categories" if len(self.values) > 1 else "1 category, present or missing"

    def features(self, cells: Sequence[Cell]) -> Tensor:
        slot = {value: i for i, value in enumerate(self.values)}
        slots = torch.tensor([len(slot) if cell is None else slot.get(cell, len(slot)) for cell in cells])
        return one_hot(slots.long(), len(slot) + 1).float()

    def unexpected(self, cells: Sequence[Cell]) -> list[int]:
        known = set(self.values)
        return [row for row, cell in _present(cells) if cell not in known]


@dataclass(frozen=True)
class Date:
    """The year, standardised like a number, and month and weekday as one-hot. A missing date has zeros there."""

    kind: ClassVar = "date"
    format: str  # one of DATES
    year: Number

    @property
    def use(self) -> str:
        order = {"%d": "day first", "%m": "month first"}.get(self.format[:2])
        return "date (year, month, weekday)" if order is None else f"date, {order} (year, month, weekday)"

    def features(self, cells: Sequence[Cell]) -> Tensor:
        dates = [parse_date(cell, self.format) for cell in cells]
        year = self.year.features([None if date is None else str(date.year) for date in dates])
        month = torch.tensor([0 if date is None else date.month for date in dates])
        weekday = torch.tensor([0 if date is None else date.isoweekday() for date in dates])
        return torch.cat([year, one_hot(month, 13)[:, 1:], one_hot(weekday, 8)[:, 1:]], dim=1).float()

    def unexpected(self, cells: Sequence[Cell]) -> list[int]:
        return [row for row, cell in _present(cells) if parse_date(cell, self.format) is None]


@dataclass(frozen=True)
class Text:
    """TF-IDF by scikit-learn over the most frequent words of the training rows."""

    kind: ClassVar = "text"
    words: tuple[str, ...]
    idf: tuple[float, ...]

    @property
    def use(self) -> str:
        return f"text, {len(self.words)} words"

    @cached_property
    def _vectorizer(self) -> Any:
        import numpy as np

        vectorizer = _tfidf(vocabulary=list(self.words))
        vectorizer.idf_ = np.array(self.idf)
        return vectorizer

    def features(self, cells: Sequence[Cell]) -> Tensor:
        found = self._vectorizer.transform([cell or "" for cell in cells])
        return TEXT_SCALE * torch.from_numpy(found.astype("float32").toarray())

    def unexpected(self, cells: Sequence[Cell]) -> list[int]:
        return []


Column = Number | Category | Date | Text
KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (Number, Category, Date, Text)}


@dataclass(frozen=True)
class Encoder:
    """The encoding of a table, fitted on its training rows. New rows are encoded in exactly the same way."""

    columns: Mapping[str, Column]
    dropped: Mapping[str, str]  # column to reason
    labels: tuple[str, ...] = ()  # columns of given and true labels
    id: str | None = None  # the column that identifies rows

    @classmethod
    def fit(cls, table: Table, *, labels: tuple[str, ...] = (), id: str | None = None) -> Self:
        fitted = {name: fit(cells, name) for name, cells in table.items() if name not in (*labels, id)}
        return cls(
            {name: column for name, column in fitted.items() if not isinstance(column, str)},
            {name: reason for name, reason in fitted.items() if isinstance(reason, str)},
            labels,
            id,
        )

    def features(self, table: Table) -> Tensor:
        """Encode rows: -> (N, F) float32. The order of the columns does not matter, and other columns are ignored."""
        return torch.cat([column.features(table[name]) for name, column in self.columns.items()], dim=1)

    @property
    def use(self) -> str:
        """Describe how each column is used, in one line.

        >>> Encoder.fit({"age": ["30", "41"], "city": ["Bern", "Rome"], "unit": ["kg", "kg"]}).use
        'age: number; city: 2 categories; unit: dropped, constant'
        """
        return "; ".join(f"{name}: {use}" for name, use in self.uses.items())

    @property
    def uses(self) -> dict[str, str]:
        """How each column is used: those that are kept, then those that are dropped."""
        kept = {name: column.use for name, column in self.columns.items()}
        return kept | {name: f"dropped, {reason}" for name, reason in self.dropped.items()}

    def to_json(self) -> dict[str, Any]:
        columns = {name: {"kind": column.kind, **asdict(column)} for name, column in self.columns.items()}
        return {"columns": columns, "dropped": dict(self.dropped), "labels": list(self.labels), "id": self.id}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        columns = {name: _restore(column) for name, column in stored["columns"].items()}
        return cls(columns, dict(stored["dropped"]), tuple(stored["labels"]), stored["id"])


def _restore(stored: Mapping[str, Any]) -> Column:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
    kind = KINDS[fields.pop("kind")]
    if kind is Date:
        fields["year"] = Number(**fields["year"])
    return kind(**fields)


def fit(cells: Sequence[Cell], name: str = "") -> Column | str:
    """Decide what kind of column this is and fit it; a string is the reason why the column is dropped.

    Numbers come first, and a few other values among them count as missing. Then come dates. Other strings are text if
    they are varied and have several words, an identifier if nearly every one is unique, and categories otherwise.
    ``name`` is for integers: unique ones are an identifier if the column is called ``id`` or ``customer_id``, and a
    number otherwise.
    """
    present = [cell for _, cell in _present(cells)]
    flagged = len(present) < len(cells)
    if not present:
        return "empty"
    if len(set(present)) == 1 and not flagged:
        return "constant"
    unique = len(set(present)) >= 0.95 * len(present) and len(present) >= FEWEST_UNIQUE
    if mostly_numbers(present):
        numbers = torch.tensor([finite(cell) for cell in present], dtype=torch.float64)
        numbers = numbers[~numbers.isnan()]
        if unique and ID_NAME.fullmatch(name) and bool((numbers == numbers.round()).all()):
            return "unique"
        return _fit_number(numbers, flagged or len(numbers) < len(present)) or "constant"
    if (format := date_format(present)) is not None:
        years = torch.tensor([date.year for cell in present if (date := parse_date(cell, format))], dtype=torch.float64)
        return Date(format, _fit_number(years, flagged) or Number(years[0].item(), None, flagged=False))
    varied = len(set(present)) > max(MOST_CATEGORIES, len(present) / 2) or unique
    if varied and sum(len(cell.split()) for cell in present) >= WORDS_OF_TEXT * len(present):
        return _fit_text(present) or "no repeated words"
    if unique:
        return "unique" if len(set(present)) == len(present) else "nearly unique"
    common = Counter(present).most_common(MOST_CATEGORIES)
    return Category(tuple(sorted(value for value, _ in common)))


def mostly_numbers(present: Sequence[str]) -> bool:
    """Return True if nearly all values are numbers, and the other ones have fewer different values.

    >>> mostly_numbers(["1", "2"] * 10 + ["unknown"]), mostly_numbers(["0"] * 98 + ["summer", "winter"])
    (True, False)
    """
    others = [cell for cell in present if math.isnan(finite(cell))]
    few = len(present) - len(others) >= NUMBERS * len(present)
    return few and 2 * len(set(others)) < len(set(present))


def _fit_number(numbers: Tensor, flagged: bool) -> Number | None:
    """Fit a column of numbers, (n,) float64; ``None`` for a constant one without missing cells."""
    std = numbers.std(correction=0).item()
    varies = bool((numbers != numbers[0]).any()) and 0 < std < math.inf
    return Number(numbers.mean().item(), std if varies else None, flagged) if varies or flagged else None


def _fit_text(present: Sequence[str]) -> Text | None:
    vectorizer = _tfidf(max_features=MOST_WORDS, min_df=2)
    try:
        vectorizer.fit(present)
    except ValueError:  # no word occurs in two rows
        return None
    return Text(tuple(vectorizer.get_feature_names_out().tolist()), tuple(vectorizer.idf_.tolist()))


def _tfidf(**options: Any) -> Any:
    with extra("cli", "Text columns need scikit-learn", "sklearn"):
        from sklearn.feature_extraction.text import TfidfVectorizer
    return TfidfVectorizer(sublinear_tf=True, strip_accents="unicode", **options)


def date_format(cells: Sequence[str]) -> str | None:
    """Return the first of DATES that all cells are written in. Ambiguous days and months are read as day first."""
    return next((format for format in DATES if all(parse_date(cell, format) for cell in cells)), None)


def parse_date(cell: Cell, format: str) -> datetime | None:
    """Return the date, or ``None`` if the cell is not a date in this format.

    >>> parse_date("2026-11-16 05:00", "ISO"), parse_date("31.11.2026", "%d.%m.%Y")
    (datetime.datetime(2026, 11, 16, 5, 0), None)
    """
    try:
        if cell is None or (format == "ISO" and not ISO_DATE.fullmatch(cell)):
            return None
        return datetime.fromisoformat(cell) if format == "ISO" else datetime.strptime(TIME.sub("", cell), format)
    except ValueError:
        return None


def is_missing(cell: Cell) -> bool:
    """Return True for empty cells, words like "n/a", NaN, infinities and numbers too large for a float."""
    if cell is None or cell.lower() in MISSING:
        return True
    try:
        return not math.isfinite(float(cell))
    except ValueError:
        return False


def check_values(
    name: str,
    column: Column,
    cells: Sequence[Cell],
    where: str,
    numbers: Sequence[int] | None = None,
    *,
    stacklevel: int,
) -> None:
    """Warn about values that cannot be encoded. Raise ``ValueError`` if none of the numbers or dates can be.

    :param numbers: row numbers, for messages. By default 1 to N.
    """
    odd = column.unexpected(cells)
    if not odd:
        return
    row = odd[0] + 1 if numbers is None else numbers[odd[0]]
    first = f"`{printable(str(cells[odd[0]]))}` in row {row}"
    category = column.kind == "category"
    if len(odd) == len(cells) and not category:
        raise ValueError(f"Column `{name}` of {where} should have {column.kind}s, as in training. Found {first}.")
    share = f"{len(odd):,} of {len(cells):,} values"
    if len(odd) == 1:
        expected = "among the training categories" if category else f"a {column.kind}"
        sentence = f"{share} is not {expected}: {first}. It counts as missing."
    else:
        expected = "among the training categories" if category else f"{column.kind}s"
        sentence = f"{share} are not {expected}, for example {first}. They count as missing."
    warnings.warn(f"Column `{name}` of {where}: {sentence}", stacklevel=stacklevel + 1)


def _present(cells: Sequence[Cell]) -> Iterator[tuple[int, str]]:
    """Yield the rows and values that are not missing."""
    for row, cell in enumerate(cells):
        if cell is not None and not is_missing(cell):
            yield row, cell


def finite(cell: Cell) -> float:
    """Return the number, or NaN if the cell is not a finite number."""
    try:
        number = float(cell) if cell is not None else math.nan
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
