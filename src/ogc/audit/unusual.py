"""Cells of a table that are unusual among the rows with the same label."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import isnan, nan
from statistics import quantiles

from ..data.cells import date_format, is_missing, parse_date, to_number

FEWEST = 20  # rows with a label, below which nothing is called unusual
REACH = 1.5  # interquartile ranges beyond the quartiles: the whiskers of a box plot
RARE = 0.02  # share of the rows with a label, below which a value is rare
MOST_RARE = 0.05  # share of the rows with a label, above which rare values are not unusual


def unusual_cells(column: Sequence[str], labels: Sequence[int]) -> list[bool]:
    """Mark the cells that differ from those of the other rows with their label: one mark per row.

    A number or date is unusual beyond ``REACH`` interquartile ranges from the quartiles, and a missing one if few are
    missing. In columns of few values, and in those of other strings, a rare value is unusual, an empty cell included.
    If many rows with a label have a rare value, as in columns of names and free text, none of these is unusual.
    """
    cells = [cell.strip() for cell in column]
    numbers = _numbers(cells)
    marked = [False] * len(cells)
    rows_of = defaultdict(list)
    for row, label in enumerate(labels):
        rows_of[label].append(row)
    for rows in rows_of.values():
        if len(rows) >= FEWEST:
            marks = _marks([cells[row] for row in rows], [numbers[row] for row in rows])
            for row, mark in zip(rows, marks, strict=True):
                marked[row] = mark
    return marked


def _numbers(cells: Sequence[str]) -> list[float]:
    """Return the numbers, or the days of dates: (N,). NaN for missing cells, and for all cells of other columns."""
    present = [cell for cell in cells if cell and not is_missing(cell)]
    numbers = [to_number(cell) for cell in cells]
    if not any(isnan(to_number(cell)) for cell in present):
        return numbers
    if (format := date_format(present)) is None:
        return [nan] * len(cells)
    dates = [parse_date(cell, format) for cell in cells]
    return [nan if date is None else date.toordinal() for date in dates]


def _marks(cells: Sequence[str], numbers: Sequence[float]) -> list[bool]:
    """Mark the unusual cells among those of one label: (n,), (n,) -> (n,)."""
    present = [number for number in numbers if not isnan(number)]
    if len(present) >= FEWEST:
        first, _, third = quantiles(present, n=4)
        if first < third:
            low, high = first - REACH * (third - first), third + REACH * (third - first)
            few_missing = len(cells) - len(present) < RARE * len(cells)
            return [few_missing if isnan(number) else not low <= number <= high for number in numbers]
    counts = Counter(cells)
    rare = [counts[cell] < RARE * len(cells) for cell in cells]
    return rare if sum(rare) <= MOST_RARE * len(cells) else [False] * len(cells)
