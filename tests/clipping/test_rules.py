"""The rules that move tau: schedules and their limits, the parts of the default rule, a rule of one's own."""

import math
from dataclasses import dataclass

import pytest
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.testing import assert_close

from asserts import rejects, value_and_gradient
from ogc import OGC, losses
from ogc.clipping import EMA, Default, Fixed, Linear, Paper, Relative
from ogc.clipping.default_rule import better_than_guess, follow, gives_up_a_class, goal_of_factor, goal_of_p0
from ogc.clipping.fit import Fit, Normal
from ogc.clipping.loss_queue import newest, push
from ogc.clipping.rule import TAU_MIN, FittedRule
from ogc.given_label import H_MIN, P_MIN
from ogc.noise import symmetric
from samples import batch, noisy_batch, optimizer_with


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({}, Default()),
        ({"follow_lr": False}, Default(follow_lr=False)),
        ({"epsilon": 2}, Relative(2)),
        ({"epsilon": 2, "follow_lr": False}, Relative(2, follow_lr=False)),
        ({"epsilon0": 20}, Paper(20)),
        ({"threshold": EMA()}, EMA(0.9999)),
        ({"threshold": Paper(20)}, Paper(20)),
    ],
)
def test_arguments_choose_the_rule(arguments, rule):
    criterion = OGC("ce", **arguments)
    assert criterion.rule == rule
    assert criterion.samples_needed == {Default: 256, EMA: 0}.get(type(rule), 4096)


# --- schedules -------------------------------------------------------------------------------------------------------


def taus(criterion: OGC, steps: int) -> list[float]:
    return [criterion(*batch(4, seed=step)) is not None and float(criterion.tau) for step in range(steps)]


@pytest.mark.parametrize("tau", [1.0, 2.0, 10.0])
def test_fixed_is_phuber_ce(tau):
    criterion, phuber_ce = OGC("ce", threshold=Fixed(tau)), losses.PHuberCE(tau=tau)
    before = criterion.eval()(*batch())
    assert_close(before, phuber_ce(*batch()), rtol=1e-6, atol=1e-7)  # before the first step
    criterion.train()
    for step in range(3):
        for dtype in (torch.float32, torch.float64):
            data = batch(seed=step, dtype=dtype)
            found, expected = (value_and_gradient(loss, *data) for loss in (criterion, phuber_ce))
            assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert taus(criterion, 3) == [tau] * 3


def test_linear():
    """It ends at TAU_MIN, and starts at the steepest slope of the loss or below."""
    criterion = OGC("ce", threshold=Linear(beta=10, steps=40))
    assert taus(criterion, 50) == pytest.approx([max(10 * (1 - t / 40), TAU_MIN) for t in range(1, 51)], rel=1e-6)
    assert criterion.tau == TAU_MIN
    gce = OGC("gce", threshold=Linear(10.0, steps=1000))
    assert taus(gce, 1) == [gce.slopes.steepest]


def test_ema():
    criterion, tau, expected = OGC("ce", threshold=EMA(alpha=0.9)), 1e7, []
    for _ in range(50):
        expected.append(tau := 1 / (0.9 / tau + (1 - 0.9)))
    assert taus(criterion, 50) == pytest.approx(expected, rel=1e-9)
    assert taus(criterion, 300)[-1] == pytest.approx(1)
    assert_close(criterion(*batch()), losses.MAE()(*batch()))


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
    criterion = OGC("ce", threshold=Linear(beta=10, steps=100))  # every=32, and no optimizer
    assert len(set(taus(criterion, 40))) == 40
    assert criterion.seen == 0
    assert criterion.mixture.clean_mean.isnan()
    tau = criterion.tau
    criterion.eval()(*batch())
    with torch.no_grad():
        criterion.train()(*batch())
    assert (criterion.tau, criterion.steps) == (tau, 40)


def test_only_schedules_move_tau_while_a_cuda_graph_is_captured(monkeypatch):
    """Without kernels, a fit would have to be copied to the CPU."""
    monkeypatch.setattr("ogc.clipping.ogc.is_capturing", lambda tensor: True)
    scheduled, fitted = OGC("ce", threshold=EMA(0.5)), OGC("ce", follow_lr=False, every=1, queue_size=64)
    assert len(set(taus(scheduled, 5))) == 5
    fitted(*noisy_batch(64, seed=0))
    assert fitted.p0 == P_MIN


