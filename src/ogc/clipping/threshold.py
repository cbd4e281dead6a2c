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

import math

import torch
from torch import Tensor

from ..given_label import P_MIN
from ..kernels.constants import GRID, LOGIT_MAX, LOGIT_STEP, TABLE, TINY
from ..losses import Pointwise
from .mixture import Mixture
from .ratio import grid, normal_weights


class Slopes:
    """Solver of Eq. 12 of Ye et al., 2025, for a pointwise loss, from its slope on the grid and the inverse slope.

    All tensors are constants. Raise ValueError if the slope does not fall strictly as p rises: there is then no unique
    p0 for a tau.
    """

    H: Tensor  # (GRID,) the grid
    slope: Tensor  # (GRID,) the slope there, rising with H
    width: Tensor  # (GRID,) the distance of each slope from the one before it
    table: Tensor  # (TABLE + 1,) the slope at equally spaced logits of p from LOGIT_MAX down, rising

    def __init__(self, base: Pointwise) -> None:
        self.H = grid()
        p = torch.exp(-self.H)
        self.slope = base.slope(p).detach()
        _check_slope(base, p, self.slope)
        self.width = torch.diff(self.slope, prepend=self.slope.new_zeros(1))
        logits = torch.linspace(LOGIT_MAX, -LOGIT_MAX, TABLE + 1, dtype=torch.float64)
        self.table = base.slope(torch.sigmoid(logits)).detach()
        self.steepest = float(self.slope[-1])
        self._copies: dict[torch.device, Slopes] = {}

    def on(self, device: torch.device) -> Slopes:
        """Return a copy on ``device``, made once. The CPU has the original."""
        if device == self.table.device:
            return self
        if device not in self._copies:
            copy = object.__new__(Slopes)
            copy.H, copy.slope, copy.width = self.H.to(device), self.slope.to(device), self.width.to(device)
            copy.table, copy.steepest, copy._copies = self.table.to(device), self.steepest, {}
            self._copies[device] = copy
        return self._copies[device]

    def solve(self, mixture: Mixture, target: float) -> tuple[float, float]:
        """Return p0 and tau at which r(tau) = target. Eq. 12 with target = 1 + epsilon > 1; Algorithm 1, line 9.

        If r is below target without clipping, nothing is clipped: P_MIN and the steepest slope. On the CPU.
        """
        clean = normal_weights(self.H, mixture.clean_mean, mixture.clean_var)
        noisy = normal_weights(self.H, mixture.noisy_mean, mixture.noisy_var)
        d = noisy - target * clean
        beyond = d.flip(0).cumsum_(0).flip(0)  # sum of d_i from here to the end, the derivative of D
        D = torch.cumsum(beyond.mul_(self.width), 0)
        if D[-1].item() < 0:
            return P_MIN, self.steepest
        right = min(max(int(torch.count_nonzero(D < 0)), 1), GRID - 1)
        (D0, D1), (slope0, slope1) = D[right - 1 : right + 1].tolist(), self.slope[right - 1 : right + 1].tolist()
        part = min(max(-D0 / (D1 - D0 + TINY), 0.0), 1.0)
        tau = slope0 + (slope1 - slope0) * part
        return self.p0_at(tau), tau

    def p0_at(self, tau: float) -> float:
        """Return the p0 with slope(p0) = tau, in [P_MIN, 1 - P_MIN]. Log slope is interpolated over the logit of p."""
        right = min(max(int(torch.searchsorted(self.table, tau)), 1), TABLE)
        low, high = map(math.log, self.table[right - 1 : right + 1].tolist())
        part = min(max((math.log(tau) - low) / (high - low), 0.0), 1.0)
        return 1 / (1 + math.exp((right - 1 + part) * LOGIT_STEP - LOGIT_MAX))

    def p0_on_device(self, tau: Tensor) -> Tensor:
        """Do the same as :meth:`p0_at` for a tensor on any device, without a host read: () -> ()."""
        right = torch.searchsorted(self.table, tau).clamp(1, TABLE)
        low, high = torch.log(torch.take(self.table, right - 1)), torch.log(torch.take(self.table, right))
        part = ((torch.log(tau) - low) / (high - low)).clamp(0, 1)
        return torch.sigmoid(LOGIT_MAX - (right - 1 + part) * LOGIT_STEP)

    def slope_at(self, p: float) -> float:
        """Return the slope at p, by the same interpolation. On the CPU."""
        place = (LOGIT_MAX - math.log(p / (1 - p))) / LOGIT_STEP
        left = min(max(int(place), 0), TABLE - 1)
        low, high = map(math.log, self.table[left : left + 2].tolist())
        return math.exp(low + (high - low) * min(max(place - left, 0.0), 1.0))


def solve_threshold(base: Pointwise, mixture: Mixture, target: Tensor | float) -> Tensor:
    """Return the p0 at which noisy gradients are ``target`` times as large as clean ones after clipping: () -> ().

    Eq. 12 of Ye et al., 2025, with target = 1 + epsilon. Below p0, ``base`` is continued by its tangent. P_MIN means
    that nothing needs clipping. A mixture on an accelerator is copied to the CPU.
    """
    on_cpu = Mixture(*(number.cpu() for number in mixture))
    p0, _ = Slopes(base).solve(on_cpu, float(target))
    return torch.full_like(mixture.clean_mean, p0)


def _check_slope(base: Pointwise, p: Tensor, slope: Tensor) -> None:
    """Raise ValueError if the slope does not fall strictly as p rises, or if it is not the derivative of ``value``."""
    name, at, value = type(base).__name__, base.at(-torch.log(p)), base.value(p)
    for formula, found in (("value(p)", value), ("at(H)", at), ("slope(p)", slope)):
        if found.shape != p.shape:
            raise ValueError(
                f"`{name}.{formula}` should return one number per sample, of shape {tuple(p.shape)}. Found "
                f"{tuple(found.shape)}."
            )
    stuck = slope.diff() <= 0
    if bool(stuck.any()) or not bool(((slope > 0) & slope.isfinite()).all()):
        where = f"fall near p = {float(p[int(stuck.int().argmax())]):.3g}" if bool(stuck.any()) else "stay above 0"
        raise ValueError(
            f"OGC needs a loss whose gradient falls strictly as p rises. That of {name}({base.extra_repr()}) does not "
            f"{where}. A loss with a constant gradient, such as MAE, needs no clipping."
        )
    _require_equal(f"{name}.at(H)", at, "value(p) at H = -log p", value, p)
    _require_equal(f"{name}.slope(p)", slope, "|d value/dp|", Pointwise.slope(base, p), p)


def _require_equal(name: str, found: Tensor, rule: str, expected: Tensor, p: Tensor) -> None:
    if not torch.allclose(found, expected, rtol=1e-4):
        worst = int(((found - expected).abs() / (1e-8 + 1e-4 * expected.abs())).argmax())
        raise ValueError(
            f"`{name}` should be {rule}, which at p = {float(p[worst]):.3g} is {float(expected[worst]):.6g}. "
            f"Found {float(found[worst]):.6g}."
        )
