"""Cells of a table that are unusual among the rows with the same label."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from math import isnan
from statistics import quantiles

from ..data.columns import finite

FEWEST = 20  # rows with a label, below which nothing is called unusual
REACH = 1.5  # interquartile ranges beyond the quartiles: the whiskers of a box plot
RARE = 0.02  # share of the rows with a label, below which a value is rare


def unusual_cells(column: Sequence[str], labels: Sequence[int]) -> list[bool]:
    """Mark the cells that differ from those of the other rows with their label: one mark per row.

    A number is unusual beyond ``REACH`` interquartile ranges from the quartiles. In columns of few values, and in
    those that are not numeric, a rare value is unusual, an empty cell included. Columns in which most values differ,
    such as names and free text, have no unusual cells.
    """
    cells = [cell.strip() for cell in column]
    present = [cell for cell in cells if cell]
    numeric = not any(isnan(finite(cell)) for cell in present)
    marked = [False] * len(cells)
    if not numeric and 2 * len(set(present)) > len(present):
        return marked
    rows_of = defaultdict(list)
    for row, label in enumerate(labels):
        rows_of[label].append(row)
    for rows in rows_of.values():
        if len(rows) >= FEWEST:
            test = _test([cells[row] for row in rows], numeric)
            for row in rows:
                marked[row] = test(cells[row])
    return marked


def _test(cells: Sequence[str], numeric: bool) -> Callable[[str], bool]:
    """Return a function that tests whether a cell is unusual among these."""
    counts = Counter(cells)

    def rare(cell: str) -> bool:
        return counts[cell] < RARE * len(cells)

    numbers = [finite(cell) for cell in cells if cell]
    if not numeric or len(numbers) < FEWEST:
        return rare
    first, _, third = quantiles(numbers, n=4)
    if first == third:
        return rare
    low, high = first - REACH * (third - first), third + REACH * (third - first)
    return lambda cell: not low <= finite(cell) <= high if cell else rare(cell)
