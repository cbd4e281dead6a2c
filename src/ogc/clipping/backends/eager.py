"""The clipped loss in eager mode, with its derivative written by hand: Algorithm 1, line 13, of Ye et al., 2025.

One node of the autograd graph replaces about fifteen. The derivative of the loss of a sample by H is p min(slope(p),
tau), where p is the probability of the label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ...given_label import check_input, cross_entropy
from ...losses import clipped, clipped_with_derivative

if TYPE_CHECKING:
    from ..ogc import OGC


def eager_loss(criterion: OGC, H: Tensor, labels: Tensor, num_classes: int, share: Tensor | float) -> Tensor:
    """Return the reduced loss clipped at the criterion's current tau: (N, ...), (N, ...) -> () or (N, ...).

    :param labels: checked, of type int64.
    :param share: factor of each sample in the reduced loss.
    """
    base, (p0, tau) = criterion.base, criterion.p0_and_tau(H, labels, num_classes)

    def compute(H: Tensor) -> tuple[Tensor, Tensor]:
        losses, by_H = clipped_with_derivative(base, H, p0, tau)
        return criterion.combine(losses, share), by_H.mul_(share)

    return _with_gradient(H, compute, lambda H: criterion.combine(clipped(base, H, p0, tau), share))


def kernel_loss(
    criterion: OGC, logits: Tensor, labels: Tensor, value: Tensor, gradient: Tensor, p0: Tensor, tau: Tensor
) -> Tensor:
    """Attach the gradient that a kernel computed. A second derivative recomputes the loss at the same p0 and tau."""

    def recompute(logits: Tensor) -> Tensor:
        checked, checked_labels = check_input(logits, labels)
        H = cross_entropy(checked, checked_labels, criterion.ignore_index)
        return criterion.reduce(clipped(criterion.base, H, p0, tau), checked_labels, checked.shape[1])

    return _with_gradient(logits, lambda _: (value, gradient), recompute)


Compute = Callable[[Tensor], tuple[Tensor, Tensor]]
Recompute = Callable[[Tensor], Tensor]


def _with_gradient(x: Tensor, compute: Compute, recompute: Recompute) -> Tensor:
    if x.requires_grad:
        return cast(Tensor, _KnownGradient.apply(x, compute, recompute))  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return compute(x)[0]


class _KnownGradient(torch.autograd.Function):
    """A loss of x, and its gradient, by ``compute``. For a second derivative, ``recompute`` has a graph of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, compute: Compute, recompute: Recompute) -> Tensor:
        value, gradient = compute(x)
        ctx.save_for_backward(x, gradient)
        ctx.recompute = recompute
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            (gradient,) = torch.autograd.grad(ctx.recompute(x), x, grad, create_graph=True)
        elif grad.dim() > 0 or grad.device.type != "cpu" or grad.item() != 1:
            gradient = gradient * grad
        return gradient.to(x.dtype), None, None
