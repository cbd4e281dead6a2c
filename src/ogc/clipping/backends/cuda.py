"""A training step of OGC on CUDA in one kernel launch, and a push and an update in one launch each.

An update is about two hundred small dependent operations, and a step with its loss and gradient about forty. As torch
operators they would take mostly launch time. Here one program does all of it: it holds the queue in registers and runs
k-means, EM and the solve without leaving the multiprocessor. Updates are float64, the loss is float32.

The plain versions are in mixture.py, threshold.py, default_rule.py and losses/; tests compare the two. The threads of a
program synchronise at a barrier before one reads what another has written.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...given_label import H_MAX, H_MIN, P_MIN
from ...losses import GCE, CrossEntropy, Focal, Pointwise
from ..default_rule import EARLY_STEPS, EPSILON, LEARNED, MEMORY, MOST_CLASSES, RECENT, period
from ..epsilon import MISSING_OPTIMIZER
from ..mixture import EM_STEPS, LLOYD_STEPS, SAME_MEAN, TINY, TOLERANCE, VARIANCE_ADDED
from ..ratio import GRID
from ..state import OCTAVES, UNRELIABLE_SEPARATION, State
from ..threshold import LOGIT_MAX, LOGIT_STEP, TABLE

if TYPE_CHECKING:
    from ..ogc import OGC

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without it
    triton = None

LARGEST = 16384
"""Largest queue that one program can hold."""
LARGEST_BATCH = 4096
LARGEST_LOGITS = 262144
"""Largest batch, in samples and in logits, that one program should process alone."""
TILE = 4096
"""Number of logits that one program holds at a time."""
FORMULAS: dict[type[Pointwise], tuple[str, str | None]] = {
    CrossEntropy: ("ce", None),
    Focal: ("fl", "gamma"),
    GCE: ("gce", "q"),
}
"""The losses that the kernel implements, and the names of their parameters."""


def serves(tensor: Tensor, samples: int) -> bool:
    """Return True if the kernels can be used for this many samples on the tensor's device."""
    return triton is not None and tensor.is_cuda and torch.version.hip is None and 0 < samples <= LARGEST


def serves_batch(logits: Tensor, labels: Tensor) -> bool:
    """Return True if :func:`step` takes this batch: (N, C) of float32 or less, (N,) of int64, not too large."""
    return (
        isinstance(labels, Tensor)
        and logits.dim() == 2
        and logits.shape[1] > 1
        and logits.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and labels.dtype == torch.int64
        and labels.shape == logits.shape[:1]
        and labels.device == logits.device
        and len(labels) <= LARGEST_BATCH
        and 0 < logits.numel() <= LARGEST_LOGITS
    )


