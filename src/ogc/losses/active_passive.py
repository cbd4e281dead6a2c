"""Sums of a normalised (active) loss and a passive one: NCE+RCE and NCE+NNCE. They depend on every class."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .._require import require
from ..given_label import P_MIN, pick
from .loss import Loss, Reduction
from .pointwise import reverse_cross_entropy


def normalised_cross_entropy(log_p: Tensor, H: Tensor) -> Tensor:
    """NCE = log p(y) / sum_k log p(k) (Normalized Loss Functions, Ma et al., 2020): (N, C), (N,) -> (N,)."""
    ceiling = math.sqrt(torch.finfo(H.dtype).max)  # masked classes: log 0
    divisor = -log_p.clamp(min=-ceiling).sum(1)
    return H.clamp(max=ceiling) / divisor.clamp(min=P_MIN)  # a single class: 0 / 0


def normalised_negative_cross_entropy(log_p: Tensor, H: Tensor) -> Tensor:
    """NNCE = 1 - (A + log p(y)) / sum_k (A + log p(k)), A = -log 1e-7 and p >= 1e-7 (Ye et al., 2023)."""
    A = -math.log(P_MIN)
    return 1 - (A - H.clamp(max=A)) / (A + log_p.clamp(min=-A)).sum(1)


class NCEPlusRCE(Loss):
    """NCE+RCE: alpha NCE + beta RCE (Normalized Loss Functions, Ma et al., 2020).

    :param alpha: weight of NCE.
    :param beta: weight of RCE.
    """

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        beta: float = 0.1,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        require(0 <= alpha < math.inf, "alpha", "at least 0", alpha)
        require(0 <= beta < math.inf, "beta", "at least 0", beta)
        self.alpha, self.beta = alpha, beta

    def passive(self, log_p: Tensor, H: Tensor) -> Tensor:
        """Return the passive loss of each sample, here RCE: (N, C), (N,) -> (N,)."""
        return reverse_cross_entropy(torch.exp(-H))

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        log_p = F.log_softmax(logits, dim=1)
        H = pick(log_p, labels, self.ignore_index)
        return self.alpha * normalised_cross_entropy(log_p, H) + self.beta * self.passive(log_p, H)


class NCEPlusNNCE(NCEPlusRCE):
    """NCE+NNCE: alpha NCE + beta NNCE (Active Negative Loss Functions, Ye et al., 2023).

    :param alpha: weight of NCE.
    :param beta: weight of NNCE.
    """

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(alpha=alpha, beta=beta, weight=weight, ignore_index=ignore_index, reduction=reduction)

    def passive(self, log_p: Tensor, H: Tensor) -> Tensor:
        return normalised_negative_cross_entropy(log_p, H)
