"""Fitting two normals to a queue, compared with the NumPy reference, and degenerate queues."""

import math

import pytest
import torch
from torch.testing import assert_close

import reference
from ogc.clipping import Mixture, fit_mixture
from ogc.clipping.fit import fit_queue
from ogc.given_label import H_MAX, H_MIN
from samples import queue_of, random


def draw(seed: int, size: int = 256) -> torch.Tensor:
    """Draw a float32 queue of two skewed clusters of random position, size and width."""
    g = random(seed)
    share, low, high, width_low, width_high = torch.rand(5, generator=g).tolist()
    noisy = torch.rand(size, generator=g) < 0.05 + 0.9 * share
    clean = 3 * low + (0.05 + width_low) * torch.randn(size, generator=g).abs()
    wrong = 2 + 8 * high + (0.1 + 2 * width_high) * torch.randn(size, generator=g)
    return torch.where(noisy, wrong, clean).clamp(H_MIN, H_MAX)


def mixture_of(*numbers: float) -> Mixture:
    return Mixture(*torch.tensor(numbers, dtype=torch.float64).unbind())


@pytest.mark.parametrize("seed", range(60))
def test_equals_the_reference(seed):
    H = draw(seed)
    before, random_state = H.clone(), torch.get_rng_state()
    found = fit_mixture(H)
    assert_close(
        torch.stack(found), torch.tensor(reference.fit_mixture(H.double().tolist())).double(), rtol=1e-6, atol=1e-6
    )
    assert found.clean_mean <= found.noisy_mean
    assert found.separation.item() == pytest.approx(fit_queue(H).separation)
    assert torch.equal(torch.stack(found), torch.stack(fit_mixture(H.double())))
    assert torch.equal(H, before)
    assert torch.equal(torch.get_rng_state(), random_state)  # no random numbers


@pytest.mark.parametrize(
    ("queue", "expected"), [("constant", True), ("one outlier", True), ("two spikes", False), ("two clusters", False)]
)
def test_degenerate(queue, expected):
    H = queue_of(queue)
    fit = fit_queue(H)
    assert fit.is_degenerate is expected
    assert fit.is_degenerate == reference.degenerate(H.tolist(), reference.fit_mixture(H.double().tolist()))
    assert all(map(math.isfinite, fit.numbers))
    assert fit.clean.mean <= fit.noisy.mean


@pytest.mark.parametrize("value", [0.1, 3.0, 15.9])
@pytest.mark.parametrize("ulps", [0, 1, 5])
def test_values_within_rounding_error_count_as_equal(value, ulps):
    """Float32 neighbours near 16 are 1e-6 apart, and the order of the queue could decide which mean is smaller."""
    low = torch.tensor(value)
    high = torch.nextafter(low, torch.tensor(99.0)) if ulps == 1 else low * (1 + ulps * 2**-23)
    for upper in range(17):
        H = torch.cat([high.repeat(upper), low.repeat(16 - upper)])
        for order in (H, H.flip(0), H[torch.randperm(16, generator=random(upper))]):
            assert fit_queue(order).is_degenerate, (upper, order)


def mixtures(n: int):
    g = random(7)
    for _ in range(n):
        a, b, v, w, share = torch.rand(5, generator=g, dtype=torch.float64)
        low, high = sorted((float(16 * a), float(16 * b)))
        yield mixture_of(low, 1e-3 + 4 * float(v) ** 3, high, 1e-3 + 4 * float(w) ** 3, float(share))


def test_noise_probability_is_monotonic_and_bayes_rule_between_the_means():
    H = torch.linspace(0, 40, 2001, dtype=torch.float64)
    for mixture in mixtures(300):
        probability = mixture.noise_probability(H)
        assert ((probability >= 0) & (probability <= 1)).all()
        assert (probability.diff() >= -1e-9).all(), mixture
    for mixture in (*mixtures(50), mixture_of(1.0, 0.5, 4.0, 0.5, 0.5)):
        clean = torch.distributions.Normal(mixture.clean_mean, mixture.clean_var.sqrt())
        noisy = torch.distributions.Normal(mixture.noisy_mean, mixture.noisy_var.sqrt())
        H = torch.linspace(float(mixture.clean_mean), float(mixture.noisy_mean), 11, dtype=torch.float64)
        log_odds = noisy.log_prob(H) + mixture.noisy_weight.log() - clean.log_prob(H) - (1 - mixture.noisy_weight).log()
        assert_close(mixture.noise_probability(H), torch.sigmoid(log_odds), rtol=1e-7, atol=1e-9)


def test_separation_and_overlap():
    same, apart = mixture_of(1.0, 0.5, 1.0, 0.5, 0.5), mixture_of(1.0, 1.0, 4.0, 1.0, 0.5)
    assert_close(torch.stack([same.separation, same.overlap]), torch.tensor([0, 1]).double())
    assert_close(torch.stack([apart.separation, apart.overlap]), torch.tensor([3, math.exp(-9 / 8)]).double())
    H = torch.linspace(-20, 30, 50001, dtype=torch.float64)
    for mixture in mixtures(20):  # Bhattacharyya's integral of sqrt(f g)
        clean = torch.distributions.Normal(mixture.clean_mean, mixture.clean_var.sqrt()).log_prob(H)
        noisy = torch.distributions.Normal(mixture.noisy_mean, mixture.noisy_var.sqrt()).log_prob(H)
        assert_close(mixture.overlap, ((clean + noisy) / 2).exp().sum() * 1e-3, rtol=1e-3, atol=1e-6)
