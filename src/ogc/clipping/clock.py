"""What the host knows of a run without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor


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
