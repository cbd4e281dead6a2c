"""All losses, compared with the NumPy reference, recorded values and finite differences."""

import json
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

import reference
from asserts import rejects, value_and_gradient
from ogc import OGC, losses
from ogc.losses import LOSSES, LogitClip, loss_class
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
CASES = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())


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
    loss = LOSSES[name](reduction="none", **parameters)
    assert_close(loss(logits, labels), expected, rtol=1e-9, atol=1e-9)
    assert_close(loss(logits.float(), labels).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tau", [1.0, 2.0, 10.0])
def test_phuber_ce_equals_the_reference(tau):
    """The paper's form: 1 - tau p + log tau below 1 / tau."""
    logits, labels = batch(64, dtype=torch.float64)
    p = logits.softmax(1)[torch.arange(64), labels]
    expected = torch.where(p > 1 / tau, -p.log(), 1 - tau * p + torch.tensor(tau).double().log())
    assert_close(losses.PHuberCE(tau=tau, reduction="none")(logits, labels), expected)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["num_classes"]))
def test_golden(case, name):
    """The paper's parameters for CIFAR-10 and CIFAR-100."""
    expected = case["losses"][name]
    logits = torch.tensor(case["logits"], dtype=torch.float64)
    value, gradient = value_and_gradient(LOSSES[name](**expected["params"]), logits, torch.tensor(case["labels"]))
    assert value.item() == pytest.approx(expected["value"], rel=1e-6)
    assert gradient.norm().item() == pytest.approx(expected["grad_norm"], rel=1e-6)
    assert gradient[0].tolist() == pytest.approx(expected["grad_first"], rel=1e-6)


@pytest.mark.parametrize("name", CRITERIA)
def test_gradcheck(name):
    logits, labels = batch(6, dtype=torch.float64)
    labels[2] = -100
    for reduction in ("none", "mean"):
        criterion = CRITERIA[name](reduction=reduction, weight=torch.linspace(0.5, 2, 10, dtype=torch.float64))
        assert gradcheck(criterion, (logits.requires_grad_(), labels))


@pytest.mark.parametrize("base", ["ce", "fl", "gce"])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_gradgradcheck_of_the_hand_written_derivative(base, reduction):
    logits, labels = batch(8, dtype=torch.float64)
    logits[0, labels[0]] += 10
    labels[1] = -100
    criterion = clipping_ogc(base, reduction=reduction)
    H = losses.CrossEntropy(reduction="none")(logits, labels)[labels >= 0]
    assert torch.exp(-H).min() < criterion.p0 < torch.exp(-H).max()
    assert gradgradcheck(criterion, (logits.requires_grad_(), labels))


# --- LogitClip -------------------------------------------------------------------------------------------------------


def test_logit_clip_wraps_any_loss():
    logits, labels = batch()
    shrunk = logits / logits.norm(dim=1, keepdim=True).clamp(min=2.0) * 2.0
    for base in (losses.GCE(), losses.NCEPlusRCE(), losses.JSDivergence()):
        assert_close(LogitClip(base, tau=2.0)(logits, labels), base(shrunk, labels))
    labels[::2] = 255
    clipped = LogitClip(losses.GCE(), ignore_index=255)(logits, labels)
    assert_close(clipped, LogitClip(losses.GCE())(logits[1::2], labels[1::2]))


def test_logit_clip_keeps_small_norms_and_masked_classes():
    logits, labels = batch(spread=0.01)
    assert_close(LogitClip(tau=1.0)(logits, labels), losses.CrossEntropy()(logits, labels))
    logits, labels = batch()
    labels[:], logits[:, 7:] = 0, -torch.inf
    assert_close(LogitClip(tau=0.5)(logits, labels), LogitClip(tau=0.5)(logits[:, :7], labels))


@pytest.mark.parametrize("arguments", [{"weight": torch.ones(10)}, {"ignore_index": 0}, {"reduction": "sum"}], ids=str)
@pytest.mark.parametrize("wrapper", [LogitClip, OGC])
def test_arguments_of_the_inner_loss_are_rejected(wrapper, arguments):
    with pytest.raises(ValueError, match=wrapper.__name__ + r".*`GCE\(q=0\.9, " + next(iter(arguments))):
        wrapper(losses.GCE(**arguments))


# --- arguments and names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("fl", "gamma", -0.1),
        ("fl", "gamma", float("inf")),
        ("gce", "q", 0.0),
        ("gce", "q", 1.4),
        ("sce", "alpha", -1.0),
        ("sce", "beta", -1.0),
        ("phuber_ce", "tau", 0.5),
        ("taylor_ce", "t", 0),
        ("taylor_ce", "t", 2.5),
        ("nce_rce", "alpha", -1.0),
        ("nce_rce", "beta", -1.0),
        ("nce_nnce", "alpha", float("nan")),
        ("js", "pi1", 0.0),
        ("js", "pi1", 1.0),
        ("lc_ce", "tau", 0.0),
        *((name, "reduction", "average") for name in LOSSES),
    ],
)
def test_invalid_arguments_are_rejected(name, argument, value):
    rejects(LOSSES[name], argument, value)


@pytest.mark.parametrize("name", LOSSES)
def test_invalid_weights_and_positional_arguments_are_rejected(name):
    for weight in (torch.tensor([1.0, -1.0]), torch.ones(2, 2), torch.tensor([1.0, torch.nan])):
        rejects(LOSSES[name], "weight", weight)
    with pytest.raises(TypeError, match=r"positional argument|require_plain"):
        LOSSES[name](None, 0.5)


def test_names():
    assert " ".join(LOSSES) == "ce fl mae gce sce phuber_ce taylor_ce nce_rce js lc_ce nce_nnce"
    assert all(case["losses"].keys() == LOSSES.keys() for case in CASES)
    for make in (loss_class, OGC):
        with pytest.raises(ValueError, match=f"'cross_entropy'.*{', '.join(LOSSES)}"):
            make("cross_entropy")


def test_repr_shows_the_parameters():
    assert repr(losses.GCE(q=0.7)) == "GCE(q=0.7)"
    shown = losses.SCE(weight=torch.ones(3), ignore_index=0, reduction="sum")
    assert repr(shown) == "SCE(alpha=0.1, beta=1.0, weight=(3,), ignore_index=0, reduction=sum)"
    assert losses.NCEPlusRCE(alpha=2).hyperparameters == {"alpha": 2, "beta": 0.1}
