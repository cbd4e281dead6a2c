"""The fit of two normals on the CPU, in float64 and with as few calls of torch as possible.

``powers`` are 1, H and H^2 of the queue, (3, Q). Sums over the samples are products with it.
"""

from __future__ import annotations

import math
import operator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.constants import EM_STEPS, LLOYD_STEPS, SAME_MEAN, TINY, TOLERANCE, VARIANCE_ADDED


class Normal(NamedTuple):
    """One component of the mixture."""

    weight: float
    mean: float
    var: float

    @property
    def log_density(self) -> tuple[float, float, float]:
        """a, b, c of log(weight N(H; mean, var)) = a + b H + c H^2, without the constant -log(2 pi) / 2."""
        a = math.log(self.weight) - math.log(self.var) / 2 - self.mean**2 / (2 * self.var)
        return a, self.mean / self.var, -1 / (2 * self.var)


class Fit(NamedTuple):
    """The clean normal, the noisy one, which has the larger mean, and whether the fit is degenerate.

    A fit is degenerate if both normals have the same mean or if one of them has fewer than two samples.
    """

    clean: Normal
    noisy: Normal
    is_degenerate: bool

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers of the two normals, in the order of :class:`ogc.clipping.Mixture`."""
        return self.clean.mean, self.clean.var, self.noisy.mean, self.noisy.var, self.noisy.weight

    @property
    def separation(self) -> float:
        """Ashman's D, as in :attr:`ogc.clipping.Mixture.separation`."""
        return (self.noisy.mean - self.clean.mean) / math.sqrt((self.clean.var + self.noisy.var) / 2)


def fit_queue(H: Tensor) -> Fit:
    """Fit two normals by EM, from the hard assignment of k-means: (Q,) -> Fit."""
    H = H.to(torch.float64)
    powers = torch.stack([torch.ones_like(H), H, H * H])
    means, likelihood = powers.mean(1).tolist(), -math.inf
    clean, noisy = m_step(powers, k_means(powers))
    for _ in range(EM_STEPS):
        before = likelihood
        likelihood, responsibility = e_step(powers, means, clean, noisy)
        clean, noisy = m_step(powers, responsibility)
        if abs(likelihood - before) < TOLERANCE:
            break
    if clean.mean > noisy.mean:
        clean, noisy = noisy, clean
    too_few = min(clean.weight, noisy.weight) < 2 / len(H)
    return Fit(clean, noisy, too_few or noisy.mean - clean.mean < SAME_MEAN)


def k_means(powers: Tensor) -> Tensor:
    """Split H in two by Lloyd's algorithm, from the minimum and the maximum: (3, Q) -> (Q,), 1 in the upper cluster."""
    H, ones_and_H = powers[1], powers[:2]
    low, high = (end.item() for end in torch.aminmax(H))
    (count, total), upper = ones_and_H.sum(1).tolist(), torch.empty_like(H)
    for _ in range(LLOYD_STEPS):
        torch.gt(H, (low + high) / 2, out=upper)
        size, above = ones_and_H.mv(upper).tolist()
        if size in (0, count):  # all values are equal
            return upper
        centres, low, high = (low, high), (total - above) / (count - size), above / size
        if (low, high) == centres:
            return upper
    return torch.gt(H, (low + high) / 2, out=upper)


def e_step(powers: Tensor, means: list[float], clean: Normal, noisy: Normal) -> tuple[float, Tensor]:
    """Return the mean log likelihood, up to a constant, and P(noisy | H): (3, Q), their means -> float, (Q,)."""
    of_clean = clean.log_density
    difference = [n - c for n, c in zip(noisy.log_density, of_clean, strict=True)]
    log_odds = powers.T.mv(torch.tensor(difference, dtype=torch.float64))
    likelihood = sum(map(operator.mul, of_clean, means)) + F.softplus(log_odds).sum().item() / len(log_odds)
    return likelihood, torch.sigmoid(log_odds)


def m_step(powers: Tensor, responsibility: Tensor) -> tuple[Normal, Normal]:
    """Fit the clean and the noisy normal to H, given P(noisy | H): (3, Q), (Q,) -> Normal, Normal."""
    return _moments(powers, 1 - responsibility), _moments(powers, responsibility)


def _moments(powers: Tensor, responsibility: Tensor) -> Normal:
    """Fit one normal to H, weighted by P(normal | H): (3, Q), (Q,) -> Normal."""
    size, total, squares = powers.mv(responsibility).tolist()
    size += TINY
    mean = total / size
    return Normal(size / powers.shape[1], mean, squares / size - mean**2 + VARIANCE_ADDED)
