"""The exact solution for tau, compared with the authors' values, the NumPy reference and the equation itself."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import reference
from ogc import OGC, losses
from ogc.clipping import Mixture, fit_mixture, noisy_to_clean_ratio, solve_threshold
from ogc.clipping.ratio import GRID, grid, normal_weights
from ogc.clipping.threshold import Slopes
from ogc.given_label import H_MAX, H_MIN, P_MIN
from ogc.losses import CLIPPABLE, Pointwise
from samples import random

GOLDEN = Path(__file__).parents[1] / "golden"
THRESHOLDS = json.loads((GOLDEN / "thresholds.json").read_text())
BASES = {"ce": losses.CrossEntropy(), "fl": losses.Focal(gamma=0.5), "gce": losses.GCE(q=0.7)}
NUMPY_BASES = {"ce": reference.ce(), "fl": reference.fl(gamma=0.5), "gce": reference.gce(q=0.7)}
MIXTURES = [
    (0.3, 0.1, 4.0, 1.5, 0.4),
    (0.01, 1e-3, 12.0, 3.0, 0.1),
    (2.0, 2.0, 2.5, 0.5, 0.5),
    (0.0, 1.0, 16.0, 1e-3, 0.9),
]


def as_tensors(numbers) -> Mixture:
    return Mixture(*torch.tensor(numbers, dtype=torch.float64).unbind())


def draw(seed: int) -> tuple[float, ...]:
    """Draw the parameters of a plausible mixture."""
    low, high, v, w, share = torch.rand(5, generator=random(seed), dtype=torch.float64).tolist()
    return 4 * low, 1e-3 + 2 * v**3, 4 * low + 10 * high, 1e-3 + 4 * w**2, share


# --- the ratio -------------------------------------------------------------------------------------------------------


def test_grid_includes_both_ends():
    assert_close(grid()[[0, -1]], torch.tensor([H_MIN, H_MAX], dtype=torch.float64))
    assert len(grid()) == GRID == 1000


@pytest.mark.parametrize("tau", [0.5, 1.5, 7.0, 300.0, math.inf])
@pytest.mark.parametrize("numbers", MIXTURES, ids=str)
@pytest.mark.parametrize("name", BASES)
def test_ratio_equals_the_reference(name, numbers, tau):
    expected = reference.ratio(NUMPY_BASES[name].slope, reference.Mixture(*numbers), tau)
    for each in (tau, torch.tensor(tau, dtype=torch.float64)):
        found = noisy_to_clean_ratio(BASES[name], as_tensors(numbers), each)
        assert_close(found.item(), expected, rtol=1e-9, atol=0)


def test_weights_follow_the_normal_density():
    mean, var = torch.tensor(MIXTURES, dtype=torch.float64)[:, :2].T.unsqueeze(2)
    expected = torch.distributions.Normal(mean, var.sqrt()).log_prob(grid()).exp()
    assert_close(normal_weights(grid(), mean, var), expected / expected.sum(1, keepdim=True), rtol=1e-6, atol=1e-12)


# --- the solution ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden_mixtures():
    with np.load(GOLDEN / "queues.npz") as queues:
        return {name: fit_mixture(torch.from_numpy(queues[name])) for name in queues.files}


@pytest.mark.parametrize("row", THRESHOLDS, ids=lambda row: f"{row['loss']}-{row['queue']}-{row['lr']}")
def test_golden(row, golden_mixtures):
    p0 = solve_threshold(BASES[row["loss"]], golden_mixtures[row["queue"]], 1 + row["lr"] * row["epsilon0"])
    assert row["p0_min"] - 0.003 <= p0 <= row["p0_max"] + 0.003


def test_golden_rows_are_complete(golden_mixtures):
    assert len(THRESHOLDS) == 108
    assert {row["queue"] for row in THRESHOLDS} == golden_mixtures.keys()


@pytest.mark.parametrize("name", BASES)
def test_equals_the_reference(name):
    clipped = 0
    for seed in range(12):
        for target in (1.01, 1.5, 3.0):
            numbers = draw(seed)
            expected = reference.solve_threshold(NUMPY_BASES[name].slope, reference.Mixture(*numbers), target)
            found = solve_threshold(BASES[name], as_tensors(numbers), torch.tensor(target, dtype=torch.float64))
            assert found.dtype == torch.float64
            assert found.item() == pytest.approx(expected, abs=1e-5), (numbers, target)
            clipped += expected > P_MIN
    assert clipped > 15


@pytest.mark.parametrize("name", BASES)
def test_p0_is_the_inverse_of_slope(name):
    slopes = Slopes(BASES[name])
    p = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    p = torch.cat([p, 1 - torch.logspace(-3, -6.5, 20, dtype=torch.float64)])  # as epsilon approaches 0
    tau = BASES[name].slope(p)
    p0 = slopes.p0_on_device(tau)
    assert_close(p0, p, rtol=0, atol=1e-6)
    assert_close(BASES[name].slope(p0), tau, rtol=1e-6, atol=0)
    assert [slopes.p0_at(each) for each in tau.tolist()] == pytest.approx(p0.tolist(), rel=1e-9)
    assert [slopes.slope_at(each) for each in p0.tolist()] == pytest.approx(tau.tolist(), rel=1e-6)
    assert [slopes.p0_at(each) for each in (1e-5, 1e12)] == [pytest.approx(1 - P_MIN), pytest.approx(P_MIN, rel=1e-9)]


# --- losses that cannot be clipped -----------------------------------------------------------------------------------


class Bump(Pointwise):
    """Loss whose slope rises until p = 0.5 and falls from there."""

    def value(self, p):
        return 1 + torch.cos(torch.pi * p)


class Rising(Pointwise):
    def value(self, p):
        return p**2


class WrongSlope(Pointwise):
    def value(self, p):
        return -torch.log(p)

    def slope(self, p):
        return 2 / p


class WrongAt(losses.CrossEntropy):
    def at(self, H):
        return H * torch.where(H < 1, 1.001, 1.00009)  # the second is within the tolerance


class MeanValue(Pointwise):
    """A common mistake: the mean would be divided by N once more."""

    def value(self, p):
        return -torch.log(p).mean()


class MeanSlope(losses.CrossEntropy):
    def slope(self, p):
        return (1 / p).mean()


@pytest.mark.parametrize(
    ("base", "found"),
    [
        (losses.MAE(), r"MAE\(\) .*fall near p = 1\b"),
        (losses.GCE(q=1.0), r"GCE\(q=1\.0\) .*fall near p = 1\b"),
        (losses.PHuberCE(), r"PHuberCE\(tau=2\.0\) .*fall near p = 0\.5\b"),
        (Bump(), r"fall near p = 0\.5\b"),
        (Rising(), "stay above 0"),
        (WrongSlope(), r"`WrongSlope\.slope\(p\)`.* 1e\+07\. Found 2e\+07"),
        (WrongAt(), r"`WrongAt\.at\(H\)`.* p = 0\.37"),
        (MeanValue(), r"`MeanValue\.value\(p\)`.* \(1000,\)\. Found \(\)"),
        (MeanSlope(), r"`MeanSlope\.slope\(p\)`.* \(1000,\)\. Found \(\)"),
    ],
    ids=repr,
)
def test_loss_whose_slope_does_not_fall_or_is_wrong_is_rejected(base, found):
    with pytest.raises(ValueError, match=found):
        OGC(base)


@pytest.mark.parametrize("name", CLIPPABLE)
def test_every_pointwise_loss_whose_slope_falls_is_accepted(name):
    OGC(name)
