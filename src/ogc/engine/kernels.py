"""Kernels of the engine: SGD over flat memory, and the records of a step. The plain loop has the same arithmetic.

With all weights in one tensor, clipping, weight decay, momentum, the averaged weights and the bf16 copy for the next
step take three launches, and each number is read and written once.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU builds of torch come without it
    triton = None

HAVE_TRITON = triton is not None
BLOCK = 2048  # numbers per program
ALIGNED = 8  # numbers: 16 bytes in bf16, as wide as a load. _place has it as a literal.

if triton is not None:

    @triton.jit
    def _gradient(pointers, param, i, inside, low):
        """Load the gradient of a parameter at i from where autograd wrote it."""
        address = tl.load(pointers + param)
        if low:
            short = tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)), 16)
            g = tl.load(short + i, mask=inside, other=0.0).to(tl.float32)
        else:
            long = tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)
            g = tl.load(long + i, mask=inside, other=0.0)
        return g

    @triton.jit
    def _place(blocks):
        """Load the block of this program: parameter, start in it, start in flat memory, count.

        All but the first are multiples of ALIGNED, which allows wide loads.
        """
        row = blocks + 4 * tl.program_id(0)
        start, flat, count = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
        return tl.load(row), tl.multiple_of(start, 8), tl.multiple_of(flat, 8), tl.multiple_of(count, 8)

    @triton.jit
    def _squares(pointers, blocks, partial, n_low, BLOCK: tl.constexpr):
        param, start, flat, count = _place(blocks)
        i = tl.arange(0, BLOCK)
        g = _gradient(pointers, param, start + i, i < count, flat < n_low)
        tl.store(partial + tl.program_id(0), tl.sum(g * g, 0))

    @triton.jit
    def _scale(partial, scale, parts, clip_norm, PARTS: tl.constexpr):
        """Compute the factor that limits the norm of the gradient to clip_norm."""
        part = tl.arange(0, PARTS)
        norm = tl.sqrt(tl.sum(tl.load(partial + part, mask=part < parts, other=0.0), 0))
        factor = clip_norm / (norm + 1e-6)
        tl.store(scale, tl.where(factor > 1, 1.0, factor))  # NaN stays, and reaches all weights

    @triton.jit
    def _step(
        weight, momentum, average, short, pointers, blocks, scale, rates, position, n_low,
        MOMENTUM: tl.constexpr, DECAY: tl.constexpr, NESTEROV: tl.constexpr, AVERAGES: tl.constexpr,
        CLIPS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        param, start, flat, count = _place(blocks)
        row = rates + 2 * tl.load(position)
        lr, keep = tl.load(row), tl.load(row + 1)
        i = tl.arange(0, BLOCK)
        inside, at = i < count, flat + i
        w = tl.load(weight + at, mask=inside)
        g = _gradient(pointers, param, start + i, inside, flat < n_low)
        if CLIPS:
            g *= tl.load(scale)
        g += DECAY * w
        m = MOMENTUM * tl.load(momentum + at, mask=inside) + g
        w -= lr * (g + MOMENTUM * m if NESTEROV else m)
        tl.store(momentum + at, m, mask=inside)
        tl.store(weight + at, w, mask=inside)
        tl.store(short + at, w.to(short.dtype.element_ty), mask=inside & (at < n_low))
        if AVERAGES:
            a = tl.load(average + at, mask=inside)
            tl.store(average + at, a + (1 - keep) * (w - a), mask=inside)

    @triton.jit
    def _record_step(
        logits, rows, loss, H, predicted, losses, position, at, stats, average_stats, rates, batch, stats_size,
        C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_STATS: tl.constexpr, AVERAGES: tl.constexpr,
    ):  # fmt: skip
        """Program i < batch records sample i. The last one records the loss and averages the running statistics."""
        i = tl.program_id(0)
        if i < batch:
            c = tl.arange(0, BLOCK_C)
            x = tl.load(logits + i * C + c, mask=c < C, other=float("-inf")).to(tl.float32)
            index, label = tl.load(rows + i), tl.load(rows + batch + i)
            top = tl.max(x, 0)
            own = tl.sum(tl.where(c == label, x, 0.0), 0)
            tl.store(H + index, (top - own) + tl.log(tl.sum(tl.exp(x - top), 0)))
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
    pointers: Tensor,
    blocks: Tensor,
    rates: Tensor,
    position: Tensor,
    clip_norm: float | None,
    decay: float,
    beta: float,
    nesterov: bool,
) -> None:
    """Take one SGD step over flat memory, (n,) float32 each. A row of ``rates`` is the lr and the decay of the average.

    :param short: the first weights in bf16, for the next step of the network.
    :param pointers: addresses of the gradients, (P,), padded to aligned sizes, in bf16 where the weights are.
    :param blocks: one row per program: parameter, start in it, start in flat memory, count. The last three are aligned.
    """
    parts = len(blocks)
    scale = torch.empty(1, device=weight.device)
    if clip_norm is not None:
        partial = torch.empty(parts, device=weight.device)
        _squares[(parts,)](pointers, blocks, partial, short.numel(), BLOCK=BLOCK)
        _scale[(1,)](partial, scale, parts, clip_norm, PARTS=triton.next_power_of_2(parts), num_warps=8)
    _step[(parts,)](
        weight, momentum, weight if average is None else average, short, pointers, blocks, scale, rates, position,
        short.numel(), MOMENTUM=beta, DECAY=decay, NESTEROV=nesterov, AVERAGES=average is not None,
        CLIPS=clip_norm is not None, BLOCK=BLOCK,
    )  # fmt: skip


def record_step(
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
    """Record H and the prediction of each sample and the loss, and average the running statistics, in one launch.

    :param rows: indices and labels of the samples, (2, batch).
    """
    batch, classes = logits.shape
    _record_step[(batch + 1,)](
        logits, rows, loss, H, predicted, losses, position, at, stats,
        stats if average_stats is None else average_stats, rates, batch, stats.numel(),
        C=classes, BLOCK_C=triton.next_power_of_2(classes), BLOCK_STATS=1024,
        AVERAGES=average_stats is not None and stats.numel() > 0, num_warps=4,
    )  # fmt: skip
