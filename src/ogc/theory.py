"""Guarantees of a threshold tau: proposition 1 and theorems 1 to 3 of the paper, for CE clipped at tau >= 1.

The theorems bound the excess risk, the gap between the two minimisers: on clean labels in theorem 1, on noisy labels in
theorems 2 and 3. R is the risk on clean labels, R_eta on noisy ones, f* and f~* are their minimisers. K is the number
of classes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from ._require import require


class Bounds(NamedTuple):
    lower: Tensor | float
    upper: Tensor | float


def _checked_log(tau: float, num_classes: int = 2) -> float:
    require(tau >= 1, "tau", "at least 1, the smallest gradient of CE", tau)
    require(num_classes >= 2, "num_classes", "at least 2", num_classes)
    return math.log(tau)


def loss_bounds(p: Tensor, tau: float) -> Bounds:
    """Proposition 1: 1 - p <= clipped CE <= (1 - p)(1 + log tau): (N,) -> (N,)."""
    return Bounds(1 - p, (1 - p) * (1 + _checked_log(tau)))


def loss_sum_bounds(num_classes: int, tau: float) -> Bounds:
    """Proposition 1: the clipped CE of a sample, summed over all labels, is between K - 1 and (K - 1)(1 + log tau)."""
    return Bounds(num_classes - 1.0, (num_classes - 1) * (1 + _checked_log(tau, num_classes)))


def symmetric_excess_risk(tau: float, rate: float, num_classes: int) -> float:
    """Theorem 1: R(f~*) - R(f*) <= eta log tau / (1 - eta K / (K - 1)) under symmetric noise of rate eta < 1 - 1/K.

    The paper omits the factor eta, which its proof drops. The bound holds with it.
    """
    log_tau = _checked_log(tau, num_classes)
    require(0 <= rate < 1 - 1 / num_classes, "rate", f"in [0, 1 - 1/K) = [0, {1 - 1 / num_classes:.4g})", rate)
    return rate * log_tau / (1 - rate * num_classes / (num_classes - 1))


def dependent_excess_risk(tau: float, kept: float, num_classes: int) -> float:
    """Theorems 2 and 3: R_eta(f*) - R_eta(f~*) <= (K - 1) log tau E[1 - eta], if R(f*) = 0.

    For asymmetric and instance-dependent noise in which no wrong label is as likely as the right one.

    :param kept: E[1 - eta_y(x)], the share of labels that are right.
    """
    require(0 <= kept <= 1, "kept", "in [0, 1]", kept)
    return (num_classes - 1) * _checked_log(tau, num_classes) * kept
