"""OGC on CUDA: hands tensors and numbers of the criterion to the kernels in :mod:`ogc.kernels.ogc_step`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ...kernels.constants import KernelRule
from ...kernels.ogc_step import Formula, ogc_step, push_kernel, serves_batch, serves_queue, update_kernel
from ...losses import GCE, CrossEntropy, Focal, Pointwise
from ..loss_queue import push, world_size
from ..state import State

if TYPE_CHECKING:
    from ..ogc import OGC

FORMULAS: dict[type[Pointwise], tuple[str, str | None]] = {
    CrossEntropy: ("ce", None),
    Focal: ("fl", "gamma"),
    GCE: ("gce", "q"),
}
"""The losses that the kernel implements, and the names of their parameters."""


def kernel_rule(criterion: OGC, tensor: Tensor, num_classes: int) -> KernelRule | None:
    """Return the constants of the rule, or None if no kernel can run it on the tensor's device."""
    if not serves_queue(tensor, criterion.queue_size):
        return None
    return criterion.rule.kernel_rule(criterion.queue_size, criterion.every, num_classes)


def step_rule(criterion: OGC, logits: Tensor, labels: Tensor) -> KernelRule | None:
    """Return the constants of the rule if one launch can run a whole training step on this batch, or None.

    Several ranks exchange H in the middle of a step.
    """
    if not serves_queue(logits, criterion.queue_size) or world_size(criterion.process_group) > 1:
        return None
    return kernel_rule(criterion, logits, logits.shape[1]) if serves_batch(logits, labels) else None


def run_step(
    criterion: OGC, rule: KernelRule, state: State, logits: Tensor, labels: Tensor, *, with_loss: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Run Algorithm 1, lines 4 to 13, in one launch: (N, C), (N,) -> value (), gradient (N, C), p0 (N,), tau (N,).

    Return None, and update the state only, without the loss or if the kernel does not implement it.
    """
    criterion.clock.count_step(state.steps, logits.shape[1])
    lr = criterion.require_lr() if criterion.is_due() else criterion.lr
    formula = formula_of(criterion) if with_loss else None
    lr = 0.0 if lr is None else lr
    return ogc_step(
        logits, labels, state, criterion.slopes.on(logits.device), rule, lr, criterion.ignore_index, formula
    )


def push_batch(queue: Tensor, seen: Tensor, H: Tensor) -> None:
    """Append the finite entries of H, (N,), to the queue, in one launch where a kernel can do it."""
    (push_kernel if serves_queue(queue, H.numel()) else push)(queue, seen, H)


def run_update(criterion: OGC, rule: KernelRule, state: State, by_clock: bool) -> None:
    """Run Algorithm 1, lines 8 and 9, in one launch. ``by_clock``: if that is due by the step number on the device."""
    lr, num_classes = criterion.require_lr(), criterion.clock.num_classes
    update_kernel(state, criterion.slopes.on(state.queue.device), rule, lr, num_classes, by_clock=by_clock)


def formula_of(criterion: OGC) -> Formula | None:
    """Return the kernel's formula for the criterion's loss, or None if it has none."""
    if criterion.weight is not None or criterion.reduction == "none" or type(criterion.base) not in FORMULAS:
        return None
    loss, parameter = FORMULAS[type(criterion.base)]
    return Formula(loss, float(getattr(criterion.base, parameter or "", 0.0)), criterion.reduction == "mean")
