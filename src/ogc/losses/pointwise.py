"""Losses of p = p(y|x) alone, as assumed by Ye et al., 2025, to solve for a threshold (section "Method").

To add one, subclass :class:`Pointwise` and write ``value(p)``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from .._require import require
from ..given_label import P_MIN, cross_entropy
from .loss import Loss, Reduction


class Pointwise(Loss):
    """A loss that depends only on the probability p of the given label.

    >>> class Brier(Pointwise):
    ...     def value(self, p):
    ...         return (1 - p) ** 2 / 2
    >>> Brier()(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor(0.1250)
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Do not inherit ``slope`` and ``at`` from a class with another ``value``, to which they do not belong."""
        super().__init_subclass__(**arguments)
        for name in ("slope", "at"):
            formula = getattr(cls, name)
            users = [
                each for each in cls.__mro__[1:] if getattr(each, name, None) is formula and hasattr(each, "value")
            ]
            values = [each.value for each in users if not getattr(each.value, "__isabstractmethod__", False)]
            if any(value is not cls.value for value in values):
                setattr(cls, name, getattr(Pointwise, name))

    @abstractmethod
    def value(self, p: Tensor) -> Tensor:
        """Return the loss at p, elementwise, for p in (0, 1 - P_MIN]."""

    def slope(self, p: Tensor) -> Tensor:
        """\\|d value / dp\\|, the norm of g_p in Eq. 5 of Ye et al., 2025. Derived from ``value`` unless overridden."""
        with torch.inference_mode(False), torch.enable_grad():
            p = p.detach().clone().requires_grad_()
            value = self.value(p)
            return -torch.autograd.grad(value.sum(), p)[0] if value.requires_grad else torch.zeros_like(p)

    def at(self, H: Tensor) -> Tensor:
        """Return the loss at H = -log p. Override it if the loss is not finite when p = e^-H rounds to 0."""
        return self.value(torch.exp(-H).clamp(torch.finfo(H.dtype).tiny, 1 - P_MIN))

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.at(cross_entropy(logits, labels, self.ignore_index))


class CrossEntropy(Pointwise):
    """CE: -log p."""

    def value(self, p: Tensor) -> Tensor:
        return -torch.log(p)

    def slope(self, p: Tensor) -> Tensor:
        return torch.reciprocal(p)

    def at(self, H: Tensor) -> Tensor:
        return H


class Focal(Pointwise):
    """FL: -(1 - p)^gamma log p (Focal Loss for Dense Object Detection, Lin et al., 2017).

    :param gamma: how strongly to reduce the weight of well-fitted samples. 0 is CE.
    """

    def __init__(
        self,
        *,
        gamma: float = 0.5,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        require(0 <= gamma < math.inf, "gamma", "at least 0", gamma)
        self.gamma = gamma

    def value(self, p: Tensor) -> Tensor:
        return -((1 - p) ** self.gamma) * torch.log(p)

    def slope(self, p: Tensor) -> Tensor:
        return (1 - p) ** self.gamma / p - self.gamma * (1 - p) ** (self.gamma - 1) * torch.log(p)

    def at(self, H: Tensor) -> Tensor:
        H = H.clamp(max=torch.finfo(H.dtype).max)  # otherwise the gradient of p H is 0 x inf at p = 0
        return (1 - torch.exp(-H).clamp(max=1 - P_MIN)) ** self.gamma * H


class GCE(Pointwise):
    """GCE: (1 - p^q) / q (Generalized Cross Entropy Loss, Zhang and Sabuncu, 2018). CE as q -> 0, MAE at q = 1.

    :param q: position between CE and MAE, in (0, 1].
    """

    def __init__(
        self, *, q: float = 0.9, weight: Tensor | None = None, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        require(0 < q <= 1, "q", "in (0, 1]", q)
        self.q = q

    def value(self, p: Tensor) -> Tensor:
        return (1 - p**self.q) / self.q

    def slope(self, p: Tensor) -> Tensor:
        return p ** (self.q - 1)

    def at(self, H: Tensor) -> Tensor:
        return -torch.expm1(-self.q * H) / self.q  # p^q = e^-qH, which is above 0 even if p rounds to 0


class MAE(Pointwise):
    """MAE: 1 - p, the symmetric loss (Robust Loss Functions under Label Noise, Ghosh et al., 2017)."""

    def value(self, p: Tensor) -> Tensor:
        return 1 - p

    def slope(self, p: Tensor) -> Tensor:
        return torch.ones_like(p)


class TaylorCE(Pointwise):
    """Taylor-CE: sum_{i=1..t} (1 - p)^i / i (Can Cross Entropy Loss Be Robust to Label Noise?, Feng et al., 2020).

    :param t: number of terms. 1 is MAE, the limit is CE.
    """

    def __init__(
        self, *, t: int = 2, weight: Tensor | None = None, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        require(isinstance(t, int) and t >= 1, "t", "an integer of at least 1", t)
        self.t = t

    def value(self, p: Tensor) -> Tensor:
        return torch.stack([(1 - p) ** i / i for i in range(1, self.t + 1)]).sum(0)

    def slope(self, p: Tensor) -> Tensor:
        return torch.stack([(1 - p) ** (i - 1) for i in range(1, self.t + 1)]).sum(0)


class SCE(Pointwise):
    """SCE: alpha CE + beta RCE (Symmetric Cross Entropy, Wang et al., 2019).

    RCE = -sum_k p_k log q_k with log 0 := log 1e-4, which is -log(1e-4) (1 - p): a function of p alone.

    :param alpha: weight of CE.
    :param beta: weight of RCE.
    """

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        beta: float = 1.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        require(0 <= alpha < math.inf, "alpha", "at least 0", alpha)
        require(0 <= beta < math.inf, "beta", "at least 0", beta)
        self.alpha, self.beta = alpha, beta

    def value(self, p: Tensor) -> Tensor:
        return -self.alpha * torch.log(p) + self.beta * reverse_cross_entropy(p)

    def at(self, H: Tensor) -> Tensor:
        H = H.clamp(max=torch.finfo(H.dtype).max)  # alpha may be 0
        return self.alpha * H + self.beta * reverse_cross_entropy(torch.exp(-H))


def reverse_cross_entropy(p: Tensor) -> Tensor:
    """RCE of p = p(y): -sum_k p_k log q_k for a one-hot q, log 0 := log 1e-4 (Wang et al., 2019)."""
    return -math.log(1e-4) * (1 - p)
