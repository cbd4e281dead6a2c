"""Training on weighted rows: a weight of 2 means that the row occurs twice, and the order of rows does not matter.

Rows are sorted by a digest. Equal rows with equal labels become one row with the sum of their weights. The weights are
laid end to end on a line, and batches are taken at evenly spaced positions on it. Batch size and number of batches
depend on the number of *distinct* rows. So

- repeated and weighted rows give the same batches, bit for bit;
- a weight of 0 removes a row, and only the ratios of weights matter;
- with equal weights, a pass is an ordinary epoch: each row occurs about once, some twice so that batches have one size
  (and all several times if there are fewer than ``SMALLEST_BATCH``).

Held-out rows, and the moments by which features are standardised, follow the weights too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._require import require

SMALLEST_BATCH = 64
"""Minimum number of positions per batch, even with fewer distinct rows, unless ``batch_size`` is smaller."""
CHUNK = 8192
"""Number of rows that are processed together."""


class Rows(NamedTuple):
    """Distinct rows, sorted by digest, with their labels and weights."""

    X: Tensor  # (n, features) float64
    y: Tensor  # (n,) int64
    weight: Tensor  # (n,) float64, above 0

    def at(self, where: Tensor) -> Rows:
        return Rows(self.X[where], self.y[where], self.weight[where])


def distinct(X: Any, labels: Any, weight: Any) -> Rows:
    """Drop rows of weight 0, merge equal rows with equal labels, and sort by a digest of their bytes."""
    kept = np.flatnonzero(weight > 0)
    digests = bytearray()
    for part in np.split(kept, range(CHUNK, len(kept), CHUNK)):
        for row, label in zip(X[part] + 0.0, labels[part].tolist(), strict=True):  # + 0.0: no -0.0
            digests += hashlib.blake2b(row, digest_size=16, salt=label.to_bytes(8)).digest()
    keys = np.frombuffer(digests, "V16")
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    total = np.bincount(which, weights=weight[kept])
    first = kept[first]
    rows = X[first]
    rows += 0.0
    return Rows(torch.from_numpy(rows), torch.from_numpy(labels[first]), torch.from_numpy(total))


def batches(weight: Tensor, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Return the batches of a pass: shuffled, evenly spaced positions on the line of weights, in equal sizes."""
    number = math.ceil(len(weight) / batch_size)
    places = number * max(math.ceil(len(weight) / number), min(SMALLEST_BATCH, batch_size))
    line = weight.cumsum(0)
    shift = torch.rand((), dtype=torch.float64, generator=generator)
    fractions = (torch.randperm(places, generator=generator) + shift) / places
    rows = torch.searchsorted(line, fractions * line[-1], right=True).clamp(max=len(weight) - 1)
    return iter(rows.chunk(number))


def hold_out(rows: Rows, fraction: float, generator: torch.Generator) -> tuple[Rows, Rows]:
    """Return the rows to train on and the held-out rows, stratified by class. Training keeps a row of each class."""
    n = len(rows.y)
    order = torch.randperm(n, generator=generator)
    order = order[rows.y[order].argsort(stable=True)]  # by class, in any order within it
    order = order[1:][rows.y[order].diff() == 0]  # the first of each class stays
    out, free = math.ceil(fraction * n), len(order)
    rule = f"small enough to keep one of {n} distinct rows per class"
    require(out <= free, "validation_fraction", rule, fraction)
    held_out = torch.zeros(n, dtype=torch.bool)
    held_out[order[((torch.arange(out) + 0.5) * free / out).long()]] = True
    return rows.at(~held_out), rows.at(held_out)


class Moments(NamedTuple):
    """Total weight of the rows so far, and the mean and standard deviation of their features."""

    weight: float
    mean: Any  # (features,) float64
    deviation: Any  # (features,) float64

    def with_rows(self, rows: Rows) -> Moments:
        X, weight = rows.X.numpy(), rows.weight.numpy()
        new = float(weight.sum())
        total = self.weight + new
        of_old, of_new, share = self.weight / total, new / total, weight / new
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            mean = share @ X
            apart, X = mean - self.mean, X - mean
            largest = np.abs(X).max(0)  # avoids overflow and underflow of the squares
            X /= np.where(largest > 0, largest, 1.0)
            deviation = largest * np.sqrt(share @ np.square(X, out=X))
            between = np.hypot(self.deviation * math.sqrt(of_old), apart * math.sqrt(of_old * of_new))
            deviation = np.hypot(between, deviation * math.sqrt(of_new))
        far = np.flatnonzero(~np.isfinite(deviation))
        if len(far):
            raise ValueError(f"The deviation of columns {far[:5].tolist()} of `X` overflows float64. Scale them down.")
        return Moments(total, self.mean + apart * of_new, deviation)

    def scale(self) -> Any:
        """Return the deviation, or 1 for constant features."""
        return np.where(self.deviation > 10 * np.finfo(float).eps * np.abs(self.mean), self.deviation, 1.0)
