"""The hand-written derivative of the clipped loss, compared with autograd through the general path."""

import pytest
import torch
from torch.testing import assert_close

from asserts import value_and_gradient
from ogc import OGC, losses
from samples import batch, clipping_ogc, feed, noisy_batch, queue_of, same_bits

BASES = ("ce", "fl", "gce")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", BASES)
def test_gradient_equals_general_path(name, reduction, dtype):
    criterion = clipping_ogc(name, reduction=reduction, weight=torch.linspace(0.1, 2, 10))
    logits, labels = batch(dtype=dtype)
    labels[::7] = -100

    def general_path(x, y):
        return criterion.reduce(criterion.per_sample(x.to(torch.promote_types(dtype, torch.float32)), y), y, 10)

    assert_close(value_and_gradient(criterion, logits, labels), value_and_gradient(general_path, logits, labels))


def test_double_backward_uses_tau_of_forward_pass():
    criterion = clipping_ogc("ce").train()
    logits, labels = batch(dtype=torch.float64)
    x = logits.clone().requires_grad_()
    value = criterion(x, labels)
    (once,) = torch.autograd.grad(value, x, retain_graph=True)
    feed(criterion, queue_of("two clusters"))  # another tau
    (again,) = torch.autograd.grad(value, x, create_graph=True)
    assert_close(again.detach(), once)


def test_loss_may_be_divided_in_place():
    """As in gradient accumulation."""
    logits, labels = batch()
    one, half = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    clipping_ogc("ce")(one, labels).backward()
    loss = clipping_ogc("ce")(half, labels)
    loss /= 2
    loss.backward()
    assert_close(half.grad, one.grad / 2)


def test_backward_twice():
    logits, labels = batch()
    leaf = logits.clone().requires_grad_()
    value = clipping_ogc("ce")(leaf, labels)
    value.backward(retain_graph=True)
    once = leaf.grad.clone()
    leaf.grad.zero_()  # must not change the tensors saved for the second pass
    value.backward()
    assert torch.equal(leaf.grad, once)


def test_gradient_scales_with_upstream_gradient():
    criterion = clipping_ogc("ce")
    logits, labels = batch()
    _, gradient = value_and_gradient(criterion, logits, labels)
    _, scaled = value_and_gradient(lambda x, y: 3 * criterion(x, y), logits, labels)
    assert_close(scaled, 3 * gradient)
    each = clipping_ogc("ce", reduction="none")
    factors = torch.linspace(-1, 2, 32)
    _, weighted = value_and_gradient(lambda x, y: factors * each(x, y), logits, labels)
    assert_close(weighted, 32 * gradient * factors[:, None])


def test_gradient_accumulation_with_an_update_in_between():
    """Each micro-batch keeps the tau of its own forward."""
    criterion = OGC("ce", follow_lr=False, every=2, queue_size=64)
    model = torch.nn.Linear(10, 10)
    (x1, y1), (x2, y2) = noisy_batch(64, seed=0), noisy_batch(64, seed=1)
    first = criterion(model(x1), y1)
    p0 = criterion.p0
    second = criterion(model(x2), y2)
    assert criterion.p0 != p0
    (first + second).backward()
    expected = losses.CrossEntropy()(model(x1), y1) + criterion.eval()(model(x2), y2)
    (gradient,) = torch.autograd.grad(expected, model.weight)
    assert_close(model.weight.grad, gradient)


def test_autocast_does_not_affect_the_loss():
    plain, within = (OGC("ce", follow_lr=False, every=1, queue_size=64) for _ in range(2))
    logits, labels = noisy_batch(64, seed=0)
    expected = value_and_gradient(plain, logits, labels)
    with torch.autocast("cpu", torch.bfloat16):
        found = value_and_gradient(within, logits, labels)
    assert_close(found, expected, rtol=0, atol=0)
    assert all(same_bits(*buffers) for buffers in zip(plain.buffers(), within.buffers(), strict=True))


def test_logits_without_gradient():
    criterion = clipping_ogc("ce")
    value = criterion(*batch())
    assert not value.requires_grad
    with torch.inference_mode():
        assert_close(criterion(*batch()), value.clone())
