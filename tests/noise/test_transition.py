import numpy as np
import pytest
import torch
from hypothesis import given as forall
from hypothesis import strategies as st

from ogc.noise import (
    CIFAR10_PAIRS,
    CIFAR100_BLOCKS,
    CIFAR100_PAIRS,
    asymmetric,
    by_matrix,
    confusion_matrix,
    labels_sha256,
    pair_flip,
    symmetric,
)
from ogc.noise.transition import CIFAR100_SUPERCLASSES

C = 10
MATRIX = np.full((C, C), 0.05) + 0.5 * np.eye(C)  # 45 % wrong
KINDS = {
    "symmetric": lambda labels, seed=0: symmetric(labels, 0.5, num_classes=C, seed=seed),
    "asymmetric": lambda labels, seed=0: asymmetric(labels, 0.4, pairs=CIFAR10_PAIRS, seed=seed),
    "pair_flip": lambda labels, seed=0: pair_flip(labels, 0.4, num_classes=C, seed=seed),
    "by_matrix": lambda labels, seed=0: by_matrix(labels, MATRIX, seed=seed),
}


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, C, 50_000)


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def reference(labels, rates, seed):
    """Draw labels with loops, in the released generator's order of random calls: (N,), (C, C) -> (N,)."""
    stream = np.random.RandomState(seed)
    given = labels.tolist()
    for a, row in enumerate(rates):
        left = [i for i, label in enumerate(labels) if label == a]
        size = len(left)
        for b, rate in enumerate(row):
            count = int(rate * size)
            if b == a or count == 0:
                continue
            for i in stream.choice(left, count, replace=False).tolist():
                given[i] = b
                left.remove(i)
    return np.array(given)


@pytest.mark.parametrize("seed", [0, 3, 2**32 - 1])
@pytest.mark.parametrize("rate", [0.05, 0.4, 1.0])
def test_equals_the_loop_reference(rate, seed):
    labels = np.random.default_rng(2).integers(0, C, 2000)
    labels[labels == 6] = 7  # a class without samples
    matrices = {"symmetric": np.full((C, C), rate / (C - 1)), "pairs": np.zeros((C, C)), "next": np.zeros((C, C))}
    for source, target in CIFAR10_PAIRS.items():
        matrices["pairs"][source, target] = rate
    for source in range(C):
        matrices["next"][source, (source + 1) % C] = rate
    found = {
        "symmetric": symmetric(labels, rate, num_classes=C, seed=seed),
        "pairs": asymmetric(labels, rate, pairs=CIFAR10_PAIRS, seed=seed),
        "next": pair_flip(labels, rate, num_classes=C, seed=seed),
    }
    for name, given in found.items():
        assert (given == reference(labels, matrices[name], seed)).all(), name


def test_flip_counts_on_cifar10_match_the_released_code():
    labels = np.arange(C).repeat(5000)
    given = symmetric(labels, 0.5, num_classes=C)
    table = confusion_matrix(labels, given, num_classes=C)
    assert (given != labels).sum() == 24_930
    assert (table == np.where(np.eye(C), 5000 - 9 * 277, 277)).all()
    assert (asymmetric(labels, 0.4, pairs=CIFAR10_PAIRS) != labels).sum() == 10_000


@pytest.mark.parametrize(("rate", "flips"), [(0.2, 9_900), (0.5, 19_800), (0.8, 39_600)])
def test_flip_counts_on_cifar100_match_the_released_code(rate, flips):
    labels = np.arange(100).repeat(500)
    assert (symmetric(labels, rate, num_classes=100) != labels).sum() == flips
    for pairs in (CIFAR100_PAIRS, CIFAR100_BLOCKS):
        assert (asymmetric(labels, rate, pairs=pairs) != labels).sum() == rate * 50_000


