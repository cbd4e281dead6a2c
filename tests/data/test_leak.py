"""A column that gives the label away is reported, and nothing else is."""

import warnings

import numpy as np
import pytest
from sklearn import datasets

from ogc.data.encoder import Encoder
from ogc.data.leak import mean_recall, warn_of_leaks
from ogc.data.rows import TableRows

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 600)
NOISE = {f"x{i}": RNG.normal(size=600) for i in range(5)}


def reported(columns, labels):
    """The columns with a warning."""
    rows = TableRows.of(columns, "`t.csv`")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_of_leaks(rows, Encoder.fit(rows), np.asarray(labels))
    return [str(each.message).split("`")[1] for each in found]


LEAKS = {
    "code": LABELS + 10,
    "code with a few errors": np.where(np.arange(600) % 300, LABELS, 0),
    "category": np.array(["paid", "open", "late"])[LABELS],
    "number": LABELS * 100 + RNG.normal(size=600),
    "present": np.where(LABELS == 0, np.nan, LABELS + 0.1 * RNG.normal(size=600)),
    "date": [f"{2000 + 5 * label}-0{1 + i % 9}-1{i % 7}" for i, label in enumerate(LABELS)],
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_column_that_gives_the_label_away_is_reported(name):
    assert reported({**NOISE, name: LEAKS[name]}, LABELS) == [name]


def test_missing_cells_may_give_the_label_away():
    labels = (LABELS > 0).astype(int)
    closed = [f"2026-01-{1 + i % 28:02}" if label else None for i, label in enumerate(labels)]
    assert reported({**NOISE, "closed": closed}, labels) == ["closed"]


def test_rare_classes_count_as_much_as_others():
    labels = (np.arange(600) % 30 == 0).astype(int)
    assert reported(NOISE, labels) == []
    assert reported({**NOISE, "fraud": labels}, labels) == ["fraud"]


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "digits"])
@pytest.mark.parametrize("first_against_rest", [False, True])
def test_real_measurements_are_not_reported(name, first_against_rest):
    data = getattr(datasets, f"load_{name}")()
    labels = (data.target == 0).astype(int) if first_against_rest else data.target
    assert reported({f"x{i}": column for i, column in enumerate(data.data.T)}, labels) == []


def test_what_truly_decides_is_not_reported():
    """The given labels are wrong in places, so no true cause predicts them; free text may decide."""
    wrong = np.where(RNG.random(600) < 0.1, (LABELS + 1) % 3, LABELS)
    assert reported({"cause": LABELS}, wrong) == []
    text = [f"the {['first', 'second', 'third'][label]} kind of case{i % 50}" for i, label in enumerate(LABELS)]
    assert reported({"text": text}, LABELS) == []


def test_small_tables_need_a_code():
    labels = LABELS[:100]
    assert reported({"measured": labels + 0.1 * RNG.normal(size=100)}, labels) == []
    assert reported({"code": labels}, labels) == ["code"]
    assert reported({"code": labels[:40]}, labels[:40]) == []


def test_recall_of_the_nearest_value():
    labels = np.repeat([0, 1], 200)
    assert mean_recall(labels.astype(float), labels) == 1
    assert mean_recall(np.zeros(400), labels) == pytest.approx(0.5)
    assert mean_recall(labels.astype(float), np.zeros(400, np.int64)) == 0, "one class"
