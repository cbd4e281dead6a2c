"""The rules that move tau, and which of them the arguments of OGC choose. ``rule.py`` has their interface."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._require import require
from ..kernels.constants import KernelRule
from .default_rule import Default
from .rule import FittedRule, Rule, Schedule

Function = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Relative(FittedRule):
    """epsilon_t = epsilon lr_t / (highest lr so far), or always epsilon if ``follow_lr`` is False."""

    epsilon: float
    follow_lr: bool = True
    parameter = "epsilon"

    def __post_init__(self) -> None:
        require(0 < self.epsilon < math.inf, "epsilon", "above 0", self.epsilon)

    def excess(self, lr: Any, highest_lr: Any) -> Any:
        return self.epsilon * lr / highest_lr if self.follow_lr else self.epsilon

    def kernel_rule(self, queue_size: int, every: int, num_classes: int) -> KernelRule:
        return KernelRule(self.epsilon, "relative" if self.follow_lr else "constant", every, queue_size)


@dataclass(frozen=True)
class Paper(FittedRule):
    """epsilon_t = epsilon0 lr_t (appendix of Ye et al., 2025, "Predefined gradient ratio 1 + epsilon")."""

    epsilon0: float
    follow_lr = True
    parameter = "epsilon0"

    def __post_init__(self) -> None:
        require(0 < self.epsilon0 < math.inf, "epsilon0", "above 0", self.epsilon0)

    def excess(self, lr: Any, highest_lr: Any) -> Any:
        return self.epsilon0 * lr

    def kernel_rule(self, queue_size: int, every: int, num_classes: int) -> KernelRule:
        return KernelRule(self.epsilon0, "times lr", every, queue_size)


@dataclass(frozen=True)
class Fixed(Schedule):
    """The same tau at every step. With CE this is PHuber-CE."""

    tau: float
    is_constant = True

    def __post_init__(self) -> None:
        require(0 < self.tau < math.inf, "tau", "above 0", self.tau)

    def __call__(self, step: Tensor, tau: Tensor) -> Tensor:
        return torch.full_like(tau, self.tau)


@dataclass(frozen=True)
class Linear(Schedule):
    """tau_t = beta (1 - t / steps). It ends at 0; OGC keeps tau at TAU_MIN or above.

    :param steps: T, the number of training steps.
    """

    beta: float = 10.0
    steps: float = field(kw_only=True)

    def __post_init__(self) -> None:
        require(0 < self.beta < math.inf, "beta", "above 0", self.beta)
        require(self.steps >= 1, "steps", "the number of training steps, at least 1", self.steps)

    def __call__(self, step: Tensor, tau: Tensor) -> Tensor:
        return self.beta * (1 - step.to(tau.dtype) / self.steps)


@dataclass(frozen=True)
class EMA(Schedule):
    """1 / tau_t = alpha / tau_{t-1} + (1 - alpha), starting unclipped and converging to 1, where CE becomes MAE."""

    alpha: float = 0.9999

    def __post_init__(self) -> None:
        require(0 <= self.alpha < 1, "alpha", "in [0, 1)", self.alpha)

    def __call__(self, step: Tensor, tau: Tensor) -> Tensor:
        return 1 / (self.alpha / tau + (1 - self.alpha))


@dataclass(frozen=True)
class FunctionSchedule(Schedule):
    """A schedule given as a function of the step and the last tau."""

    function: Function

    def __call__(self, step: Tensor, tau: Tensor) -> Tensor:
        return self.function(step, tau)

    @property
    def identity(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)


def choose_rule(
    *,
    epsilon: float | None = None,
    epsilon0: float | None = None,
    follow_lr: bool = True,
    threshold: Rule | Function | None = None,
) -> Rule:
    """Return the rule that the arguments of OGC describe."""
    given = {"epsilon": epsilon, "epsilon0": epsilon0, "threshold": threshold}
    given = {name: value for name, value in given.items() if value is not None}
    name, other, *_ = *given, "", ""
    require(len(given) < 2, name, f"omitted with {other}: they are two rules", given.get(name))
    if threshold is not None:
        require(callable(threshold) or isinstance(threshold, Rule), "threshold", "a rule or a function", threshold)
        return threshold if isinstance(threshold, Rule) else FunctionSchedule(threshold)
    if epsilon0 is not None:
        require(follow_lr, "follow_lr", "True with epsilon0, which is multiplied by the learning rate", follow_lr)
        return Paper(epsilon0)
    return Default(follow_lr) if epsilon is None else Relative(epsilon, follow_lr)
