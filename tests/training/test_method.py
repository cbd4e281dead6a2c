import json
from pathlib import Path

import pytest
import torch
from torch import nn

from ogc import OGC
from ogc.clipping import EMA, Linear, Paper, Relative
from ogc.losses import LOSSES
from ogc.training.method import IMAGE_EPSILON, METHODS, PAPER, build, check, complete, criterion, takes
from ogc.training.recipe import RECIPES, override


def a_step(recipe, **changes):
    """Take one step. Return the criterion, the gradient and the optimizer."""
    model = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = criterion(override(recipe, changes), classes=5, optimizer=optimizer, total_steps=100)
    loss(model(torch.randn(64, 6)), torch.arange(64) % 5).backward()
    return loss, model.weight.grad, optimizer


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "webvision", "table"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method, data):
    loss, gradient, _ = a_step(RECIPES[data], method=method)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0
    assert isinstance(loss, OGC) == ("+" in method)
    assert isinstance(loss.base if "+" in method else loss, LOSSES[method.partition("+")[0]])


def test_parameters_reach_the_loss():
    assert a_step(RECIPES["digits"], method="gce", q=0.3)[0].q == 0.3
    loss = a_step(RECIPES["digits"], method="fl+ogc", gamma=1.5, epsilon0=7, every=4, queue_size=64)[0]
    assert (loss.base.gamma, loss.rule, loss.every, loss.queue_size) == (1.5, Paper(7), 4, 64)
    loss = a_step(RECIPES["digits"], method="ce+ogc", epsilon=0.5, follow_lr=False)[0]
    assert loss.rule == Relative(0.5, follow_lr=False)
    assert a_step(RECIPES["digits"], method="ce+linear", beta=4)[0].rule == Linear(4, steps=100)
    assert a_step(RECIPES["digits"], method="ce+ema", alpha=0.9)[0].rule == EMA(0.9)


def test_epsilon_follows_the_optimizer():
    changes = {"queue_size": 64, "every": 1, "epsilon0": 1e-3}
    taus = []
    for lr in (0.1, 1000.0):
        loss, _, optimizer = a_step(RECIPES["digits"], **changes)
        optimizer.param_groups[0]["lr"] = lr
        loss.queue[:64] = torch.cat([torch.linspace(0.0, 0.4, 32), torch.linspace(4.0, 6.0, 32)])
        loss.update()
        taus.append(float(loss.tau))
    assert taus[0] < taus[1]


def test_linear_schedule_spans_the_training():
    loss, _, _ = a_step(RECIPES["digits"], method="ce+linear")
    assert float(loss.tau) == pytest.approx(10 * (1 - 1 / 100))


def test_parameters_are_those_of_the_paper():
    printed = json.loads((Path(__file__).parent.parent / "paper.json").read_text("utf-8"))
    names = printed["methods"]
    assert PAPER == {
        data: {names[name]: parameters for name, parameters in rows.items() if parameters}
        for data, rows in printed["parameters"].items()
    }


def test_methods_accept_the_papers_parameters():
    for data, rows in PAPER.items():
        for method, parameters in rows.items():
            check(method, parameters)
            assert complete(method, {}, data).items() >= parameters.items()


def test_loss_defaults_are_the_papers_for_cifar10():
    """They are defined twice, in losses/ and in PAPER. gce+ogc has a separate q, and epsilon is lr times epsilon0."""
    alone = {method: row for method, row in PAPER["cifar10"].items() if not method.endswith("+ogc")}
    assert {method: takes(method) for method in alone} == alone
    assert RECIPES["cifar10"].lr * PAPER["cifar10"]["ce+ogc"]["epsilon0"] == IMAGE_EPSILON


@pytest.mark.parametrize(
    ("data", "method", "given", "expected"),
    [
        ("cifar100", "gce", {}, {"q": 0.6}),
        ("cifar100", "gce", {"q": 0.1}, {"q": 0.1}),
        ("digits", "gce", {}, {"q": 0.9}),
        ("cifar100", "nce_nnce", {"beta": 1}, {"alpha": 100.0, "beta": 1}),
        ("webvision", "lc_ce", {}, {"tau": 1.2}),
        ("cifar10", "ce", {}, {}),
        ("cifar10", "gce+ogc", {}, {"q": 0.7, "epsilon0": 20.0}),
        ("cifar100", "gce+ogc", {}, {"q": 0.6, "epsilon": 2.0}),  # not in the paper: q of gce, and our epsilon
        ("webvision", "fl+ogc", {}, {"gamma": 0.5, "epsilon0": 350.0}),
        ("webvision", "ce+ogc", {"epsilon": 1}, {"epsilon": 1}),
        ("digits", "ce+ogc", {"epsilon0": 5}, {"epsilon0": 5}),
        ("cifar100", "js+ema", {}, {"pi1": 0.5, "alpha": 0.9999}),
    ],
)
def test_parameter_precedence_is_given_then_paper_then_default(data, method, given, expected):
    rest = {"follow_lr": True, "every": 32, "queue_size": 4096} if method.endswith("+ogc") else {}
    assert complete(method, given, data) == {**expected, **rest}


@pytest.mark.parametrize(
    ("method", "parameters", "message"),
    [
        ("cee", {}, r"There is no method named 'cee'\. Did you mean ce.* Choose from ce, fl, mae, "),
        ("ce+oge", {}, r"There is no method named 'ce\+oge'\. Did you mean ce\+ogc"),
        ("ce+", {}, "There is no method named 'ce\\+'"),
        ("", {}, "There is no method named ''"),
        ("gce", {"gq": 1}, r"The method gce has no parameter 'gq'\. Did you mean q\? It takes q\."),
        ("ce", {"q": 1}, r"The method ce has no parameter 'q'\. It takes none\."),
        ("ce+linear", {"steps": 9}, "has no parameter 'steps'"),  # given by the length of training
        ("mae+ogc", {}, "needs no clipping"),
        ("nce_rce+ogc", {}, "OGC needs a loss of p"),
        ("sce+ema", {}, r"The method sce\+ema is not supported: its loss and its rule both have a parameter `alpha`\."),
        ("taylor_ce+ogc", {"t": 1}, "needs no clipping"),
    ],
)
def test_invalid_methods_are_rejected(method, parameters, message):
    with pytest.raises(ValueError, match=message):
        build(method, parameters)


def test_one_class_is_refused():
    with pytest.raises(ValueError, match=r"Parameter `classes` should be at least 2\. Found `classes = 1`\."):
        criterion(RECIPES["digits"], classes=1, optimizer=None, total_steps=1)
