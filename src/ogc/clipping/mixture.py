"""Two normals fitted to recent cross entropies, one for the clean samples and one for the noisy ones.

H_c ~ N(clean_mean, clean_var) and H_n ~ N(noisy_mean, noisy_var) with clean_mean < noisy_mean: Eqs. 8 and 9 of Ye et
al., 2025. The fit uses no random numbers, so the same queue always gives the same mixture. It runs on the CPU in
float64.
"""

from __future__ import annotations

import math
import operator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..given_label import widest_float
from ..kernels.constants import EM_STEPS, LLOYD_STEPS, SAME_MEAN, TINY, TOLERANCE, VARIANCE_ADDED


class Mixture(NamedTuple):
    """Two normals and the share of the noisy one; 0-dim tensors."""

    clean_mean: Tensor
    clean_var: Tensor
    noisy_mean: Tensor
    noisy_var: Tensor
    noisy_weight: Tensor

    @property
    def separation(self) -> Tensor:
        """Ashman's D: distance of the means over the root mean square width. Below 2 they are hard to tell apart."""
        return (self.noisy_mean - self.clean_mean) / ((self.clean_var + self.noisy_var) / 2) ** 0.5

    @property
    def overlap(self) -> Tensor:
        """Bhattacharyya coefficient of the two normals, in [0, 1]: 1 if they are equal."""
        var = self.clean_var + self.noisy_var
        width = torch.sqrt(2 * torch.sqrt(self.clean_var * self.noisy_var) / var)
        return width * torch.exp(-((self.noisy_mean - self.clean_mean) ** 2) / (4 * var))

    def noise_probability(self, H: Tensor) -> Tensor:
        """P(noisy | H): (N,) -> (N,), never falling as H rises.

        The log odds are a parabola in H. The branch on which a larger loss would lower the probability is an artefact
        of unequal variances, so H is replaced by the vertex there.
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
    """Fit two normals to cross entropies by EM, starting from one-dimensional k-means: (Q,) -> Mixture of float64.

    Algorithm 1, line 8; Eqs. 8 and 9 of Ye et al., 2025. H on an accelerator is copied to the CPU for the fit, and the
    result is moved back.
    """
    mixture, _ = fit(H.detach().cpu())
    numbers = torch.stack(mixture)
    return Mixture(*numbers.to(widest_float(H.device)).to(H.device).unbind())


def fit(H: Tensor) -> tuple[Mixture, bool]:
    """Fit two normals on the CPU, and report whether the fit is degenerate: (Q,) -> Mixture, bool.

    A fit is degenerate if both normals have the same mean or if one of them has fewer than two samples.
    """
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
    degenerate = noisy.mean - clean.mean < SAME_MEAN or min(clean.weight, noisy.weight) < 2 / len(H)
    numbers = [clean.mean, clean.var, noisy.mean, noisy.var, noisy.weight]
    return Mixture(*torch.tensor(numbers, dtype=torch.float64).unbind()), degenerate


def k_means(powers: Tensor) -> Tensor:
    """Split H in two by Lloyd's algorithm, from the minimum and the maximum: (3, Q) -> (Q,), 1 in the upper cluster."""
    H, ones_and_H = powers[1], powers[:2]
    low, high = (end.item() for end in torch.aminmax(H))
    (count, total), upper = ones_and_H.sum(1).tolist(), torch.empty_like(H)
    for _ in range(LLOYD_STEPS):
        torch.gt(H, (low + high) / 2, out=upper)
        size, above = (ones_and_H @ upper).tolist()
        if size in (0, count):  # all values are equal
            return upper
        centres, low, high = (low, high), (total - above) / (count - size), above / size
        if (low, high) == centres:
            return upper
    return torch.gt(H, (low + high) / 2, out=upper)


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


def e_step(powers: Tensor, means: list[float], clean: Normal, noisy: Normal) -> tuple[float, Tensor]:
    """Return the mean log likelihood, up to a constant, and P(noisy | H): (3, Q), their means -> float, (Q,)."""
    of_clean = clean.log_density
    difference = [n - c for n, c in zip(noisy.log_density, of_clean, strict=True)]
    log_odds = powers.T @ torch.tensor(difference, dtype=torch.float64)
    likelihood = sum(map(operator.mul, of_clean, means)) + F.softplus(log_odds).mean().item()
    return likelihood, torch.sigmoid(log_odds)


def m_step(powers: Tensor, responsibility: Tensor) -> tuple[Normal, Normal]:
    """Fit the clean and the noisy normal to H, given P(noisy | H): (3, Q), (Q,) -> Normal, Normal."""
    return _moments(powers, 1 - responsibility), _moments(powers, responsibility)


def _moments(powers: Tensor, responsibility: Tensor) -> Normal:
    """Fit one normal to H, weighted by P(normal | H): (3, Q), (Q,) -> Normal."""
    size, total, squares = (powers @ responsibility).tolist()
    size += TINY
    mean = total / size
    return Normal(size / powers.shape[1], mean, squares / size - mean**2 + VARIANCE_ADDED)
