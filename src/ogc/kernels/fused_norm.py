"""relu(bn(x) + residual) on CUDA, in two kernels forward and two backward. models/norm_act.py has the torch version.

A channels-last tensor is a matrix, x: (M, C) with M = N H W. Each direction is a reduction over rows, which leaves
P partial results per channel, and a pass that adds and uses them. Arithmetic is float32, and every sum has a
fixed order: the same input gives the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ._triton import tl, triton

PROGRAMS, STEP, COLUMNS, WARPS = 2, 128, 32, 8
"""Programs per multiprocessor and their block sizes, the fastest of forty settings on an H200 (docs/log.md).

Each thread loads 16 bytes at a time. Few programs are best, since each leaves a partial result that all others read.
"""


class Norm(NamedTuple):
    """Parameters and running statistics of a batch norm."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    var: Tensor
    momentum: float
    eps: float
    training: bool


class Cut(NamedTuple):
    """How a matrix is divided: rows per program, number of programs, and compile-time constants."""

    rows: int
    grid: tuple[int, int]
    sizes: dict[str, int]


def cut(M: int, C: int, processors: int) -> Cut:
    """Return the number of programs, a power of two, so that the partial results fill a block."""
    columns = min(max(triton.next_power_of_2(C), 16), COLUMNS)
    blocks = triton.cdiv(C, columns)
    rows = triton.cdiv(M * blocks, PROGRAMS * 2 ** (processors.bit_length() - 1))
    step = min(max(triton.next_power_of_2(rows), 16), STEP)
    rows = triton.cdiv(rows, step) * step
    return Cut(rows, (triton.cdiv(M, rows), blocks), {"STEP": step, "COLUMNS": columns, "num_warps": WARPS})


def serves(x: Tensor, residual: Tensor | None, norm: Norm) -> bool:
    """Return True if the kernels support this call: dense channels-last input, and batch statistics or no gradient."""
    return (
        triton is not None
        and x.is_cuda
        and x.device.index == torch.cuda.current_device()
        and (norm.training or not torch.is_grad_enabled())
        and norm.weight.dtype == torch.float32
        and x.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.shape[1] < x.numel() < 2**31  # one row has no variance; indices have 32 bits
        and (residual is None or _alike(x, residual))
    )


def _alike(x: Tensor, other: Tensor) -> bool:
    same = x.shape == other.shape and x.dtype == other.dtype and x.device == other.device
    return same and other.is_contiguous(memory_format=torch.channels_last)


def norm_act(x: Tensor, residual: Tensor | None, norm: Norm, *, act: bool) -> tuple[Tensor, Tensor]:
    """Compute relu(bn(x) + residual) twice, for two paths whose gradients are added. Requires :func:`serves`."""
    if norm.training:
        return _NormAct.apply(x, residual, norm.weight, norm.bias, norm, act)  # type: ignore[no-any-return]
    (M, C, part), y = _matrix(x), torch.empty_like(x)
    _apply[part.grid](
        x, residual, y, norm.weight, norm.bias, norm.mean, norm.var, norm.mean, norm.var, None, M, C, part.rows, 0,
        0.0, norm.eps, FINISHED=True, ACT=act, PARTS=1, **part.sizes,
    )  # fmt: skip
    return y, y


