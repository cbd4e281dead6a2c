"""The learning rate that a rule follows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

MISSING_OPTIMIZER = (
    "OGC follows the learning rate of an optimizer, but none is attached, or it was deleted. To fix this, pass it, as "
    'in OGC("ce", optimizer), call criterion.attach(optimizer), or pass follow_lr=False.'
)


def raise_to_highest(highest: Tensor, lrs: Sequence[Tensor | float | None]) -> None:
    """Raise ``highest`` to the highest of these learning rates, in place and without a host read. NaN do not count."""
    numbers = [lr for lr in lrs if isinstance(lr, float) and not math.isnan(lr)]
    if numbers:
        highest.clamp_(min=max(numbers))
    for lr in lrs:
        if isinstance(lr, Tensor):
            highest.copy_(torch.fmax(highest, lr))


def learning_rate(optimizer: torch.optim.Optimizer, *, may_read: bool) -> Tensor | float:
    """Return the learning rate of the optimizer's first group.

    :param may_read: read a tensor on an accelerator, which waits for the device, instead of returning it.
    """
    lr = optimizer.param_groups[0]["lr"]
    return lr if isinstance(lr, Tensor) and lr.device.type != "cpu" and not may_read else float(lr)
