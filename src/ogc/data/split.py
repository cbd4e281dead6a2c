"""Held-out samples: a stratified split, and a check of files that may repeat training samples."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from .._require import few, require
from .._warn import warn
from .dataset import Dataset


def stratified_split(labels: Tensor, class_names: Sequence[str], *, val: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices of training and validation samples, in order: (N,) -> (T,), (V,).

    A share ``val`` of each class is used for validation, rounded: at least one sample, but never the last one. A class
    with a single sample stays in the training set, with a warning. The split uses Python's random numbers, which are
    the same on every machine.
    """
    require(0 <= val < 1, "val", "in [0, 1)", val)
    number = random.Random(seed).random
    keys = np.array([number() for _ in range(len(labels))])
    order = torch.from_numpy(np.lexsort((keys, labels.numpy())))  # class by class, at random within each
    size = labels.bincount(minlength=len(class_names))
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - (size.cumsum(0) - size)[labels[order]]
    share = (size * val).round().long().clamp(min=1 if val else 0).minimum((size - 1).clamp(min=0))
    validates = rank < share[labels]
    if val and (alone := [class_names[c] for c in (size == 1).nonzero().flatten().tolist()]):
        warn(f"Classes with a single sample have no validation sample: {few(alone)}.")
    return (~validates).nonzero().flatten(), validates.nonzero().flatten()


def warn_of_same_rows(held_out: Dataset, file: Path, known: Iterable[Dataset], path: Path) -> None:
    """Warn if most features of a held-out file are also those of the training file, or if it is that file.

    If more than a tenth of the training rows repeat another one, independent rows may well be the same.
    """
    if file.samefile(path):
        warn(f"`{file}` is also the training file, so the accuracy on it is too high.")
        return
    rows, others = (
        [hash(row.tobytes()) for part in parts for row in cast(Tensor, part.inputs).numpy()]  # saves memory
        for parts in (known, [held_out])
    )
    seen = set(rows)
    if 2 * (same := sum(row in seen for row in others)) > len(others) and len(seen) >= 0.9 * len(rows):
        warn(
            f"{same:,} of {len(others):,} rows of `{file}` have the same features as a row of `{path}`. "
            "If they are the same samples, the accuracy on them is too high."
        )
