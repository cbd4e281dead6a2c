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


def test_free_text_and_rare_labels_have_no_unusual_cells():
    assert marked([f"name {i}" for i in range(100)], [0] * 100) == []
    few = [str(i) for i in range(FEWEST - 2)] + ["1e9"]
    assert marked(few, [0] * (FEWEST - 1)) == []
    assert marked([*few, "5"], [0] * FEWEST) == [FEWEST - 2]
    assert unusual_cells([], []) == []
    assert marked([""] * 30, [0] * 30) == []
