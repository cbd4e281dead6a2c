"""Ways to move tau by hand, which the paper compares with the optimised one ("adjusting methods").

Each is a function of the step t = 1, 2, ... and the last tau, and moves every step. Pass one as ``OGC(threshold=)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .._require import require

Schedule = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Fixed:
    """The same tau throughout: over CE, that is PHuber-CE."""

    tau: float

    def __post_init__(self) -> None:
        require(0 < self.tau < math.inf, "tau", "above 0", self.tau)

    def __call__(self, step: Tensor, tau: Tensor) -> Tensor:
        return torch.full_like(tau, self.tau)


@dataclass(frozen=True)
class Linear:
    """tau = beta (1 - t / steps). It ends at 0; OGC holds it at P_MIN from there on.

    :param steps: T, the number of training steps.
    """

    beta: float = 10.0
    steps: int = 0  # to be given: 0 is refused

    def __post_init__(self) -> None:
        require(0 < self.beta < math.inf, "beta", "above 0", self.beta)
        require(self.steps >= 1, "steps", "the number of training steps, at least 1", self.steps)

    def __call__(self, step: Tensor, tau: Tensor) -> Tensor:
        return self.beta * (1 - step.to(tau.dtype) / self.steps)


@dataclass(frozen=True)
class EMA:
    """1 / tau_t = alpha / tau_{t-1} + (1 - alpha), starting unclipped and nearing 1, which makes CE into MAE."""

    alpha: float = 0.9999

    def __post_init__(self) -> None:
        require(0 <= self.alpha < 1, "alpha", "in [0, 1)", self.alpha)

    def __call__(self, step: Tensor, tau: Tensor) -> Tensor:
        return 1 / (self.alpha / tau + (1 - self.alpha))
