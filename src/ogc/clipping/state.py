"""The buffers of OGC that a training step writes, and the result of an update."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..given_label import P_MIN, widest_float
from .default_rule import MOST_CLASSES
from .mixture import Mixture

UNRELIABLE_SEPARATION = 2.0
"""Below this separation the two normals are hard to tell apart."""
OCTAVES = 32
"""Columns of the history. Column i holds the last update in steps 2^i to 2^(i + 1) - 1."""


class Solution(NamedTuple):
    """The result of an update: p0, tau and the mixture that they were solved for; 0-dim tensors."""

    p0: Tensor
    tau: Tensor
    mixture: Mixture

    @classmethod
    def unpack(cls, packed: Tensor) -> Solution:
        """Return views of the buffer ``solution``: (7,) -> Solution."""
        p0, tau, *mixture = packed.unbind()
        return cls(p0, tau, Mixture(*mixture))

    @staticmethod
    def pack(p0: float, tau: float, mixture: Mixture | None = None) -> Tensor:
        """Make the contents of the buffer ``solution``: -> (7,) of float64; NaN without a mixture."""
        fitted = [math.nan] * len(Mixture._fields) if mixture is None else [float(number) for number in mixture]
        return torch.tensor([p0, tau, *fitted], dtype=torch.float64)


class State(NamedTuple):
    """The buffers that a step writes."""

    queue: Tensor  # (Q + 1,) float32, see loss_queue
    seen: Tensor  # () int64: samples queued so far
    steps: Tensor  # () int64: training steps so far, t in Algorithm 1
    degenerate: Tensor  # () int64: updates that kept the last tau because the fit was degenerate
    unreliable: Tensor  # () int64: consecutive updates whose normals are hard to tell apart
    solution: Tensor  # (7,) float64: a packed Solution
    highest_lr: Tensor  # () float64: highest learning rate so far
    by_class: Tensor  # (2, MOST_CLASSES) int64: samples since the last update, and those better than a guess
    thresholds: Tensor  # (2, MOST_CLASSES) float64: f_c p0, not clamped, and tau of each class; see default_rule
    history: Tensor  # (2, OCTAVES) float64: tau and noisy_weight at the last update before each power of two steps

    @classmethod
    def initial(cls, queue_size: int, steepest: float) -> State:
        """Make an empty queue and an unclipped solution, whose tau is the steepest slope of the loss."""

        def counter() -> Tensor:
            return torch.zeros((), dtype=torch.int64)

        return cls(
            queue=torch.zeros(queue_size + 1, dtype=torch.float32),
            seen=counter(),
            steps=counter(),
            degenerate=counter(),
            unreliable=counter(),
            solution=Solution.pack(P_MIN, steepest),
            highest_lr=torch.zeros((), dtype=torch.float64),
            by_class=torch.zeros(2, MOST_CLASSES, dtype=torch.int64),
            thresholds=torch.tensor([[P_MIN], [steepest]], dtype=torch.float64).repeat(1, MOST_CLASSES),
            history=torch.full((2, OCTAVES), math.nan, dtype=torch.float64),
        )

    def to_cpu(self) -> State:
        """Return the buffers themselves if they are on the CPU, and copies of them otherwise."""
        return State(*(buffer.cpu() for buffer in self))

    def copy_from(self, other: State) -> None:
        """Write an updated copy back to the buffers."""
        for buffer, updated in zip(self, other, strict=True):
            if buffer is not updated:
                buffer.copy_(updated)

    def accept(self, p0: float, tau: float, mixture: Mixture) -> None:
        """Write a solution that all classes share, on the CPU."""
        self.solution.copy_(Solution.pack(p0, tau, mixture))
        self.thresholds.copy_(self.solution[:2, None].expand_as(self.thresholds))
        if mixture.separation < UNRELIABLE_SEPARATION:
            self.unreliable.add_(1)
        else:
            self.unreliable.zero_()
        self.history[:, octave(int(self.steps))] = torch.tensor([tau, float(mixture.noisy_weight)], dtype=torch.float64)


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
