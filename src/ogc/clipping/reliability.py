"""Descriptions of the state of OGC, and a warning where it cannot help (the limitation in Ye et al., 2025)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from ..kernels.constants import UNRELIABLE_SEPARATION

if TYPE_CHECKING:
    from .ogc import OGC

UNRELIABLE_UPDATES = 32
"""Consecutive unreliable updates after which to warn."""
FEW_NOISY = 0.05
"""Below this share of noisy samples, it is no problem that nothing is clipped."""


def find_problem(criterion: OGC) -> str | None:
    """Return a warning if the two normals have been hard to tell apart for long, or if nothing is ever clipped."""
    if not criterion.samples_needed:  # a schedule, which must not read from a GPU
        return None
    steps, unreliable = int(criterion.steps), int(criterion.unreliable)
    if steps < UNRELIABLE_UPDATES * criterion.every:
        return None
    if why := frozen_group(criterion):
        return why
    if unreliable >= UNRELIABLE_UPDATES:
        return (
            f"OGC: for {unreliable} updates the clean and the noisy normal have been hard to tell apart (separation "
            f"{float(criterion.mixture.separation):.2f} < {UNRELIABLE_SEPARATION:g}). Share of noisy samples: "
            f"{describe_history(criterion.history[1], steps, '.0%')}. If it fell, wrong labels may have been "
            "memorised: train for fewer epochs. If it was always small, the labels may be clean."
        )
    parameter, share = criterion.rule.parameter, float(criterion.mixture.noisy_weight)
    if parameter and share >= FEW_NOISY and not (criterion.history[0] < criterion.slopes.steepest).any():
        return (
            f"OGC: nothing has been clipped in {steps:,} steps, although {share:.0%} of the samples look noisy. "
            f"Lower {parameter}, or leave it out to use the default rule."
        )
    return None


def frozen_group(criterion: OGC) -> str | None:
    """Return a warning if the learning rate that OGC follows is always 0, although other parameters are trained."""
    optimizer = criterion.optimizer if criterion.rule.follow_lr else None
    if optimizer is None or float(criterion.highest_lr) > 0:
        return None
    if not any(float(group["lr"]) > 0 for group in optimizer.param_groups[1:]):
        return None
    return (
        "OGC clips nothing: the learning rate of the optimizer's first parameter group, which it follows, has always "
        "been 0. Make the first group one that is trained, or pass follow_lr=False."
    )


def describe_state(criterion: OGC) -> str:
    """Describe tau and the share of noisy samples, now and in the past."""
    steps, (tau, share) = int(criterion.steps), criterion.history
    text = f"steps={steps}, tau={float(criterion.tau):.4g}, p0={float(criterion.p0):.4g}"
    if not math.isnan(float(criterion.mixture.noisy_weight)):
        text += f"\ntau: {describe_history(tau, steps, '.3g')}"
        text += f"\nshare of noisy samples: {describe_history(share, steps, '.0%')}"
    return text


def describe_history(row: Tensor, steps: int, form: str) -> str:
    """Describe the last four entries of a row of the history in words, oldest first: (OCTAVES,) -> text."""
    known = [(i, value) for i, value in enumerate(row.tolist()) if not math.isnan(value)]
    return ", ".join(f"{value:{form}} at step {min(2 ** (i + 1) - 1, steps)}" for i, value in known[-4:]) or "none"
