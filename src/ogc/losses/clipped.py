"""A pointwise loss whose gradient with respect to p is clipped at tau: Eqs. 3 and 5 of Ye et al., 2025.

*Optimized Gradient Clipping for Noisy Label Learning*, AAAI 2025. The loss is described in its section "Implement
optimized clipping on loss functions".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._require import require
from ..given_label import P_MIN
from .loss import Reduction
from .pointwise import CrossEntropy, Pointwise


def clipped(base: Pointwise, H: Tensor, p0: Tensor | float, tau: Tensor | float) -> Tensor:
    """Continue ``base`` below p0 by a line of slope tau: (N,) -> (N,). Algorithm 1, line 13, of Ye et al., 2025.

    value(p) where p > p0, and value(p0) + tau (p0 - p) otherwise, as a function of H = -log p, which keeps p near 1
    exact. For CE the second case is the paper's 1 - tau p + log tau.
    """
    H0 = -torch.log(p0) if isinstance(p0, Tensor) else -math.log(p0)
    return base.at(H.clamp(max=H0)) + torch.where(H > H0, tau * (p0 - torch.exp(-H)), 0.0)


def clipped_with_derivative(
    base: Pointwise, H: Tensor, p0: Tensor | float, tau: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Return :func:`clipped` and its derivative by H, p min(slope(p), tau), without autograd: (N,) -> (N,), (N,).

    Below p0 the slope at p0 is used, because a slope derived by autograd may be NaN at p = 0. It equals tau up to
    rounding, or is larger if tau is below every slope of ``base``, so it is still clipped.
    """
    H0 = -torch.log(p0) if isinstance(p0, Tensor) else -math.log(p0)
    if type(base) is CrossEntropy and (isinstance(tau, Tensor) or tau >= 1):
        return _clipped_cross_entropy(H, H.clamp(max=H0))
    p = torch.exp(-H)
    held = p.clamp(min=p0)
    at, below = base.at(H.clamp(max=H0)), held - p
    value = at + below.mul_(tau) if isinstance(tau, Tensor) else torch.add(at, below, alpha=tau)
    return value, base.slope(held.clamp_(max=1 - P_MIN)).clamp(max=tau).mul_(p)


def _clipped_cross_entropy(H: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """Do the same for CE, where tau p = e^(H0 - H), with half the calls of torch. ``held`` is min(H, H0)."""
    log_tau_p = held - H  # 0 above p0
    return held.sub_(torch.expm1(log_tau_p)), log_tau_p.exp_()


class PHuberCE(Pointwise):
    """PHuber-CE: CE clipped at a fixed tau (Can Gradient Clipping Mitigate Label Noise?, Menon et al., 2020).

    -log p where p > 1/tau, and 1 - tau p + log tau otherwise.

    :param tau: upper bound of the gradient with respect to p.
    """

    def __init__(
        self, *, tau: float = 2.0, weight: Tensor | None = None, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        require(1 <= tau < math.inf, "tau", "at least 1, the smallest gradient of CE", tau)
        self.tau = tau

    def value(self, p: Tensor) -> Tensor:
        return self.at(-torch.log(p))

    def at(self, H: Tensor) -> Tensor:
        H0 = math.log(self.tau)
        return H.clamp(max=H0) + torch.where(H > H0, 1 - self.tau * torch.exp(-H), 0.0)