if triton is not None:
    _GRID, _GRID_BLOCK, _ROW = tl.constexpr(GRID), tl.constexpr(triton.next_power_of_2(GRID)), tl.constexpr(256)
    _H_MIN, _H_MAX, _P_MIN = tl.constexpr(H_MIN), tl.constexpr(H_MAX), tl.constexpr(P_MIN)
    _TINY, _VARIANCE_ADDED, _TOLERANCE = tl.constexpr(TINY), tl.constexpr(VARIANCE_ADDED), tl.constexpr(TOLERANCE)
    _LOGIT_MAX, _LOGIT_STEP = tl.constexpr(LOGIT_MAX), tl.constexpr(LOGIT_STEP)
    _TABLE, _SAME_MEAN = tl.constexpr(TABLE), tl.constexpr(SAME_MEAN)
    _GRID_STEP = tl.constexpr((H_MAX - H_MIN) / (GRID - 1))
    _LLOYD_STEPS, _EM_STEPS = tl.constexpr(LLOYD_STEPS), tl.constexpr(EM_STEPS)
    _EARLY_STEPS, _MEMORY = tl.constexpr(EARLY_STEPS), tl.constexpr(MEMORY)
    _RECENT, _OCTAVES = tl.constexpr(RECENT), tl.constexpr(OCTAVES)
    _LEARNED, _MOST_CLASSES = tl.constexpr(LEARNED), tl.constexpr(MOST_CLASSES)
    _UNRELIABLE, _LOWEST = tl.constexpr(UNRELIABLE_SEPARATION), tl.constexpr(torch.finfo(torch.float32).min)

    # --- Algorithm 1, lines 5 to 12: push and update ---------------------------------------------------------------

    @triton.jit
    def _push(H, queue, seen, old, Q: tl.constexpr):
        """Do the same as loss_queue.push, given ``old``, the samples seen before. Return the number seen now."""
        keep = tl.abs(H) < float("inf")
        rank = tl.cumsum(keep.to(tl.int64), 0)
        count = tl.sum(keep.to(tl.int64), 0)
        keep = keep & (rank > count - Q)
        tl.store(queue + (old + rank - 1) % Q, tl.minimum(tl.maximum(H, _H_MIN), _H_MAX), mask=keep)
        tl.store(seen, old + count)
        return old + count

    @triton.jit
    def _add3(a0, a1, a2, b0, b1, b2):
        return a0 + b0, a1 + b1, a2 + b2

    @triton.jit
    def _sums(r, H, squares):
        """Sums of r, r H and r H^2."""
        return tl.reduce((r, r * H, r * squares), 0, _add3)

    @triton.jit
    def _normal(size, total, squares, samples):
        """Do the M step. Return weight, mean, variance, and a, b, c of the log density a + b H + c H^2."""
        size += _TINY
        mean = total / size
        var = squares / size - mean * mean + _VARIANCE_ADDED
        weight = size / samples
        return weight, mean, var, tl.log(weight) - 0.5 * tl.log(var) - mean * mean / (2 * var), mean / var, -0.5 / var

    @triton.jit
    def _slope_at(p, table):
        """Return the slope at p, as in threshold.Slopes.at."""
        logit = (_LOGIT_MAX - tl.log(p / (1 - p))) / _LOGIT_STEP
        left = tl.minimum(tl.maximum(logit.to(tl.int32), 0), _TABLE - 1)
        below, above = tl.log(tl.load(table + left)), tl.log(tl.load(table + left + 1))
        part = tl.minimum(tl.maximum(logit - left.to(tl.float64), 0.0), 1.0)
        return tl.exp(below + (above - below) * part)

    @triton.jit
    def _update(
        queue,
        seen,
        step_now,
        target,
        log_classes,
        steps,
        slope,
        width,
        table,
        solution,
        degenerate,
        unreliable,
        by_class,
        thresholds,
        history,
        DEFAULT: tl.constexpr,
        Q: tl.constexpr,
        FEWEST: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        """Fit the queue, solve r(tau) = target, and move p0: Algorithm 1, lines 8 and 9."""
        count = tl.minimum(seen, Q)
        if DEFAULT:  # as in default_rule.recent
            count = tl.minimum(tl.maximum(seen // _RECENT, FEWEST), count)
        # k-means and EM, as in mixture.fit
        lane = tl.arange(0, BLOCK)
        inside = lane < count
        samples = count.to(tl.float64)
        before = tl.load(solution)
        H = tl.load(queue + (seen - count + lane) % Q, mask=inside, other=0.0).to(tl.float64)
        squares = H * H
        one = tl.where(inside, 1.0, 0.0).to(tl.float64)
        sum0, sum1, sum2 = _sums(one, H, squares)
        low = tl.min(tl.where(inside, H, _H_MAX + 1.0), 0)
        high = tl.max(tl.where(inside, H, -1.0), 0)
        step = 0
        while step < _LLOYD_STEPS:
            size, total, _ = _sums(tl.where(H > (low + high) / 2, one, 0.0), H, squares)
            new_low = (sum1 - total + _TINY * low) / (sum0 - size + _TINY)
            new_high = (total + _TINY * high) / (size + _TINY)
            step = tl.where((new_low == low) & (new_high == high), _LLOYD_STEPS, step + 1)
            low, high = new_low, new_high

        s0, s1, s2 = _sums(tl.where(H > (low + high) / 2, one, 0.0), H, squares)
        w, m, v, a, b, c = _normal(sum0 - s0, sum1 - s1, sum2 - s2, samples)
        wn, mn, vn, an, bn, cn = _normal(s0, s1, s2, samples)
        likelihood = sum0 * float("-inf")
        step = 0
        while step < _EM_STEPS:
            log_odds = ((cn - c) * H + (bn - b)) * H + (an - a)
            decay = tl.exp(-tl.abs(log_odds))
            softplus = tl.where(log_odds > 0, log_odds, 0.0) + tl.log(1 + decay)
            noisy = one * tl.where(log_odds > 0, 1.0, decay) / (1 + decay)
            last = likelihood
            likelihood = (a * sum0 + b * sum1 + c * sum2 + tl.sum(one * softplus, 0)) / samples
            s0, s1, s2 = _sums(noisy, H, squares)
            w, m, v, a, b, c = _normal(sum0 - s0, sum1 - s1, sum2 - s2, samples)
            wn, mn, vn, an, bn, cn = _normal(s0, s1, s2, samples)
            step = tl.where(tl.abs(likelihood - last) < _TOLERANCE, _EM_STEPS, step + 1)
        is_degenerate = (tl.abs(mn - m) < _SAME_MEAN) | (w < 2.0 / samples) | (wn < 2.0 / samples)
        good = is_degenerate == 0
        swap = m > mn
        weight = tl.where(swap, w, wn)
        m, mn = tl.where(swap, mn, m), tl.where(swap, m, mn)
        v, vn = tl.where(swap, vn, v), tl.where(swap, v, vn)

        # the crossing of D, as in threshold.Slopes.solve
        i = tl.arange(0, _GRID_BLOCK)
        on_grid = i < _GRID
        Hg = i.to(tl.float64) * _GRID_STEP + _H_MIN
        clean = tl.where(on_grid, tl.exp(-(Hg - m) * (Hg - m) / (2 * v)), 0.0)
        noisy_g = tl.where(on_grid, tl.exp(-(Hg - mn) * (Hg - mn) / (2 * vn)), 0.0)
        d = noisy_g / tl.sum(noisy_g, 0) - target * (clean / tl.sum(clean, 0))
        beyond = tl.cumsum(d, 0, reverse=True)
        D = tl.cumsum(tl.load(width + i, mask=on_grid, other=0.0) * beyond, 0)
        right = tl.sum(tl.where(on_grid & (D < 0), 1, 0), 0)
        right = tl.minimum(tl.maximum(right, 1), _GRID - 1)
        D0 = tl.sum(tl.where(i == right - 1, D, 0.0), 0)
        D1 = tl.sum(tl.where(i == right, D, 0.0), 0)
        clips = tl.sum(tl.where(i == _GRID - 1, D, 0.0), 0) >= 0
        slope0, slope1 = tl.load(slope + right - 1), tl.load(slope + right)
        part = -D0 / (D1 - D0 + _TINY)
        tau = slope0 + (slope1 - slope0) * tl.minimum(tl.maximum(part, 0.0), 1.0)

        # back from tau to p0, as in Slopes.p0_at: the row of the table that holds tau, then the place in it
        column = tl.arange(0, _ROW)
        row = tl.sum((tl.load(table + column * _ROW) < tau).to(tl.int32), 0)
        first = tl.maximum(row - 1, 0) * _ROW
        place = first + tl.maximum(tl.sum((tl.load(table + first + column) < tau).to(tl.int32), 0), 1)
        below, above = tl.log(tl.load(table + place - 1)), tl.log(tl.load(table + place))
        part = tl.minimum(tl.maximum((tl.log(tau) - below) / (above - below), 0.0), 1.0)
        p0 = 1 / (1 + tl.exp(((place - 1).to(tl.float64) + part) * _LOGIT_STEP - _LOGIT_MAX))
        p0 = tl.where(clips, p0, _P_MIN)
        tau = tl.where(clips, tau, tl.load(slope + _GRID - 1))

        each = tl.arange(0, _MOST_CLASSES)
        factor = tl.full((_MOST_CLASSES,), 1.0, tl.float64)
        if DEFAULT:  # as in default_rule.py
            of_class = tl.load(by_class + each)
            better = tl.load(by_class + _MOST_CLASSES + each)
            occurs = of_class > 0
            share = better.to(tl.float64) / tl.maximum(of_class, 1).to(tl.float64)
            goal = tl.minimum(share / _LEARNED, 1.0)
            given_up = occurs & (goal < 1)  # not share < _LEARNED: Triton 3.6 compares with float32(1/3)
            gives_up = (tl.sum(given_up.to(tl.int32), 0) > 0) | (tl.sum(of_class, 0) == 0)
            tl.debug_barrier()
            tl.store(by_class + each, tl.zeros((_MOST_CLASSES,), tl.int64))
            tl.store(by_class + _MOST_CLASSES + each, tl.zeros((_MOST_CLASSES,), tl.int64))
            edge = tl.minimum(tl.exp(-tl.maximum(m, 3 * log_classes - 2 * mn)), 1 - _P_MIN)
            aim = tl.where(gives_up, p0, tl.maximum(p0, edge))
            aim = tl.where(mn <= log_classes, tl.minimum(p0, tl.exp(-log_classes)), aim)
            part = 1 - tl.exp(-steps.to(tl.float64) / _MEMORY)
            p0 = before + part * (aim - before)
            tau = _slope_at(p0, table)
            factor = tl.load(thresholds + each) / before
            factor = tl.where(occurs, factor + part * (goal - factor), factor)
            tl.debug_barrier()
        tau_of_each = tl.where(factor == 1, tau, _slope_at(tl.maximum(factor * p0, _P_MIN), table))
        if good:
            tl.store(thresholds + each, factor * p0)
            tl.store(thresholds + _MOST_CLASSES + each, tau_of_each)

        # the slots of the solution are in the order of state.Solution
        tl.store(solution, p0, mask=good)
        tl.store(solution + 1, tau, mask=good)
        tl.store(solution + 2, m, mask=good)
        tl.store(solution + 3, v, mask=good)
        tl.store(solution + 4, mn, mask=good)
        tl.store(solution + 5, vn, mask=good)
        tl.store(solution + 6, weight, mask=good)
        octave = (tl.log2(tl.maximum(step_now, 1).to(tl.float64) + 0.5)).to(tl.int32)
        octave = tl.minimum(octave, _OCTAVES - 1)
        tl.store(history + octave, tau, mask=good)
        tl.store(history + _OCTAVES + octave, weight, mask=good)
        tl.store(degenerate, tl.load(degenerate) + 1, mask=is_degenerate)
        poor = (mn - m) / tl.sqrt((v + vn) / 2) < _UNRELIABLE
        tl.store(unreliable, tl.where(poor, tl.load(unreliable) + 1, 0), mask=good)

    # --- the loss, as in losses.pointwise and losses.clipped -------------------------------------------------------

    @triton.jit
    def _power(x, k):
        return tl.exp(k * tl.log(x))

    @triton.jit
    def _value(H, p, k, LOSS: tl.constexpr):
        if LOSS == "ce":
            return H
        elif LOSS == "fl":
            return _power(1 - p, k) * H
        else:
            return (1 - _power(p, k)) / k

    @triton.jit
    def _slope(p, k, LOSS: tl.constexpr):
        if LOSS == "ce":
            return 1 / p
        elif LOSS == "fl":
            return _power(1 - p, k) / p - k * _power(1 - p, k - 1) * tl.log(p)
        else:
            return _power(p, k - 1)

    @triton.jit
    def _clipped(H, p0, tau, k, LOSS: tl.constexpr):
        """Return the loss, continued below p0 by a line of slope tau, and its derivative by H. NaN stays NaN."""
        H0 = -tl.log(p0)
        p = tl.exp(-H)
        line = H > H0
        held = tl.where(line, p0, tl.where(p > 1 - _P_MIN, 1 - _P_MIN, p))
        value = _value(tl.where(line, H0, H), held, k, LOSS) + tl.where(line, tau * (p0 - p), 0.0)
        return value, p * tl.minimum(_slope(held, k, LOSS), tau)

    @triton.jit
    def _tile(logits, of_row, of_class, row, column, N, C):
        at = logits + row.to(tl.int64)[:, None] * of_row + column.to(tl.int64)[None, :] * of_class
        return tl.load(at, mask=(row < N)[:, None] & (column < C)[None, :], other=float("-inf")).to(tl.float32)

    @triton.jit
    def _normalise(logits, of_row, of_class, N, C, top, log_sum, ROWS: tl.constexpr, CLASSES: tl.constexpr):
        """Store top and log_sum of each row, where log_softmax = x - top - log_sum and top is the maximum."""
        for first in range(0, N, ROWS):
            row = first + tl.arange(0, ROWS)
            most = tl.full((ROWS,), _LOWEST, tl.float32)
            total = tl.zeros((ROWS,), tl.float32)
            for start in range(0, C, CLASSES):
                x = _tile(logits, of_row, of_class, row, start + tl.arange(0, CLASSES), N, C)
                before = most
                most = tl.maximum(before, tl.max(x, 1))
                total = total * tl.exp(before - most) + tl.sum(tl.exp(x - most[:, None]), 1)
            tl.store(top + row, most, mask=row < N)
            tl.store(log_sum + row, tl.log(total), mask=row < N)

    @triton.jit
    def _differentiate(
        logits,
        of_row,
        of_class,
        labels,
        N,
        C,
        top,
        log_sum,
        pull,
        gradient,
        ROWS: tl.constexpr,
        CLASSES: tl.constexpr,
    ):
        """Store the gradient with respect to the logits: softmax - one-hot, each row times its ``pull``."""
        for first in range(0, N, ROWS):
            row = first + tl.arange(0, ROWS)
            inside = row < N
            shift = tl.load(top + row, mask=inside, other=0.0)
            rest = tl.load(log_sum + row, mask=inside, other=0.0)
            scale = tl.load(pull + row, mask=inside, other=0.0)
            label = tl.load(labels + row, mask=inside, other=0)
            for start in range(0, C, CLASSES):
                column = start + tl.arange(0, CLASSES)
                x = _tile(logits, of_row, of_class, row, column, N, C)
                softmax = tl.exp(x - shift[:, None] - rest[:, None])
                one_hot = tl.where(column[None, :] == label[:, None], 1.0, 0.0)
                at = gradient + row[:, None] * C + column[None, :]
                tl.store(at, (softmax - one_hot) * scale[:, None], mask=inside[:, None] & (column < C)[None, :])

    @triton.jit(do_not_specialize=["N"])
    def _step(
        logits,
        of_row,
        of_class,
        labels,
        N,
        C,
        ignore_index,
        queue,
        seen,
        steps,
        degenerate,
        unreliable,
        solution,
        highest_lr,
        by_class,
        thresholds,
        history,
        slope,
        width,
        table,
        lr_at,
        lr: tl.float64,
        epsilon: tl.float64,
        log_classes: tl.float64,
        parameter,
        scratch,
        loss,
        clipping,
        gradient,
        RULE: tl.constexpr,
        DEFAULT: tl.constexpr,
        LOSS: tl.constexpr,
        MEAN: tl.constexpr,
        Q: tl.constexpr,
        BLOCK: tl.constexpr,
        EVERY: tl.constexpr,
        EARLY: tl.constexpr,
        FEWEST: tl.constexpr,
        SAMPLES: tl.constexpr,
        ROWS: tl.constexpr,
        CLASSES: tl.constexpr,
    ):
        """Run Algorithm 1, lines 4 to 13. With ``LOSS=None``, stop after line 12: update the state only."""
        old_seen, step, highest = tl.load(seen), tl.load(steps) + 1, tl.load(highest_lr)
        top, log_sum, pull = scratch, scratch + N, scratch + 2 * N  # (N,) each

        _normalise(logits, of_row, of_class, N, C, top, log_sum, ROWS, CLASSES)
        tl.debug_barrier()

        # line 4: H, NaN if ignored or out of range, which is not queued
        row = tl.arange(0, SAMPLES)
        inside = row < N
        label = tl.load(labels + row, mask=inside, other=ignore_index)
        kept = label != ignore_index
        valid = kept & (label >= 0) & (label < C)
        x = tl.load(logits + row.to(tl.int64) * of_row + label * of_class, mask=valid, other=float("nan"))
        shift = tl.load(top + row, mask=inside, other=0.0)
        H = tl.load(log_sum + row, mask=inside, other=0.0) - (x.to(tl.float32) - shift)

        # lines 5 to 12
        now_seen = _push(H, queue, seen, old_seen, Q)
        if DEFAULT:
            counted = valid & (tl.abs(H) < float("inf"))
            better = counted & (H.to(tl.float64) < log_classes)
            if C <= _MOST_CLASSES:
                tl.atomic_add(by_class + label, counted.to(tl.int64), mask=counted)
                tl.atomic_add(by_class + _MOST_CLASSES + label, better.to(tl.int64), mask=better)
        tl.store(steps, step)
        target = tl.full((), 1.0, tl.float64) + epsilon
        if RULE != "constant":
            if lr_at is not None:
                lr = tl.load(lr_at).to(tl.float64)
            highest = tl.maximum(highest, lr)
            tl.store(highest_lr, highest)
            target = 1 + (epsilon * lr / highest if RULE == "relative" else epsilon * lr)
        period = tl.where(step > _EARLY_STEPS, EVERY, EARLY)
        if (step % period == 0) & (now_seen >= FEWEST) & (target > 1):
            tl.debug_barrier()
            _update(
                queue,
                now_seen,
                step,
                target,
                log_classes,
                period,
                slope,
                width,
                table,
                solution,
                degenerate,
                unreliable,
                by_class,
                thresholds,
                history,
                DEFAULT,
                Q,
                FEWEST,
                BLOCK,
            )

        # line 13: the loss with the new tau, and its gradient
        if LOSS is not None:
            tl.debug_barrier()
            p0, tau = tl.load(solution).to(tl.float32), tl.load(solution + 1).to(tl.float32)
            if DEFAULT:
                has_own = valid & (label < _MOST_CLASSES)
                own = thresholds + label
                p0 = tl.where(has_own, tl.load(own, mask=has_own, other=0.0).to(tl.float32), p0)
                p0 = tl.maximum(p0, _P_MIN)
                tau = tl.where(has_own, tl.load(own + _MOST_CLASSES, mask=has_own, other=0.0).to(tl.float32), tau)
            value, by_H = _clipped(H, p0, tau, parameter, LOSS)
            share = 1.0
            if MEAN:
                share = 1.0 / tl.maximum(tl.sum(kept.to(tl.int32), 0), 1).to(tl.float32)
            tl.store(pull + row, tl.where(kept, by_H * share, 0.0), mask=inside)
            tl.store(loss, tl.sum(tl.where(kept, value, 0.0), 0) * share)
            tl.store(clipping + row, p0, mask=inside)
            tl.store(clipping + N + row, tau, mask=inside)
            tl.debug_barrier()
            _differentiate(logits, of_row, of_class, labels, N, C, top, log_sum, pull, gradient, ROWS, CLASSES)

    # --- a push and an update in a launch of their own -------------------------------------------------------------

    @triton.jit
    def _push_alone(H, queue, seen, N, Q: tl.constexpr, BLOCK: tl.constexpr):
        lane = tl.arange(0, BLOCK)
        old = tl.load(seen)
        tl.debug_barrier()
        _push(tl.load(H + lane, mask=lane < N, other=float("inf")), queue, seen, old, Q)

    @triton.jit
    def _update_alone(
        queue,
        seen,
        steps,
        epsilon,
        log_classes: tl.float64,
        slope,
        width,
        table,
        solution,
        degenerate,
        unreliable,
        by_class,
        thresholds,
        history,
        DEFAULT: tl.constexpr,
        Q: tl.constexpr,
        BLOCK: tl.constexpr,
        EVERY: tl.constexpr,
        EARLY: tl.constexpr,
        FEWEST: tl.constexpr,
        BY_CLOCK: tl.constexpr,
    ):
        target = 1 + tl.load(epsilon)
        step, count = tl.load(steps), tl.load(seen)
        period = tl.where(step > _EARLY_STEPS, EVERY, EARLY)
        due = (step % period == 0) | (BY_CLOCK == 0)
        if due & (count >= FEWEST) & (target > 1):
            _update(
                queue,
                count,
                step,
                target,
                log_classes,
                period,
                slope,
                width,
                table,
                solution,
                degenerate,
                unreliable,
                by_class,
                thresholds,
                history,
                DEFAULT,
                Q,
                FEWEST,
                BLOCK,
            )


def step(criterion: OGC, state: State, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Run Algorithm 1, lines 4 to 13, in one launch: (N, C), (N,) -> value (), gradient (N, C), p0 (N,), tau (N,).

    Return None, and update the state only, if the kernel does not implement the loss or its reduction.
    """
    name, parameter = formula(criterion)
    if name is None:
        update_state(criterion, state, logits, labels)
        return None
    gradient = logits.new_empty(logits.shape, dtype=torch.float32)
    loss, clipping = gradient.new_empty(()), gradient.new_empty(2, len(labels))
    _launch_step(criterion, state, logits, labels, name, parameter, loss, clipping, gradient)
    return loss, gradient, clipping[0], clipping[1]


def update_state(criterion: OGC, state: State, logits: Tensor, labels: Tensor) -> None:
    """Run Algorithm 1, lines 4 to 12, in one launch, without the loss: (N, C), (N,)."""
    _launch_step(criterion, state, logits, labels, None, 0.0, None, None, None)


def _launch_step(
    criterion: OGC,
    state: State,
    logits: Tensor,
    labels: Tensor,
    name: str | None,
    parameter: float,
    loss: Tensor | None,
    clipping: Tensor | None,
    gradient: Tensor | None,
) -> None:
    N, C = logits.shape
    criterion._num_classes = C
    criterion._count_step(state)
    lr = criterion._lr()
    if lr is None and criterion.follow_lr and criterion._is_due(state):
        raise RuntimeError(MISSING_OPTIMIZER)
    lr = 0.0 if lr is None else lr
    size, slopes = criterion.queue_size, criterion.slopes.on(state.queue.device)
    block, samples = max(triton.next_power_of_2(size), 64), triton.next_power_of_2(N)
    classes = min(triton.next_power_of_2(C), 128)  # a warp's width, four each: no row is shared by two warps
    rows = min(samples, TILE // classes)
    scratch = logits.new_empty(3 * N, dtype=torch.float32)
    with torch.cuda.device_of(logits):
        _step[(1,)](
            logits,
            *logits.stride(),
            labels.contiguous(),
            N,
            C,
            criterion.ignore_index,
            *state,
            slopes.slope,
            slopes.width,
            slopes.table,
            lr if isinstance(lr, Tensor) else None,
            0.0 if isinstance(lr, Tensor) else lr,
            criterion.epsilon or criterion.epsilon0 or EPSILON,
            math.log(C),
            parameter,
            scratch,
            loss,
            clipping,
            gradient,
            LOSS=name,
            MEAN=criterion.reduction == "mean",
            Q=size,
            BLOCK=block,
            RULE=("relative" if criterion.epsilon0 is None else "times lr") if criterion.follow_lr else "constant",
            **_schedule(criterion),
            SAMPLES=samples,
            ROWS=rows,
            CLASSES=classes,
            num_warps=_warps(max(block, samples, rows * classes)),
        )


def formula(criterion: OGC) -> tuple[str | None, float]:
    """Return the kernel's name for the criterion's loss, None if it has none, and the parameter of the loss."""
    if criterion.weight is not None or criterion.reduction == "none":
        return None, 0.0
    name, parameter = FORMULAS.get(type(criterion.base), (None, None))
    return name, float(getattr(criterion.base, parameter)) if parameter else 0.0


def push(queue: Tensor, seen: Tensor, H: Tensor) -> None:
    """Do the same as :func:`ogc.clipping.loss_queue.push` in one launch."""
    size = queue.numel() - 1
    block = triton.next_power_of_2(H.numel())
    with torch.cuda.device_of(queue):
        _push_alone[(1,)](H, queue, seen, H.numel(), Q=size, BLOCK=block, num_warps=_warps(block))


def update(criterion: OGC, state: State, epsilon: Tensor | float, by_clock: bool) -> None:
    """Run Algorithm 1, lines 8 and 9, in one launch, if enough samples are queued and epsilon is above 0.

    :param epsilon: a tensor on the device if reading it would wait.
    :param by_clock: update only if that is due by the step number on the device.
    """
    size, slopes = state.queue.numel() - 1, criterion.slopes.on(state.queue.device)
    block = max(triton.next_power_of_2(size), 64)
    with torch.cuda.device_of(state.queue):
        _update_alone[(1,)](
            state.queue,
            state.seen,
            state.steps,
            epsilon.double() if isinstance(epsilon, Tensor) else state.solution.new_full((), epsilon),
            math.log(max(criterion._num_classes, 1)),
            slopes.slope,
            slopes.width,
            slopes.table,
            state.solution,
            state.degenerate,
            state.unreliable,
            state.by_class,
            state.thresholds,
            state.history,
            Q=size,
            BLOCK=block,
            BY_CLOCK=int(by_clock),
            num_warps=_warps(block),
            **_schedule(criterion),
        )


def _schedule(criterion: OGC) -> dict[str, Any]:
    """Return the constants that say when an update is due and by which rule."""
    default, every = criterion.rule == "default", criterion.every
    early = period(1, every) if default else every
    return {"DEFAULT": default, "EVERY": every, "EARLY": early, "FEWEST": criterion._fewest}


def _warps(block: int) -> int:
    """Return a number of warps that leaves about four numbers per thread."""
    return min(max(block // 128, 1), 32)
