"""The kinds of columns of a table: numbers, categories, dates, which become numbers, and free text (``text.py``).

Each kind is a small class that is fitted on the training rows and stored as JSON. ``features`` encodes cells,
N -> (N, k) float32, ``odd`` marks the cells that cannot be encoded and count as missing, and ``use`` describes it all.
scikit-learn's ``ColumnTransformer`` does the same arithmetic, but can only be stored as pickle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .cells import Cells, Texts, parse_date

Features = NDArray[np.float32]
Marks = NDArray[np.bool_]
MOST_DEVIATIONS = 1e6  # limit in standard deviations, safe for float32 and a network


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

    @classmethod
    def fit(cls, numbers: NDArray[np.float64], *, flagged: bool) -> Number | None:
        """Fit a column to its numbers, (n,); ``None`` for a constant one without missing cells."""
        with np.errstate(over="ignore"):
            mean, std = numbers.mean().item(), numbers.std().item()
        varies = numbers.min() < numbers.max() and 0 < std < np.inf
        return cls(mean, std if varies else None, flagged) if varies or flagged else None

    @property
    def use(self) -> str:
        return "number" if self.std is not None else "number, present or missing"

    def features(self, cells: Cells) -> Features:
        return self.scaled(cells.numbers())

    def scaled(self, numbers: NDArray[np.float64]) -> Features:
        missing, kept = np.isnan(numbers), [np.empty((0, len(numbers)))]
        if self.std is not None:
            deviations = np.where(missing, 0, (numbers - self.mean) / self.std)
            kept.append(deviations.clip(-MOST_DEVIATIONS, MOST_DEVIATIONS)[None])
        if self.flagged:
            kept.append(missing[None])
        return np.concatenate(kept).T.astype(np.float32)

    def odd(self, cells: Cells) -> Marks:
        return np.isnan(cells.numbers()) & ~cells.missing()


@dataclass(frozen=True)
class Category:
    """One-hot over the most frequent training values, with one more slot for rare, unseen and missing values."""

    kind: ClassVar = "category"
    values: tuple[str, ...]

    @property
    def use(self) -> str:
        return f"{len(self.values)} categories" if len(self.values) > 1 else "1 category, present or missing"

    def features(self, cells: Cells) -> Features:
        assert isinstance(cells, Texts)
        slot = {value: i for i, value in enumerate(self.values)}
        slots = cells.each([slot.get(value, len(slot)) for value in cells.values], len(slot))
        features = np.zeros((len(cells), len(slot) + 1), np.float32)
        features[np.arange(len(cells)), slots] = 1
        return features

    def odd(self, cells: Cells) -> Marks:
        assert isinstance(cells, Texts)
        known = set(self.values)
        return cells.each([value not in known for value in cells.values], False) & ~cells.missing()


@dataclass(frozen=True)
class Date:
    """The year, standardised like a number, and month and weekday as one-hot. A missing date has zeros there."""

    kind: ClassVar = "date"
    format: str  # one of DATES
    year: Number

    @classmethod
    def fit(cls, cells: Texts, format: str, *, flagged: bool) -> Date:
        """Fit a column to its cells, none of which is missing."""
        years = _parts(cells, format)[cells.codes, 0]
        return cls(format, Number.fit(years, flagged=flagged) or Number(years[0].item(), None, flagged=False))

    @property
    def use(self) -> str:
        order = {"%d": "day first", "%m": "month first"}.get(self.format[:2])
        return "date (year, month, weekday)" if order is None else f"date, {order} (year, month, weekday)"

    def features(self, cells: Cells) -> Features:
        assert isinstance(cells, Texts)
        year, month, weekday = _parts(cells, self.format).T
        months, weekdays = (np.arange(1, n) == part[:, None] for n, part in ((13, month), (8, weekday)))
        return np.concatenate([self.year.scaled(year), months, weekdays], axis=1, dtype=np.float32)[cells.codes]

    def odd(self, cells: Cells) -> Marks:
        assert isinstance(cells, Texts)
        no_date: Marks = np.isnan(_parts(cells, self.format)[cells.codes, 0])
        return no_date & ~cells.missing()


def _parts(cells: Texts, format: str) -> NDArray[np.float64]:
    """Return year, month and weekday of each different value, and NaN for empty cells: -> (V + 1, 3)."""
    dates = [*(parse_date(value, format) for value in cells.values), None]
    return np.array([(np.nan,) * 3 if date is None else (date.year, date.month, date.isoweekday()) for date in dates])
