"""Base class of all losses: arguments as in ``nn.CrossEntropyLoss``, input checks, weighting and reduction."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from .._require import require
from ..given_label import can_read, check_input

Reduction = Literal["none", "mean", "sum"]


class Loss(nn.Module, ABC):
    """A loss of logits (N, C, d1, ...) and given labels (N, d1, ...), called like ``nn.CrossEntropyLoss``.

    The result is float32, or float64 for float64 logits. It is 0 if every label is ignored.

    :param weight: one weight per class, (C,). ``mean`` divides by the sum of the weights used.
    :param ignore_index: label of samples to skip.
    :param reduction: ``none``, ``mean`` or ``sum``.
    """

    weight: Tensor | None

    def __init__(
        self, *, weight: Tensor | None = None, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        require(reduction in get_args(Reduction), "reduction", "one of none, mean, sum", reduction)
        if weight is not None:
            weight = torch.as_tensor(weight)
            require(weight.dim() == 1 and bool((weight >= 0).all()), "weight", "one number >= 0 per class", weight)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction

    @abstractmethod
    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample, and any number for ignored ones: (N, C, ...), (N, ...) -> (N, ...)."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits, labels = check_input(logits, labels)
        return self.reduce(self.per_sample(logits, labels), labels, num_classes=logits.shape[1])

    def reduce(self, losses: Tensor, labels: Tensor, num_classes: int) -> Tensor:
        """Drop ignored samples, weight the others by class, and reduce: (N, ...) -> () or (N, ...)."""
        if losses.shape != labels.shape:  # a mean, for example, would be divided by N once more
            raise ValueError(
                f"{type(self).__name__} should return one loss per sample, of shape {tuple(labels.shape)}. Found "
                f"{tuple(losses.shape)}."
            )
        return self.combine(losses, self.shares(labels, num_classes, losses.dtype))

    def shares(
        self, labels: Tensor, num_classes: int, dtype: torch.dtype, *, keeps_all: bool = False
    ) -> Tensor | float:
        """Return the factor of each sample in the reduced loss, 0 if ignored: (N, ...), or one number for all.

        :param keeps_all: True if it is known that no label is ignored.
        """
        if self.weight is None and (keeps_all or (can_read(labels) and bool((labels != self.ignore_index).all()))):
            return 1 / max(labels.numel(), 1) if self.reduction == "mean" else 1.0
        share = (labels != self.ignore_index).to(dtype)
        if self.weight is not None:
            require(len(self.weight) == num_classes, "weight", f"of length C = {num_classes}", tuple(self.weight.shape))
            share = share * self.weight.to(dtype)[labels.clamp(0, num_classes - 1)]
        if self.reduction == "mean":
            share = share / share.sum().clamp(min=torch.finfo(dtype).tiny)  # 0 / tiny if all are ignored
        return share

    def combine(self, losses: Tensor, share: Tensor | float) -> Tensor:
        """Reduce the losses: (N, ...), (N, ...) -> () or (N, ...). A share of 0 drops even a non-finite loss."""
        if isinstance(share, Tensor):
            losses = torch.where(share > 0, losses * share, 0.0)
        elif self.reduction == "mean" and losses.numel():
            return losses.mean()
        return losses if self.reduction == "none" else losses.sum()

    def require_plain(self, wrapper: str) -> Self:
        """Raise ``ValueError`` if the inner loss of a wrapper has arguments that the wrapper would ignore."""
        if self.weight is not None or self.ignore_index != -100 or self.reduction != "mean":
            raise ValueError(
                f"Give `weight`, `ignore_index` and `reduction` to {wrapper}, not to the loss inside it. "
                f"Found `{type(self).__name__}({self.extra_repr()})`."
            )
        return self

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Parameters of the formula by name. They identify the loss in a saved state."""
        names = inspect.signature(type(self).__init__).parameters.keys() - {"weight", "ignore_index", "reduction"}
        return {n: v for n in sorted(names) if isinstance(v := getattr(self, n, None), int | float)}

    def extra_repr(self) -> str:
        shown = dict(self.hyperparameters)
        if self.weight is not None:
            shown["weight"] = f"({len(self.weight)},)"
        if self.ignore_index != -100:
            shown["ignore_index"] = self.ignore_index
        if self.reduction != "mean":
            shown["reduction"] = self.reduction
        return ", ".join(f"{name}={value}" for name, value in shown.items())