def test_schedule_may_be_a_function_and_nan_keeps_tau():
    assert taus(OGC("ce", threshold=lambda step, tau: 3.0 + 0 * tau + step), 3) == [4.0, 5.0, 6.0]
    criterion = OGC("ce", threshold=lambda step, tau: math.nan if int(step) == 2 else 3.0)
    assert taus(criterion, 3) == [3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (Fixed, "tau", 0.0),
        (Fixed, "tau", math.inf),
        (lambda beta: Linear(beta=beta, steps=1), "beta", -1.0),
        (Linear, "steps", 0),
        (EMA, "alpha", 1.0),
        (EMA, "alpha", -0.1),
    ],
)
def test_invalid_parameters_are_rejected(make, name, value):
    rejects(make, name, value)


# --- the default rule ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clean", "noisy", "p_ratio", "gives_up", "expected"),
    [
        (0.2, 2.0, 0.3, False, 0.1),  # better than a random guess: hard rather than mislabelled, so no edge
        (0.2, 2.0, P_MIN, False, P_MIN),
        (0.2, 5.0, 0.3, False, math.exp(-0.2)),  # the edge of the clean samples
        (0.2, 5.0, 0.9, False, 0.9),  # the paper's bound, where it is tighter
        (0.2, 5.0, 0.3, True, 0.3),  # no edge while a class is not learned
        (0.2, 2.0, 0.03, True, 0.03),
        (0.2, 2.0, 0.3, True, 0.1),
        (0.2, 2.4, 0.01, False, math.exp(2 * 2.4 - 3 * math.log(10))),  # slightly worse than a random guess
        (0.0, 9.0, 0.3, False, 1 - P_MIN),
    ],
)
def test_goal_of_p0(clean, noisy, p_ratio, gives_up, expected):
    fit = Fit(Normal(0.7, clean, 0.1), Normal(0.3, noisy, 0.5), is_degenerate=False)
    assert goal_of_p0(fit, p_ratio, 10, gives_up) == pytest.approx(expected)


def test_p0_smoothing_is_exponential_in_steps():
    p0 = 0.0
    for _ in range(4):
        p0 = follow(p0, 1.0, steps=4)
    assert p0 == pytest.approx(follow(0.0, 1.0, steps=16)) == pytest.approx(1 - math.exp(-1))


def test_early_updates_are_more_frequent_and_fit_recent_samples():
    rule = Default()
    assert [rule.period(step, 32) for step in (1, 1024, 1025)] == [4, 4, 32]
    assert rule.period(1, 4) == 1
    assert [rule.recent(seen, 4096) for seen in (100, 300, 2000, 8000, 10**6)] == [100, 256, 500, 2000, 4096]
    queue, seen = torch.zeros(11), torch.zeros((), dtype=torch.int64)
    for value in range(1, 18):
        push(queue, seen, torch.tensor([value / 4]))
    for count in (1, 4, 7, 8, 10):
        assert sorted(newest(queue, 17, count).tolist()) == [value / 4 for value in range(18 - count, 18)]


def test_classes_are_given_up_if_fewer_than_a_third_are_better_than_a_guess():
    rule, H = Default(), torch.tensor([0.1, 0.2, 5.0, 5.0, math.nan, 0.1])
    counts = rule.initial_state()
    rule.count(counts, H, torch.tensor([0, 0, 0, 1, 1, 0]), 3)
    assert counts[:, :3].tolist() == [[4, 1, 0], [3, 0, 0]]
    assert better_than_guess(counts, 3) == {0: 0.75, 1: 0.0}
    assert better_than_guess(counts, 65) == {}  # too many classes to tell
    assert gives_up_a_class({0: 0.75, 1: 0.0})
    assert not gives_up_a_class({0: 0.75, 1: 1 / 3})
    assert gives_up_a_class({})  # no samples to tell from
    assert [goal_of_factor(share) for share in (0.0, 1 / 6, 1 / 3, 1.0)] == [0, 0.5, 1, 1]
    assert follow(1.0, goal_of_factor(0.5), steps=4) == 1  # exactly


