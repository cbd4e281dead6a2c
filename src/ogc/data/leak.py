"""Columns that give the label away."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .._warn import warn
from .cells import Texts, parse_date
from .columns import Category, Date
from .encoder import Encoder
from .rows import TableRows
from .text import Text

NEARLY_ALL = 0.99
MOST_ROWS = 10_000  # evenly spaced ones are enough
FEWEST_ROWS, FEWEST_ROWS_OF_CODES, FEWEST_OF_A_CLASS = 500, 50, 5


def warn_of_leaks(rows: TableRows, encoder: Encoder, labels: NDArray[np.int64]) -> None:
    """Warn about each column of the training rows, (N,), that alone predicts the given labels, (N,), almost perfectly.

    Half of the rows are predicted as the label of the nearest value among the other half. A column is reported if the
    mean recall of the classes is 0.99 or more. Wrong labels cannot be predicted from a true cause, so such a column
    was probably made from the label, or after it. One measurement may well separate the classes of a small table, so a
    column needs 500 rows, or 50 if it has at most two different values per class. Free text is left out: it often
    decides the label, and rightly so.
    """
    step = -(-len(rows) // MOST_ROWS)
    rows, labels = rows[::step], labels[::step]
    for name, column in encoder.columns.items():
        cells = rows.columns[name]
        if isinstance(column, Text):
            continue
        if isinstance(column, Category):
            keys = column.features(cells).argmax(1).astype(np.float64)
        elif isinstance(column, Date) and isinstance(cells, Texts):
            dates = [parse_date(value, column.format) for value in cells.values]
            keys = cells.each([np.nan if date is None else date.toordinal() for date in dates], np.nan)
        else:
            keys = cells.numbers()
        keys = np.where(np.isnan(keys), np.nanmin(keys, initial=0) - 1, keys)  # missing cells have a value of their own
        codes = len(np.unique(keys)) <= 2 * len(np.unique(labels))
        if len(rows) < (FEWEST_ROWS_OF_CODES if codes else FEWEST_ROWS):
            continue
        if (recall := mean_recall(keys, labels)) >= NEARLY_ALL:
            share = f"alone predicts {100 * recall:.3g} % of the labels"
            warn(f"Column `{name}` of {rows.where} {share}. If it was made from the label, or after it, remove it.")


def mean_recall(keys: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Predict half of the labels from the nearest keys among the other half: (N,), (N,) -> mean recall of the classes.

    Classes with few rows are left out. The result is 0 if fewer than two are left.
    """
    order = np.random.default_rng(0).permutation(len(keys))
    asked, true = keys[order[::2]], labels[order[::2]]
    order = order[1::2][keys[order[1::2]].argsort()]
    known = keys[order]
    after = known.searchsorted(asked).clip(max=len(known) - 1)
    before = (after - 1).clip(min=0)
    nearest = np.where(asked - known[before] < known[after] - asked, before, after)
    size, right = np.bincount(true), np.bincount(true, labels[order[nearest]] == true)
    recall = right[size >= FEWEST_OF_A_CLASS] / size[size >= FEWEST_OF_A_CLASS]
    return float(recall.mean()) if len(recall) > 1 else 0.0
