"""Two normals on recent cross entropies: the clean samples and the noisy ones.

H_c ~ N(clean_mean, clean_var) and H_n ~ N(noisy_mean, noisy_var), clean_mean < noisy_mean (the paper's "Modeling of
clean and noisy distributions"). No random numbers: the same queue gives the same mixture.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .numbers import Number, Numbers, numbers_on

LLOYD_STEPS = 10
EM_STEPS = 10
TOLERANCE = 1e-3
"""EM stops once the mean log likelihood moves by less."""
VARIANCE_FLOOR = 1e-3
"""Added to each variance."""
TINY = 10 * torch.finfo(torch.float64).eps
"""Added to each component's size, so that an empty one divides nothing by zero."""


class Mixture(NamedTuple):
    """Two normals and the share of the noisy one; 0-dim tensors."""

    clean_mean: Tensor
    clean_var: Tensor
    noisy_mean: Tensor
    noisy_var: Tensor
    noisy_weight: Tensor

    @property
    def separation(self) -> Tensor:
        """Ashman's D: distance of the means over the root mean square width. Below 2 the two are hard to tell apart."""
        return (self.noisy_mean - self.clean_mean) / ((self.clean_var + self.noisy_var) / 2) ** 0.5

    @property
    def overlap(self) -> Tensor:
        """Bhattacharyya's coefficient of the two normals, in [0, 1]: 1 where they are the same."""
        var = self.clean_var + self.noisy_var
        width = torch.sqrt(2 * torch.sqrt(self.clean_var * self.noisy_var) / var)
        return width * torch.exp(-((self.noisy_mean - self.clean_mean) ** 2) / (4 * var))

    def noise_probability(self, H: Tensor) -> Tensor:
        """P(noisy | H): (N,) -> (N,), never falling as H rises.

        The log odds are a parabola in H. The branch on which more loss would mean less suspicion is an artefact of
        unequal variances, so H is held at the vertex there.
        """
        H = H.to(self.clean_mean.dtype)
        curve = 1 / self.clean_var - 1 / self.noisy_var  # > 0: the vertex lies left of both means, < 0: right of both
        vertex = (self.clean_mean / self.clean_var - self.noisy_mean / self.noisy_var) / curve
        H = torch.where(curve > 0, torch.maximum(H, vertex), torch.where(curve < 0, torch.minimum(H, vertex), H))
        log_odds = (
            torch.logit(self.noisy_weight, eps=1e-15)
            + 0.5 * torch.log(self.clean_var / self.noisy_var)
            + (H - self.clean_mean) ** 2 / (2 * self.clean_var)
            - (H - self.noisy_mean) ** 2 / (2 * self.noisy_var)
        )
        return torch.sigmoid(log_odds)


def fit_mixture(H: Tensor) -> Mixture:
    """Fit two normals by EM from one-dimensional k-means: (Q,) -> Mixture of float64.

    On CPU it stops early by looking; elsewhere, where a look would wait for the device, it freezes.
    """
    N = numbers_on(H.device)
    mixture, _ = fit_or_doubt(H, N)
    return Mixture(*N.pack(mixture).unbind())


def powers_of(H: Tensor) -> Tensor:
    """1, H and H^2: (N,) -> (3, N)."""
    return torch.stack([torch.ones_like(H), H, H * H])


class _Normal(NamedTuple):
    weight: Number
    mean: Number
    var: Number


def fit_or_doubt(H: Tensor, N: Numbers) -> tuple[Mixture, Number]:
    """The mixture in numbers, and whether it says nothing: all H alike, or a normal with less than two samples."""
    H = H.detach().to(torch.float64)
    samples = H.numel()
    powers = powers_of(H)  # their sums are all that k-means and EM need
    sum0, sum1, sum2 = N.unpack(powers.sum(1))
    belongs = torch.empty_like(H)  # how far each sample belongs to the noisy normal, in [0, 1]

    low, high = N.unpack(torch.stack(torch.aminmax(H)))
    spread = high - low
    for _ in range(LLOYD_STEPS):
        torch.gt(H, (low + high) / 2, out=belongs)
        size, total, _ = N.unpack(powers @ belongs)
        before = low, high  # an empty cluster keeps its centre
        low = (sum1 - total + TINY * low) / (sum0 - size + TINY)
        high = (total + TINY * high) / (size + TINY)
        if N.on_host and (low, high) == before:
            break
    else:
        torch.gt(H, (low + high) / 2, out=belongs)

    def maximise() -> tuple[_Normal, _Normal]:
        size, total, squares = N.unpack(powers @ belongs)
        return _normal(sum0 - size, sum1 - total, sum2 - squares), _normal(size, total, squares)

    def _normal(size: Number, total: Number, squares: Number) -> _Normal:
        size = size + TINY
        mean = total / size
        return _Normal(size / samples, mean, squares / size - mean * mean + VARIANCE_FLOOR)

    def log_density(normal: _Normal) -> tuple[Number, Number, Number]:
        """log(weight N(H; mean, var)) = a + b H + c H^2, up to a constant that both normals share."""
        w, m, v = normal
        return N.log(w) - 0.5 * N.log(v) - m * m / (2 * v), m / v, -0.5 / v

    clean, noisy = maximise()
    likelihood: Number = -math.inf
    done: Number = False
    for _ in range(EM_STEPS):
        (a, b, c), (a_noisy, b_noisy, c_noisy) = log_density(clean), log_density(noisy)
        log_odds = ((c_noisy - c) * H).add_(b_noisy - b).mul_(H).add_(a_noisy - a)
        before = likelihood
        likelihood = (a * sum0 + b * sum1 + c * sum2 + N.read(F.softplus(log_odds).sum())) / samples
        belongs = N.unless(done, torch.sigmoid(log_odds), belongs)
        clean, noisy = maximise()
        done = done | (abs(likelihood - before) < TOLERANCE)
        if N.on_host and done:
            break

    few = 2 / samples
    doubt = (spread < 1e-6) | (clean.weight < few) | (noisy.weight < few)
    swap = clean.mean > noisy.mean
    clean, noisy = (_Normal(*map(N.either, (swap,) * 3, b, a)) for a, b in ((clean, noisy), (noisy, clean)))
    return Mixture(clean.mean, clean.var, noisy.mean, noisy.var, noisy.weight), doubt
