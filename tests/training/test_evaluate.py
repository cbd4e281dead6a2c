"""Accuracy, shares of clean and wrong labels, and the true ratio, computed by hand."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from ogc.given_label import P_MIN
from ogc.losses import LOSSES
from ogc.training import evaluate
from ogc.training.evaluate import (
    EVALUATION_BATCH,
    EvaluationSet,
    clipping_facts,
    differ_in_size,
    training_shares,
)
from small_runs import CLASSES, features, feed, images, network, on_disk


def by_hand(net, data, one):
    net.eval()
    hits = sum(int(net(one.plain(data.inputs[i : i + 1])).argmax()) == int(label) for i, label in enumerate(data.true))
    net.train()
    return hits


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_hits_are_counted_against_true_labels(place):
    net, train = network(), images(20)
    net(torch.randn(50, 3, 8, 8))  # batch statistics that evaluation must not change
    before = {name: value.clone() for name, value in net.state_dict().items()}
    data = images(53, seed=5, flipped=0.5)
    one = feed(on_disk(train) if place == "disk" else train)
    part = EvaluationSet(on_disk(data) if place == "disk" else data, one)
    hits = part.hits(net, {}, "float32")
    assert hits.dtype == torch.int64
    assert int(hits) == by_hand(net, data, one)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_evaluation_in_several_batches():
    data = features(EVALUATION_BATCH + 7, seed=5, flipped=0)
    net = nn.Linear(192, CLASSES)
    hits = int(EvaluationSet(data, feed(features(20))).hits(net, {}, "float32"))
    assert hits == int((net(data.inputs).argmax(1) == data.true).sum())


def test_large_images_use_smaller_batches(monkeypatch):
    monkeypatch.setattr(evaluate, "EVALUATION_NUMBERS", 5 * 3 * 8 * 8 + 1)
    net, train, data = network(), images(20), images(53, seed=5)
    seen = []
    net.register_forward_pre_hook(lambda net, inputs: seen.append(len(inputs[0])))
    part = EvaluationSet(on_disk(data), feed(on_disk(train)))
    assert int(part.hits(net, {}, "float32")) == by_hand(net, data, part.feed)
    assert seen[:11] == [5] * 10 + [3]
    monkeypatch.setattr(evaluate, "EVALUATION_NUMBERS", 1)
    assert EvaluationSet(data, part.feed).batch == 1


def test_given_weights_replace_those_of_the_network():
    data = features(30, flipped=0)
    net = nn.Linear(192, CLASSES)
    weights = {"weight": torch.zeros(CLASSES, 192), "bias": torch.tensor([0.0, 1.0, 0.0])}
    hits = EvaluationSet(data, feed(data)).hits(net, weights, "bf16")
    assert int(hits) == int((data.given == 1).sum())


def test_given_labels_are_used_if_true_ones_are_unknown():
    data = replace(features(30), true=None)
    net = nn.Linear(192, CLASSES)
    hits = int(EvaluationSet(data, feed(data)).hits(net, {}, "float32"))
    assert hits == int((net(data.inputs).argmax(1) == data.given).sum())


def test_recall_is_by_true_label_of_the_classes_with_samples(monkeypatch):
    monkeypatch.setattr(evaluate, "EVALUATION_BATCH", 7)
    data = features(40, seed=5, flipped=0.5)
    data = data.subset(torch.nonzero(data.true != 1)[:, 0])
    net = nn.Linear(192, CLASSES)
    recall = EvaluationSet(data, feed(features(20))).recall(net, {}, "float32")
    predicted = net(data.inputs).argmax(1)
    of_class = {c: [bool(p == c) for p, t in zip(predicted, data.true, strict=True) if t == c] for c in (0, 2)}
    assert recall == pytest.approx({c: sum(right) / len(right) for c, right in of_class.items()})


@pytest.mark.parametrize(
    ("sizes", "differ"), [((5, 0, 14), False), ((5, 0, 15), True), ((7,), False), ((0, 1, 3), True)]
)
def test_classes_differ_in_size(sizes, differ):
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    assert differ_in_size(labels) == differ


def test_training_shares():
    true = torch.tensor([0, 0, 1, 1, 2, 2])
    given = torch.tensor([0, 1, 1, 2, 2, 0])  # samples 1, 3, 5 are wrong
    predicted = torch.tensor([0, 1, 2, 1, -1, 2])  # sample 4 was not seen yet
    assert training_shares(predicted, given, true) == {
        "agreement": 2 / 5,
        "clean": 1 / 2,
        "memorised": 1 / 3,
        "recovered": 2 / 3,
    }
    assert training_shares(predicted, given, None) == {
        "agreement": 2 / 5,
        "clean": None,
        "memorised": None,
        "recovered": None,
    }
    assert training_shares(predicted, true, true)["memorised"] is None
    assert training_shares(torch.full((6,), -1), given, true)["agreement"] == 0.0


def test_true_ratio():
    p, wrong = torch.tensor([0.5, 0.25, 0.1, 0.01, 0.9]), torch.tensor([False, False, True, True, False])
    H = torch.cat([-p.log(), torch.tensor([math.nan])])
    wrong = torch.cat([wrong, torch.tensor([True])])  # not seen yet: left out
    nothing_fitted = [math.nan] * 5
    solution = torch.tensor([0.2, 5.0, *nothing_fitted], dtype=torch.float64)
    facts = clipping_facts(LOSSES["ce"](), solution, H, wrong)
    clean, noisy = (2 + 4 + 1 / 0.9) / 3, (5 + 5) / 2  # CE's slope is 1/p, at most tau = 5
    assert facts["true_ratio"] == pytest.approx(noisy / clean, rel=1e-6)
    assert (facts["tau"], facts["p0"]) == (5.0, 0.2)
    assert facts["mixture"] is None
    assert facts["ratio"] is None
    assert clipping_facts(LOSSES["ce"](), solution, H, None)["true_ratio"] is None
    assert clipping_facts(LOSSES["ce"](), solution, H, torch.zeros(6, dtype=torch.bool))["true_ratio"] is None


def test_ratio_of_a_mixture():
    """The normals are narrow and far apart, so each has a single slope, at p = e^-mean."""
    solution = torch.tensor([P_MIN, 1 / P_MIN, 1.0, 1e-2, 3.0, 1e-2, 0.5], dtype=torch.float64)
    facts = clipping_facts(LOSSES["ce"](), solution, torch.zeros(3), None)
    assert facts["ratio"] == pytest.approx(math.e**2, rel=0.01)
    assert facts["mixture"]["noisy_mean"] == 3.0
    assert facts["tau"] is None  # nothing is clipped


def test_no_clipping_facts_without_clipping():
    assert set(clipping_facts(None, None, torch.zeros(3), None).values()) == {None}
