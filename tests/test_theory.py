"""Proposition 1 and theorems 1 to 3, on random finite problems whose minimisers are found by trying all classifiers."""

import math

import pytest
import torch
from torch import Tensor

from ogc.losses import CrossEntropy, PHuberCE
from ogc.theory import dependent_excess_risk, loss_bounds, loss_sum_bounds, symmetric_excess_risk
from samples import random

ROUNDING = 1e-9

every_seed = pytest.mark.parametrize("seed", range(100))


def clipped_ce(p: Tensor, tau: float) -> Tensor:
    """The paper's form, exact at p = 0 and p = 1: -log p above 1 / tau, and 1 - tau p + log tau below."""
    return torch.where(p > 1 / tau, -p.clamp(min=1 / tau).log(), 1 - tau * p + math.log(tau))


def draw(seed: int, *, perfect: bool):
    """Draw a distribution on X = {0, ..., 5}, true labels, and 30 classifiers (30, 6, K). The first may be perfect."""
    g = random(seed)
    K = int(torch.randint(2, 7, (), generator=g))
    tau = float(1 + 20 * torch.rand((), generator=g, dtype=torch.float64) ** 3)
    D = torch.rand(6, generator=g, dtype=torch.float64)
    y = torch.randint(K, (6,), generator=g)
    sharpness = torch.rand(30, 1, 1, generator=g, dtype=torch.float64) * 8
    f = torch.softmax(sharpness * torch.randn(30, 6, K, generator=g, dtype=torch.float64), -1)
    if perfect:
        f[0] = torch.nn.functional.one_hot(y, K).double()
    return K, tau, D / D.sum(), y, f, g


def risk(losses: Tensor, D: Tensor, eta: Tensor) -> Tensor:
    """E over x and the label's distribution eta (6, K) given x: (30, 6, K) -> (30,)."""
    return (losses * eta * D[:, None]).sum((1, 2))


def noise(K: int, y: Tensor, wrong: Tensor) -> Tensor:
    """Return the given label's distribution (6, K): ``wrong`` (6, K) off the true label, the rest on it."""
    off = wrong * (1 - torch.nn.functional.one_hot(y, K))
    return off + torch.nn.functional.one_hot(y, K) * (1 - off.sum(1, keepdim=True))


def test_clipped_ce_equals_the_library():
    p = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    for tau in (1.0, 2.0, 30.0):
        torch.testing.assert_close(clipped_ce(p, tau), PHuberCE(tau=tau).value(p))
    torch.testing.assert_close(clipped_ce(p, 1e9), CrossEntropy().value(p))


@every_seed
def test_proposition_1(seed):
    K, tau, _, _, p, _ = draw(seed, perfect=True)
    losses = clipped_ce(p, tau)
    low, high = loss_bounds(p, tau)
    assert (low - ROUNDING <= losses).all()
    assert (losses <= high + ROUNDING).all()
    low, high = loss_sum_bounds(K, tau)
    assert (low - ROUNDING <= losses.sum(-1)).all()
    assert (losses.sum(-1) <= high + ROUNDING).all()


def test_proposition_1_is_tight_if_tau_is_one():
    """MAE, the symmetric loss."""
    assert loss_bounds(torch.tensor(0.3), 1.0) == (torch.tensor(0.7), torch.tensor(0.7))
    assert loss_sum_bounds(10, 1.0) == (9.0, 9.0)


@every_seed
@pytest.mark.parametrize("perfect", [False, True])
def test_theorem_1(perfect, seed):
    """With the factor eta, which the paper drops."""
    K, tau, D, y, f, g = draw(seed, perfect=perfect)
    rate = 0.98 * (1 - 1 / K) * float(torch.rand((), generator=g))
    losses = clipped_ce(f, tau)
    clean = risk(losses, D, noise(K, y, torch.zeros(6, K)).double())
    noisy = risk(losses, D, noise(K, y, torch.full((6, K), rate / (K - 1), dtype=torch.float64)))
    excess = clean[noisy.argmin()] - clean.min()
    bound = symmetric_excess_risk(tau, rate, K)
    assert -ROUNDING <= excess <= bound + ROUNDING
    assert bound == pytest.approx(rate * math.log(tau) / (1 - rate * K / (K - 1)))
    assert bound <= math.log(tau) / (1 - rate * K / (K - 1))  # the paper's


@every_seed
@pytest.mark.parametrize("by", ["class", "instance"])
def test_theorems_2_and_3(by, seed):
    """Class- or instance-dependent noise, no wrong label as likely as the true one, and a perfect classifier."""
    K, tau, D, y, f, g = draw(seed, perfect=True)
    wrong = torch.rand(K if by == "class" else 6, K, generator=g, dtype=torch.float64)
    wrong = wrong[y] if by == "class" else wrong
    wrong = wrong * (1 - torch.nn.functional.one_hot(y, K))
    # scaled so that the largest eta_yj stays below eta_yy = 1 - sum_j eta_yj
    most = 1 / (wrong.sum(1, keepdim=True) + wrong.amax(1, keepdim=True))
    eta = noise(K, y, 0.99 * torch.rand((), generator=g, dtype=torch.float64) * most * wrong)
    right = eta.gather(1, y[:, None])
    off = eta.masked_fill(torch.nn.functional.one_hot(y, K).bool(), 0)
    assert (off < right).all()
    losses = clipped_ce(f, tau)
    clean = risk(losses, D, torch.nn.functional.one_hot(y, K).double())
    assert clean.argmin() == 0
    assert clean[0] == 0
    noisy = risk(losses, D, eta)
    excess = noisy[0] - noisy.min()
    kept = float((D * right[:, 0]).sum())
    bound = dependent_excess_risk(tau, kept, K)
    assert -ROUNDING <= excess <= bound + ROUNDING
    assert bound == pytest.approx((K - 1) * math.log(tau) * kept)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: loss_bounds(torch.tensor(0.5), 0.9),
            "`tau` should be at least 1, the smallest gradient of CE. Found `tau = 0.9`.",
        ),
        (
            lambda: loss_sum_bounds(10, math.nan),
            "`tau` should be at least 1, the smallest gradient of CE. Found `tau = nan`.",
        ),
        (
            lambda: symmetric_excess_risk(2.0, 0.9, 10),
            "`rate` should be in [0, 1 - 1/K) = [0, 0.9). Found `rate = 0.9`.",
        ),
        (
            lambda: symmetric_excess_risk(2.0, -0.1, 10),
            "`rate` should be in [0, 1 - 1/K) = [0, 0.9). Found `rate = -0.1`.",
        ),
        (
            lambda: symmetric_excess_risk(0.5, 0.1, 10),
            "`tau` should be at least 1, the smallest gradient of CE. Found `tau = 0.5`.",
        ),
        (lambda: dependent_excess_risk(2.0, 1.5, 10), "`kept` should be in [0, 1]. Found `kept = 1.5`."),
    ],
)
def test_invalid_arguments(call, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    assert str(error.value) == f"Parameter {message}"


def test_bounds_shrink_with_tau():
    for bound in (lambda tau: symmetric_excess_risk(tau, 0.4, 10), lambda tau: dependent_excess_risk(tau, 0.6, 10)):
        assert bound(1.0) == 0
        assert bound(2.0) < bound(3.0)
