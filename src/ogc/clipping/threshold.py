"""The threshold at which the ratio of noisy to clean gradients is 1 + epsilon, solved exactly.

Write d = noisy - T clean for the weights of the two normals on the grid. Then r(tau) = T where
D(tau) = sum_i d_i min(slope_i, tau) crosses zero, and D is a broken line in tau with its corners at the grid's slopes:
two cumulative sums give D at every corner, and on the segment where it changes sign a straight line gives tau.
There is one such segment at most when D ends above zero: the ratio of two normals is the exponential of a parabola,
so d changes sign at most twice along the grid.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..given_label import P_MIN
from ..losses import Pointwise
from .mixture import TINY, Mixture, powers_of
from .numbers import Number, Numbers, numbers_on
from .ratio import GRID, grid, normal_weights

LOGIT_MAX = math.log((1 - P_MIN) / P_MIN)
TABLE = 65536
"""Intervals of the table of slopes, over the logit of p: its inverse is then good to about 1e-8, at both ends too."""


class Slopes(nn.Module):
    """The slope of a pointwise loss on the grid, and the way back from a slope to p. Constants: nothing of it is saved.

    Raises if the slope does not fall strictly as p rises: there is then no p0 for a tau, and nothing to solve.
    """

    powers: Tensor  # (3, GRID) of H on the grid
    slope: Tensor  # (GRID,) the slope there, rising
    width: Tensor  # (GRID,) how far each slope is from the one before it
    table: Tensor  # (TABLE + 1,) the slope at equally spaced logits of p from LOGIT_MAX down, rising

    def __init__(self, base: Pointwise) -> None:
        super().__init__()
        H = grid()
        p = torch.exp(-H)
        slope = base.slope(p).detach()
        _require_falling(base, p, slope)
        table = base.slope(torch.sigmoid(torch.linspace(LOGIT_MAX, -LOGIT_MAX, TABLE + 1, dtype=torch.float64)))
        self.steepest = float(slope[-1])
        self.register_buffer("powers", powers_of(H), persistent=False)
        self.register_buffer("slope", slope, persistent=False)
        self.register_buffer("width", torch.diff(slope, prepend=slope.new_zeros(1)), persistent=False)
        self.register_buffer("table", table.detach(), persistent=False)

    def p0_at(self, tau: Number, N: Numbers) -> Number:
        """The p0 with slope(p0) = tau, in [P_MIN, 1 - P_MIN], by interpolating log slope over the logit of p."""
        right = N.clamp(N.read(torch.searchsorted(self.table, tau)), 1, TABLE)
        low, high = map(N.log, N.pair(self.table, right))
        part = N.clamp((N.log(tau) - low) / (high - low), 0, 1)
        return 1 / (1 + N.exp((right - 1 + part) * (2 * LOGIT_MAX / TABLE) - LOGIT_MAX))

    def at(self, p: float) -> float:
        """The slope at p, by the same interpolation."""
        place = (LOGIT_MAX - math.log(p / (1 - p))) * (TABLE / (2 * LOGIT_MAX))
        left = min(max(int(place), 0), TABLE - 1)
        low, high = map(math.log, self.table[left : left + 2].tolist())
        return math.exp(low + (high - low) * min(max(place - left, 0.0), 1.0))

    def solve(self, mixture: Mixture, target: Number, N: Numbers) -> tuple[Number, Number]:
        """p0 and tau at which r(tau) = target > 1; unclipped where r is below target without clipping."""
        density, (clean, noisy) = normal_weights(self.powers, mixture, N)
        d = N.pack([-target / clean, 1 / noisy]) @ density
        beyond = d.flip(0).cumsum(0).flip(0)  # sum of d_i from here to the end: what a rising tau still moves
        D = torch.cumsum(self.width * beyond, 0)
        right = N.clamp(N.read((D < 0).sum()), 1, GRID - 1)
        (D0, D1), (slope0, slope1) = N.pair(D, right), N.pair(self.slope, right)
        tau = slope0 + (slope1 - slope0) * N.clamp(-D0 / (D1 - D0 + TINY), 0, 1)
        clips = N.read(D[-1]) >= 0
        return N.either(clips, self.p0_at(tau, N), P_MIN), N.either(clips, tau, self.steepest)


def _require_falling(base: Pointwise, p: Tensor, slope: Tensor) -> None:
    stuck = slope.diff() <= 0
    if bool(stuck.any()) or not bool(((slope > 0) & slope.isfinite()).all()):
        where = f" near p = {float(p[int(stuck.int().argmax())]):.3g}" if bool(stuck.any()) else ", or is not above 0"
        raise ValueError(
            "OGC needs a loss whose gradient falls strictly as p rises, so that there is a p0 for every tau. That of "
            f"{type(base).__name__}({base.extra_repr()}) does not{where}. Where it is constant, as MAE's, it is "
            "clipped already: use that loss by itself."
        )
    derived = Pointwise.slope(base, p)
    if not torch.allclose(derived, slope, rtol=1e-4):
        worst = int(((derived - slope).abs() / slope).argmax())
        raise ValueError(
            f"`{type(base).__name__}.slope` should be |d value/dp|. At p = {float(p[worst]):.3g} it is "
            f"{float(slope[worst]):.6g}, but the gradient of `value` is {float(derived[worst]):.6g}."
        )


def solve_threshold(base: Pointwise, mixture: Mixture, target: Tensor | float) -> Tensor:
    """The p0 below which ``base`` is continued by its tangent, so that noisy samples pull ``target`` times as hard.

    ``target`` is 1 + epsilon. P_MIN where nothing needs clipping.
    """
    N = numbers_on(mixture.clean_mean.device)
    p0, _ = Slopes(base).to(mixture.clean_mean.device).solve(Mixture(*map(N.read, mixture)), target, N)
    return N.pack([p0])[0]
