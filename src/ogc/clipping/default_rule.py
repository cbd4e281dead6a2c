"""Default rule for the threshold: the paper's bound, limited early on, a second bound, and a factor for each class.

With the two normals of :mod:`ogc.clipping.mixture`, of means mu_c (clean) and mu_n (noisy), and C classes, p0 moves
towards

    p* = min(p_ratio, 1/C)       if mu_n <= log C
    p* = p_ratio                 if mu_n > log C, and a class is given up
    p* = max(p_ratio, p_edge)    otherwise
    p_edge = exp(-max(mu_c, 3 log C - 2 mu_n))

p_ratio solves r(tau) = 1 + epsilon, Eq. 12 of Ye et al., 2025, with epsilon = 0.5 lr / (highest lr so far). p_edge
clips samples that are less likely than a typical clean sample. It is needed because with two or three classes r(tau)
is small even without clipping, and because without a falling learning rate the bound of the paper never tightens.

A uniform guess has probability 1/C and H = log C. While the noisy samples are better than a guess, they are as likely
to be hard as to be wrong, and only samples worse than a guess are clipped. As mu_n rises above log C, p_edge grows
gradually from 1/C, because of the term 3 log C - 2 mu_n. A class is given up if g_c, the share of its recent samples
that are better than a guess, is below 1/3: it has not been learned yet, and p_edge would prevent that.

p0 follows p* with a short memory: p0_t = alpha p0_{t-1} + (1 - alpha) p*. For CE, where p0 = 1/tau, this is the EMA
schedule of the paper with p* in place of 1.

To the mixture, the samples of a rare class that has not been learned look like wrong labels. p_ratio alone could then
keep it from being learned. So p0 is lower for a class that is given up: the p0 of class c is f_c p0, where f_c starts
at 1 and follows

    f*_c = min(1, 3 g_c)

with the same memory. Without recent samples of its class, f_c stays as it is.

``docs/tables.md`` compares the default with the rule of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from ..given_label import P_MIN, widest_float
from .mixture import Mixture

EPSILON = 0.5
"""The excess of noisy over clean gradients that is allowed at the highest learning rate."""
MEMORY = 16.0
"""Number of steps in which p0 covers 63 % of the distance to p*."""
FEWEST = 256
"""Minimum number of queued samples for a fit."""
RECENT = 4
"""Early on, the newest 1/RECENT of all samples seen is fitted."""
EARLY_STEPS = 1024
EARLY_UPDATES = 8
"""During the first EARLY_STEPS steps, updates are EARLY_UPDATES times as frequent."""
LEARNED = 1 / 3
"""A class is given up if a smaller share of its recent samples is better than a guess."""
MOST_CLASSES = 64
"""With more classes, the counts of each class are too small to tell. p_edge is not used, and all classes share p0."""


def recent(seen: int, queue_size: int) -> int:
    """Return how many of the newest samples to fit. Early in training the queue changes too fast to use all of it."""
    return min(max(seen // RECENT, FEWEST), seen, queue_size)


def count_classes(counts: Tensor, H: Tensor, labels: Tensor, num_classes: int) -> None:
    """Count the samples of a batch, and those better than a guess, by class: (2, MOST_CLASSES), (N,), (N,).

    Non-finite H are skipped. In place, without a host read.
    """
    if num_classes > MOST_CLASSES:
        return
    label = labels.flatten().clamp(0, num_classes - 1)
    H = H.flatten()
    counts[0].scatter_add_(0, label, H.isfinite().to(counts.dtype))
    counts[1].scatter_add_(0, label, (H.to(widest_float(H.device)) < math.log(num_classes)).to(counts.dtype))


def better_than_guess(counts: Tensor, num_classes: int) -> dict[int, float]:
    """Return g_c for each class c with recent samples: (2, MOST_CLASSES). Empty if there are too many classes."""
    if num_classes > MOST_CLASSES:
        return {}
    return {c: good / seen for c, (seen, good) in enumerate(counts[:, :num_classes].T.tolist()) if seen}


def gives_up_a_class(shares: Mapping[int, float]) -> bool:
    """Return True if a class that occurs has not been learned, or if there are too few samples to tell."""
    return not shares or min(shares.values()) < LEARNED


def p_star(mixture: Mixture, p_ratio: float, num_classes: int, gives_up: bool) -> float:
    """Return p*, towards which p0 moves."""
    chance, clean_mean, noisy_mean = math.log(num_classes), float(mixture.clean_mean), float(mixture.noisy_mean)
    if noisy_mean <= chance:
        return min(p_ratio, 1 / num_classes)
    if gives_up:
        return p_ratio
    p_edge = min(math.exp(-max(clean_mean, 3 * chance - 2 * noisy_mean)), 1 - P_MIN)
    return max(p_ratio, p_edge)


def follow(current: float, goal: float, steps: int) -> float:
    """Return p0 or f_c after it has moved towards its goal for this number of steps. At the goal it stays exactly."""
    return current + (1 - math.exp(-steps / MEMORY)) * (goal - current)


def f_star(share: float) -> float:
    """Return f*_c, towards which f_c moves, from g_c."""
    return min(1.0, share / LEARNED)


def period(step: int, every: int) -> int:
    """Return the number of steps between updates at this step."""
    return every if step > EARLY_STEPS else max(1, every // EARLY_UPDATES)
