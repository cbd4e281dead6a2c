"""SGD over flat memory: all weights in one tensor, updated in three launches. The plain loop has the same arithmetic.

Clipping, weight decay, momentum, the averaged weights and the bf16 copy for the next step read and write each number
once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._triton import tl, triton

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
    def _update(
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


def sgd_step(
    *, weight: Tensor, momentum: Tensor, average: Tensor | None, short: Tensor, pointers: Tensor, blocks: Tensor,
    rates: Tensor, position: Tensor, clip_norm: float | None, decay: float, beta: float, nesterov: bool,
) -> None:  # fmt: skip
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
    _update[(parts,)](
        weight, momentum, weight if average is None else average, short, pointers, blocks, scale, rates, position,
        short.numel(), MOMENTUM=beta, DECAY=decay, NESTEROV=nesterov, AVERAGES=average is not None,
        CLIPS=clip_norm is not None, BLOCK=BLOCK,
    )  # fmt: skip
