"""Noise that depends on the true class alone: P(given label | true label).

As in the paper's tables, counts are exact: ``rate`` times the size of each class, cut to an integer, is flipped.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .._require import require

Label = TypeVar("Label", bound=np.integer[Any])


def symmetric(labels: NDArray[Label], rate: float, *, num_classes: int, seed: int = 0) -> NDArray[Label]:
    """Given labels, a share ``rate`` of each class flipped to the other classes, all equally likely: (N,) -> (N,).

    >>> symmetric(np.array([0, 0, 1, 1]), 0.5, num_classes=2)
    array([0, 1, 1, 0])
    """
    _check(labels, rate, num_classes)
    rng = np.random.default_rng(seed)
    flipped = _draw_from_each_class(labels, rate, num_classes, rng)
    steps = rng.integers(1, num_classes, size=int(flipped.sum()))  # 1 to C - 1 classes on, so never back to itself
    given = labels.copy()
    given[flipped] = (labels[flipped].astype(np.int64) + steps) % num_classes
    return given


def _draw_from_each_class(
    labels: NDArray[Any], rate: float, num_classes: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Which samples to flip, exactly int(rate * size) of each class: (N,) -> (N,)."""
    labels = labels.astype(np.int64)
    size = np.bincount(labels, minlength=num_classes)
    start = np.cumsum(size) - size
    order = np.lexsort((rng.random(len(labels)), labels))  # class by class, at random within each
    rank = np.empty_like(order)
    rank[order] = np.arange(len(labels)) - start[labels[order]]
    flipped: NDArray[np.bool_] = rank < (rate * size).astype(np.int64)[labels]
    return flipped


def _check(labels: NDArray[Any], rate: float, num_classes: int) -> None:
    require(0 <= rate <= 1, "rate", "in [0, 1]", rate)
    require(num_classes >= 2, "num_classes", "at least 2", num_classes)
    require(labels.ndim == 1, "labels", "one-dimensional", labels.shape)
    require(np.issubdtype(labels.dtype, np.integer), "labels", "of an integer type", labels.dtype)
    outside = labels[(labels < 0) | (labels >= num_classes)]
    require(len(outside) == 0, "labels", f"in [0, {num_classes})", np.unique(outside)[:5].tolist())
