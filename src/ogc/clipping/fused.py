"""One small kernel for an update on CUDA, and one for a push: the twins of the torch versions, which are the fallback.

An update is some two hundred dependent little operations; as torch operators they take over half a millisecond of a
GPU's time, nearly all of it launches. Here one program holds the queue in registers and goes through k-means, EM and
the solve without leaving the multiprocessor. float64 throughout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..given_label import H_MAX, H_MIN, P_MIN
from .mixture import EM_STEPS, LLOYD_STEPS, TINY, TOLERANCE, VARIANCE_FLOOR
from .ratio import GRID
from .threshold import LOGIT_MAX, TABLE, Slopes

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without it
    triton = None

LARGEST = 16384
"""The most samples that one program holds."""


def serves(tensor: Tensor, samples: int) -> bool:
    """Whether the kernels can be used for so many samples on this tensor's device."""
    return triton is not None and tensor.is_cuda and torch.version.hip is None and 0 < samples <= LARGEST


if triton is not None:
    _GRID, _GRID_BLOCK, _ROW = tl.constexpr(GRID), tl.constexpr(triton.next_power_of_2(GRID)), tl.constexpr(256)
    _H_MIN, _H_MAX, _P_MIN = tl.constexpr(H_MIN), tl.constexpr(H_MAX), tl.constexpr(P_MIN)
    _TINY, _FLOOR, _TOLERANCE = tl.constexpr(TINY), tl.constexpr(VARIANCE_FLOOR), tl.constexpr(TOLERANCE)
    _LOGIT_MAX, _LOGIT_STEP = tl.constexpr(LOGIT_MAX), tl.constexpr(2 * LOGIT_MAX / TABLE)
    _GRID_STEP = tl.constexpr((H_MAX - H_MIN) / (GRID - 1))
    _LLOYD_STEPS, _EM_STEPS = tl.constexpr(LLOYD_STEPS), tl.constexpr(EM_STEPS)

    @triton.jit
    def _add3(a0, a1, a2, b0, b1, b2):
        return a0 + b0, a1 + b1, a2 + b2

    @triton.jit
    def _sums(r, H, squares):
        """Sums of r, r H and r H^2."""
        return tl.reduce((r, r * H, r * squares), 0, _add3)

    @triton.jit
    def _normal(size, total, squares, samples: tl.constexpr):
        """The M step: weight, mean, variance, and the log density's a, b, c in a + b H + c H^2."""
        size += _TINY
        mean = total / size
        var = squares / size - mean * mean + _FLOOR
        weight = size / samples
        return weight, mean, var, tl.log(weight) - 0.5 * tl.log(var) - mean * mean / (2 * var), mean / var, -0.5 / var

    @triton.jit
    def _update(
        queue,
        seen,
        steps,
        epsilon,
        slope,
        width,
        table,
        solution,
        degenerate,
        unreliable,
        Q: tl.constexpr,
        BLOCK: tl.constexpr,
        UNRELIABLE: tl.constexpr,
        EVERY: tl.constexpr,
    ):
        if tl.load(steps) % EVERY != 0:
            return

        # k-means and EM, as in mixture.fit_or_doubt
        lane = tl.arange(0, BLOCK)
        inside = lane < Q
        H = tl.load(queue + lane, mask=inside, other=0.0).to(tl.float64)
        squares = H * H
        one = tl.where(inside, 1.0, 0.0).to(tl.float64)
        sum0, sum1, sum2 = _sums(one, H, squares)
        low = tl.min(tl.where(inside, H, _H_MAX + 1.0), 0)
        high = tl.max(tl.where(inside, H, -1.0), 0)
        spread = high - low
        step = 0
        while step < _LLOYD_STEPS:
            size, total, _ = _sums(tl.where(H > (low + high) / 2, one, 0.0), H, squares)
            new_low = (sum1 - total + _TINY * low) / (sum0 - size + _TINY)
            new_high = (total + _TINY * high) / (size + _TINY)
            step = tl.where((new_low == low) & (new_high == high), _LLOYD_STEPS, step + 1)
            low, high = new_low, new_high

        s0, s1, s2 = _sums(tl.where(H > (low + high) / 2, one, 0.0), H, squares)
        w, m, v, a, b, c = _normal(sum0 - s0, sum1 - s1, sum2 - s2, Q)
        wn, mn, vn, an, bn, cn = _normal(s0, s1, s2, Q)
        likelihood = sum0 * float("-inf")
        step = 0
        while step < _EM_STEPS:
            log_odds = ((cn - c) * H + (bn - b)) * H + (an - a)
            decay = tl.exp(-tl.abs(log_odds))
            softplus = tl.where(log_odds > 0, log_odds, 0.0) + tl.log(1 + decay)
            noisy = one * tl.where(log_odds > 0, 1.0, decay) / (1 + decay)
            before = likelihood
            likelihood = (a * sum0 + b * sum1 + c * sum2 + tl.sum(one * softplus, 0)) / Q
            s0, s1, s2 = _sums(noisy, H, squares)
            w, m, v, a, b, c = _normal(sum0 - s0, sum1 - s1, sum2 - s2, Q)
            wn, mn, vn, an, bn, cn = _normal(s0, s1, s2, Q)
            step = tl.where(tl.abs(likelihood - before) < _TOLERANCE, _EM_STEPS, step + 1)
        doubt = (spread < 1e-6) | (w < 2.0 / Q) | (wn < 2.0 / Q)
        swap = m > mn
        weight = tl.where(swap, w, wn)
        m, mn = tl.where(swap, mn, m), tl.where(swap, m, mn)
        v, vn = tl.where(swap, vn, v), tl.where(swap, v, vn)

        # the crossing of D, as in threshold.Slopes.solve
        target = 1 + tl.load(epsilon)
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

        ready = (tl.load(seen) >= Q) & (target > 1)
        good = ready & (doubt == 0)
        tl.store(solution, tl.where(clips, p0, _P_MIN), mask=good)
        tl.store(solution + 1, tl.where(clips, tau, tl.load(slope + _GRID - 1)), mask=good)
        tl.store(solution + 2, m, mask=good)
        tl.store(solution + 3, v, mask=good)
        tl.store(solution + 4, mn, mask=good)
        tl.store(solution + 5, vn, mask=good)
        tl.store(solution + 6, weight, mask=good)
        tl.store(degenerate, tl.load(degenerate) + 1, mask=ready & (doubt != 0))
        poor = (mn - m) / tl.sqrt((v + vn) / 2) < UNRELIABLE
        tl.store(unreliable, tl.where(poor, tl.load(unreliable) + 1, 0), mask=good)

    @triton.jit
    def _push(H, queue, seen, N, Q: tl.constexpr, BLOCK: tl.constexpr):
        lane = tl.arange(0, BLOCK)
        value = tl.load(H + lane, mask=lane < N, other=float("inf"))
        keep = tl.abs(value) < float("inf")
        rank = tl.cumsum(keep.to(tl.int64), 0)
        count = tl.sum(keep.to(tl.int64), 0)
        old = tl.load(seen)
        keep = keep & (rank > count - Q)
        tl.store(queue + (old + rank - 1) % Q, tl.minimum(tl.maximum(value, _H_MIN), _H_MAX), mask=keep)
        tl.store(seen, old + count)


def push(queue: Tensor, seen: Tensor, H: Tensor) -> None:
    """:func:`ogc.clipping.loss_queue.push` in one launch."""
    size = queue.numel() - 1
    block = triton.next_power_of_2(H.numel())
    _push[(1,)](H, queue, seen, H.numel(), Q=size, BLOCK=block, num_warps=_warps(block))


def update(state: Any, slopes: Slopes, epsilon: Tensor, unreliable_below: float, every: int = 1) -> None:
    """The update of an :class:`ogc.OGC` in one launch, if this is an ``every``-th step: the device looks at its clock.

    :param epsilon: a 0-dim float64 tensor on the device.
    """
    size = state.queue.numel() - 1
    block = max(triton.next_power_of_2(size), 64)
    _update[(1,)](
        state.queue,
        state.seen,
        state.steps,
        epsilon,
        slopes.slope,
        slopes.width,
        slopes.table,
        state.solution,
        state.degenerate,
        state.unreliable,
        Q=size,
        BLOCK=block,
        UNRELIABLE=unreliable_below,
        EVERY=every,
        num_warps=_warps(block),
    )


def _warps(block: int) -> int:
    """About four samples a thread."""
    return min(max(block // 128, 1), 32)
