"""Two normals on a queue: against the NumPy twin, the other kind of number, and queues that say nothing."""

import math

import pytest
import torch
from torch.testing import assert_close

import reference
from ogc.clipping import Mixture, fit_mixture
from ogc.clipping.mixture import fit_or_doubt
from ogc.clipping.numbers import DEVICE, HOST
from ogc.given_label import H_MAX, H_MIN
from samples import queue_of, random


def draw(seed: int, size: int = 256) -> torch.Tensor:
    """A queue of two skewed heaps anywhere in the range, of any sizes and widths; float32, as queued."""
    g = random(seed)
    share, low, high, width_low, width_high = torch.rand(5, generator=g).tolist()
    noisy = torch.rand(size, generator=g) < 0.05 + 0.9 * share
    clean = 3 * low + (0.05 + width_low) * torch.randn(size, generator=g).abs()
    wrong = 2 + 8 * high + (0.1 + 2 * width_high) * torch.randn(size, generator=g)
    return torch.where(noisy, wrong, clean).clamp(H_MIN, H_MAX)


@pytest.mark.parametrize("seed", range(60))
def test_equals_the_reference(seed):
    H = draw(seed)
    expected = torch.tensor(reference.fit_mixture(H.double().tolist()), dtype=torch.float64)
    found = torch.stack(fit_mixture(H))
    assert found.dtype == torch.float64
    assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_numbers_on_the_device_are_the_same(seed):
    """0-dim tensors and freezing, instead of floats and stopping."""
    H = draw(seed)
    (host, doubt), (device, doubt_on_device) = fit_or_doubt(H, HOST), fit_or_doubt(H, DEVICE)
    assert all(isinstance(number, torch.Tensor) and number.dim() == 0 for number in device)
    assert_close(torch.stack(device), torch.tensor(host, dtype=torch.float64), rtol=0, atol=1e-9)
    assert bool(doubt) == bool(doubt_on_device)


def test_recovers_two_normals():
    g = random(0)
    noisy = torch.rand(20000, generator=g) < 0.3
    H = torch.where(noisy, 6 + torch.randn(20000, generator=g), 1 + 0.5 * torch.randn(20000, generator=g))
    mixture = fit_mixture(H)
    expected = Mixture(*torch.tensor([1, 0.25, 6, 1, 0.3], dtype=torch.float64).unbind())
    assert_close(torch.stack(mixture), torch.stack(expected), rtol=0.05, atol=0)


def test_has_no_random_numbers():
    state = torch.get_rng_state()
    first, second = fit_mixture(draw(3)), fit_mixture(draw(3))
    assert torch.equal(torch.stack(first), torch.stack(second))
    assert torch.equal(torch.get_rng_state(), state)


def test_does_not_write_to_the_queue():
    H = draw(0)
    before = H.clone()
    fit_mixture(H)
    assert torch.equal(H, before)


@pytest.mark.parametrize("N", [HOST, DEVICE], ids=["host", "device"])
@pytest.mark.parametrize(
    ("queue", "says_nothing"), [("constant", True), ("one outlier", True), ("two spikes", False), ("two heaps", False)]
)
def test_doubt(queue, says_nothing, N):
    H = queue_of(queue)
    mixture, doubt = fit_or_doubt(H, N)
    assert bool(doubt) == says_nothing
    assert bool(doubt) == reference.degenerate(H.tolist(), reference.fit_mixture(H.double().tolist()))
    assert all(math.isfinite(number) for number in mixture)
    assert mixture.clean_mean <= mixture.noisy_mean


def test_smaller_mean_is_clean():
    """Also where EM moves the normals past each other."""
    for seed in range(40):
        mixture = fit_mixture(draw(seed, 64))
        assert mixture.clean_mean <= mixture.noisy_mean


def mixtures(n: int):
    g = random(7)
    for _ in range(n):
        a, b, v, w, share = torch.rand(5, generator=g, dtype=torch.float64)
        low, high = sorted((float(16 * a), float(16 * b)))
        numbers = [low, 1e-3 + 4 * float(v) ** 3, high, 1e-3 + 4 * float(w) ** 3, float(share)]
        yield Mixture(*torch.tensor(numbers, dtype=torch.float64).unbind())


def test_noise_probability_never_falls():
    H = torch.linspace(0, 40, 2001, dtype=torch.float64)
    for mixture in mixtures(300):
        probability = mixture.noise_probability(H)
        assert ((probability >= 0) & (probability <= 1)).all()
        assert (probability.diff() >= -1e-9).all(), mixture


def test_noise_probability_is_bayes_rule_between_the_means():
    for mixture in mixtures(50):
        clean = torch.distributions.Normal(mixture.clean_mean, mixture.clean_var.sqrt())
        noisy = torch.distributions.Normal(mixture.noisy_mean, mixture.noisy_var.sqrt())
        H = torch.linspace(float(mixture.clean_mean), float(mixture.noisy_mean), 11, dtype=torch.float64)
        log_odds = noisy.log_prob(H) + mixture.noisy_weight.log() - clean.log_prob(H) - (1 - mixture.noisy_weight).log()
        assert_close(mixture.noise_probability(H), torch.sigmoid(log_odds), rtol=1e-7, atol=1e-9)


def test_noise_probability_of_equal_widths():
    mixture = Mixture(*torch.tensor([1.0, 0.5, 4.0, 0.5, 0.5], dtype=torch.float64).unbind())
    assert_close(mixture.noise_probability(torch.tensor([2.5]).double()), torch.tensor([0.5]).double())


def test_separation_and_overlap():
    same = Mixture(*torch.tensor([1.0, 0.5, 1.0, 0.5, 0.5], dtype=torch.float64).unbind())
    apart = Mixture(*torch.tensor([1.0, 1.0, 4.0, 1.0, 0.5], dtype=torch.float64).unbind())
    assert_close(torch.stack([same.separation, same.overlap]), torch.tensor([0, 1]).double())
    assert_close(torch.stack([apart.separation, apart.overlap]), torch.tensor([3, math.exp(-9 / 8)]).double())
    H = torch.linspace(-20, 30, 50001, dtype=torch.float64)
    for mixture in mixtures(20):  # Bhattacharyya's integral of sqrt(f g)
        clean = torch.distributions.Normal(mixture.clean_mean, mixture.clean_var.sqrt()).log_prob(H)
        noisy = torch.distributions.Normal(mixture.noisy_mean, mixture.noisy_var.sqrt()).log_prob(H)
        assert_close(mixture.overlap, ((clean + noisy) / 2).exp().sum() * 1e-3, rtol=1e-3, atol=1e-6)
