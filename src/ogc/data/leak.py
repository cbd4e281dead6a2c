"""Columns that give the label away."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .._warn import warn
from .cells import Cells, Texts, parse_date
from .columns import Category, Date
from .encoder import Column, Encoder
from .rows import TableRows
from .text import Text

NEARLY_ALL = 0.99
MOST_ROWS = 10_000  # evenly spaced ones are enough
FEWEST_ROWS_OF_CODES, FEWEST_ROWS_OF_OTHERS = 50, 500
FEWEST_OF_A_CLASS = 5


def warn_of_leaks(rows: TableRows, encoder: Encoder, labels: NDArray[np.int64]) -> None:
    """Warn about each column of the training rows, (N,), that alone predicts the given labels, (N,), almost perfectly.

    Half of the rows are predicted as the label of the nearest value among the other half. A column is reported if the
    mean recall of the classes is 0.99 or more. Wrong labels cannot be predicted from a true cause, so such a column
    was probably filled in after the label, or from it. One measurement may well separate the classes of a small table,
    so a column needs 500 rows, or 50 if it has at most two different values per class. Free text is left out: it often
    decides the label, and rightly so.
    """
    step = -(-len(rows) // MOST_ROWS)
    rows, labels = rows[::step], labels[::step]
    for name, column in encoder.columns.items():
        if isinstance(column, Text):
            continue
        key = _keys(column, rows.columns[name])
        few_values = len(np.unique(key)) <= 2 * len(np.unique(labels))
        if len(rows) < (FEWEST_ROWS_OF_CODES if few_values else FEWEST_ROWS_OF_OTHERS):
            continue
        if (recall := mean_recall(key, labels)) >= NEARLY_ALL:
            warn(
                f"Column `{name}` of {rows.where} alone predicts {100 * recall:.3g} % of the labels. If it was made from "
                "the label, or after it, remove it."
            )


def _keys(column: Column, cells: Cells) -> NDArray[np.float64]:
    """Return a number for each cell, (N,); missing cells have the smallest."""
    if isinstance(column, Category):
        keys = column.features(cells).argmax(1).astype(np.float64)
    elif isinstance(column, Date):
        assert isinstance(cells, Texts)
        dates = [parse_date(value, column.format) for value in cells.values]
        keys = cells.each([np.nan if date is None else float(date.toordinal()) for date in dates], np.nan)
    else:
        keys = cells.numbers()
    lowest = np.nanmin(keys, initial=0) - 1
    return np.where(np.isnan(keys), lowest, keys)


def mean_recall(key: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Predict half of the labels from the nearest keys among the other half: (N,), (N,) -> mean recall of the classes.

    Classes with few rows are left out. The result is 0 if fewer than two are left.
    """
    order = np.random.default_rng(0).permutation(len(key))
    asked, true = key[order[::2]], labels[order[::2]]
    order = order[1::2][key[order[1::2]].argsort()]
    known = key[order]
    after = known.searchsorted(asked).clip(max=len(known) - 1)
    before = (after - 1).clip(min=0)
    nearest = np.where(asked - known[before] < known[after] - asked, before, after)
    size = np.bincount(true)
    recall = (
        np.bincount(true, labels[order[nearest]] == true)[size >= FEWEST_OF_A_CLASS] / size[size >= FEWEST_OF_A_CLASS]
    )
    return float(recall.mean()) if len(recall) > 1 else 0.0
