"""Kernels for lines 5 to 12 of Algorithm 1 of Ye et al., 2025: push a batch, fit the queue, solve for tau.

One program does all of it, about two hundred small dependent operations: it holds the queue in registers and never
leaves the multiprocessor. It computes in float64. The plain versions are clipping/loss_queue.py, mixture.py and
threshold.py. The threads of a program synchronise at a barrier before one reads what another has written.
"""

from __future__ import annotations

from ..given_label import H_MAX, H_MIN, P_MIN
from . import constants as c
from ._triton import tl, triton

if triton is not None:
    from .ogc_default_rule import _count_to_fit, _move_by_default

    _GRID, _GRID_BLOCK, _ROW = tl.constexpr(c.GRID), tl.constexpr(triton.next_power_of_2(c.GRID)), tl.constexpr(256)
    _GRID_STEP = tl.constexpr((H_MAX - H_MIN) / (c.GRID - 1))
    _H_MIN, _H_MAX, _P_MIN = tl.constexpr(H_MIN), tl.constexpr(H_MAX), tl.constexpr(P_MIN)
    _TINY, _VARIANCE_ADDED, _TOLERANCE = tl.constexpr(c.TINY), tl.constexpr(c.VARIANCE_ADDED), tl.constexpr(c.TOLERANCE)
    _LLOYD_STEPS, _EM_STEPS, _SAME_MEAN = map(tl.constexpr, (c.LLOYD_STEPS, c.EM_STEPS, c.SAME_MEAN))
    _LOGIT_MAX, _LOGIT_STEP, _TABLE = tl.constexpr(c.LOGIT_MAX), tl.constexpr(c.LOGIT_STEP), tl.constexpr(c.TABLE)
    _MOST_CLASSES, _OCTAVES = tl.constexpr(c.MOST_CLASSES), tl.constexpr(c.OCTAVES)
    _UNRELIABLE = tl.constexpr(c.UNRELIABLE_SEPARATION)

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
    def _fit(queue, seen, count, Q: tl.constexpr, BLOCK: tl.constexpr):
        """Do k-means and EM on the newest ``count`` samples, as in mixture.fit."""
        lane = tl.arange(0, BLOCK)
        inside = lane < count
        samples = count.to(tl.float64)
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
        swap = m > mn
        weight = tl.where(swap, w, wn)
        m, mn = tl.where(swap, mn, m), tl.where(swap, m, mn)
        v, vn = tl.where(swap, vn, v), tl.where(swap, v, vn)
        return m, v, mn, vn, weight, is_degenerate

    @triton.jit
    def _solve(m, v, mn, vn, target, slope, width, table):
        """Solve r(tau) = target, as in threshold.Slopes.solve: return p0 and tau."""
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
        return p0, tau

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
        queue, seen, step_now, target, log_classes, steps, slope, width, table,
        solution, degenerate, unreliable, rule_state, thresholds, history,
        DEFAULT: tl.constexpr, Q: tl.constexpr, FEWEST: tl.constexpr, RECENT: tl.constexpr, MEMORY: tl.constexpr,
        GIVEN_UP_BELOW: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Fit the queue, solve r(tau) = target, and move p0: Algorithm 1, lines 8 and 9."""
        count = tl.minimum(seen, Q)
        if DEFAULT:
            count = _count_to_fit(seen, count, FEWEST, RECENT)
        before = tl.load(solution)
        m, v, mn, vn, weight, is_degenerate = _fit(queue, seen, count, Q, BLOCK)
        good = is_degenerate == 0
        p0, tau = _solve(m, v, mn, vn, target, slope, width, table)

        each = tl.arange(0, _MOST_CLASSES)
        factor = tl.full((_MOST_CLASSES,), 1.0, tl.float64)
        if DEFAULT:
            p0, factor = _move_by_default(
                p0, before, m, mn, steps, log_classes, rule_state, thresholds, MEMORY, GIVEN_UP_BELOW
            )
            tau = _slope_at(p0, table)
            tl.debug_barrier()
        tau_of_each = tl.where(factor == 1, tau, _slope_at(tl.maximum(factor * p0, _P_MIN), table))
        if good:
            tl.store(thresholds + each, factor * p0)
            tl.store(thresholds + _MOST_CLASSES + each, tau_of_each)

        # in the order of state.State.solution
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
