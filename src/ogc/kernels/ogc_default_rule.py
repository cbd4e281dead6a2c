"""The default rule in the kernels. clipping/default_rule.py explains it, and has the plain version.

``rule_state`` holds two rows of counts by class: samples since the last update, and those better than a guess.
"""

from __future__ import annotations

from ..given_label import P_MIN
from ._triton import tl, triton
from .constants import MOST_CLASSES

if triton is not None:
    _MOST_CLASSES, _P_MIN = tl.constexpr(MOST_CLASSES), tl.constexpr(P_MIN)

    @triton.jit
    def _count_batch(H, label, valid, C, log_classes, rule_state):
        """Do the same as Default.count."""
        counted = valid & (tl.abs(H) < float("inf"))
        better = counted & (H.to(tl.float64) < log_classes)
        if C <= _MOST_CLASSES:
            tl.atomic_add(rule_state + label, counted.to(tl.int64), mask=counted)
            tl.atomic_add(rule_state + _MOST_CLASSES + label, better.to(tl.int64), mask=better)

    @triton.jit
    def _count_to_fit(seen, count, FEWEST: tl.constexpr, RECENT: tl.constexpr):
        """Do the same as Default.recent."""
        return tl.minimum(tl.maximum(seen // RECENT, FEWEST), count)

    @triton.jit
    def _move_by_default(
        p0, before, m, mn, steps, log_classes, rule_state, thresholds,
        MEMORY: tl.constexpr, GIVEN_UP_BELOW: tl.constexpr,
    ):  # fmt: skip
        """Do the same as Default.move: return p0, and the factor of each class."""
        each = tl.arange(0, _MOST_CLASSES)
        of_class = tl.load(rule_state + each)
        better = tl.load(rule_state + _MOST_CLASSES + each)
        occurs = of_class > 0
        share = better.to(tl.float64) / tl.maximum(of_class, 1).to(tl.float64)
        goal = tl.minimum(share / GIVEN_UP_BELOW, 1.0)
        given_up = occurs & (goal < 1)  # not share < GIVEN_UP_BELOW: Triton 3.6 compares with float32(1/3)
        gives_up = (tl.sum(given_up.to(tl.int32), 0) > 0) | (tl.sum(of_class, 0) == 0)
        tl.debug_barrier()
        tl.store(rule_state + each, tl.zeros((_MOST_CLASSES,), tl.int64))
        tl.store(rule_state + _MOST_CLASSES + each, tl.zeros((_MOST_CLASSES,), tl.int64))
        edge = tl.minimum(tl.exp(-tl.maximum(m, 3 * log_classes - 2 * mn)), 1 - _P_MIN)
        aim = tl.where(gives_up, p0, tl.maximum(p0, edge))
        aim = tl.where(mn <= log_classes, tl.minimum(p0, tl.exp(-log_classes)), aim)
        part = 1 - tl.exp(-steps.to(tl.float64) / MEMORY)
        p0 = before + part * (aim - before)
        factor = tl.load(thresholds + each) / before
        factor = tl.where(occurs, factor + part * (goal - factor), factor)
        return p0, factor
