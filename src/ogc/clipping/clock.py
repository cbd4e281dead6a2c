"""What the host knows of a run without waiting for the device: the step number, and the learning rate."""

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


def learning_rate(optimizer: torch.optim.Optimizer, device: torch.device) -> Tensor | float:
    """Return the learning rate of the optimizer's first group.

    A tensor on an accelerator is read only if the state of OGC is on the CPU, because reading waits for the device.
    """
    lr = optimizer.param_groups[0]["lr"]
    return lr if isinstance(lr, Tensor) and lr.device.type != "cpu" and device.type != "cpu" else float(lr)


class Clock:
    """The number of the current step, t in Algorithm 1, and the number of classes. Neither saved nor copied."""

    def __init__(self, steps: Tensor) -> None:
        self.step = int(steps)
        self.num_classes = 0  # known from the first call on
        self.is_captured = False  # replays of a CUDA graph advance only the step number on the device

    def count_step(self, steps: Tensor, num_classes: int, waiting: int = 0) -> None:
        """Count a training step.

        :param steps: the number of steps before it.
        :param waiting: further steps before it, which ``steps`` does not count yet.
        """
        self.num_classes = num_classes
        if steps.device.type == "cpu":
            self.step = int(steps) + waiting + 1
        elif is_capturing(steps):
            self.is_captured = True
        else:
            self.step += 1


def is_capturing(tensor: Tensor) -> bool:
    """Return True while a CUDA graph is captured. Nothing can be copied to the CPU then."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
