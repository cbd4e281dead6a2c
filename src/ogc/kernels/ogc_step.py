"""A training step of OGC on CUDA in one kernel launch, and a push and an update in one launch each.

As torch operators, a step with its loss and gradient takes about forty launches, and an update two hundred. Updates
are float64, the loss is float32. Tests compare each function with its plain version.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..given_label import P_MIN
from ._triton import tl, triton
from .constants import MOST_CLASSES, KernelRule

LARGEST_QUEUE = 16384
"""Largest queue that one program can hold."""
LARGEST_BATCH = 4096
LARGEST_LOGITS = 262144
"""Largest batch, in samples and in logits, that one program should process alone."""
TILE = 4096
"""Number of logits that one program holds at a time."""


class SlopeCurve(NamedTuple):
    """The slope of a loss: on the grid, the distance of each from the one before it, and over the logit of p."""

    slope: Tensor
    width: Tensor
    table: Tensor


class Formula(NamedTuple):
    """A loss that the kernel implements, with its parameter, to be reduced to its mean or its sum."""

    loss: str  # "ce", "fl" or "gce"
    parameter: float
    mean: bool


def serves_queue(tensor: Tensor, samples: int) -> bool:
    """Return True if the kernels can be used for this many samples on the tensor's device."""
    return triton is not None and tensor.is_cuda and 0 < samples <= LARGEST_QUEUE


def serves_batch(logits: Tensor, labels: Tensor) -> bool:
    """Return True if a step takes this batch: (N, C) of float32 or less, (N,) of int64, not too large."""
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
    from .ogc_default_rule import _count_batch
    from .ogc_loss import _clipped, _differentiate, _normalise
    from .ogc_update import _push, _update

    _MOST_CLASSES, _P_MIN = tl.constexpr(MOST_CLASSES), tl.constexpr(P_MIN)

    @triton.jit(do_not_specialize=["N"])
    def _step(
        logits, of_row, of_class, labels, N, C, ignore_index,
        queue, seen, steps, degenerate, unreliable, solution, highest_lr, rule_state, thresholds, history,
        slope, width, table, lr_at, lr: tl.float64, epsilon: tl.float64, log_classes: tl.float64,
        parameter, scratch, loss, clipping, gradient,
        LR: tl.constexpr, DEFAULT: tl.constexpr, LOSS: tl.constexpr, MEAN: tl.constexpr, Q: tl.constexpr,
        BLOCK: tl.constexpr, EVERY: tl.constexpr, EARLY: tl.constexpr, EARLY_STEPS: tl.constexpr,
        FEWEST: tl.constexpr, RECENT: tl.constexpr, MEMORY: tl.constexpr, GIVEN_UP_BELOW: tl.constexpr,
        SAMPLES: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr,
    ):  # fmt: skip
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
            _count_batch(H, label, valid, C, log_classes, rule_state)
        tl.store(steps, step)
        target = tl.full((), 1.0, tl.float64) + epsilon
        if LR != "constant":
            if lr_at is not None:
                lr = tl.load(lr_at).to(tl.float64)
            highest = tl.maximum(highest, lr)
            tl.store(highest_lr, highest)
            target = 1 + (epsilon * lr / highest if LR == "relative" else epsilon * lr)
        period = tl.where(step > EARLY_STEPS, EVERY, EARLY)
        if (step % period == 0) & (now_seen >= FEWEST) & (target > 1):
            tl.debug_barrier()
            _update(
                queue, now_seen, step, target, log_classes, period, slope, width, table,
                solution, degenerate, unreliable, rule_state, thresholds, history,
                DEFAULT, Q, FEWEST, RECENT, MEMORY, GIVEN_UP_BELOW, BLOCK,
            )  # fmt: skip

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

    @triton.jit
    def _push_alone(H, queue, seen, N, Q: tl.constexpr, BLOCK: tl.constexpr):
        lane = tl.arange(0, BLOCK)
        old = tl.load(seen)
        tl.debug_barrier()
        _push(tl.load(H + lane, mask=lane < N, other=float("inf")), queue, seen, old, Q)

    @triton.jit
    def _update_alone(
        queue, seen, steps, degenerate, unreliable, solution, rule_state, thresholds, history,
        epsilon, log_classes: tl.float64, slope, width, table,
        DEFAULT: tl.constexpr, Q: tl.constexpr, BLOCK: tl.constexpr, EVERY: tl.constexpr, EARLY: tl.constexpr,
        EARLY_STEPS: tl.constexpr, FEWEST: tl.constexpr, RECENT: tl.constexpr, MEMORY: tl.constexpr,
        GIVEN_UP_BELOW: tl.constexpr, BY_CLOCK: tl.constexpr,
    ):  # fmt: skip
        target = 1 + tl.load(epsilon)
        step, count = tl.load(steps), tl.load(seen)
        period = tl.where(step > EARLY_STEPS, EVERY, EARLY)
        due = (step % period == 0) | (BY_CLOCK == 0)
        if due & (count >= FEWEST) & (target > 1):
            _update(
                queue, count, step, target, log_classes, period, slope, width, table,
                solution, degenerate, unreliable, rule_state, thresholds, history,
                DEFAULT, Q, FEWEST, RECENT, MEMORY, GIVEN_UP_BELOW, BLOCK,
            )  # fmt: skip


