"""Clipping the gradient at tau makes the loss a straight line below p0."""

import pytest
import torch
from torch.testing import assert_close

import reference
from ogc import losses
from ogc.given_label import H_MAX, H_MIN, P_MIN
from ogc.losses import clipped, clipped_with_derivative

BASES = {
    "ce": (losses.CrossEntropy(), reference.ce()),
    "fl": (losses.Focal(), reference.fl(gamma=0.5)),
    "gce": (losses.GCE(q=0.7), reference.gce(q=0.7)),
    "taylor_ce": (losses.TaylorCE(), reference.taylor_ce(t=2)),
}
H = torch.linspace(H_MIN, H_MAX, 301, dtype=torch.float64)
every_base = pytest.mark.parametrize("name", BASES)


@pytest.mark.parametrize("p0", [1e-4, 0.2, 0.9])
@every_base
def test_value_and_derivative(name, p0):
    """The value is the reference's. The derivative by H is p min(slope, tau), by autograd and by hand."""
    base, numpy_loss = BASES[name]
    tau = float(base.slope(torch.tensor(p0, dtype=torch.float64)))
    p = torch.exp(-H)
    expected = torch.tensor([reference.clipped(*numpy_loss, each, p0) for each in p.tolist()], dtype=torch.float64)
    derivative = p[1:] * base.slope(p[1:]).clamp(max=tau)
    for numbers in ((p0, tau), torch.tensor([p0, tau], dtype=torch.float64).unbind()):
        leaf = H.clone().requires_grad_()
        value = clipped(base, leaf, *numbers)
        assert_close(value.detach(), expected)
        assert_close(torch.autograd.grad(value.sum(), leaf)[0][1:], derivative)
        value, by_hand = clipped_with_derivative(base, H, *numbers)
        assert_close(value, expected)
        assert_close(by_hand[1:], derivative)


def test_clipped_ce_equals_the_papers_formula():
    """1 - tau p + log tau."""
    tau = torch.tensor(5.0, dtype=torch.float64)
    p = torch.linspace(0.01, 0.2, 20, dtype=torch.float64)
    assert_close(clipped(losses.CrossEntropy(), -p.log(), 1 / tau, tau), 1 - tau * p + tau.log())


@every_base
def test_is_continuous_and_smooth_at_p0(name):
    base, p0 = BASES[name][0], 0.3
    tau = float(base.slope(torch.tensor(p0, dtype=torch.float64)))
    near = -torch.log(torch.tensor([p0 * (1 - 1e-9), p0, p0 * (1 + 1e-9)], dtype=torch.float64))
    for values in clipped_with_derivative(base, near, p0, tau):
        assert_close(values, values[1].expand(3), rtol=1e-7, atol=0)


@every_base
def test_tau_below_every_slope_makes_the_loss_linear(name):
    """p0 = 1 - P_MIN, and the slope stays tau."""
    h = H[1:].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(clipped(BASES[name][0], h, 1 - P_MIN, 1e-4).sum(), h)
    assert_close(gradient, 1e-4 * torch.exp(-H[1:]))
    assert_close(clipped_with_derivative(BASES[name][0], H, 1 - P_MIN, 1e-4)[1], 1e-4 * torch.exp(-H))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("C", [2, 3, 5, 10, 16, 100, 1000])
def test_gradient_at_p0(C, dtype):
    """Equal logits and tau = C: every p is p0 up to rounding, and the gradient is tau from either side."""
    logits = torch.zeros(1, C, dtype=dtype, requires_grad=True)
    losses.PHuberCE(tau=float(C))(logits, torch.tensor([0])).backward()
    expected = torch.full((1, C), 1 / C, dtype=dtype)
    expected[0, 0] -= 1
    assert_close(logits.grad, expected)
