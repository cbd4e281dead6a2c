"""Losses of p alone: value, slope and `at` agree, and a custom loss needs only `value`."""

import math

import pytest
import torch
from torch.testing import assert_close

from ogc import OGC, losses
from ogc.given_label import H_MAX, H_MIN, P_MIN
from ogc.losses import Pointwise
from samples import batch, noisy_batch

POINTWISE = [
    losses.CrossEntropy(),
    losses.Focal(),
    losses.Focal(gamma=0.0),
    losses.Focal(gamma=3.0),
    losses.MAE(),
    losses.GCE(),
    losses.GCE(q=0.2),
    losses.SCE(),
    losses.PHuberCE(),
    losses.PHuberCE(tau=10.0),
    losses.TaylorCE(),
    losses.TaylorCE(t=8),
    losses.JSDivergence(),
    losses.JSDivergence(pi1=0.3),
]
H = torch.linspace(H_MIN, H_MAX, 501, dtype=torch.float64)


@pytest.mark.parametrize("loss", POINTWISE, ids=repr)
def test_value_slope_and_at_agree(loss):
    assert_close(loss.at(H), loss.value(torch.exp(-H)), rtol=1e-9, atol=1e-9)
    p = torch.exp(-H).requires_grad_()
    (derivative,) = torch.autograd.grad(loss.value(p).sum(), p)
    assert_close(loss.slope(p.detach()), derivative.abs(), rtol=1e-9, atol=0)
    with torch.no_grad():
        assert not loss.slope(torch.tensor([0.3, 0.7])).requires_grad
    assert (loss.at(H).diff() >= 0).all()
    assert loss.at(H)[0] < 1e-3


def test_special_cases():
    """The limits of each family are the losses named in its docstring."""
    p = torch.exp(-H)
    assert_close(losses.Focal(gamma=0.0).value(p), losses.CrossEntropy().value(p))
    assert_close(losses.GCE(q=1.0).value(p), losses.MAE().value(p))
    assert_close(losses.TaylorCE(t=1).value(p), losses.MAE().value(p))
    assert_close(losses.PHuberCE(tau=1.0).value(p), losses.MAE().value(p), atol=1e-9, rtol=0)
    assert_close(losses.GCE(q=1e-6).value(p), losses.CrossEntropy().value(p), rtol=1e-4, atol=1e-9)
    assert_close(losses.SCE(alpha=1.0, beta=0.0).value(p), losses.CrossEntropy().value(p))


class HalfSquare(Pointwise):
    """Custom loss without a slope or a constructor."""

    def value(self, p):
        return (1 - p) ** 2 / 2


class Power(Pointwise):
    """Custom loss with a parameter."""

    def __init__(self, *, k=2.0):
        super().__init__()
        self.k = k

    def value(self, p):
        return (1 - p) ** self.k / self.k


def test_custom_loss_has_a_derived_slope():
    p = torch.linspace(0.01, 0.99, 9)
    assert_close(HalfSquare().slope(p), 1 - p)
    logits, labels = batch()
    expected = ((1 - logits.softmax(1)[torch.arange(32), labels]) ** 2 / 2).mean()
    assert_close(HalfSquare()(logits, labels), expected)


class Halved:
    """Mixin with another value."""

    def value(self, p):
        return super().value(p) / 2


class HalvedGCE(Halved, losses.GCE):
    pass


class HalvedFocal(losses.Focal):
    def value(self, p):
        return super().value(p) / 2


class HalvedAgain(HalvedFocal):
    def slope(self, p):
        return losses.Focal.slope(self, p) / 2


@pytest.mark.parametrize(
    ("loss", "base"),
    [(HalvedGCE(), losses.GCE()), (HalvedFocal(), losses.Focal()), (HalvedAgain(), losses.Focal())],
    ids=repr,
)
def test_subclass_with_another_value_does_not_inherit_slope_and_at(loss, base):
    logits, labels = batch()
    assert_close(loss.at(H), base.at(H) / 2)
    assert_close(loss.slope(torch.exp(-H)), base.slope(torch.exp(-H)) / 2)
    assert_close(loss(logits, labels), base(logits, labels) / 2)
    OGC(loss)


def test_a_loss_must_have_one_value_per_sample():
    class Mean(losses.Loss):
        def per_sample(self, logits, labels):
            return torch.nn.functional.cross_entropy(logits, labels)

    with pytest.raises(ValueError, match=r"\(32,\)\. Found \(\)"):
        Mean()(*batch())


class Doubled:
    """Mixin with formulas for another class's value."""

    def slope(self, p):
        return 2 / p

    def at(self, H):
        return 2 * H


class WithoutValue(Doubled, Pointwise):
    pass


def test_formulas_of_a_mixin_or_of_an_abstract_base_are_kept():
    for base in ((Doubled, Pointwise), (WithoutValue,)):
        loss = type("TwiceCE", base, {"value": lambda self, p: -2 * torch.log(p)})()
        assert (type(loss).slope, type(loss).at) == (Doubled.slope, Doubled.at)
        other = type("Brier", (type(loss),), {"value": lambda self, p: (1 - p) ** 2 / 2})()
        assert (type(other).slope, type(other).at) == (Pointwise.slope, Pointwise.at)


def test_subclass_with_the_same_value_inherits_slope_and_at():
    class Named(losses.GCE):
        pass

    class WithSlope(losses.GCE):
        def slope(self, p):
            return p ** (self.q - 1)

    assert (Named.slope, Named.at, WithSlope.at) == (losses.GCE.slope, losses.GCE.at, losses.GCE.at)


def test_custom_loss_with_ogc():
    criterion = OGC(Power(), follow_lr=False, every=1, queue_size=64, epsilon=0.5)
    criterion(*noisy_batch(64, seed=1, margin=8))
    assert P_MIN < criterion.p0 < 1 - P_MIN
    assert_close(criterion.p0, 1 - criterion.tau, rtol=1e-6, atol=0)
    assert criterion.get_extra_state()["base"] == {"name": "Power", "k": 2.0}


def test_gce_has_a_gradient_where_p_rounds_to_0():
    """|d loss / d logit| = p^q (1 - p)."""
    logits = torch.tensor([[0.0, 100.0]], requires_grad=True)
    loss = losses.GCE(q=0.05)(logits, torch.tensor([0]))
    loss.backward()
    assert_close(loss, torch.tensor((1 - math.exp(-5)) / 0.05))
    assert_close(logits.grad, math.exp(-5) * torch.tensor([[-1.0, 1.0]]))