@pytest.mark.filterwarnings("ignore:Symmetric noise")
@forall(labels=st.lists(st.integers(0, 4), max_size=60), rate=st.floats(0, 1), seed=st.integers(0, 2**32 - 1))
def test_counts_are_exact_for_any_labels(labels, rate, seed):
    labels = np.array(labels, dtype=np.int64)
    before = labels.copy()
    size = np.bincount(labels, minlength=5)
    others = confusion_matrix(labels, symmetric(labels, rate, num_classes=5, seed=seed), num_classes=5)
    moved = confusion_matrix(labels, pair_flip(labels, rate, num_classes=5, seed=seed), num_classes=5)
    for c in range(5):
        assert (np.delete(others[c], c) == int(rate / 4 * size[c])).all()
        assert moved[c, (c + 1) % 5] == int(rate * size[c])
        assert moved[c].sum() == moved[c, c] + moved[c, (c + 1) % 5] == size[c]
    assert (labels == before).all()


def test_asymmetric_flips_only_the_pairs_with_exact_counts(labels):
    given = asymmetric(labels, 0.4, pairs=CIFAR10_PAIRS)
    expected = np.diag(np.bincount(labels))
    for source, target in CIFAR10_PAIRS.items():
        flips = int(0.4 * expected[source, source])
        expected[source, source] -= flips
        expected[source, target] += flips
    assert (confusion_matrix(labels, given, num_classes=C) == expected).all()
    assert asymmetric(np.array([3, 5, 3, 5]), 1.0, pairs=CIFAR10_PAIRS).tolist() == [5, 3, 5, 3], "swapped only once"
    assert (asymmetric(labels, 1.0, pairs={}) == labels).all()


