"""Clipping the gradient at tau makes the loss a straight line below p0."""

import pytest
import torch
from torch.testing import assert_close

import reference
from ogc import losses
from ogc.given_label import H_MAX, H_MIN, P_MIN
from ogc.losses import clipped, clipped_slope

BASES = {"ce": losses.CrossEntropy(), "fl": losses.Focal(), "gce": losses.GCE(q=0.7), "taylor_ce": losses.TaylorCE()}
NUMPY_BASES = {
    "ce": reference.ce(),
    "fl": reference.fl(gamma=0.5),
    "gce": reference.gce(q=0.7),
    "taylor_ce": reference.taylor_ce(t=2),
}
H = torch.linspace(H_MIN, H_MAX, 301, dtype=torch.float64)


@pytest.mark.parametrize("p0", [1e-4, 0.2, 0.9])
@pytest.mark.parametrize("name", BASES)
def test_equals_the_reference(name, p0):
    base, numpy_loss = BASES[name], NUMPY_BASES[name]
    tau = float(base.slope(torch.tensor(p0, dtype=torch.float64)))
    expected = [reference.clipped(*numpy_loss, p, p0) for p in torch.exp(-H).tolist()]
    assert_close(clipped(base, H, p0, tau), torch.tensor(expected, dtype=torch.float64))
    tensors = torch.tensor([p0, tau], dtype=torch.float64).unbind()
    assert_close(clipped(base, H, *tensors), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("p0", [1e-4, 0.2, 0.9])
@pytest.mark.parametrize("name", BASES)
def test_gradient_with_respect_to_p_is_clipped(name, p0):
    base = BASES[name]
    tau = float(base.slope(torch.tensor(p0, dtype=torch.float64)))
    h = H[1:].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(clipped(base, h, p0, tau).sum(), h)
    p = torch.exp(-H[1:])
    expected = base.slope(p).clamp(max=tau)
    assert_close(gradient / p, expected)
    assert_close(clipped_slope(base, p, p0, tau), expected)


def test_clipped_ce_equals_the_papers_formula():
    """1 - tau p + log tau."""
    tau = torch.tensor(5.0, dtype=torch.float64)
    p = torch.linspace(0.01, 0.2, 20, dtype=torch.float64)
    assert_close(clipped(losses.CrossEntropy(), -p.log(), 1 / tau, tau), 1 - tau * p + tau.log())


@pytest.mark.parametrize("name", BASES)
def test_is_continuous_and_smooth_at_p0(name):
    base, p0 = BASES[name], 0.3
    tau = float(base.slope(torch.tensor(p0, dtype=torch.float64)))
    near = -torch.log(torch.tensor([p0 * (1 - 1e-9), p0, p0 * (1 + 1e-9)], dtype=torch.float64))
    value, slope = clipped(base, near, p0, tau), clipped_slope(base, torch.exp(-near), p0, tau)
    assert_close(value, value[1].expand(3), rtol=1e-7, atol=0)
    assert_close(slope, slope[1].expand(3), rtol=1e-7, atol=0)


@pytest.mark.parametrize("name", BASES)
def test_tau_below_every_slope_makes_the_loss_linear(name):
    """p0 = 1 - P_MIN, and the slope stays tau."""
    tau = 0.01
    h = H[1:].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(clipped(BASES[name], h, 1 - P_MIN, tau).sum(), h)
    assert_close(gradient, tau * torch.exp(-H[1:]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("C", [2, 3, 5, 10, 16, 100, 1000])
def test_gradient_at_p0(C, dtype):
    """Equal logits and tau = C: every p is p0 up to rounding, and the gradient is tau from either side."""
    logits = torch.zeros(1, C, dtype=dtype, requires_grad=True)
    losses.PHuberCE(tau=float(C))(logits, torch.tensor([0])).backward()
    expected = torch.full((1, C), 1 / C, dtype=dtype)
    expected[0, 0] -= 1
    assert_close(logits.grad, expected)
