"""LogitClip: clip the norm of the logits, then apply any loss."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from .._require import require
from .loss import Loss, Reduction
from .pointwise import CrossEntropy


class LogitClip(Loss):
    """LC-CE: rescale logits of norm above tau to norm tau, then apply ``base`` (Wei et al., 2023).

    :param base: loss of the clipped logits. CE by default.
    :param tau: upper bound of the norm.
    """

    def __init__(
        self,
        base: Loss | None = None,
        *,
        tau: float = 0.1,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        require(0 < tau < math.inf, "tau", "above 0", tau)
        self.base = CrossEntropy() if base is None else copy.deepcopy(base.require_plain("LogitClip"))
        self.base.ignore_index = ignore_index
        self.tau = tau

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        masked = logits == -math.inf  # a masked class does not count, and stays masked
        finite = logits.masked_fill(masked, 0.0)
        norm = torch.linalg.vector_norm(finite, dim=1, keepdim=True)
        clipped = finite * (self.tau / norm.clamp(min=self.tau))
        return self.base.per_sample(clipped.masked_fill(masked, -math.inf), labels)
