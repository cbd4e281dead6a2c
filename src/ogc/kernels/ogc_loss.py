"""The clipped loss and its gradient in a program of its own threads: Algorithm 1, line 13, of Ye et al., 2025.

The plain versions are losses/pointwise.py, losses/clipped.py and clipping/backends/eager.py. All of it is float32.
"""

from __future__ import annotations

import torch

from ..given_label import P_MIN
from ._triton import tl, triton

if triton is not None:
    _P_MIN, _LOWEST = tl.constexpr(P_MIN), tl.constexpr(torch.finfo(torch.float32).min)

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
        logits, of_row, of_class, labels, N, C, top, log_sum, pull, gradient,
        ROWS: tl.constexpr, CLASSES: tl.constexpr,
    ):  # fmt: skip
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
