"""Kernels of the engine: the optimizer's step over flat memory, and a step's books. The plain loop is their twin.

Sixty tensors as sixty slices of one make clipping, weight decay, momentum, the averaged weights and the bf16 copy for
the next step two launches, each number read and written once.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without it
    triton = None

NORM_BLOCK = 16384
STEP_BLOCK = 2048

if triton is not None:

    @triton.jit
    def _gradient(low, high, i, n_low, n):
        """The gradient's numbers at i, from its two halves."""
        short = tl.load(low + i, mask=i < n_low, other=0.0).to(tl.float32)
        return short + tl.load(high + i - n_low, mask=(i >= n_low) & (i < n), other=0.0)

    @triton.jit
    def _squares(low, high, partial, n_low, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        g = _gradient(low, high, i, n_low, n)
        tl.store(partial + tl.program_id(0), tl.sum(g * g, 0))

    @triton.jit
    def _step(
        weight,
        momentum,
        average,
        short,
        low,
        high,
        partial,
        rates,
        position,
        n_low,
        n,
        parts,
        clip_norm,
        MOMENTUM: tl.constexpr,
        DECAY: tl.constexpr,
        NESTEROV: tl.constexpr,
        AVERAGES: tl.constexpr,
        PARTS: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        part = tl.arange(0, PARTS)
        norm = tl.sqrt(tl.sum(tl.load(partial + part, mask=part < parts, other=0.0), 0))
        scale = tl.minimum(clip_norm / (norm + 1e-6), 1.0)
        row = rates + 2 * tl.load(position)
        lr, keep = tl.load(row), tl.load(row + 1)
        inside = i < n
        w = tl.load(weight + i, mask=inside)
        g = scale * _gradient(low, high, i, n_low, n) + DECAY * w
        m = MOMENTUM * tl.load(momentum + i, mask=inside) + g
        w -= lr * (g + MOMENTUM * m if NESTEROV else m)
        tl.store(momentum + i, m, mask=inside)
        tl.store(weight + i, w, mask=inside)
        tl.store(short + i, w.to(short.dtype.element_ty), mask=i < n_low)
        if AVERAGES:
            a = tl.load(average + i, mask=inside)
            tl.store(average + i, a + (1 - keep) * (w - a), mask=inside)

    @triton.jit
    def _books(
        logits,
        rows,
        loss,
        H,
        predicted,
        losses,
        position,
        at,
        stats,
        average_stats,
        rates,
        batch,
        stats_size,
        C: tl.constexpr,
        BLOCK_C: tl.constexpr,
        BLOCK_STATS: tl.constexpr,
        AVERAGES: tl.constexpr,
    ):
        """Program i < batch keeps sample i; the last one writes the loss down and averages the running statistics."""
        i = tl.program_id(0)
        if i < batch:
            c = tl.arange(0, BLOCK_C)
            x = tl.load(logits + i * C + c, mask=c < C, other=float("-inf")).to(tl.float32)
            index, label = tl.load(rows + i), tl.load(rows + batch + i)
            top = tl.max(x, 0)
            tl.store(H + index, top + tl.log(tl.sum(tl.exp(x - top), 0)) - tl.sum(tl.where(c == label, x, 0.0), 0))
            tl.store(predicted + index, tl.argmax(x, 0).to(tl.int64))
        else:
            now = tl.load(at)
            tl.store(losses + now, tl.load(loss))
            if AVERAGES:
                keep = tl.load(rates + 2 * tl.load(position) + 1)
                for start in range(0, stats_size, BLOCK_STATS):
                    j = start + tl.arange(0, BLOCK_STATS)
                    old = tl.load(average_stats + j, mask=j < stats_size)
                    new = tl.load(stats + j, mask=j < stats_size)
                    tl.store(average_stats + j, old + (1 - keep) * (new - old), mask=j < stats_size)


def sgd(
    *,
    weight: Tensor,
    momentum: Tensor,
    average: Tensor | None,
    short: Tensor,
    low: Tensor,
    high: Tensor,
    rates: Tensor,
    position: Tensor,
    clip_norm: float | None,
    decay: float,
    beta: float,
    nesterov: bool,
) -> None:
    """One step of SGD over flat memory, (n,) float32 each, at this step's row of ``rates``: lr, the average's decay.

    :param short: the first weights in the network's own precision, for its next step.
    :param low: their gradient.
    :param high: the gradient of the others, float32.
    """
    n = weight.numel()
    parts = triton.cdiv(n, NORM_BLOCK)
    partial = torch.empty(parts, device=weight.device)
    _squares[(parts,)](low, high, partial, low.numel(), n, BLOCK=NORM_BLOCK, num_warps=8)
    _step[(triton.cdiv(n, STEP_BLOCK),)](
        weight,
        momentum,
        weight if average is None else average,
        short,
        low,
        high,
        partial,
        rates,
        position,
        low.numel(),
        n,
        parts,
        float("inf") if clip_norm is None else clip_norm,
        MOMENTUM=beta,
        DECAY=decay,
        NESTEROV=nesterov,
        AVERAGES=average is not None,
        PARTS=triton.next_power_of_2(parts),
        BLOCK=STEP_BLOCK,
        num_warps=4,
    )


def keep_books(
    *,
    logits: Tensor,
    rows: Tensor,
    loss: Tensor,
    H: Tensor,
    predicted: Tensor,
    losses: Tensor,
    position: Tensor,
    at: Tensor,
    stats: Tensor,
    average_stats: Tensor | None,
    rates: Tensor,
) -> None:
    """H and the prediction of each sample, the loss of the step, and the averaged running statistics, in one launch.

    :param rows: the samples' indices and labels, (2, batch).
    """
    batch, classes = logits.shape
    _books[(batch + 1,)](
        logits,
        rows,
        loss,
        H,
        predicted,
        losses,
        position,
        at,
        stats,
        stats if average_stats is None else average_stats,
        rates,
        batch,
        stats.numel(),
        C=classes,
        BLOCK_C=triton.next_power_of_2(classes),
        BLOCK_STATS=1024,
        AVERAGES=average_stats is not None and stats.numel() > 0,
        num_warps=4,
    )
