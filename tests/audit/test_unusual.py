import random
from datetime import date, timedelta

import pytest

from ogc.audit.unusual import FEWEST, unusual_cells


def marked(column, labels):
    return [row for row, mark in enumerate(unusual_cells(column, labels)) if mark]


def test_numbers_are_compared_within_the_same_label():
    labels = [0] * 50 + [1] * 50
    column = [str(1 + i % 7) for i in range(50)] + [str(100 + i % 7) for i in range(50)]
    assert marked(column, labels) == []
    column[3], column[60] = "104", " 3.5 "
    assert marked(column, labels) == [3, 60]


def test_numbers_beyond_box_plot_whiskers_are_unusual():
    column = [str(i) for i in range(100)]  # quartiles 24.25 and 74.75, so the whiskers end near -51 and 150
    assert marked([*column, "140"], [0] * 101) == []
    assert marked([*column, "160"], [0] * 101) == [100]


@pytest.mark.parametrize("odd", ["blue", ""])
def test_rare_values_are_unusual(odd):
    assert marked(["red", "green"] * 50 + [odd], [0] * 101) == [100]
    assert marked(["red", "green"] * 20 + [odd], [0] * 41) == []  # one of 41 is not rare


def test_binary_numbers_are_unusual_only_if_rare():
    assert marked(["0"] * 80 + ["1"] * 20, [0] * 100) == []
    assert marked(["0"] * 99 + ["1"], [0] * 100) == [99]


def test_missing_numbers_are_unusual_if_rare():
    column = [str(i % 9) for i in range(100)]
    assert marked([*column, " "], [0] * 101) == [100]
    assert marked([*column, *[""] * 50], [0] * 150) == []


@pytest.mark.parametrize("word", ["", "NA"])
def test_numbers_with_missing_ones_are_compared_as_numbers(word):
    column = [str(i) for i in range(100)]
    assert marked([*column, word, "999"], [0] * 102) == [100, 101]
    assert marked([*column, *[word] * 10, "999"], [0] * 111) == [110]


@pytest.mark.parametrize("format", ["%Y-%m-%d", "%Y-%m-%d %H:%M", "%d.%m.%Y"])
def test_dates_are_compared_like_numbers(format):
    draw = random.Random(0)
    dates = [date(2024, 1, 1) + timedelta(days=draw.randrange(636)) for _ in range(1600)]
    labels = [draw.randrange(2) for _ in dates]
    assert marked([day.strftime(format) for day in dates], labels) == []
    dates[70] = date(1987, 5, 3)
    assert marked([*(day.strftime(format) for day in dates[:-1]), ""], labels) == [70, 1599]


@pytest.mark.parametrize("categories", [10, 40, 60, 100, 300])
def test_columns_of_many_equally_frequent_values_have_few_unusual_cells(categories):
    draw = random.Random(0)
    labels = [draw.randrange(2) for _ in range(2000)]
    column = [f"town {draw.randrange(categories)}" for _ in labels]
    assert len(marked(column, labels)) <= 0.05 * len(labels)
    assert categories == 40 or not marked(column, labels)


@pytest.mark.parametrize(("rare", "found"), [(10, 10), (11, 0)])
def test_rare_values_are_unusual_only_among_common_ones(rare, found):
    column = ["red"] * (200 - rare) + [f"red {i}" for i in range(rare)]
    assert len(marked(column, [0] * 200)) == found
    assert len(marked([*column, *["blue"] * 100], [0] * 200 + [1] * 100)) == found  # per label
    numbers = ["0"] * (200 - rare) + [str(i + 1) for i in range(rare)]  # the quartiles are equal
    assert len(marked(numbers, [0] * 200)) == found


def test_free_text_and_rare_labels_have_no_unusual_cells():
    assert marked([f"name {i}" for i in range(100)], [0] * 100) == []
    few = [str(i) for i in range(FEWEST - 2)] + ["1e9"]
    assert marked(few, [0] * (FEWEST - 1)) == []
    assert marked([*few, "5"], [0] * FEWEST) == [FEWEST - 2]
    assert unusual_cells([], []) == []
    assert marked([""] * 30, [0] * 30) == []
