"""The exact solution for tau, compared with the authors' values, the NumPy reference and the equation itself."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import reference
from ogc import OGC, losses
from ogc.clipping import Mixture, fit_mixture, noisy_to_clean_ratio, solve_threshold
from ogc.clipping.threshold import Slopes
from ogc.given_label import P_MIN
from ogc.losses import Pointwise
from samples import random

GOLDEN = Path(__file__).parents[1] / "golden"
THRESHOLDS = json.loads((GOLDEN / "thresholds.json").read_text())
BASES = {"ce": losses.CrossEntropy(), "fl": losses.Focal(gamma=0.5), "gce": losses.GCE(q=0.7)}
NUMPY_BASES = {"ce": reference.ce(), "fl": reference.fl(gamma=0.5), "gce": reference.gce(q=0.7)}


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


def draw(seed: int) -> tuple[float, ...]:
    """Draw the parameters of a plausible mixture."""
    low, high, v, w, share = torch.rand(5, generator=random(seed), dtype=torch.float64).tolist()
    return 4 * low, 1e-3 + 2 * v**3, 4 * low + 10 * high, 1e-3 + 4 * w**2, share


def as_tensors(numbers) -> Mixture:
    return Mixture(*torch.tensor(numbers, dtype=torch.float64).unbind())


@pytest.mark.parametrize("name", BASES)
def test_equals_the_reference(name):
    clipped = 0
    for seed in range(12):
        for target in (1.01, 1.5, 3.0):
            numbers = draw(seed)
            expected = reference.solve_threshold(NUMPY_BASES[name].slope, reference.Mixture(*numbers), target)
            found = solve_threshold(BASES[name], as_tensors(numbers), target)
            assert found.dtype == torch.float64
            assert found.item() == pytest.approx(expected, abs=1e-5), (numbers, target)
            clipped += expected > P_MIN
    assert clipped > 15


@pytest.mark.parametrize("name", BASES)
def test_ratio_at_the_solution_is_the_target(name):
    base, slopes = BASES[name], Slopes(BASES[name])
    for seed in range(200):
        numbers, target = draw(seed), (1.001, 1.2, 2.0, 5.0)[seed % 4]
        p0, tau = slopes.solve(as_tensors(numbers), target)
        unclipped = noisy_to_clean_ratio(base, as_tensors(numbers), float("inf"))
        if p0 == P_MIN:
            assert unclipped <= target * (1 + 1e-9)
            assert tau == slopes.steepest
        else:
            assert unclipped >= target * (1 - 1e-9)
            assert noisy_to_clean_ratio(base, as_tensors(numbers), tau).item() == pytest.approx(target, rel=1e-9)
            assert float(base.slope(torch.tensor(p0, dtype=torch.float64))) == pytest.approx(tau, rel=1e-6)


@pytest.mark.parametrize("name", BASES)
def test_p0_is_the_inverse_of_slope(name):
    slopes = Slopes(BASES[name])
    p = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    p = torch.cat([p, 1 - torch.logspace(-3, -6.5, 20, dtype=torch.float64)])  # as epsilon approaches 0
    tau = BASES[name].slope(p)
    p0 = slopes.p0_at(tau)
    assert_close(p0, p, rtol=0, atol=1e-6)
    assert_close(BASES[name].slope(p0), tau, rtol=1e-6, atol=0)
    assert [slopes.at(p) for p in p0.tolist()] == pytest.approx(tau.tolist(), rel=1e-6)
    ends = slopes.p0_at(torch.tensor([1e-5, 1e12], dtype=torch.float64)).tolist()
    assert ends == [pytest.approx(1 - P_MIN, abs=1e-15), pytest.approx(P_MIN, rel=1e-9)]


def test_larger_epsilon_clips_less():
    mixture = as_tensors((0.3, 0.1, 4.0, 1.5, 0.4))
    p0 = torch.stack([solve_threshold(BASES["ce"], mixture, 1 + epsilon) for epsilon in (0.01, 0.1, 0.5, 2.0, 1000.0)])
    assert (p0.diff() < 0).all()
    assert p0[-1] == P_MIN


def test_target_may_be_a_tensor():
    mixture = as_tensors((0.3, 0.1, 4.0, 1.5, 0.4))
    expected = solve_threshold(BASES["ce"], mixture, 1.5)
    assert_close(solve_threshold(BASES["ce"], mixture, torch.tensor(1.5)), expected, rtol=1e-6, atol=0)
    assert solve_threshold(BASES["ce"], mixture, torch.tensor(1.5, dtype=torch.float64)) == expected


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
        return 2 * H


class WrongAtSmallH(losses.CrossEntropy):
    def at(self, H):
        return H * torch.where(H < 1, 1.001, 1.00009)  # the second is within the tolerance


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (losses.MAE(), r"The gradient of MAE\(\) does not fall near p = 1\b"),
        (losses.GCE(q=1.0), r"The gradient of GCE\(q=1\.0\) does not fall near p = 1\b"),
        (losses.TaylorCE(t=1), r"The gradient of TaylorCE\(t=1\) does not fall near p = 1\b"),
        (losses.PHuberCE(), r"The gradient of PHuberCE\(tau=2\.0\) does not fall near p = 0\.5\b"),
        (Bump(), r"The gradient of Bump\(\) does not fall near p = 0\.5\b"),
        (Rising(), r"The gradient of Rising\(\) does not stay above 0"),
        (
            WrongSlope(),
            r"^`WrongSlope\.slope` should be \|d value/dp\|\. At p = 1 it is 2, but the gradient of `value` is 1\.$",
        ),
        (WrongAt(), r"^`WrongAt\.at\(H\)` should be `value\(p\)` at H = -log p\. At p = 1e-07 it is 32\.\d+, but"),
        (WrongAtSmallH(), r"At p = 0\.37\d it is 0\.9\d+, but `value` is 0\.9\d+\.$"),
    ],
    ids=lambda value: repr(value) if isinstance(value, Pointwise) else "",
)
def test_rejects_loss_whose_slope_does_not_fall(base, message):
    for make in (Slopes, OGC):
        with pytest.raises(ValueError, match=message) as error:
            make(base)
        falls = "OGC needs a loss whose gradient falls strictly as p rises, so that there is a p0 for every tau."
        assert str(error.value).startswith((falls, "`WrongSlope", "`WrongAt"))


@pytest.mark.parametrize("name", ["lc_ce", "nce_rce", "nce_nnce"])
def test_rejects_loss_that_is_not_pointwise(name):
    with pytest.raises(
        ValueError, match=r"^OGC needs a pointwise loss, one that depends on the given label's .* Found "
    ):
        OGC(name)


@pytest.mark.parametrize("name", ["ce", "fl", "gce", "sce", "taylor_ce", "js"])
def test_accepts_every_pointwise_loss_whose_slope_falls(name):
    OGC(name)
