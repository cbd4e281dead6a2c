"""The ratio of noisy to clean gradients after clipping at tau.

r(tau) = E_noisy[min(slope, tau)] / E_clean[min(slope, tau)], Eq. 10 of Ye et al., 2025. The paper integrates over H.
Here, as in the authors' code, an expectation is a sum over 1000 equally spaced H from H_MIN to H_MAX.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..given_label import H_MAX, H_MIN
from ..kernels.constants import GRID
from ..losses import Pointwise
from .mixture import Mixture


def grid() -> Tensor:
    """Equally spaced H, both ends included: (GRID,) of float64."""
    return torch.linspace(H_MIN, H_MAX, GRID, dtype=torch.float64)


def normal_weights(H: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Weights of a normal on the grid, exp(-(H - mean)^2 / (2 var)) divided by their sum: (GRID,) -> (GRID,).

    They are dP_c and dP_n of Eq. 10. Dividing by the sum truncates the normal to the range of the grid. Several means
    and variances, (k, 1) each, give (k, GRID).
    """
    return torch.softmax((H - mean).square() / (-2 * var), dim=-1)


def noisy_to_clean_ratio(base: Pointwise, mixture: Mixture, tau: Tensor | float) -> Tensor:
    """r(tau), the proxy ratio of Eq. 10 of Ye et al., 2025: () -> ()."""
    H = grid().to(mixture.clean_mean.device)
    clipped = base.slope(torch.exp(-H)).clamp(max=tau)
    clean = normal_weights(H, mixture.clean_mean, mixture.clean_var)
    noisy = normal_weights(H, mixture.noisy_mean, mixture.noisy_var)
    return (noisy @ clipped) / (clean @ clipped)
