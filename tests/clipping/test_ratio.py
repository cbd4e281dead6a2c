"""r(tau), the ratio of noisy to clean gradients."""

import math

import pytest
import torch
from torch.testing import assert_close

import reference
from ogc import losses
from ogc.clipping import Mixture, fit_mixture, noisy_to_clean_ratio
from ogc.clipping.ratio import GRID, grid, normal_weights
from ogc.given_label import H_MAX, H_MIN
from samples import queue_of

BASES = {
    "ce": (losses.CrossEntropy(), reference.ce()),
    "fl": (losses.Focal(), reference.fl(gamma=0.5)),
    "gce": (losses.GCE(q=0.7), reference.gce(q=0.7)),
    "taylor_ce": (losses.TaylorCE(t=4), reference.taylor_ce(t=4)),
}
MIXTURES = [
    (0.3, 0.1, 4.0, 1.5, 0.4),
    (0.01, 1e-3, 12.0, 3.0, 0.1),
    (2.0, 2.0, 2.5, 0.5, 0.5),
    (0.0, 1.0, 16.0, 1e-3, 0.9),
]


def as_tensors(numbers) -> Mixture:
    return Mixture(*torch.tensor(numbers, dtype=torch.float64).unbind())


def test_grid_includes_both_ends():
    assert_close(grid()[[0, -1]], torch.tensor([H_MIN, H_MAX], dtype=torch.float64))
    assert len(grid()) == GRID == 1000


@pytest.mark.parametrize("tau", [0.5, 1.5, 7.0, 300.0, math.inf])
@pytest.mark.parametrize("numbers", MIXTURES, ids=str)
@pytest.mark.parametrize("name", BASES)
def test_equals_the_reference(name, numbers, tau):
    base, numpy_loss = BASES[name]
    expected = reference.ratio(numpy_loss.slope, reference.Mixture(*numbers), tau)
    assert_close(noisy_to_clean_ratio(base, as_tensors(numbers), tau).item(), expected, rtol=1e-9, atol=0)
    as_tensor = torch.tensor(tau, dtype=torch.float64)
    assert_close(noisy_to_clean_ratio(base, as_tensors(numbers), as_tensor).item(), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", BASES)
def test_ratio_is_one_if_all_gradients_are_clipped(name):
    mixture = fit_mixture(queue_of("two clusters"))
    assert_close(noisy_to_clean_ratio(BASES[name][0], mixture, 1e-9).item(), 1.0)


@pytest.mark.parametrize("numbers", MIXTURES, ids=str)
def test_weights_follow_the_normal_density(numbers):
    mean, var = as_tensors(numbers)[:2]
    expected = torch.distributions.Normal(mean, var.sqrt()).log_prob(grid()).exp()
    assert_close(normal_weights(grid(), mean, var), expected / expected.sum(), rtol=1e-6, atol=1e-12)
