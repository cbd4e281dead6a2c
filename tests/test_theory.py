"""Proposition 1 and theorems 1 to 3, for CE clipped at tau >= 1, on random finite problems.

The theorems bound the excess risk, the gap between the two minimisers, found by trying all classifiers. R is the risk
on clean labels, R_eta on noisy ones, f* and f~* are their minimisers, K is the number of classes.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

from ogc.losses import CrossEntropy, PHuberCE
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
        f[0] = one_hot(y, K).double()
    return K, tau, D / D.sum(), y, f, g


def risk(losses: Tensor, D: Tensor, eta: Tensor) -> Tensor:
    """E over x and the label's distribution eta (6, K) given x: (30, 6, K) -> (30,)."""
    return (losses * eta * D[:, None]).sum((1, 2))


def noise(K: int, y: Tensor, wrong: Tensor) -> Tensor:
    """Return the given label's distribution (6, K): ``wrong`` (6, K) off the true label, the rest on it."""
    off = wrong * (1 - one_hot(y, K))
    return off + one_hot(y, K) * (1 - off.sum(1, keepdim=True))


def test_clipped_ce_equals_the_library():
    p = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    for tau in (1.0, 2.0, 30.0):
        torch.testing.assert_close(clipped_ce(p, tau), PHuberCE(tau=tau).value(p))
    torch.testing.assert_close(clipped_ce(p, 1e9), CrossEntropy().value(p))


@pytest.mark.hypothesis
@given(st.floats(1, 1e6), st.lists(st.floats(1e-7, 1 - 1e-7), min_size=1, max_size=8))
def test_proposition_1(tau, probabilities):
    """1 - p <= clipped CE <= (1 - p)(1 + log tau)."""
    p = torch.tensor(probabilities, dtype=torch.float64)
    loss = PHuberCE(tau=tau).value(p)
    assert (1 - p - 1e-6 <= loss).all()
    assert (loss <= (1 - p) * (1 + math.log(tau)) * (1 + ROUNDING) + 1e-6).all()


@every_seed
def test_proposition_1_summed_over_all_labels(seed):
    """The sum is between K - 1 and (K - 1)(1 + log tau)."""
    K, tau, _, _, p, _ = draw(seed, perfect=True)
    losses = clipped_ce(p, tau)
    assert (1 - p - ROUNDING <= losses).all()
    assert (losses <= (1 - p) * (1 + math.log(tau)) + ROUNDING).all()
    assert (K - 1 - ROUNDING <= losses.sum(-1)).all()
    assert (losses.sum(-1) <= (K - 1) * (1 + math.log(tau)) + ROUNDING).all()


@every_seed
@pytest.mark.parametrize("perfect", [False, True])
def test_theorem_1(perfect, seed):
    """R(f~*) - R(f*) <= eta log tau / (1 - eta K / (K - 1)) under symmetric noise of rate eta < 1 - 1/K.

    The paper omits the factor eta, which its proof drops.
    """
    K, tau, D, y, f, g = draw(seed, perfect=perfect)
    rate = 0.98 * (1 - 1 / K) * float(torch.rand((), generator=g))
    losses = clipped_ce(f, tau)
    clean = risk(losses, D, noise(K, y, torch.zeros(6, K)).double())
    noisy = risk(losses, D, noise(K, y, torch.full((6, K), rate / (K - 1), dtype=torch.float64)))
    excess = clean[noisy.argmin()] - clean.min()
    assert -ROUNDING <= excess <= rate * math.log(tau) / (1 - rate * K / (K - 1)) + ROUNDING


@every_seed
@pytest.mark.parametrize("by", ["class", "instance"])
def test_theorems_2_and_3(by, seed):
    """R_eta(f*) - R_eta(f~*) <= (K - 1) log tau E[1 - eta], if R(f*) = 0.

    For class- and instance-dependent noise in which no wrong label is as likely as the right one.
    """
    K, tau, D, y, f, g = draw(seed, perfect=True)
    wrong = torch.rand(K if by == "class" else 6, K, generator=g, dtype=torch.float64)
    wrong = (wrong[y] if by == "class" else wrong) * (1 - one_hot(y, K))
    # scaled so that the largest eta_yj stays below eta_yy = 1 - sum_j eta_yj
    most = 1 / (wrong.sum(1, keepdim=True) + wrong.amax(1, keepdim=True))
    eta = noise(K, y, 0.99 * torch.rand((), generator=g, dtype=torch.float64) * most * wrong)
    right = eta.gather(1, y[:, None])
    assert (eta.masked_fill(one_hot(y, K).bool(), 0) < right).all()
    losses = clipped_ce(f, tau)
    clean, noisy = risk(losses, D, one_hot(y, K).double()), risk(losses, D, eta)
    assert clean.argmin() == 0
    assert clean[0] == 0
    kept = float((D * right[:, 0]).sum())
    assert -ROUNDING <= noisy[0] - noisy.min() <= (K - 1) * math.log(tau) * kept + ROUNDING
