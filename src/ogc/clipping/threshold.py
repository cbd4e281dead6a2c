"""The threshold tau at which the ratio of noisy to clean gradients is 1 + epsilon: Eq. 12 of Ye et al., 2025.

The paper minimises r(tau) subject to r(tau) >= 1 + epsilon by binary search. The minimum is where r(tau) = target
with target = 1 + epsilon, and it can be solved for exactly. If r is below target without clipping, nothing is clipped,
even if r is above target at some smaller tau: r may fall again if the noisy normal is narrower than the clean one.

Write d = noisy - target clean for the weights of the two normals on the grid. Then r(tau) = target where

    D(tau) = sum_i d_i min(slope_i, tau) = 0.

D is piecewise linear in tau with its corners at the slopes of the grid. Two cumulative sums give D at every corner,
and linear interpolation on the segment where D changes sign gives tau. There is at most one such segment if D ends
above zero: the ratio of two normals is the exponential of a parabola, so d changes sign at most twice along the grid.
"""

from __future__ import annotations

import bisect
import math
from array import array

import torch
from torch import Tensor

from ..given_label import P_MIN
from ..kernels.constants import GRID, LOGIT_MAX, LOGIT_STEP, TABLE, TINY
from ..kernels.ogc_step import SlopeCurve
from ..losses import Pointwise
from .base_loss import check_slope
from .fit import Normal
from .mixture import Mixture
from .ratio import grid


class Slopes:
    """Solver of Eq. 12 of Ye et al., 2025, for a pointwise loss, from its slope on the grid and the inverse slope.

    Raise ValueError if the slope does not fall strictly as p rises: there is then no unique p0 for a tau.
    """

    def __init__(self, base: Pointwise) -> None:
        H = grid()
        p = torch.exp(-H)
        slope = base.slope(p).detach()
        check_slope(base, p, slope)
        width = torch.diff(slope, prepend=slope.new_zeros(1))
        logits = torch.linspace(LOGIT_MAX, -LOGIT_MAX, TABLE + 1, dtype=torch.float64)
        self.curve = SlopeCurve(slope, width, base.slope(torch.sigmoid(logits)).detach())
        self.steepest = float(slope[-1])
        self._grid = torch.stack([torch.ones_like(H), H, H * H])
        self._table = array("d", self.curve.table.tolist())  # the same, to read single numbers fast
        self._copies: dict[torch.device, SlopeCurve] = {}

    def on(self, device: torch.device) -> SlopeCurve:
        """Return a copy of the constants on ``device``, made once. The CPU has the original."""
        if device == self.curve.table.device:
            return self.curve
        if device not in self._copies:
            self._copies[device] = SlopeCurve(*(tensor.to(device) for tensor in self.curve))
        return self._copies[device]

    def solve(self, clean: Normal, noisy: Normal, target: float) -> tuple[float, float]:
        """Return p0 and tau at which r(tau) = target. Eq. 12 with target = 1 + epsilon > 1; Algorithm 1, line 9.

        If r is below target without clipping, nothing is clipped: P_MIN and the steepest slope. On the CPU.
        """
        log_densities = torch.tensor([clean.log_density, noisy.log_density], dtype=torch.float64)
        weights = torch.softmax(log_densities @ self._grid, dim=1)
        d = torch.tensor([-target, 1.0], dtype=torch.float64) @ weights
        beyond = d.flip(0).cumsum_(0).flip(0)  # sum of d_i from here to the end, the derivative of D
        D = beyond.mul_(self.curve.width).cumsum_(0).tolist()
        if D[-1] < 0:
            return P_MIN, self.steepest
        right = min(max(bisect.bisect_left(D, 0.0), 1), GRID - 1)
        (D0, D1), (slope0, slope1) = D[right - 1 : right + 1], self.curve.slope[right - 1 : right + 1].tolist()
        part = min(max(-D0 / (D1 - D0 + TINY), 0.0), 1.0)
        tau = slope0 + (slope1 - slope0) * part
        return self.p0_at(tau), tau

    def p0_at(self, tau: float) -> float:
        """Return the p0 with slope(p0) = tau, in [P_MIN, 1 - P_MIN]. Log slope is interpolated over the logit of p."""
        right = min(max(bisect.bisect_left(self._table, tau), 1), TABLE)
        low, high = math.log(self._table[right - 1]), math.log(self._table[right])
        part = min(max((math.log(tau) - low) / (high - low), 0.0), 1.0)
        return 1 / (1 + math.exp((right - 1 + part) * LOGIT_STEP - LOGIT_MAX))

    def p0_on_device(self, tau: Tensor) -> Tensor:
        """Do the same as :meth:`p0_at` for a tensor on any device, without a host read: () -> ()."""
        table = self.on(tau.device).table
        right = torch.searchsorted(table, tau).clamp(1, TABLE)
        low, high = torch.log(torch.take(table, right - 1)), torch.log(torch.take(table, right))
        part = ((torch.log(tau) - low) / (high - low)).clamp(0, 1)
        return torch.sigmoid(LOGIT_MAX - (right - 1 + part) * LOGIT_STEP)

    def slope_at(self, p: float) -> float:
        """Return the slope at p, by the same interpolation. On the CPU."""
        place = (LOGIT_MAX - math.log(p / (1 - p))) / LOGIT_STEP
        left = min(max(int(place), 0), TABLE - 1)
        low, high = math.log(self._table[left]), math.log(self._table[left + 1])
        return math.exp(low + (high - low) * min(max(place - left, 0.0), 1.0))


def solve_threshold(base: Pointwise, mixture: Mixture, target: Tensor | float) -> Tensor:
    """Return the p0 at which noisy gradients are ``target`` times as large as clean ones after clipping: () -> ().

    Eq. 12 of Ye et al., 2025, with target = 1 + epsilon. Below p0, ``base`` is continued by its tangent. P_MIN means
    that nothing needs clipping. A mixture on an accelerator is copied to the CPU.
    """
    clean_mean, clean_var, noisy_mean, noisy_var, _ = torch.stack(mixture).tolist()
    clean, noisy = Normal(0.5, clean_mean, clean_var), Normal(0.5, noisy_mean, noisy_var)  # the weights do not matter
    return torch.full_like(mixture.clean_mean, Slopes(base).solve(clean, noisy, float(target))[0])
