"""Noise that depends only on the true class: P(given label | true label).

The counts of flipped labels are exact, truncated to integers per class; the choice of samples is random. With seed 0
these are the labels of the paper's tables, because the random stream of the released code (NumPy's legacy stream) is
used in the same order. Labels are never changed in place, and the given labels have the same type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._require import require
from .._warn import warn

Label = TypeVar("Label", bound=np.integer[Any])


def _cycles(groups: Iterable[Iterable[int]]) -> dict[int, int]:
    """Map every class of a group to the next one by number, and the last to the first."""
    pairs: dict[int, int] = {}
    for group in groups:
        classes = sorted(group)
        pairs.update(zip(classes, classes[1:] + classes[:1], strict=True))
    return dict(sorted(pairs.items()))


CIFAR10_PAIRS = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}
"""Truck to automobile, bird to airplane, deer to horse, cat to dog and dog to cat."""

CIFAR100_SUPERCLASSES = (  # the fine labels of each coarse label, in its order, as in the official files
    *((4, 30, 55, 72, 95), (1, 32, 67, 73, 91), (54, 62, 70, 82, 92), (9, 10, 16, 28, 61), (0, 51, 53, 57, 83)),
    *((22, 39, 40, 86, 87), (5, 20, 25, 84, 94), (6, 7, 14, 18, 24), (3, 42, 43, 88, 97), (12, 17, 37, 68, 76)),
    *((23, 33, 49, 60, 71), (15, 19, 21, 31, 38), (34, 63, 64, 66, 75), (26, 45, 77, 79, 99), (2, 11, 35, 46, 98)),
    *((27, 29, 44, 78, 93), (36, 50, 65, 74, 80), (47, 52, 56, 59, 96), (8, 13, 48, 58, 90), (41, 69, 81, 85, 89)),
)

CIFAR100_PAIRS = _cycles(CIFAR100_SUPERCLASSES)
"""The next class within the super-class, cyclically, as in the paper."""

CIFAR100_BLOCKS = _cycles(range(first, first + 5) for first in range(0, 100, 5))
"""The next class within a block of five consecutive fine labels, cyclically, as in the released code. Fine labels
are in alphabetical order, so these blocks are not the super-classes."""


def symmetric(labels: NDArray[Label], rate: float, *, num_classes: int, seed: int = 0) -> NDArray[Label]:
    """Move int(rate * size / (C - 1)) samples of each class to each other class: (N,) -> (N,).

    The smaller the classes, the more of the rate is lost to truncation: 0.5 flips 49.9 % of CIFAR-10's labels, and
    39.6 % of CIFAR-100's. A class with fewer than (C - 1) / rate samples keeps all its labels.

    >>> symmetric(np.array([0, 0, 1, 1]), 0.5, num_classes=2)
    array([0, 1, 0, 1])
    """
    labels = check_labels(labels, rate, num_classes, seed)
    counts = (rate / (num_classes - 1) * _sizes(labels, num_classes)).astype(np.int64)
    moved = int(counts.sum()) * (num_classes - 1)
    if moved < rate * len(labels) / 2:
        warn(
            f"Symmetric noise of {rate:g} changes {moved:,} of {len(labels):,} labels, because its counts per pair of "
            "classes are rounded down. Use another kind, such as pairflip."
        )
    return _move(labels, np.repeat(counts[:, None], num_classes, axis=1), seed)


def asymmetric(labels: NDArray[Label], rate: float, *, pairs: Mapping[int, int], seed: int = 0) -> NDArray[Label]:
    """Move int(rate * size) samples of each class in ``pairs`` to the class it maps to: (N,) -> (N,).

    >>> asymmetric(np.array([9, 9, 8, 8]), 0.5, pairs=CIFAR10_PAIRS)
    array([9, 1, 8, 8])
    """
    valid = all(0 <= source != target >= 0 for source, target in pairs.items())
    require(valid, "pairs", "from a class to another class, none negative", dict(pairs))
    labels = np.asarray(labels)
    largest = int(labels.max(initial=0)) if labels.dtype.kind in "iu" else 0
    num_classes = 1 + max((1, largest, *pairs.keys(), *pairs.values()))
    labels = check_labels(labels, rate, num_classes, seed)
    counts = np.zeros((num_classes, num_classes), np.int64)
    sources = list(pairs)
    counts[sources, list(pairs.values())] = rate * _sizes(labels, num_classes)[sources]
    return _move(labels, counts, seed)


def pair_flip(labels: NDArray[Label], rate: float, *, num_classes: int, seed: int = 0) -> NDArray[Label]:
    """Move int(rate * size) samples of each class to the next class, and of the last to the first: (N,) -> (N,).

    >>> pair_flip(np.array([0, 0, 1, 1, 2, 2]), 0.5, num_classes=3)
    array([0, 1, 2, 1, 0, 2])
    """
    labels = check_labels(labels, rate, num_classes, seed)
    return asymmetric(labels, rate, pairs=_cycles([range(num_classes)]), seed=seed)


def by_matrix(labels: NDArray[Label], matrix: ArrayLike, *, seed: int = 0) -> NDArray[Label]:
    """Draw each given label independently with P(given j | true i) = ``matrix[i, j]``: (N,), (C, C) -> (N,).

    >>> by_matrix(np.array([0, 1, 1, 0]), [[0, 1], [0.5, 0.5]])
    array([1, 0, 0, 1])
    """
    T = np.asarray(matrix, dtype=np.float64)
    require(T.ndim == 2 and T.shape[0] == T.shape[1], "matrix", "square", T.shape)
    bad = np.flatnonzero(~((T >= 0).all(1) & (abs(T.sum(1) - 1) <= 1e-6)))  # NaN is bad, too
    require(not len(bad), "matrix", "probabilities in rows that sum to 1", T[bad[:1]].tolist())
    labels = check_labels(labels, 0, len(T), seed)
    up_to = T.cumsum(1)
    up_to /= up_to[:, -1:]  # exactly 1 for the last class with any probability, so that no class after it is drawn
    draws, given = np.random.default_rng(seed).random(len(labels)), labels.copy()
    for c in np.unique(labels):
        given[labels == c] = up_to[c].searchsorted(draws[labels == c], side="right")
    return given


def _sizes(labels: NDArray[Any], num_classes: int) -> NDArray[np.int64]:
    return np.bincount(labels.astype(np.int64), minlength=num_classes)


def _move(labels: NDArray[Label], counts: NDArray[np.int64], seed: int) -> NDArray[Label]:
    """Give ``counts[a, b]`` random samples of each class a the label b: (N,), (C, C) -> (N,).

    The order of the random calls is the released code's: true classes in order, for each the other classes in order,
    and one choice without replacement per pair of classes, from the samples that are left in order of their index.
    """
    rng = np.random.RandomState(seed)
    given = labels.copy()
    for a, row in enumerate(counts):
        left = np.flatnonzero(labels == a)
        for b in np.flatnonzero(row):
            if b != a:
                chosen = rng.choice(len(left), row[b], replace=False)
                given[left[chosen]] = b
                left = np.delete(left, chosen)
    return given


def check_labels(labels: NDArray[Label], rate: float, num_classes: int, seed: int) -> NDArray[Label]:
    """Return the labels as an array, so that lists and tensors can be passed as well. Check all arguments."""
    labels = np.asarray(labels)
    if labels.size == 0 and labels.dtype == np.float64:  # NumPy's type for an empty list
        labels = labels.astype(np.int64)
    require(labels.ndim == 1, "labels", "one-dimensional", labels.shape)
    require(labels.dtype.kind in "iu", "labels", "of an integer type", labels.dtype)
    require(0 <= rate <= 1, "rate", "in [0, 1]", rate)
    require(num_classes >= 2, "num_classes", "at least 2", num_classes)
    require(0 <= seed < 2**32, "seed", "in [0, 2**32)", seed)
    fits = num_classes - 1 <= np.iinfo(labels.dtype).max
    require(fits, "labels", f"of a type that holds {num_classes - 1}", labels.dtype)
    outside = labels[(labels < 0) | (labels >= num_classes)]
    require(len(outside) == 0, "labels", f"in [0, {num_classes})", np.unique(outside)[:5].tolist())
    return labels