def ogc_step(
    logits: Tensor, labels: Tensor, state: Sequence[Tensor], curve: SlopeCurve, rule: KernelRule, lr: Tensor | float,
    ignore_index: int, formula: Formula | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:  # fmt: skip
    """Run Algorithm 1, lines 4 to 13, in one launch: (N, C), (N,) -> value (), gradient (N, C), p0 (N,), tau (N,).

    :param state: the buffers of ``clipping.State``, in its order.
    :param formula: None updates the state only, and returns None.
    """
    N, C = logits.shape
    loss: Any = None
    clipping: Any = None
    gradient: Any = None
    if formula is not None:
        gradient = logits.new_empty(logits.shape, dtype=torch.float32)
        loss, clipping = gradient.new_empty(()), gradient.new_empty(2, N)
    size = len(state[0]) - 1
    block, samples = max(triton.next_power_of_2(size), 64), triton.next_power_of_2(N)
    classes = min(triton.next_power_of_2(C), 128)  # a warp's width, four each: no row is shared by two warps
    rows = min(samples, TILE // classes)
    scratch = logits.new_empty(3 * N, dtype=torch.float32)
    with torch.cuda.device_of(logits):
        _step[(1,)](
            logits, *logits.stride(), labels.contiguous(), N, C, ignore_index, *state, *curve,
            lr if isinstance(lr, Tensor) else None, 0.0 if isinstance(lr, Tensor) else lr,
            rule.epsilon, math.log(C), 0.0 if formula is None else formula.parameter,
            scratch, loss, clipping, gradient,
            LR=rule.lr, LOSS=None if formula is None else formula.loss, MEAN=formula is not None and formula.mean,
            Q=size, BLOCK=block, SAMPLES=samples, ROWS=rows, CLASSES=classes, **_constants(rule),
            num_warps=_warps(max(block, samples, rows * classes)),
        )  # fmt: skip
    return None if formula is None else (loss, gradient, clipping[0], clipping[1])


def push_kernel(queue: Tensor, seen: Tensor, H: Tensor) -> None:
    """Do the same as ``clipping.loss_queue.push`` in one launch."""
    block = triton.next_power_of_2(H.numel())
    with torch.cuda.device_of(queue):
        _push_alone[(1,)](H, queue, seen, H.numel(), Q=len(queue) - 1, BLOCK=block, num_warps=_warps(block))


def update_kernel(
    state: Sequence[Tensor],
    curve: SlopeCurve,
    rule: KernelRule,
    lr: Tensor | float,
    num_classes: int,
    *,
    by_clock: bool,
) -> None:
    """Run Algorithm 1, lines 8 and 9, in one launch, if enough samples are queued and epsilon is above 0.

    :param lr: a tensor on the device if reading it would wait.
    :param by_clock: update only if that is due by the step number on the device.
    """
    queue, seen, steps, degenerate, unreliable, solution, highest_lr, rule_state, thresholds, history = state
    size = len(queue) - 1
    block = max(triton.next_power_of_2(size), 64)
    epsilon = rule.epsilon if rule.lr == "constant" else rule.epsilon * lr
    epsilon = epsilon / highest_lr if rule.lr == "relative" else epsilon
    epsilon = epsilon.double() if isinstance(epsilon, Tensor) else solution.new_full((), epsilon)
    with torch.cuda.device_of(queue):
        _update_alone[(1,)](
            queue, seen, steps, degenerate, unreliable, solution, rule_state, thresholds, history,
            epsilon, math.log(max(num_classes, 1)), *curve, Q=size, BLOCK=block, BY_CLOCK=int(by_clock),
            **_constants(rule), num_warps=_warps(block),
        )  # fmt: skip


def _constants(rule: KernelRule) -> dict[str, float]:
    """Return the constants that say when an update is due and by which rule."""
    default = bool(rule.constants)
    unused: dict[str, float] = {
        "EARLY": rule.every,
        "EARLY_STEPS": 0,
        "RECENT": 1,
        "MEMORY": 1.0,
        "GIVEN_UP_BELOW": 1.0,
    }
    return {**unused, **rule.constants, "DEFAULT": default, "EVERY": rule.every, "FEWEST": rule.samples_needed}


def _warps(block: int) -> int:
    """Return a number of warps that leaves about four numbers per thread."""
    return min(max(block // 128, 1), 32)
