"""The bound that the default adds to the paper's: what is less likely than clean samples typically are is clipped.

With the two normals of :mod:`ogc.clipping.mixture` and C classes the edge of the clean samples is

    p_edge = exp(-max(mu_c, 2 log C - mu_n))    if mu_n > log C, else 0

mu_c and mu_n are the means of the clean and the noisy normal. log C is the H of a guess: while noisy samples are
better than that, they are as likely to be hard, or of a class not learned yet, as to be wrong, and nothing is clipped.
The term 2 log C - mu_n lets the bound come in gradually from there.

p0 follows the larger of p_edge and the paper's p0 with a short memory, as in the paper's EMA schedule:
1/tau_t = alpha / tau_{t-1} + (1 - alpha) max(p_edge, p_ratio). So short trainings end before much is clipped.
``docs/tables.md`` compares the default with the paper's rule.
"""

from __future__ import annotations

import math

from ..given_label import P_MIN
from .mixture import Mixture

EPSILON = 2.0
"""The excess of noisy over clean gradients that the default allows at the highest learning rate."""
MEMORY = 16.0
"""Steps in which p0 covers 63 % of its way."""
FEWEST = 256
"""Samples in the queue from which on it is fitted."""
EARLY_STEPS = 1024
EARLY_UPDATES = 8
"""Updates are so many times as frequent during the first steps."""


def clean_edge(mixture: Mixture, num_classes: int) -> float:
    """p_edge, for a mixture of floats."""
    chance = math.log(num_classes)
    if mixture.noisy_mean <= chance:
        return P_MIN
    return min(math.exp(-max(mixture.clean_mean, 2 * chance - mixture.noisy_mean)), 1 - P_MIN)


def follow(p0: float, target: float, steps: int) -> float:
    """p0 after so many steps of moving towards ``target``."""
    alpha = math.exp(-steps / MEMORY)
    return alpha * p0 + (1 - alpha) * target


def period(step: int, every: int) -> int:
    """Steps between updates at this step."""
    return every if step > EARLY_STEPS else max(1, every // EARLY_UPDATES)
