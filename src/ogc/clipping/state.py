"""The buffers of OGC that a training step writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..given_label import P_MIN, widest_float
from ..kernels.constants import MOST_CLASSES, OCTAVES, UNRELIABLE_SEPARATION
from .fit import Fit


class State(NamedTuple):
    """The buffers that a step writes, in the order of the kernel's arguments."""

    queue: Tensor  # (Q + 1,) float32, see loss_queue
    seen: Tensor  # () int64: samples queued so far
    steps: Tensor  # () int64: training steps so far, t in Algorithm 1
    degenerate: Tensor  # () int64: updates that kept the last tau because the fit was degenerate
    unreliable: Tensor  # () int64: consecutive updates whose normals are hard to tell apart
    solution: Tensor  # (7,) float64: p0, tau and the numbers of the Mixture that they were solved for
    highest_lr: Tensor  # () float64: highest learning rate so far
    rule_state: Tensor  # the rule's own; for the default rule (2, MOST_CLASSES) int64
    thresholds: Tensor  # (2, MOST_CLASSES) float64: p0, not clamped, and tau of each class
    history: Tensor  # (2, OCTAVES) float64: tau and noisy_weight at the last update before each power of two steps

    @classmethod
    def initial(cls, queue_size: int, steepest: float, rule_state: Tensor) -> State:
        """Make an empty queue and an unclipped solution, whose tau is the steepest slope of the loss."""

        def counter() -> Tensor:
            return torch.zeros((), dtype=torch.int64)

        return cls(
            queue=torch.zeros(queue_size + 1, dtype=torch.float32),
            seen=counter(),
            steps=counter(),
            degenerate=counter(),
            unreliable=counter(),
            solution=torch.tensor([P_MIN, steepest, *[math.nan] * 5], dtype=torch.float64),
            highest_lr=torch.zeros((), dtype=torch.float64),
            rule_state=rule_state,
            thresholds=torch.tensor([[P_MIN], [steepest]], dtype=torch.float64).repeat(1, MOST_CLASSES),
            history=torch.full((2, OCTAVES), math.nan, dtype=torch.float64),
        )

    def to_cpu(self) -> State:
        """Return this if it is on the CPU, and a copy otherwise."""
        return self if self.queue.device.type == "cpu" else State(*(buffer.cpu() for buffer in self))

    def copy_from(self, other: State) -> None:
        """Write an updated copy back."""
        for buffer, updated in zip(self, other, strict=True) if other is not self else ():
            buffer.copy_(updated)

    def accept(self, p0: float, tau: float, fit: Fit, by_class: list[list[float]] | None = None) -> None:
        """Write the result of an update, on the CPU.

        :param by_class: the contents of ``thresholds``, if classes do not share p0 and tau.
        """
        self.solution.copy_(torch.tensor([p0, tau, *fit.numbers], dtype=torch.float64))
        if by_class is None:
            self.share_thresholds()
        else:
            self.thresholds.copy_(torch.tensor(by_class, dtype=torch.float64))
        self.unreliable.fill_(int(self.unreliable) + 1 if fit.separation < UNRELIABLE_SEPARATION else 0)
        self.history[:, octave(int(self.steps))] = torch.tensor([tau, fit.noisy.weight], dtype=torch.float64)

    def share_thresholds(self) -> None:
        """Write p0 and tau of the solution to the thresholds of all classes, on any device."""
        self.thresholds.copy_(self.solution[:2, None].expand_as(self.thresholds))


def octave(step: int) -> int:
    """Return the column of the history that a step belongs to."""
    return min(max(step, 1).bit_length() - 1, OCTAVES - 1)


def keeping_dtype(move: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Restrict a conversion to a change of device. float64 stays on the CPU if the device does not have it."""

    def convert(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.float64:
            device = move(tensor.new_empty(0, dtype=torch.float32)).device
            if widest_float(device) != torch.float64:
                return tensor.cpu()
        moved = move(tensor)
        return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

    return convert
