"""All losses, compared with the NumPy reference and finite differences, and invalid constructor arguments."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import reference
from ogc import OGC, losses
from ogc.losses import LOSSES, by_name
from samples import CRITERIA, batch, clipping_ogc

PARAMETERS = {
    "ce": [{}],
    "fl": [{"gamma": 0.0}, {"gamma": 0.5}, {"gamma": 2.0}],
    "gce": [{"q": 0.1}, {"q": 0.7}, {"q": 1.0}],
    "taylor_ce": [{"t": 1}, {"t": 2}, {"t": 16}],
    "mae": [{}],
    "sce": [{"alpha": 0.1, "beta": 1.0}, {"alpha": 6.0, "beta": 0.0}],
    "nce_rce": [{"alpha": 1.0, "beta": 0.1}, {"alpha": 0.0, "beta": 2.0}],
    "js": [{"pi1": 0.1}, {"pi1": 0.5}, {"pi1": 0.9}],
    "lc_ce": [{"tau": 0.1}, {"tau": 5.0}],
    "nce_nnce": [{"alpha": 1.0, "beta": 1.0}, {"alpha": 100.0, "beta": 5.0}],
}


def reference_losses(name, logits, labels, **parameters):
    """Compute per-sample losses with the NumPy reference: (N, C), (N,) -> list."""
    if name in reference.BASELINES:
        return reference.BASELINES[name](logits.numpy(), labels.tolist(), **parameters)
    value = reference.LOSSES[name](**parameters).value
    H = reference.cross_entropy_of_given_label(logits.numpy(), labels.tolist())
    return [float(value(torch.exp(torch.tensor(-h, dtype=torch.float64)).item())) for h in H]


@pytest.mark.parametrize(
    ("name", "parameters"), [(name, row) for name in PARAMETERS for row in PARAMETERS[name]], ids=str
)
def test_equals_the_reference(name, parameters):
    logits, labels = batch(64, dtype=torch.float64, spread=4)
    expected = torch.tensor(reference_losses(name, logits, labels, **parameters), dtype=torch.float64)
    found = LOSSES[name](reduction="none", **parameters)(logits, labels)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    found = LOSSES[name](reduction="none", **parameters)(logits.float(), labels)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tau", [1.0, 2.0, 10.0])
def test_phuber_ce_equals_the_reference(tau):
    """The paper's form: 1 - tau p + log tau below 1 / tau."""
    logits, labels = batch(64, dtype=torch.float64)
    p = logits.softmax(1)[torch.arange(64), labels]
    expected = torch.where(p > 1 / tau, -p.log(), 1 - tau * p + torch.tensor(tau).double().log())
    torch.testing.assert_close(losses.PHuberCE(tau=tau, reduction="none")(logits, labels), expected)


@pytest.mark.parametrize("name", CRITERIA)
def test_gradcheck(name):
    logits, labels = batch(6, dtype=torch.float64)
    labels[2] = -100
    for reduction in ("none", "mean"):
        criterion = CRITERIA[name](reduction=reduction, weight=torch.linspace(0.5, 2, 10, dtype=torch.float64))
        assert gradcheck(criterion, (logits.requires_grad_(), labels))


@pytest.mark.parametrize("base", ["ce", "fl", "gce"])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_gradgradcheck_of_the_hand_written_gradient(base, reduction):
    logits, labels = batch(8, dtype=torch.float64)
    logits[0, labels[0]] += 10
    labels[1] = -100
    criterion = clipping_ogc(base, reduction=reduction)
    H = losses.CrossEntropy(reduction="none")(logits, labels)[labels >= 0]
    assert torch.exp(-H).min() < criterion.p0 < torch.exp(-H).max()
    assert gradgradcheck(criterion, (logits.requires_grad_(), labels))


@pytest.mark.parametrize(
    ("name", "argument", "value", "rule"),
    [
        ("fl", "gamma", -0.1, "at least 0"),
        ("fl", "gamma", float("inf"), "at least 0"),
        ("fl", "gamma", float("nan"), "at least 0"),
        ("gce", "q", 0.0, "in (0, 1]"),
        ("gce", "q", 1.4, "in (0, 1]"),
        ("sce", "alpha", -1.0, "at least 0"),
        ("sce", "beta", -1.0, "at least 0"),
        ("phuber_ce", "tau", 0.5, "at least 1, the smallest gradient of CE"),
        ("taylor_ce", "t", 0, "an integer of at least 1"),
        ("taylor_ce", "t", 2.5, "an integer of at least 1"),
        ("nce_rce", "alpha", -1.0, "at least 0"),
        ("nce_rce", "beta", -1.0, "at least 0"),
        ("nce_nnce", "alpha", float("nan"), "at least 0"),
        ("nce_nnce", "beta", -1.0, "at least 0"),
        ("js", "pi1", 0.0, "in (0, 1)"),
        ("js", "pi1", 1.0, "in (0, 1)"),
        ("lc_ce", "tau", 0.0, "above 0"),
    ]
    + [(name, "reduction", "average", "one of none, mean, sum") for name in LOSSES],
)
def test_constructor_rejects_invalid_arguments(name, argument, value, rule):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        LOSSES[name](**{argument: value})
    assert str(error.value) == f"Parameter `{argument}` should be {rule}. Found `{argument} = {value!r}`."


@pytest.mark.parametrize("name", LOSSES)
def test_constructor_rejects_invalid_weight(name):
    for weight in (torch.tensor([1.0, -1.0]), torch.ones(2, 2), torch.tensor([1.0, torch.nan])):
        with pytest.raises(ValueError, match=r"^Parameter `weight` should be one number >= 0 per class"):
            LOSSES[name](weight=weight)


@pytest.mark.parametrize("name", LOSSES)
def test_hyperparameters_are_keyword_only(name):
    with pytest.raises(TypeError, match=r"positional argument|require_plain"):
        LOSSES[name](None, 0.5)


def test_names():
    assert list(LOSSES) == [
        "ce",
        "fl",
        "mae",
        "gce",
        "sce",
        "phuber_ce",
        "taylor_ce",
        "nce_rce",
        "js",
        "lc_ce",
        "nce_nnce",
    ]
    assert all(by_name(name) is LOSSES[name] for name in LOSSES)


@pytest.mark.parametrize("make", [by_name, OGC])
def test_unknown_name_lists_the_known_ones(make):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make("cross_entropy")
    assert str(error.value) == f"There is no loss named 'cross_entropy'. Choose from {', '.join(LOSSES)}."


def test_repr_shows_the_parameters():
    assert repr(losses.GCE(q=0.7)) == "GCE(q=0.7)"
    shown = losses.SCE(weight=torch.ones(3), ignore_index=0, reduction="sum")
    assert repr(shown) == "SCE(alpha=0.1, beta=1.0, weight=(3,), ignore_index=0, reduction=sum)"


def test_hyperparameters_by_name():
    assert losses.NCEPlusRCE(alpha=2).hyperparameters == {"alpha": 2, "beta": 0.1}
    assert losses.CrossEntropy().hyperparameters == {}
