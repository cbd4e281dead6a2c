"""Two normals fitted to recent cross entropies, one for the clean samples and one for the noisy ones.

H_c ~ N(clean_mean, clean_var) and H_n ~ N(noisy_mean, noisy_var) with clean_mean < noisy_mean: Eqs. 8 and 9 of Ye et
al., 2025. The fit uses no random numbers, so the same queue always gives the same mixture. It runs on the CPU in
float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..given_label import widest_float

LLOYD_STEPS = 10
EM_STEPS = 10
TOLERANCE = 1e-3
"""EM stops once the mean log likelihood changes by less."""
VARIANCE_ADDED = 1e-3
"""Added to each variance."""
TINY = 10 * torch.finfo(torch.float64).eps
"""Added to the size of each component, so that an empty one does not divide by zero."""
SAME_MEAN = 1e-6
"""Two means closer than this are one value: rounding errors decide which of them is the smaller one."""


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
    squares = H * H
    responsibility = k_means(H)
    clean, noisy = m_step(H, squares, 1 - responsibility), m_step(H, squares, responsibility)
    likelihood = -math.inf
    for _ in range(EM_STEPS):
        before = likelihood
        likelihood, responsibility = e_step(H, clean, noisy)
        clean, noisy = m_step(H, squares, 1 - responsibility), m_step(H, squares, responsibility)
        if abs(likelihood - before) < TOLERANCE:
            break
    if clean.mean > noisy.mean:
        clean, noisy = noisy, clean
    degenerate = noisy.mean - clean.mean < SAME_MEAN or min(clean.weight, noisy.weight) < 2 / len(H)
    numbers = [clean.mean, clean.var, noisy.mean, noisy.var, noisy.weight]
    return Mixture(*torch.tensor(numbers, dtype=torch.float64).unbind()), degenerate


def k_means(H: Tensor) -> Tensor:
    """Split H in two by Lloyd's algorithm, from the minimum and the maximum: (Q,) -> (Q,), 1 in the upper cluster."""
    low, high = (end.item() for end in torch.aminmax(H))
    total = H.sum().item()
    for _ in range(LLOYD_STEPS):
        upper = (H > (low + high) / 2).to(H.dtype)
        size = upper.sum().item()
        if size in (0, len(H)):  # all values are equal
            return upper
        centres, above = (low, high), (H @ upper).item()
        low, high = (total - above) / (len(H) - size), above / size
        if (low, high) == centres:
            return upper
    return (H > (low + high) / 2).to(H.dtype)


class Normal(NamedTuple):
    """One component of the mixture."""

    weight: float
    mean: float
    var: float

    def log_density(self, H: Tensor) -> Tensor:
        """log(weight N(H; mean, var)) without the constant -log(2 pi) / 2: (Q,) -> (Q,)."""
        return (H - self.mean).square().div_(-2 * self.var).add_(math.log(self.weight) - math.log(self.var) / 2)


def e_step(H: Tensor, clean: Normal, noisy: Normal) -> tuple[float, Tensor]:
    """Return the mean log likelihood, up to a constant, and P(noisy | H): (Q,) -> float, (Q,)."""
    log_clean, log_noisy = clean.log_density(H), noisy.log_density(H)
    log_both = torch.logaddexp(log_clean, log_noisy)
    return log_both.mean().item(), torch.exp(log_noisy - log_both)


def m_step(H: Tensor, squares: Tensor, responsibility: Tensor) -> Normal:
    """Fit one normal to H, weighted by P(normal | H): (Q,), H^2 (Q,), (Q,) -> Normal."""
    size = responsibility.sum().item() + TINY
    mean = (responsibility @ H).item() / size
    var = (responsibility @ squares).item() / size - mean**2 + VARIANCE_ADDED
    return Normal(size / len(H), mean, var)
