"""The clipped loss in eager mode, with its gradient written by hand: Algorithm 1, line 13, of Ye et al., 2025.

One node of the autograd graph replaces about fifteen. The gradient with respect to the logits of a sample is
p min(slope(p), tau) (softmax - one-hot of its label), where p is the probability of the label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ...given_label import check_input, cross_entropy
from ...losses import clipped, clipped_slope

if TYPE_CHECKING:
    from ..ogc import OGC


def eager_loss(
    criterion: OGC, logits: Tensor, labels: Tensor, log_p: Tensor, H: Tensor, share: Tensor | float
) -> Tensor:
    """Return the reduced loss clipped at the criterion's current tau: (N, C, ...), (N, ...) -> () or (N, ...).

    :param logits: argument of the criterion.
    :param labels: checked, of type int64.
    :param log_p: log softmax of the logits; overwritten.
    :param H: -log p of the given labels.
    :param share: factor of each sample in the reduced loss.
    """
    differentiable = torch.is_grad_enabled() and logits.requires_grad
    with torch.no_grad():
        num_classes = log_p.shape[1]
        p0, tau = criterion.p0_and_tau(H, labels, num_classes)
        p = torch.exp(-H)
        value = criterion.combine(clipped(criterion.base, H, p0, tau, p=p), share)
        if not differentiable:
            return value
        pull = clipped_slope(criterion.base, p, p0, tau).mul_(p).mul_(share).unsqueeze_(1)
        label = labels if isinstance(share, float) else labels.clamp(0, num_classes - 1)  # pull is 0 if ignored
        gradient = log_p.exp_().mul_(pull).scatter_add_(1, label.unsqueeze(1), pull.neg_())
    return with_gradient(criterion, logits, labels, value, gradient, p0, tau)


def with_gradient(
    criterion: OGC,
    logits: Tensor,
    labels: Tensor,
    value: Tensor,
    gradient: Tensor,
    p0: Tensor | float,
    tau: Tensor | float,
) -> Tensor:
    """Attach a known gradient to ``value``. A second derivative recomputes the loss at the same p0 and tau."""

    def recompute(logits: Tensor) -> Tensor:
        checked, checked_labels = check_input(logits, labels)
        H = cross_entropy(checked, checked_labels, criterion.ignore_index)
        return criterion.reduce(clipped(criterion.base, H, p0, tau), checked_labels, checked.shape[1])

    return cast(Tensor, _KnownGradient.apply(logits, (value, gradient), recompute))  # type: ignore[no-untyped-call]


class _KnownGradient(torch.autograd.Function):
    """A loss whose gradient with respect to the logits is known.

    The value is in a tuple because an argument that is returned becomes a view, and ``loss /= 2`` an error. For a
    second derivative, ``recompute`` computes the loss from the saved logits.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, known: tuple[Tensor, Tensor], recompute: Callable[[Tensor], Tensor]
    ) -> Tensor:
        value, gradient = known
        ctx.save_for_backward(logits, gradient)
        ctx.recompute = recompute
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            (gradient,) = torch.autograd.grad(ctx.recompute(logits), logits, grad, create_graph=True)
        elif grad.dim() > 0:
            gradient = gradient * grad.unsqueeze(1)
        elif grad.device.type != "cpu" or grad.item() != 1:
            gradient = gradient * grad
        return gradient.to(logits.dtype), None, None
