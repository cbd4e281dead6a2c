"""Hand-designed schedules for tau: "Comparison with manually designed methods" in Ye et al., 2025.

Each is a function of the step t = 1, 2, ... and the last tau, and is evaluated at every step. Pass one as
``OGC(threshold=...)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .._require import require

Schedule = Callable[[Tensor, Tensor], Tensor]
TAU_MIN = 1e-7
"""OGC keeps the tau of a schedule at this value or above."""


def name_of(schedule: Schedule | None) -> str | None:
    """Return a name that states have in common with the schedule they were saved with; None without a schedule."""
    if schedule is None:
        return None
    if isinstance(schedule, Fixed | Linear | EMA):
        return repr(schedule)
    return getattr(schedule, "__qualname__", type(schedule).__name__)


@dataclass(frozen=True)
class Fixed:
    """The same tau at every step. With CE this is PHuber-CE."""

    tau: float

    def __post_init__(self) -> None:
        require(0 < self.tau < math.inf, "tau", "above 0", self.tau)
        object.__setattr__(self, "tau", float(self.tau))  # equal schedules have equal names

    def __call__(self, step: Tensor, tau: Tensor) -> Tensor:
        return torch.full_like(tau, self.tau)


@dataclass(frozen=True)
class Linear:
    """tau_t = beta (1 - t / steps). It ends at 0; OGC keeps tau at TAU_MIN or above.

    :param steps: T, the number of training steps.
    """

    beta: float = 10.0
    steps: float = field(kw_only=True)

    def __post_init__(self) -> None:
        require(0 < self.beta < math.inf, "beta", "above 0", self.beta)
        require(self.steps >= 1, "steps", "the number of training steps, at least 1", self.steps)
        object.__setattr__(self, "beta", float(self.beta))
        object.__setattr__(self, "steps", float(self.steps))

    def __call__(self, step: Tensor, tau: Tensor) -> Tensor:
        return self.beta * (1 - step.to(tau.dtype) / self.steps)


@dataclass(frozen=True)
class EMA:
    """1 / tau_t = alpha / tau_{t-1} + (1 - alpha), starting unclipped and converging to 1, where CE becomes MAE."""

    alpha: float = 0.9999

    def __post_init__(self) -> None:
        require(0 <= self.alpha < 1, "alpha", "in [0, 1)", self.alpha)
        object.__setattr__(self, "alpha", float(self.alpha))

    def __call__(self, step: Tensor, tau: Tensor) -> Tensor:
        return 1 / (self.alpha / tau + (1 - self.alpha))