def test_class_that_is_given_up_is_clipped_less():
    """Class 0 is always predicted, and class 1 never. Both labels of the last call have the same H."""
    criterion = OGC("ce", follow_lr=False, every=8)
    logits, labels = torch.tensor([[2.0, -2.0]]).repeat(64, 1), torch.arange(64) // 56
    for _ in range(64):
        criterion(logits, labels)
    wrong = torch.tensor([[-4.0, 4.0], [4.0, -4.0]], requires_grad=True)
    criterion(wrong, torch.tensor([0, 1])).backward()
    of_0, of_1 = wrong.grad.abs().sum(1)
    assert of_1 > 10 * of_0


def test_ignored_samples_are_not_counted():
    criterion = OGC("ce", follow_lr=False, ignore_index=3, every=800)
    logits, labels = noisy_batch(64, seed=0)
    criterion(logits, labels)
    assert criterion.rule_state[0].sum() == (labels != 3).sum()
    assert criterion.rule_state[0, 3] == 0


@pytest.mark.parametrize("num_classes", [2, 64, 65, 300])
def test_any_number_of_classes(num_classes):
    criterion = OGC("ce", follow_lr=False, every=8)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        labels = torch.randint(num_classes, (64,), generator=generator)
        logits = 2 * torch.randn(64, num_classes, generator=generator)
        logits[torch.arange(40), labels[:40]] += 9.0
        criterion(logits, labels)
    assert 0.1 < criterion.p0 < 1
    criterion(logits, labels)  # every update resets the counts
    assert criterion.rule_state.sum() == 0


def train(name: str, seed: int, epochs: int = 60) -> float:
    """Return the test accuracy after training on two classes with 30 % wrong labels."""
    X, y = load_breast_cancer(return_X_y=True)
    inputs = torch.from_numpy((X - X.mean(0)) / X.std(0)).float()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    true, given = torch.from_numpy(y), torch.from_numpy(symmetric(y, 0.3, num_classes=2, seed=seed))
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    criterion = nn.CrossEntropyLoss() if name == "ce" else OGC("ce", optimizer)
    held_out, rows = order[:170], order[170:]
    for _ in range(epochs):
        for part in rows.split(64):
            optimizer.zero_grad()
            criterion(model(inputs[part]), given[part]).backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        return float((model(inputs[held_out]).argmax(1) == true[held_out]).double().mean())


def test_beats_cross_entropy_on_small_binary_dataset():
    """The defaults work on data that they were not tuned on."""
    ce, ogc = (sum(train(name, seed) for seed in range(2)) / 2 for name in ("ce", "ogc"))
    assert ogc > ce + 0.08, (ce, ogc)


# --- a rule of one's own ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate(FittedRule):
    """Clip only while a running mean of Ashman's D exceeds a limit."""

    limit: float
    follow_lr = True

    def initial_state(self):
        return torch.zeros(1, dtype=torch.float64)

    def excess(self, lr, highest_lr):
        return 2 * lr / highest_lr

    def move(self, p0, tau, fit, state, slopes, now):
        state.rule_state.lerp_(torch.tensor([fit.separation], dtype=torch.float64), 0.5)
        clips = state.rule_state.item() > self.limit
        state.accept(p0 if clips else P_MIN, tau if clips else slopes.steepest, fit)


def test_rule_with_a_state_of_its_own():
    optimizer = optimizer_with(0.1)
    gated, closed = (OGC("ce", optimizer, threshold=Gate(limit), every=2, queue_size=64) for limit in (0.5, 9.0))
    for step in range(8):
        for criterion in (gated, closed):
            criterion(*noisy_batch(64, seed=step))
    assert gated.p0 > P_MIN == closed.p0
    assert gated.rule_state.item() == closed.rule_state.item() > 0.5
    assert "Gate" in repr(gated)
    again = OGC("ce", threshold=Gate(0.5), every=2, queue_size=64)
    again.load_state_dict(gated.state_dict())
    assert torch.equal(again.rule_state, gated.rule_state)
