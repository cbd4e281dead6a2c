"""The interface of a rule, which moves tau. OGC asks a rule these questions and knows nothing else about it.

To add a rule that fits the queue, subclass :class:`FittedRule` and write ``excess``. To add one that does not, subclass
:class:`Schedule` and write ``__call__``. Pass it as ``OGC(threshold=...)``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels.constants import KernelRule
from .fit import Fit, fit_queue
from .loss_queue import newest
from .state import State
from .threshold import Slopes

TAU_MIN = 1e-7
"""A schedule cannot move tau below this value."""


class Now(NamedTuple):
    """What an update knows beside the state."""

    lr: float | Tensor  # NaN if the rule does not follow the learning rate
    num_classes: int
    every: int


class Rule(ABC):
    """Moves tau."""

    follow_lr: bool = False
    """Whether an update needs the learning rate."""
    by_class = False
    """Whether the thresholds of two classes may differ."""
    is_constant = False
    """Whether tau is known before the first step."""
    parameter: str | None = None
    """The argument of OGC that sets how strongly to clip."""

    def samples_needed(self, queue_size: int) -> int:
        """Return the number of queued samples that the first update needs. If it is 0, nothing is ever queued."""
        return 0

    def period(self, step: int, every: int) -> int:
        """Return the number of steps between updates at this step."""
        return every

    @abstractmethod
    def update(self, state: State, slopes: Slopes, now: Now) -> None:
        """Move tau: write p0 and tau to the state."""

    def initial_state(self) -> Tensor:
        """Return the initial contents of the buffer ``rule_state``, in which a rule may keep numbers of its own."""
        return torch.zeros(0)

    def count(self, rule_state: Tensor, H: Tensor, labels: Tensor, num_classes: int) -> None:  # noqa: B027
        """Add queued samples to ``rule_state``, without a host read: (N,), (N,). Called if it is not empty."""

    def kernel_rule(self, queue_size: int, every: int, num_classes: int) -> KernelRule | None:
        """Return the constants by which the CUDA kernel runs this rule; None if it cannot."""
        return None

    @property
    def identity(self) -> str:
        """A name that states have in common with the rule that they were saved with."""
        return type(self).__name__


class FittedRule(Rule):
    """A rule that solves r(tau) = 1 + epsilon for two normals fitted to the queue: Eq. 12 of Ye et al., 2025."""

    @abstractmethod
    def excess(self, lr: Any, highest_lr: Any) -> Any:
        """Return epsilon_t, the allowed excess of noisy over clean gradients, from numbers or tensors.

        At 0 or below, and if it is NaN, tau stays as it is.
        """

    def samples_needed(self, queue_size: int) -> int:
        return queue_size

    def recent(self, seen: int, queue_size: int) -> int:
        """Return how many of the newest samples to fit."""
        return queue_size

    def move(self, p0: float, tau: float, fit: Fit, state: State, slopes: Slopes, now: Now) -> None:
        """Move tau, given the solution of r(tau) = 1 + epsilon_t: here, adopt it."""
        state.accept(p0, tau, fit)

    def end_update(self, state: State) -> None:
        """Do what an update does last, even if the fit was degenerate: here, nothing."""

    def update(self, state: State, slopes: Slopes, now: Now) -> None:
        """Fit two normals to the queue and solve for tau, on the CPU: Algorithm 1, lines 8 and 9."""
        on_cpu = state.to_cpu()
        seen, size = int(on_cpu.seen), len(on_cpu.queue) - 1
        epsilon = float(self.excess(now.lr, on_cpu.highest_lr.item() or math.inf))
        if seen < self.samples_needed(size) or not epsilon > 0:
            return
        fit = fit_queue(newest(on_cpu.queue, seen, self.recent(seen, size)))  # line 8
        if fit.is_degenerate:
            on_cpu.degenerate.add_(1)
        else:
            p0, tau = slopes.solve(fit.clean, fit.noisy, 1 + epsilon)  # line 9
            self.move(p0, tau, fit, on_cpu, slopes, now)
        self.end_update(on_cpu)
        state.copy_from(on_cpu)


class Schedule(Rule):
    """A rule that moves tau at every step, whatever the losses: "Comparison with manually designed methods"."""

    @abstractmethod
    def __call__(self, step: Tensor, tau: Tensor) -> Tensor:
        """Return tau at the step t = 1, 2, ..., given the last one, without a host read: (), () -> ()."""

    def period(self, step: int, every: int) -> int:
        return 1

    def update(self, state: State, slopes: Slopes, now: Now) -> None:
        last, device = state.solution[1], state.solution.device
        tau = torch.as_tensor(self(state.steps.to(device), last), dtype=last.dtype, device=device)
        tau = torch.where(tau.isnan(), last, tau.clamp(TAU_MIN, slopes.steepest))
        state.solution[:2] = torch.stack([slopes.p0_on_device(tau), tau])
        state.share_thresholds()

    @property
    def identity(self) -> str:
        numbers = ", ".join(f"{name}={float(value)!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({numbers})"
