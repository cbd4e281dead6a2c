"""Descriptions of the state of OGC, and a warning where it cannot help (the limitation in Ye et al., 2025)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from .state import UNRELIABLE_SEPARATION

if TYPE_CHECKING:
    from .ogc import OGC

UNRELIABLE_UPDATES = 32
"""Consecutive unreliable updates after which to warn."""


def find_problem(criterion: OGC) -> str | None:
    """Return a warning if the two normals have been hard to tell apart for long, or if nothing is ever clipped."""
    steps, unreliable = int(criterion.steps), int(criterion.unreliable)
    if steps < UNRELIABLE_UPDATES * criterion.every:
        return None
    if why := frozen_group(criterion):
        return why
    mixture, tau = criterion.mixture, float(criterion.tau)
    share = float(mixture.noisy_weight)
    if unreliable >= UNRELIABLE_UPDATES:
        return (
            f"OGC: for {unreliable} updates the clean and the noisy normal have been hard to tell apart (separation "
            f"{float(mixture.separation):.2f} < {UNRELIABLE_SEPARATION:g}, overlap {float(mixture.overlap):.2f}), so "
            f"tau ({tau:.3g}) and noise_probability are based on a poor fit. The share of noisy samples: "
            f"{describe_history(criterion.history[1], steps, '.0%')}. If it fell, wrong labels may have been "
            "memorised: train for fewer epochs or use a smaller network. If it was always small, the labels may be "
            "clean. Otherwise the noise may be heavy or depend on the input."
        )
    never_clipped = not (criterion.history[0] < criterion.slopes.steepest).any()
    if criterion.rule in ("epsilon", "paper") and share >= 0.05 and never_clipped:
        name = "epsilon" if criterion.epsilon0 is None else "epsilon0"
        return (
            f"OGC: nothing has been clipped in {steps:,} steps, although {share:.0%} of the samples look noisy: even "
            f"unclipped, their gradients are less than 1 + epsilon times as large as those of clean samples. Leave out "
            f"{name} to use the default rule, or lower it."
        )
    return None


def frozen_group(criterion: OGC) -> str | None:
    """Return a warning if the learning rate that OGC follows is always 0, although other parameters are trained."""
    optimizer = criterion._optimizer() if criterion.follow_lr and criterion.threshold is None else None
    if optimizer is None or float(criterion.highest_lr) > 0:
        return None
    if not any(float(group["lr"]) > 0 for group in optimizer.param_groups[1:]):
        return None
    return (
        "OGC clips nothing: it follows the learning rate of the optimizer's first parameter group, which has always "
        "been 0. Make the first group one that is trained, or pass follow_lr=False."
    )


def describe(criterion: OGC) -> str:
    """Describe tau and the share of noisy samples, now and in the past."""
    steps = int(criterion.steps)
    text = f"steps={steps}, tau={float(criterion.tau):.4g}, p0={float(criterion.p0):.4g}"
    if not math.isnan(float(criterion.mixture.noisy_weight)):
        tau, share = criterion.history
        text += f"\ntau: {describe_history(tau, steps, '.3g')}"
        text += f"\nshare of noisy samples: {describe_history(share, steps, '.0%')}"
    return text


def describe_history(row: Tensor, steps: int, form: str) -> str:
    """Describe the last four entries of a row of the history in words, oldest first: (OCTAVES,) -> text."""
    known = [(i, value) for i, value in enumerate(row.tolist()) if not math.isnan(value)]
    return ", ".join(f"{value:{form}} at step {min(2 ** (i + 1) - 1, steps)}" for i, value in known[-4:]) or "none"
