"""The cells of a table's column, (N,): ``Numbers`` if its file has only numbers, ``Texts`` otherwise."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING = frozenset({"na", "n/a", "null", "none", "nan", "?", "-"})
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|(?i:[+-]?inf(inity)?)", re.ASCII)
COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+")
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?")
TIME_OF_DAY = re.compile(r" \d\d?:\d\d(:\d\d)?( [AaPp][Mm])?$")
DATES = ("ISO", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")


@dataclass(frozen=True, eq=False)
class Numbers:
    """Cells that were read as numbers, NaN where one is missing."""

    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Numbers:
        return Numbers(self.values[rows])

    def numbers(self) -> NDArray[np.float64]:
        return self.values

    def missing(self) -> NDArray[np.bool_]:
        return np.isnan(self.values)


@dataclass(frozen=True, eq=False)
class Texts:
    """Cells as indices into their different values, which are stripped text."""

    codes: NDArray[np.int32]  # -1: empty
    values: Sequence[str]
    decimal_comma: bool = False  # of the numbers among the values

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Texts:
        """Return some rows with their own values only, in the order of those of all rows."""
        used, codes = np.unique(self.codes[rows], return_inverse=True)
        empty = int(len(used) > 0 and used[0] < 0)
        return Texts(
            (codes.reshape(-1) - empty).astype(np.int32), [self.values[i] for i in used[empty:]], self.decimal_comma
        )

    def tolist(self) -> list[str | None]:
        values = [*self.values, None]
        return [values[code] for code in self.codes.tolist()]

    def each(self, per_value: Sequence[Any], empty: Any) -> NDArray[Any]:
        """Spread one result per different value over the rows: (V,) -> (N,)."""
        return np.array([*per_value, empty])[self.codes]

    def numbers(self) -> NDArray[np.float64]:
        """Return the numbers, NaN where a cell is missing or has another value."""
        return self.each([to_number(value, comma=self.decimal_comma) for value in self.values], math.nan)

    def missing(self) -> NDArray[np.bool_]:
        """Mark empty cells, words like "n/a", NaN, infinities and numbers too large for a float."""
        return self.each([is_missing(value) for value in self.values], True)


Cells = Numbers | Texts


def to_number(text: str, *, comma: bool = False) -> float:
    """Return the number, or NaN if the text is not a finite one. With ``comma``, "1,5" is 1.5."""
    text = text.replace(",", ".") if comma and COMMA_NUMBER.fullmatch(text) else text
    number = float(text) if NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else math.nan


def is_missing(text: str) -> bool:
    return not text or text.lower() in MISSING or (NUMBER.fullmatch(text) is not None and math.isinf(float(text)))


def date_format(texts: Sequence[str]) -> str | None:
    """Return the first of DATES that all texts are written in. Ambiguous days and months are read as day first."""
    return next((format for format in DATES if all(parse_date(text, format) for text in texts)), None)


@lru_cache(maxsize=2**16)  # strptime is slow, and tables have few days
def parse_date(text: str, format: str) -> date | None:
    """Return the date, or ``None`` if the text is not a date in this format. A time of day after it is ignored.

    >>> parse_date("2026-11-16 05:00", "ISO"), parse_date("31.11.2026", "%d.%m.%Y")
    (datetime.date(2026, 11, 16), None)
    """
    try:
        if format == "ISO":
            return datetime.fromisoformat(text).date() if ISO_DATE.fullmatch(text) else None
        day = TIME_OF_DAY.sub("", text)
        return parse_date(day, format) if day != text else datetime.strptime(day, format).date()
    except ValueError:
        return None
