"""Threshold schedules: tau at each step, and its limits."""

import pytest
import torch
from torch.testing import assert_close

from asserts import value_and_gradient
from ogc import OGC, losses
from ogc.clipping import EMA, Fixed, Linear
from ogc.clipping.schedules import TAU_MIN
from ogc.given_label import H_MIN, P_MIN
from samples import batch


def taus(criterion: OGC, steps: int) -> list[float]:
    return [criterion(*batch(4, seed=step)) is not None and float(criterion.tau) for step in range(steps)]


@pytest.mark.parametrize("tau", [1.0, 2.0, 10.0])
def test_fixed_is_phuber_ce(tau):
    criterion, phuber_ce = OGC("ce", threshold=Fixed(tau)), losses.PHuberCE(tau=tau)
    for step in range(3):  # from the first step on
        for dtype in (torch.float32, torch.float64):
            found, expected = (
                value_and_gradient(loss, *batch(seed=step, dtype=dtype)) for loss in (criterion, phuber_ce)
            )
            assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert taus(criterion, 3) == [tau] * 3


def test_linear():
    criterion = OGC("ce", threshold=Linear(beta=10, steps=40))
    expected = [max(10 * (1 - t / 40), TAU_MIN) for t in range(1, 51)]
    assert taus(criterion, 50) == pytest.approx(expected, rel=1e-6)
    assert criterion.tau == TAU_MIN  # the schedule ended ten steps ago


def test_ema():
    criterion = OGC("ce", threshold=EMA(alpha=0.99))
    tau, expected = 1e7, []
    for _ in range(50):
        tau = 1 / (0.99 / tau + (1 - 0.99))
        expected.append(tau)
    assert taus(criterion, 50) == pytest.approx(expected, rel=1e-9)


def test_ema_converges_to_one():
    criterion = OGC("ce", threshold=EMA(alpha=0.5))
    assert taus(criterion, 60)[-1] == pytest.approx(1)
    logits, labels = batch()
    assert_close(criterion(logits, labels), losses.MAE()(logits, labels))


@pytest.mark.parametrize("name", ["ce", "fl", "gce"])
def test_p0_follows_tau(name):
    criterion = OGC(name, threshold=Linear(beta=10, steps=50))
    flattest = float(criterion.base.slope(torch.tensor(1 - P_MIN, dtype=torch.float64)))
    for step in range(49):
        criterion(*batch(4, seed=step))
        if flattest < criterion.tau < criterion.slopes.steepest:
            assert float(criterion.base.slope(criterion.p0)) == pytest.approx(float(criterion.tau), rel=1e-5)
        else:
            end = 1 - P_MIN if criterion.tau <= flattest else P_MIN
            assert float(criterion.p0) == pytest.approx(end, rel=1e-9)


@pytest.mark.parametrize("name", ["ce", "gce"])
def test_tau_below_every_slope(name):
    """p0 = 1 - P_MIN, and the line keeps the slope tau."""
    criterion = OGC(name, threshold=Fixed(0.25), reduction="sum")
    logits, labels = batch(dtype=torch.float64)
    value, gradient = value_and_gradient(criterion, logits, labels)
    assert criterion.p0.item() == pytest.approx(1 - P_MIN, abs=1e-15)
    assert criterion.tau == 0.25
    mae, mae_gradient = value_and_gradient(losses.MAE(reduction="sum"), logits, labels)
    assert_close(gradient, 0.25 * mae_gradient)
    at_p0 = float(criterion.base.at(torch.tensor(H_MIN, dtype=torch.float64)))
    assert_close(value, 0.25 * (mae - 32 * P_MIN) + 32 * at_p0, rtol=1e-9, atol=0)


def test_schedules_update_every_step_and_queue_nothing():
    criterion = OGC("ce", threshold=Linear(beta=10, steps=100))  # every=32
    assert len(set(taus(criterion, 40))) == 40
    assert criterion.seen == 0
    assert criterion.mixture.clean_mean.isnan()


def test_schedules_need_no_optimizer_and_pause_in_evaluation():
    criterion = OGC("ce", threshold=EMA())
    criterion(*batch())
    tau = criterion.tau
    criterion.eval()(*batch())
    with torch.no_grad():
        criterion.train()(*batch())
    assert criterion.tau == tau


def test_schedule_may_be_any_function_of_step_and_tau():
    criterion = OGC("ce", threshold=lambda step, tau: 3.0 + 0 * tau + step)
    assert taus(criterion, 3) == [4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("make", "argument", "value", "rule"),
    [
        (Fixed, "tau", 0.0, "above 0"),
        (Fixed, "tau", float("inf"), "above 0"),
        (lambda beta: Linear(beta=beta, steps=1), "beta", -1.0, "above 0"),
        (Linear, "steps", 0, "the number of training steps, at least 1"),
        (EMA, "alpha", 1.0, "in [0, 1)"),
        (EMA, "alpha", -0.1, "in [0, 1)"),
    ],
)
def test_constructor_rejects_invalid_arguments(make, argument, value, rule):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make(**{argument: value})
    assert str(error.value) == f"Parameter `{argument}` should be {rule}. Found `{argument} = {value!r}`."


def test_linear_requires_steps():
    with pytest.raises(TypeError, match="required keyword-only argument: 'steps'"):
        Linear()


def test_fixed_applies_before_the_first_step():
    logits, labels = torch.tensor([[0.0, 8.0]]), torch.tensor([0])
    criterion = OGC("ce", threshold=Fixed(2.0)).eval()
    torch.testing.assert_close(criterion(logits, labels), losses.PHuberCE(tau=2.0)(logits, labels))


def test_tau_is_at_most_the_steepest_slope():
    criterion = OGC("gce", threshold=Linear(10.0, steps=1000))
    criterion(torch.randn(4, 3, requires_grad=True), torch.zeros(4, dtype=torch.long))
    assert float(criterion.tau) == criterion.slopes.steepest < 9
