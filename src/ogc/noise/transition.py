"""Noise that depends on the true class alone: P(given label | true label).

As in the paper's tables, ``symmetric``, ``asymmetric`` and ``pair_flip`` flip exact counts, cut to integers class by
class; which samples are flipped is random. ``by_matrix`` draws each label on its own. Labels are never changed in
place, and the given ones have their type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._require import require

Label = TypeVar("Label", bound=np.integer[Any])


def _circles(groups: Iterable[Iterable[int]]) -> dict[int, int]:
    """In each group, every class to the next by number, and the last to the first."""
    pairs: dict[int, int] = {}
    for group in groups:
        ring = sorted(group)
        pairs.update(zip(ring, ring[1:] + ring[:1], strict=True))
    return dict(sorted(pairs.items()))


CIFAR10_PAIRS = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}
"""Truck to automobile, bird to airplane, deer to horse, cat to dog and dog to cat."""

CIFAR100_SUPERCLASSES = (  # the fine labels of each coarse label, in its order, as in the official files
    *((4, 30, 55, 72, 95), (1, 32, 67, 73, 91), (54, 62, 70, 82, 92), (9, 10, 16, 28, 61), (0, 51, 53, 57, 83)),
    *((22, 39, 40, 86, 87), (5, 20, 25, 84, 94), (6, 7, 14, 18, 24), (3, 42, 43, 88, 97), (12, 17, 37, 68, 76)),
    *((23, 33, 49, 60, 71), (15, 19, 21, 31, 38), (34, 63, 64, 66, 75), (26, 45, 77, 79, 99), (2, 11, 35, 46, 98)),
    *((27, 29, 44, 78, 93), (36, 50, 65, 74, 80), (47, 52, 56, 59, 96), (8, 13, 48, 58, 90), (41, 69, 81, 85, 89)),
)

CIFAR100_PAIRS = _circles(CIFAR100_SUPERCLASSES)
"""The next class within the super-class, in a circle: what the paper says."""

CIFAR100_BLOCKS = _circles(range(first, first + 5) for first in range(0, 100, 5))
"""The next class within a block of five consecutive fine labels, in a circle: what the released code does. Fine labels
are in alphabetical order, so these blocks are not the super-classes."""


def symmetric(labels: NDArray[Label], rate: float, *, num_classes: int, seed: int = 0) -> NDArray[Label]:
    """Given labels: from each class, int(rate * size / (C - 1)) samples go to each other class: (N,) -> (N,).

    These are the released code's counts. A rate of 0.5 moves 9 x 277 of the 5,000 samples of a class on CIFAR-10,
    49.9 %, and 99 x 2 of 500 on CIFAR-100, 39.6 %: the smaller the classes, the more of the rate is lost to the cut,
    and a class of fewer than (C - 1) / rate samples keeps all its labels. ``by_matrix`` has the full rate, on average.

    >>> symmetric(np.array([0, 0, 1, 1]), 0.5, num_classes=2)
    array([0, 1, 1, 0])
    """
    _check(labels, rate, num_classes, seed)
    true = labels.astype(np.int64)
    each = (rate / (num_classes - 1) * np.bincount(true, minlength=num_classes)).astype(np.int64)[true]
    place = _place_in_class(true, np.random.default_rng(seed))
    steps = np.where(place < each * (num_classes - 1), 1 + place // np.maximum(each, 1), 0)  # 1 to C - 1 classes on
    return ((true + steps) % num_classes).astype(labels.dtype)


def asymmetric(labels: NDArray[Label], rate: float, *, pairs: Mapping[int, int], seed: int = 0) -> NDArray[Label]:
    """Given labels: int(rate * size) samples of each class in ``pairs`` go to the class it maps to: (N,) -> (N,).

    >>> asymmetric(np.array([9, 9, 8, 8]), 0.5, pairs=CIFAR10_PAIRS)
    array([9, 1, 8, 8])
    """
    valid = all(0 <= source != target >= 0 for source, target in pairs.items())
    require(valid, "pairs", "from a class to another class, none negative", dict(pairs))
    num_classes = 1 + max((1, int(labels.max(initial=0)), *pairs.keys(), *pairs.values()))
    _check(labels, rate, num_classes, seed)
    true, target = labels.astype(np.int64), np.arange(num_classes)
    target[list(pairs.keys())] = list(pairs.values())
    flips = (rate * np.bincount(true, minlength=num_classes)).astype(np.int64)
    flipped = _place_in_class(true, np.random.default_rng(seed)) < flips[true]
    return np.where(flipped, target[true], true).astype(labels.dtype)


def pair_flip(labels: NDArray[Label], rate: float, *, num_classes: int, seed: int = 0) -> NDArray[Label]:
    """Given labels: int(rate * size) samples of each class go to the next class, the last's to the first: (N,) -> (N,).

    >>> pair_flip(np.array([0, 0, 1, 1, 2, 2]), 0.5, num_classes=3)
    array([0, 1, 1, 2, 0, 2])
    """
    _check(labels, rate, num_classes, seed)
    return asymmetric(labels, rate, pairs=_circles([range(num_classes)]), seed=seed)


def by_matrix(labels: NDArray[Label], matrix: ArrayLike, *, seed: int = 0) -> NDArray[Label]:
    """Given labels, drawn with P(given label j | true label i) = ``matrix[i, j]``: (N,), (C, C) -> (N,).

    >>> by_matrix(np.array([0, 1, 1, 0]), [[0, 1], [0.5, 0.5]])
    array([1, 0, 0, 1])
    """
    T = np.asarray(matrix, dtype=np.float64)
    require(T.ndim == 2 and T.shape[0] == T.shape[1], "matrix", "square", T.shape)
    outside = np.argwhere(~((T >= 0) & (T <= 1)))  # NaN is outside, too
    if len(outside):
        row, column = outside[0].tolist()
        raise ValueError(f"Parameter `matrix` should be in [0, 1]. Found `matrix[{row}, {column}] = {T[row, column]}`.")
    for row, total in enumerate(T.sum(1).tolist()):
        if abs(total - 1) > 1e-6:
            raise ValueError(
                f"Parameter `matrix` should have rows that sum to 1. Found `matrix[{row}].sum() = {total}`."
            )
    _check(labels, 0, len(T), seed)
    up_to = T.cumsum(1)
    up_to /= up_to[:, -1:]  # so that the last class with any probability is at 1, and none beyond it is drawn
    draws, given = np.random.default_rng(seed).random(len(labels)), labels.copy()
    for c in np.unique(labels):
        given[labels == c] = up_to[c].searchsorted(draws[labels == c], side="right")
    return given


def _place_in_class(true: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Each sample's place, from 0, in a random order of its class: (N,) -> (N,)."""
    size = np.bincount(true)
    order = np.lexsort((rng.random(len(true)), true))  # class by class, at random within each
    place = np.empty_like(true)
    place[order] = np.arange(len(true)) - np.repeat(np.cumsum(size) - size, size)
    return place


def _check(labels: NDArray[Any], rate: float, num_classes: int, seed: int) -> None:
    require(0 <= rate <= 1, "rate", "in [0, 1]", rate)
    require(num_classes >= 2, "num_classes", "at least 2", num_classes)
    require(seed >= 0, "seed", "at least 0", seed)
    require(labels.ndim == 1, "labels", "one-dimensional", labels.shape)
    require(np.issubdtype(labels.dtype, np.integer), "labels", "of an integer type", labels.dtype)
    require(num_classes - 1 <= np.iinfo(labels.dtype).max, "labels", f"able to hold {num_classes - 1}", labels.dtype)
    outside = labels[(labels < 0) | (labels >= num_classes)]
    require(len(outside) == 0, "labels", f"in [0, {num_classes})", np.unique(outside)[:5].tolist())
