"""Stratified split into training and validation samples, for data without a validation set."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from .._require import few, require


def stratified_split(labels: Tensor, class_names: Sequence[str], *, val: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices of training and validation samples, in order: (N,) -> (T,), (V,).

    A share ``val`` of each class is used for validation, rounded: at least one sample, but never the last one. A class
    with a single sample stays in the training set, with a warning. The split uses Python's random numbers, which are
    the same on every machine.
    """
    require(0 <= val < 1, "val", "in [0, 1)", val)
    number = random.Random(seed).random
    keys = torch.tensor([number() for _ in range(len(labels))], dtype=torch.float64)
    order = keys.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # class by class, at random within each
    size = labels.bincount(minlength=len(class_names))
    start = size.cumsum(0) - size
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - start[labels[order]]
    share = (size * val).round().long().clamp(min=1 if val else 0).minimum((size - 1).clamp(min=0))
    validates = rank < share[labels]

    if val and (alone := [class_names[c] for c in (size == 1).nonzero().flatten().tolist()]):
        warnings.warn(f"Classes with a single sample have no validation sample: {few(alone)}.", stacklevel=3)
    return (~validates).nonzero().flatten(), validates.nonzero().flatten()
