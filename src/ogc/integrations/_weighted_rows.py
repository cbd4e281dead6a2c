"""Rows with weights, for fitting on them: a weight is a number of repetitions, and the order of rows means nothing.

Rows are sorted by a digest, equal ones with equal labels become one with the sum of their weights, and the weights are
laid end to end as a line. A batch is places on that line, spread evenly over it as fractions of its length; batch size
and number of batches follow the number of *different* rows. So repeated rows and weighted ones give the same batches to
the bit, weight 0 is absence, only the weights' proportions count, and with equal weights a pass is an ordinary epoch:
each row about once, some twice so that batches are of one size (and all several times where there are fewer than
``SMALLEST_BATCH``).
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
"""Places, also where there are fewer different rows; unless ``at_most`` is smaller."""
CHUNK = 8192
"""Rows that are looked at together."""


class Rows(NamedTuple):
    """Different rows, in an order of their own, with their labels and weights."""

    X: Tensor  # (n, features) float64
    y: Tensor  # (n,) int64
    weight: Tensor  # (n,) float64, above 0

    def at(self, where: Tensor) -> Rows:
        return Rows(self.X[where], self.y[where], self.weight[where])


def different(X: Any, labels: Any, weight: Any) -> Rows:
    """Rows of weight 0 left out, equal ones with equal labels as one, sorted by a digest of their bytes."""
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
    """A pass: rows by places that are evenly spread over the line of weights, shuffled; batches of one size."""
    number = math.ceil(len(weight) / at_most)
    places = number * max(math.ceil(len(weight) / number), min(SMALLEST_BATCH, at_most))
    line = weight.cumsum(0)
    shift = torch.rand((), dtype=torch.float64, generator=generator)
    fractions = (torch.randperm(places, generator=generator) + shift) / places
    rows = torch.searchsorted(line, fractions * line[-1], right=True).clamp(max=len(weight) - 1)
    return iter(rows.chunk(number))