class _NormAct(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, norm: Norm, act: bool
    ) -> tuple[Tensor, Tensor]:
        M, C, part = _matrix(x)
        P = part.grid[0]
        y, mean, rstd = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        partial = x.new_empty(2, P, C, dtype=torch.float32)
        _moments[part.grid](x, partial, M, C, part.rows, P, **part.sizes)
        _apply[part.grid](
            x, residual, y, weight, bias, mean, rstd, norm.mean, norm.var, partial,
            M, C, part.rows, P, norm.momentum, norm.eps,
            FINISHED=False, ACT=act, PARTS=_parts(P), **part.sizes,
        )  # fmt: skip
        # With a residual, the sign of the result is not that of the norm.
        ctx.save_for_backward(x, mean, rstd, weight, bias, y if act and residual is not None else None)
        ctx.act, ctx.residual = act, residual is not None
        ctx.set_materialize_grads(False)
        return y, y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, other: Tensor | None) -> tuple[Tensor | None, ...]:
        dy, other = (other, None) if dy is None else (dy, other)
        if dy is None:
            return (None,) * 6
        x, mean, rstd, weight, bias, y = ctx.saved_tensors
        M, C, part = _matrix(x)
        P = part.grid[0]
        dy = dy.contiguous(memory_format=torch.channels_last)
        other = None if other is None else other.contiguous(memory_format=torch.channels_last)
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        g = dy if y is None and other is None else torch.empty_like(x)

        partial = x.new_empty(2, P, C, dtype=torch.float32)
        recompute, writes = ctx.act and y is None, g is not dy
        _sums[part.grid](
            dy, other, x, y, g, mean, rstd, weight, bias, partial, M, C, part.rows, P,
            RECOMPUTE=recompute, WRITES=writes, **part.sizes,
        )  # fmt: skip
        _gradient[part.grid](
            g, x, dx, mean, rstd, weight, bias, dweight, dbias, partial, M, C, part.rows, P,
            RECOMPUTE=recompute and not writes, PARTS=_parts(P), **part.sizes,
        )  # fmt: skip
        return dx, g if ctx.residual else None, dweight, dbias, None, None


def _matrix(x: Tensor) -> tuple[int, int, Cut]:
    """Return M, C and the division into programs."""
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 4
    M, C = x.numel() // x.shape[1], x.shape[1]
    return M, C, cut(M, C, processors)


def _parts(P: int) -> int:
    """Return how many partial results to read at once: all of them, if there are at most 128."""
    return int(min(triton.next_power_of_2(P), 128))


