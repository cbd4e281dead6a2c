"""How much noisy samples pull against clean ones once gradients are clipped at tau.

r(tau) = E_noisy[min(slope, tau)] / E_clean[min(slope, tau)]; the expectation is the normalised sum over 1000 equally
spaced H from H_MIN to H_MAX, so the constants of the truncated normals cancel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..given_label import H_MAX, H_MIN
from ..losses import Pointwise
from .mixture import Mixture, powers_of
from .numbers import Number, Numbers, numbers_on

GRID = 1000


def grid() -> Tensor:
    """Equally spaced H, both ends included: (GRID,) of float64."""
    return torch.linspace(H_MIN, H_MAX, GRID, dtype=torch.float64)


def normal_weights(powers: Tensor, mixture: Mixture, N: Numbers) -> tuple[Tensor, Sequence[Number]]:
    """The clean and the noisy normal on the grid, up to a factor each, and their sums: (3, GRID) -> (2, GRID), (2,).

    :param powers: 1, H and H^2 on the grid.
    """
    m, v, mn, vn, _ = mixture
    exponents = [-m * m / (2 * v), m / v, -0.5 / v, -mn * mn / (2 * vn), mn / vn, -0.5 / vn]
    log_density = N.pack(exponents).view(2, 3) @ powers
    density = log_density.sub_(log_density.amax(1, keepdim=True)).exp_()
    return density, N.unpack(density.sum(1))


def noisy_to_clean_ratio(base: Pointwise, mixture: Mixture, tau: Tensor | float) -> Tensor:
    """r(tau), the paper's proxy ratio: () -> ()."""
    N = numbers_on(mixture.clean_mean.device)
    H = grid().to(mixture.clean_mean.device)
    density, (clean, noisy) = normal_weights(powers_of(H), Mixture(*map(N.read, mixture)), N)
    of_clean, of_noisy = density @ base.slope(torch.exp(-H)).clamp(max=tau)
    return torch.as_tensor((of_noisy / noisy) / (of_clean / clean))
