"""Default rule for the threshold: the paper's bound, limited early on, a second bound, and a factor for each class.

With the two normals of the fit, of means mu_c (clean) and mu_n (noisy), and C classes, p0 follows p* with a short
memory, p0_t = alpha p0_{t-1} + (1 - alpha) p*, where

    p* = min(p_ratio, 1/C)       if mu_n <= log C
    p* = p_ratio                 if mu_n > log C, and a class is given up
    p* = max(p_ratio, p_edge)    otherwise
    p_edge = exp(-max(mu_c, 3 log C - 2 mu_n))

p_ratio solves r(tau) = 1 + epsilon, Eq. 12 of Ye et al., 2025, with epsilon = 0.5 lr / (highest lr so far). A uniform
guess has probability 1/C and H = log C. A class is given up if g_c, the share of its recent samples that are better
than a guess, is below 1/3. The p0 of class c is f_c p0, where f_c starts at 1 and follows min(1, 3 g_c) with the same
memory. ``docs/method.md`` has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..given_label import P_MIN, widest_float
from ..kernels.constants import MOST_CLASSES, KernelRule
from .fit import Fit
from .rule import FittedRule, Now
from .state import State
from .threshold import Slopes

EPSILON = 0.5
"""The excess of noisy over clean gradients that is allowed at the highest learning rate."""
MEMORY = 16.0
"""Number of steps in which p0 covers 63 % of the distance to p*."""
SAMPLES_NEEDED = 256
"""Minimum number of queued samples for a fit."""
RECENT = 4
"""Early on, the newest 1/RECENT of all samples seen is fitted."""
EARLY_STEPS = 1024
EARLY_UPDATES = 8
"""During the first EARLY_STEPS steps, updates are EARLY_UPDATES times as frequent."""
GIVEN_UP_BELOW = 1 / 3
"""A class is given up if a smaller share of its recent samples is better than a guess.

With more than MOST_CLASSES classes, their counts are too small to tell. p_edge is not used, and all share p0.
"""


@dataclass(frozen=True)
class Default(FittedRule):
    """The rule described in :mod:`ogc.clipping.default_rule`.

    Its state counts the samples since the last update by class (row 0), and those better than a guess (row 1).
    """

    follow_lr: bool = True
    by_class = True

    def samples_needed(self, queue_size: int) -> int:
        return min(SAMPLES_NEEDED, queue_size)

    def period(self, step: int, every: int) -> int:
        return every if step > EARLY_STEPS else max(1, every // EARLY_UPDATES)

    def recent(self, seen: int, queue_size: int) -> int:
        """Return how many of the newest samples to fit. Early on, the queue changes too fast to use all of it."""
        return min(max(seen // RECENT, SAMPLES_NEEDED), seen, queue_size)

    def excess(self, lr: Any, highest_lr: Any) -> Any:
        return EPSILON * lr / highest_lr if self.follow_lr else EPSILON

    def initial_state(self) -> Tensor:
        return torch.zeros(2, MOST_CLASSES, dtype=torch.int64)

    def count(self, rule_state: Tensor, H: Tensor, labels: Tensor, num_classes: int) -> None:
        """Count the samples of a batch, and those better than a guess, by class. Non-finite H are skipped."""
        if num_classes > MOST_CLASSES:
            return
        label = labels.clamp(0, num_classes - 1).expand(2, -1)
        is_better = H.to(widest_float(H.device)) < math.log(num_classes)
        rule_state.scatter_add_(1, label, torch.stack([H.isfinite(), is_better]).to(rule_state.dtype))

    def update(self, state: State, slopes: Slopes, now: Now) -> None:
        if now.num_classes > 1:  # known from the first call on
            super().update(state, slopes, now)

    def move(self, p_ratio: float, tau: float, fit: Fit, state: State, slopes: Slopes, now: Now) -> None:
        """Move p0 and the factor of each class towards the goals p* and f*_c."""
        shares = better_than_guess(state.rule_state, now.num_classes)
        p_star = goal_of_p0(fit, p_ratio, now.num_classes, gives_up_a_class(shares))
        steps, last = self.period(int(state.steps), now.every), state.solution.tolist()[0]
        p0 = follow(last, p_star, steps)
        factors = [each / last for each in state.thresholds.tolist()[0]]
        for c, share in shares.items():
            factors[c] = follow(factors[c], goal_of_factor(share), steps)
        tau_of = {factor: slopes.slope_at(max(factor * p0, P_MIN)) for factor in {1.0, *factors}}
        by_class = [[factor * p0 for factor in factors], [tau_of[factor] for factor in factors]]
        state.accept(p0, tau_of[1.0], fit, by_class)

    def end_update(self, state: State) -> None:
        state.rule_state.zero_()

    def kernel_rule(self, queue_size: int, every: int, num_classes: int) -> KernelRule | None:
        if num_classes < 2:
            return None
        constants = {"EARLY": self.period(1, every), "EARLY_STEPS": EARLY_STEPS, "RECENT": RECENT, "MEMORY": MEMORY}
        constants["GIVEN_UP_BELOW"] = GIVEN_UP_BELOW
        needed = self.samples_needed(queue_size)
        return KernelRule(EPSILON, "relative" if self.follow_lr else "constant", every, needed, constants)


def better_than_guess(counts: Tensor, num_classes: int) -> dict[int, float]:
    """Return g_c for each class c with recent samples: (2, MOST_CLASSES). Empty if there are too many classes."""
    if num_classes > MOST_CLASSES:
        return {}
    return {c: better / seen for c, (seen, better) in enumerate(zip(*counts.tolist(), strict=True)) if seen}


def gives_up_a_class(shares: Mapping[int, float]) -> bool:
    """Return True if a class that occurs has not been learned, or if there are too few samples to tell."""
    return not shares or min(shares.values()) < GIVEN_UP_BELOW


def goal_of_p0(fit: Fit, p_ratio: float, num_classes: int, gives_up: bool) -> float:
    """Return p*, towards which p0 moves."""
    chance = math.log(num_classes)
    if fit.noisy.mean <= chance:
        return min(p_ratio, 1 / num_classes)
    if gives_up:
        return p_ratio
    p_edge = min(math.exp(-max(fit.clean.mean, 3 * chance - 2 * fit.noisy.mean)), 1 - P_MIN)
    return max(p_ratio, p_edge)


def goal_of_factor(share: float) -> float:
    """Return f*_c, towards which f_c moves, from g_c."""
    return min(1.0, share / GIVEN_UP_BELOW)


def follow(current: float, goal: float, steps: int) -> float:
    """Return p0 or f_c after it has moved towards its goal for this number of steps. At the goal it stays exactly."""
    return current + (1 - math.exp(-steps / MEMORY)) * (goal - current)