if triton is not None:

    @triton.jit
    def _place(start, M, C, STEP: tl.constexpr, COLUMNS: tl.constexpr):
        """Return the offsets of a block of the matrix, and a mask of those inside."""
        row, column = start + tl.arange(0, STEP), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        return row[:, None] * C + column[None, :], (row < M)[:, None] & (column < C)[None, :]

    @triton.jit
    def _finish_moments(
        mean_at, rstd_at, running_mean, running_var, partial, column, write,
        M, C, ROWS, P, momentum, eps, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Merge partial results into mean and 1 / std: (COLUMNS,) each. A part has the mean and squared deviations."""
        inside = column < C
        shift = tl.load(partial + column, mask=inside, other=0.0, cache_modifier=".cg")
        total = tl.zeros([PARTS, COLUMNS], tl.float32)
        squares = tl.zeros([PARTS, COLUMNS], tl.float32)
        for first in range(0, P, PARTS):
            part = first + tl.arange(0, PARTS)
            at, there = part[:, None] * C + column[None, :], (part < P)[:, None] & inside[None, :]
            means = tl.load(partial + at, mask=there, other=0.0, cache_modifier=".cg")
            distances = tl.load(partial + P * C + at, mask=there, other=0.0, cache_modifier=".cg")
            rows = tl.minimum(M - part * ROWS, ROWS).to(tl.float32)[:, None]
            distance = tl.where(there, means - shift[None, :], 0.0)
            total += rows * distance
            squares += distances + rows * distance * distance
        total = tl.sum(total, 0)
        squares = tl.sum(squares, 0) - total * total / M
        mean = shift + total / M
        rstd = tl.rsqrt(squares / M + eps)
        if write:
            tl.store(mean_at + column, mean, mask=inside)
            tl.store(rstd_at + column, rstd, mask=inside)
            old = tl.load(running_mean + column, mask=inside, other=0.0)
            tl.store(running_mean + column, old + momentum * (mean - old), mask=inside)
            old = tl.load(running_var + column, mask=inside, other=0.0)
            tl.store(running_var + column, old + momentum * (squares / (M - 1) - old), mask=inside)
        return mean, rstd

    @triton.jit
    def _moments(
        x, partial, M, C, ROWS, P, STEP: tl.constexpr, COLUMNS: tl.constexpr
    ):  # fmt: skip
        """Compute mean and squared deviations of ROWS rows, from sums relative to the first row for accuracy."""
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        start = tl.program_id(0) * ROWS
        end = tl.minimum(start + ROWS, M)
        shift = tl.load(x + start * C + column, mask=column < C, other=0.0).to(tl.float32)
        total = tl.zeros([STEP, COLUMNS], tl.float32)
        squares = tl.zeros([STEP, COLUMNS], tl.float32)
        for row in range(start, end, STEP):
            at, inside = _place(row, M, C, STEP, COLUMNS)
            distance = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - shift[None, :]
            distance = tl.where(inside, distance, 0.0)
            total += distance
            squares += distance * distance
        rows = (end - start).to(tl.float32)
        total = tl.sum(total, 0)
        squares = tl.sum(squares, 0) - total * total / rows
        at = partial + tl.program_id(0) * C + column
        tl.store(at, shift + total / rows, mask=column < C)
        tl.store(at + P * C, squares, mask=column < C)

    @triton.jit
    def _apply(
        x, residual, y, weight, bias, mean, rstd, running_mean, running_var, partial,
        M, C, ROWS, P, momentum, eps,
        FINISHED: tl.constexpr, ACT: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """y = relu((x - mean) weight / std + bias + residual). Loads run one block ahead."""
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        start = tl.program_id(0) * ROWS
        end = tl.minimum(start + ROWS, M)
        at, inside = _place(start, end, C, STEP, COLUMNS)
        next_x = tl.load(x + at, mask=inside, other=0.0)
        if residual is not None:
            next_residual = tl.load(residual + at, mask=inside, other=0.0)
        scale = tl.load(weight + column, mask=column < C, other=0.0)
        offset = tl.load(bias + column, mask=column < C, other=0.0)
        if FINISHED:  # evaluation: use the running statistics
            center = tl.load(mean + column, mask=column < C, other=0.0)
            scaling = tl.rsqrt(tl.load(rstd + column, mask=column < C, other=0.0) + eps)
        else:
            center, scaling = _finish_moments(
                mean, rstd, running_mean, running_var, partial, column, tl.program_id(0) == 0,
                M, C, ROWS, P, momentum, eps, PARTS, COLUMNS,
            )  # fmt: skip
        scale *= scaling
        for row in range(start, end, STEP):
            here, inside_here = at, inside
            value = (next_x.to(tl.float32) - center[None, :]) * scale[None, :] + offset[None, :]
            at, inside = _place(row + STEP, end, C, STEP, COLUMNS)
            next_x = tl.load(x + at, mask=inside, other=0.0)
            if residual is not None:
                value += next_residual.to(tl.float32)
                next_residual = tl.load(residual + at, mask=inside, other=0.0)
            if ACT:
                value = tl.where(value < 0, 0.0, value)  # NaN stays
            tl.store(y + here, value.to(y.dtype.element_ty), mask=inside_here)

    @triton.jit
    def _finish_sums(dweight, dbias, rstd, partial, column, write, C, P, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
        """Sum g and g (x - mean) / std, which are the gradients of bias and weight: (COLUMNS,) each."""
        inside = column < C
        total = tl.zeros([PARTS, COLUMNS], tl.float32)
        product = tl.zeros([PARTS, COLUMNS], tl.float32)
        for first in range(0, P, PARTS):
            part = first + tl.arange(0, PARTS)
            at, there = part[:, None] * C + column[None, :], (part < P)[:, None] & inside[None, :]
            total += tl.load(partial + at, mask=there, other=0.0, cache_modifier=".cg")
            product += tl.load(partial + P * C + at, mask=there, other=0.0, cache_modifier=".cg")
        total = tl.sum(total, 0)
        product = tl.sum(product, 0) * tl.load(rstd + column, mask=inside, other=0.0)
        if write:
            tl.store(dbias + column, total, mask=inside)
            tl.store(dweight + column, product, mask=inside)
        return total, product

    @triton.jit
    def _sums(
        dy, other, x, y, g, mean, rstd, weight, bias, partial, M, C, ROWS, P,
        RECOMPUTE: tl.constexpr, WRITES: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Compute partial sums of g and g (x - mean), where g is dy (plus the gradient of the second path) if y > 0.

        With y or two gradients, g is written too. The next pass reads it, and it is the gradient of the residual.
        """
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        start = tl.program_id(0) * ROWS
        center = tl.load(mean + column, mask=column < C, other=0.0)
        scale = tl.load(weight + column, mask=column < C, other=0.0)
        scale *= tl.load(rstd + column, mask=column < C, other=0.0)
        offset = tl.load(bias + column, mask=column < C, other=0.0)
        total = tl.zeros([STEP, COLUMNS], tl.float32)
        product = tl.zeros([STEP, COLUMNS], tl.float32)
        for row in range(start, tl.minimum(start + ROWS, M), STEP):
            at, inside = _place(row, M, C, STEP, COLUMNS)
            value = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
            distance = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - center[None, :]
            if other is not None:
                value += tl.load(other + at, mask=inside, other=0.0).to(tl.float32)
                value = value.to(g.dtype.element_ty).to(tl.float32)  # as autograd's own sum would be
            if y is not None:
                value = tl.where(tl.load(y + at, mask=inside, other=0.0) <= 0, 0.0, value)
            if RECOMPUTE:
                value = tl.where(distance * scale[None, :] + offset[None, :] <= 0, 0.0, value)
            if WRITES:
                tl.store(g + at, value.to(g.dtype.element_ty), mask=inside)
            total += value
            product += value * distance
        at = partial + tl.program_id(0) * C + column
        tl.store(at, tl.sum(total, 0), mask=column < C)
        tl.store(at + P * C, tl.sum(product, 0), mask=column < C)

    @triton.jit
    def _gradient(
        g, x, dx, mean, rstd, weight, bias, dweight, dbias, partial, M, C, ROWS, P,
        RECOMPUTE: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """dx = weight / std (g - mean of g - (x - mean) / std * mean of g (x - mean) / std)."""
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        start = tl.program_id(0) * ROWS
        end = tl.minimum(start + ROWS, M)
        at, inside = _place(start, end, C, STEP, COLUMNS)
        next_g = tl.load(g + at, mask=inside, other=0.0)
        next_x = tl.load(x + at, mask=inside, other=0.0)
        center = tl.load(mean + column, mask=column < C, other=0.0)
        scaling = tl.load(rstd + column, mask=column < C, other=0.0)
        scale = tl.load(weight + column, mask=column < C, other=0.0) * scaling
        offset = tl.load(bias + column, mask=column < C, other=0.0)
        first = tl.program_id(0) == 0
        total, product = _finish_sums(dweight, dbias, rstd, partial, column, first, C, P, PARTS, COLUMNS)
        total /= M
        product *= scaling / M
        for row in range(start, end, STEP):
            here, inside_here = at, inside
            value, distance = next_g.to(tl.float32), next_x.to(tl.float32) - center[None, :]
            at, inside = _place(row + STEP, end, C, STEP, COLUMNS)
            next_g = tl.load(g + at, mask=inside, other=0.0)
            next_x = tl.load(x + at, mask=inside, other=0.0)
            if RECOMPUTE:
                value = tl.where(distance * scale[None, :] + offset[None, :] <= 0, 0.0, value)
            value = scale[None, :] * (value - total[None, :] - distance * product[None, :])
            tl.store(dx + here, value.to(dx.dtype.element_ty), mask=inside_here)