def test_pairs_of_cifar100():
    coarse = {fine: i for i, group in enumerate(CIFAR100_SUPERCLASSES) for fine in group}
    assert sorted(coarse) == list(range(100))
    assert all(len(group) == 5 and sorted(group) == list(group) for group in CIFAR100_SUPERCLASSES)
    for pairs, group_of in ((CIFAR100_PAIRS, coarse.get), (CIFAR100_BLOCKS, lambda fine: fine // 5)):
        assert sorted(pairs) == sorted(pairs.values()) == list(range(100))
        assert all(group_of(source) == group_of(target) for source, target in pairs.items())
        for start in range(100):  # a cycle of five
            place, length = pairs[start], 1
            while place != start:
                place, length = pairs[place], length + 1
            assert length == 5
    assert CIFAR100_PAIRS[4] == 30  # beaver to dolphin
    assert CIFAR100_PAIRS[95] == 4  # whale to beaver
    assert (CIFAR100_BLOCKS[0], CIFAR100_BLOCKS[4]) == (1, 0)


def test_rates_of_a_matrix_within_4_sigma(labels):
    matrix = np.random.default_rng(0).dirichlet(np.ones(C), C)
    table = confusion_matrix(labels, by_matrix(labels, matrix, seed=5), num_classes=C)
    size = table.sum(1, keepdims=True)
    sigma = np.sqrt(size * matrix * (1 - matrix))
    assert (abs(table - size * matrix) < 4 * sigma + 1).all()


def test_labels_of_probability_zero_are_never_drawn():
    labels = np.arange(3).repeat(20_000)
    matrix = [[0, 1, 0], [0.5 - 4e-7, 0, 0.5 - 4e-7], [0, 0, 1]]  # sums to 1 only within 1e-6
    table = confusion_matrix(labels, by_matrix(labels, matrix), num_classes=3)
    assert (table[np.array(matrix) == 0] == 0).all()


def test_seed_determines_the_noise(labels, kind):
    first = kind(labels, seed=3)
    assert (first == kind(labels, seed=3)).all()
    assert (first != kind(labels, seed=4)).mean() > 0.15


@pytest.mark.parametrize(
    ("name", "sha256"),
    [
        ("symmetric", "40497afc2d150b713e819346790d73f520fef3f72399a26bd5591da3fc9bbcf2"),
        ("asymmetric", "87ab8d798de38e42ca7d165663a5f6b178fbbaa9a8d751e6be2f20a52b5b0be7"),
        ("pair_flip", "e2c3d74f799660e38ddd46b3afcd9a2fb0e02cf02bb321cd0b9b05fd979621a0"),
        ("by_matrix", "57db315852b968f67f9fb9c64ca0706512b0b477ddcacda72e65762670982cd9"),
    ],
)
def test_seed_is_reproducible_across_machines(name, sha256):
    assert labels_sha256(KINDS[name](np.arange(1000) % C, seed=7)) == sha256


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_dtype_is_kept_and_input_is_not_modified(dtype):
    labels = np.arange(200, dtype=dtype).repeat(200)  # 199 + 199 does not fit into uint8
    before = labels.copy()
    for given in (
        symmetric(labels, 1.0, num_classes=200),
        pair_flip(labels, 1.0, num_classes=200),
        by_matrix(labels, np.roll(np.eye(200), 1, 1)),
    ):
        assert given.dtype == dtype
        assert given.max() < 200
        assert (given != labels).sum() >= 199 * 200
        assert (labels == before).all()


def test_accepts_read_only_labels_lists_tensors_and_no_labels(labels, kind):
    locked = labels.copy()
    locked.flags.writeable = False
    expected = kind(labels)
    for same in (locked, labels.tolist(), torch.from_numpy(labels)):
        assert (kind(same) == expected).all()
    for empty, dtype in ([], np.int64), (np.array([], dtype=np.uint8), np.uint8):
        assert (kind(empty).shape, kind(empty).dtype) == ((0,), dtype)


def test_symmetric_warns_if_small_classes_lose_more_than_half_of_the_rate():
    with pytest.warns(UserWarning, match="0.5 changes 0 of 100 labels"):
        symmetric(np.arange(100) % 10, 0.5, num_classes=10)
    symmetric(np.arange(200) % 10, 0.5, num_classes=10)  # 90 of 100


@pytest.mark.parametrize("flip", [symmetric, pair_flip])
@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (([0, 1], 1.5, 2), "rate = 1.5"),
        (([0, 1], float("nan"), 2), "rate = nan"),
        (([0, 0], 0.5, 1), "num_classes = 1"),
        (([0, 7, -1], 0.5, 3), r"labels = \[-1, 7\]"),
        (([[0], [1]], 0.5, 2), r"labels = \(2, 1\)"),
        (([0.0, 1.0], 0.5, 2), "labels = dtype"),
        ((["a", "b"], 0.5, 2), "labels = dtype"),
        (([0, 1], 0.5, 2, -1), "seed = -1"),
        (([0, 1], 0.5, 2, 2**32), f"seed = {2**32}"),
        ((np.array([0, 1], np.uint8), 0.5, 300), "labels = dtype"),
    ],
)
def test_errors_name_the_parameter_and_the_value(flip, arguments, found):
    labels, rate, num_classes, *seed = arguments
    with pytest.raises(ValueError, match=f"`{found}"):
        flip(labels, rate, num_classes=num_classes, seed=seed[0] if seed else 0)


def test_invalid_pairs_and_matrices():
    for labels in ([0, -1], ["a", "b"], [[0]]):
        with pytest.raises(ValueError, match="`labels"):
            asymmetric(labels, 0.5, pairs=CIFAR10_PAIRS)
    for pairs in ({1: 1}, {-1: 0}, {0: -2}):
        with pytest.raises(ValueError, match="`pairs = "):
            asymmetric(np.array([0, 1]), 0.5, pairs=pairs)
    for matrix in ([[0.5, 0.5], [0.3, 0.6]], [[1, 0], [1.2, -0.2]], [[1, 0], [float("nan"), 1]], [[1, 0]], [1, 0]):
        with pytest.raises(ValueError, match="`matrix = "):
            by_matrix(np.array([0, 1]), matrix)
