import numpy as np
import pytest

from ogc.noise import symmetric

C = 10


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, C, 50_000)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 0.77, 1.0])
def test_counts_are_exact_in_every_class(labels, rate):
    given = symmetric(labels, rate, num_classes=C)
    for c in range(C):
        assert (given[labels == c] != c).sum() == int(rate * (labels == c).sum())


def test_counts_are_cut_to_integers():
    labels = np.repeat([0, 1, 2], [3, 1, 0])  # a small class, one of a single sample, an empty one
    given = symmetric(labels, 0.5, num_classes=3)
    assert (given[:3] != 0).sum() == 1
    assert given[3] == 1


def test_flipped_labels_are_uniform_over_the_other_classes(labels):
    given = symmetric(labels, 0.5, num_classes=C)
    table = np.zeros((C, C))
    np.add.at(table, (labels, given), 1)
    others = table[~np.eye(C, dtype=bool)].reshape(C, C - 1)
    expected = others.sum(1, keepdims=True) / (C - 1)
    chi_square = ((others - expected) ** 2 / expected).sum()
    assert 30 < chi_square < 150  # C (C - 2) = 80 degrees of freedom; far below 80 would not be random


def test_which_samples_are_flipped_does_not_depend_on_their_place(labels):
    flipped = symmetric(labels, 0.5, num_classes=C) != labels
    assert abs(flipped[:25_000].mean() - 0.5) < 0.02


def test_a_seed_is_a_noise(labels):
    first = symmetric(labels, 0.5, num_classes=C, seed=3)
    assert (first == symmetric(labels, 0.5, num_classes=C, seed=3)).all()
    assert (first != symmetric(labels, 0.5, num_classes=C, seed=4)).mean() > 0.3


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_type_is_kept_and_input_untouched(dtype):
    labels = np.arange(200, dtype=dtype).repeat(2)  # 199 + 199 does not fit into uint8
    before = labels.copy()
    given = symmetric(labels, 1.0, num_classes=200)
    assert given.dtype == dtype
    assert given.max() < 200
    assert (given != labels).all()
    assert (labels == before).all()


def test_no_labels():
    assert symmetric(np.array([], dtype=np.int64), 0.5, num_classes=C).shape == (0,)


@pytest.mark.parametrize(
    ("labels", "rate", "num_classes", "message"),
    [
        ([0, 1], 1.5, 2, r"`rate` should be in \[0, 1\]. Found `rate = 1.5`"),
        ([0, 1], float("nan"), 2, r"`rate` should be in \[0, 1\]. Found `rate = nan`"),
        ([0, 0], 0.5, 1, "`num_classes` should be at least 2"),
        ([0, 7, -1], 0.5, 3, r"`labels` should be in \[0, 3\). Found `labels = \[-1, 7\]`"),
        ([[0], [1]], 0.5, 2, r"`labels` should be one-dimensional. Found `labels = \(2, 1\)`"),
        ([0.0, 1.0], 0.5, 2, "`labels` should be of an integer type"),
    ],
)
def test_errors_name_the_rule_and_the_value(labels, rate, num_classes, message):
    with pytest.raises(ValueError, match=message):
        symmetric(np.array(labels), rate, num_classes=num_classes)
