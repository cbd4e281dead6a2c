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
from ..losses import Pointwise
from .mixture import TINY, Mixture
from .ratio import GRID, grid, normal_weights

LOGIT_MAX = math.log((1 - P_MIN) / P_MIN)
TABLE = 65536
"""Intervals of the table of slopes over the logit of p. Its inverse is accurate to about 1e-8, near 0 and 1 too."""
LOGIT_STEP = 2 * LOGIT_MAX / TABLE


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
        beyond = d.flip(0).cumsum(0).flip(0)  # sum of d_i from here to the end, the derivative of D
        D = torch.cumsum(self.width * beyond, 0)
        if D[-1] < 0:
            return P_MIN, self.steepest
        right = min(max(int((D < 0).sum()), 1), GRID - 1)
        (D0, D1), (slope0, slope1) = D[right - 1 : right + 1].tolist(), self.slope[right - 1 : right + 1].tolist()
        part = min(max(-D0 / (D1 - D0 + TINY), 0.0), 1.0)
        tau = slope0 + (slope1 - slope0) * part
        return self.p0_at(torch.tensor(tau, dtype=torch.float64)).item(), tau

    def p0_at(self, tau: Tensor) -> Tensor:
        """Return the p0 with slope(p0) = tau, in [P_MIN, 1 - P_MIN], elementwise, on any device.

        Log slope is interpolated over the logit of p.
        """
        right = torch.searchsorted(self.table, tau).clamp(1, TABLE)
        low, high = torch.log(torch.take(self.table, right - 1)), torch.log(torch.take(self.table, right))
        part = ((torch.log(tau) - low) / (high - low)).clamp(0, 1)
        return torch.sigmoid(LOGIT_MAX - (right - 1 + part) * LOGIT_STEP)

    def at(self, p: float) -> float:
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
    at, value = base.at(-torch.log(p)), base.value(p)
    for name, found in (("value(p)", value), ("at(H)", at), ("slope(p)", slope)):
        if found.shape != p.shape:
            raise ValueError(
                f"`{type(base).__name__}.{name}` should return one number per sample, of shape {tuple(p.shape)}. Found "
                f"{tuple(found.shape)}."
            )
    stuck = slope.diff() <= 0
    if bool(stuck.any()) or not bool(((slope > 0) & slope.isfinite()).all()):
        where = f" fall near p = {float(p[int(stuck.int().argmax())]):.3g}" if bool(stuck.any()) else " stay above 0"
        raise ValueError(
            "OGC needs a loss whose gradient falls strictly as p rises, so that there is a p0 for every tau. The "
            f"gradient of {type(base).__name__}({base.extra_repr()}) does not{where}. If it is constant, as for MAE, "
            "it is clipped already: use that loss by itself."
        )
    if not torch.allclose(at, value, rtol=1e-4):
        worst = int(((at - value).abs() / (1e-8 + 1e-4 * value.abs())).argmax())
        raise ValueError(
            f"`{type(base).__name__}.at(H)` should be `value(p)` at H = -log p. At p = {float(p[worst]):.3g} it is "
            f"{float(at[worst]):.6g}, but `value` is {float(value[worst]):.6g}."
        )
    derived = Pointwise.slope(base, p)
    if not torch.allclose(derived, slope, rtol=1e-4):
        worst = int(((derived - slope).abs() / slope).argmax())
        raise ValueError(
            f"`{type(base).__name__}.slope` should be |d value/dp|. At p = {float(p[worst]):.3g} it is "
            f"{float(slope[worst]):.6g}, but the gradient of `value` is {float(derived[worst]):.6g}."
        )
