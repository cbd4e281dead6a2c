"""Two normals fitted to recent cross entropies, one for the clean samples and one for the noisy ones.

H_c ~ N(clean_mean, clean_var) and H_n ~ N(noisy_mean, noisy_var) with clean_mean < noisy_mean: Eqs. 8 and 9 of Ye et
al., 2025. The fit uses no random numbers, so the same queue always gives the same mixture. It runs on the CPU in
float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..given_label import widest_float
from .fit import fit_queue


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
    numbers = torch.tensor(fit_queue(H.detach().cpu()).numbers, dtype=torch.float64)
    return Mixture(*numbers.to(widest_float(H.device)).to(H.device).unbind())
