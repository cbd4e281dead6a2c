"""epsilon, the excess of noisy over clean gradients that Eq. 12 of Ye et al., 2025, allows; it follows the lr."""

from __future__ import annotations

import torch
from torch import Tensor

MISSING_OPTIMIZER = (
    "OGC follows the learning rate of an optimizer, but no optimizer is attached, or it was deleted. Pass it, as in "
    'OGC("ce", optimizer), or call criterion.attach(optimizer). To ignore the learning rate, pass follow_lr=False.'
)


def learning_rate(optimizer: torch.optim.Optimizer | None, *, may_read: bool) -> Tensor | float | None:
    """Return the learning rate of the optimizer's first group; None without an optimizer.

    :param may_read: read a tensor on an accelerator, which waits for the device, instead of returning it.
    """
    if optimizer is None:
        return None
    lr = optimizer.param_groups[0]["lr"]
    return lr if isinstance(lr, Tensor) and lr.device.type != "cpu" and not may_read else float(lr)


def epsilon_at(
    lr: Tensor | float, highest_lr: Tensor | float, *, epsilon: float, epsilon0: float | None
) -> Tensor | float:
    """Return epsilon at a learning rate.

    lr * epsilon0, the rule of the paper (appendix, "Predefined gradient ratio 1 + epsilon"), or
    epsilon * lr / highest_lr. 0 if lr is 0. Without epsilon0, NaN if highest_lr is a tensor that is 0; the kernel then
    does not update.
    """
    if epsilon0 is not None:
        return epsilon0 * lr
    if isinstance(highest_lr, float) and highest_lr <= 0:
        return 0.0
    return epsilon * lr / highest_lr
