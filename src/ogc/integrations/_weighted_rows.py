"""Training on weighted rows: a weight of 2 means that the row occurs twice, and the order of rows does not matter.

Rows are sorted by a digest. Equal rows with equal labels become one row with the sum of their weights. The weights are
laid end to end on a line, and batches are taken at evenly spaced positions on it. Batch size and number of batches
depend on the number of *distinct* rows. So

- repeated and weighted rows give the same batches, bit for bit;
- a weight of 0 removes a row, and only the ratios of weights matter;
- with equal weights, a pass is an ordinary epoch: each row occurs about once, some twice so that batches have one size
  (and all several times if there are fewer than ``SMALLEST_BATCH``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

SMALLEST_BATCH = 64
"""Positions per batch, even with fewer distinct rows, unless ``at_most`` is smaller."""
CHUNK = 8192
"""Rows that are processed together."""


class Rows(NamedTuple):
    """Distinct rows, sorted by digest, with their labels and weights."""

    X: Tensor  # (n, features) float64
    y: Tensor  # (n,) int64
    weight: Tensor  # (n,) float64, above 0

    def at(self, where: Tensor) -> Rows:
        return Rows(self.X[where], self.y[where], self.weight[where])


def different(X: Any, labels: Any, weight: Any) -> Rows:
    """Drop rows of weight 0, merge equal rows with equal labels, and sort by a digest of their bytes."""
    there = np.flatnonzero(weight > 0)
    digests = bytearray()
    for part in np.split(there, range(CHUNK, len(there), CHUNK)):
        for row, label in zip(X[part] + 0.0, labels[part].tolist(), strict=True):  # + 0.0: no -0.0
            digests += hashlib.blake2b(row, digest_size=16, salt=label.to_bytes(8)).digest()
    keys = np.frombuffer(digests, "V16")
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    together = np.bincount(which, weights=weight[there])
    first = there[first]
    rows = X[first]
    rows += 0.0
    return Rows(torch.from_numpy(rows), torch.from_numpy(labels[first]), torch.from_numpy(together))


def batches(weight: Tensor, at_most: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Return the batches of a pass: shuffled, evenly spaced positions on the line of weights, in equal sizes."""
    number = math.ceil(len(weight) / at_most)
    places = number * max(math.ceil(len(weight) / number), min(SMALLEST_BATCH, at_most))
    line = weight.cumsum(0)
    shift = torch.rand((), dtype=torch.float64, generator=generator)
    fractions = (torch.randperm(places, generator=generator) + shift) / places
    rows = torch.searchsorted(line, fractions * line[-1], right=True).clamp(max=len(weight) - 1)
    return iter(rows.chunk(number))
