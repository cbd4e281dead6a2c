"""The Jensen-Shannon divergence between the given label and the prediction."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._require import require
from .loss import Reduction
from .pointwise import Pointwise


class JSDivergence(Pointwise):
    """JS (Generalized Jensen-Shannon Divergence Loss, Englesson and Azizpour, 2021).

    With m = pi1 e_y + (1 - pi1) p and Z = -(1 - pi1) log(1 - pi1):
    JS = [pi1 KL(e_y || m) + (1 - pi1) KL(p || m)] / Z.
    The other classes enter m with the same factor, so their terms add up to (1 - p(y)) log 1/(1 - pi1),
    and the loss depends only on p(y).

    :param pi1: weight of the label, in (0, 1). The limit at 0 is CE, at 1 MAE.
    """

    def __init__(
        self, *, pi1: float = 0.9, weight: Tensor | None = None, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        require(0 < pi1 < 1, "pi1", "in (0, 1)", pi1)
        self.pi1 = pi1

    def value(self, p: Tensor) -> Tensor:
        pi1, pi2 = self.pi1, 1 - self.pi1
        m = pi1 + pi2 * p
        label_to_m = -torch.log(m)
        p_to_m = p * torch.log(p / m) - (1 - p) * math.log(pi2)
        return (pi1 * label_to_m + pi2 * p_to_m) / (-pi2 * math.log(pi2))
