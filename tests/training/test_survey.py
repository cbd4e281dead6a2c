"""Surveys of the training samples: when, with which weights, and without an effect on training."""

import json
from dataclasses import replace

import pytest
import torch

from ogc.noise import LabelInfo
from ogc.training import Interrupted, load_network, run, train
from ogc.training.evaluate import EvaluationSet
from ogc.training.run_folder import LAST, SAMPLES, read, read_tensors
from ogc.training.survey import (
    EARLY,
    KEPT,
    Point,
    Survey,
    Surveys,
    memorised_from,
    moments,
    points_of,
    unsettled,
    why_unreliable,
)
from small_runs import CLASSES, StopAt, features, feed, images, job, network, recipe

EPOCHS = recipe().epochs


@pytest.mark.parametrize(
    ("epochs", "surveys", "when"),
    [
        (7, 3, [3, 5, 7]),
        (4, 4, [1, 2, 3, 4]),
        (3, 10, [1, 2, 3]),
        (5, 1, [5]),
        (5, 0, []),
        (1, 10, [1]),
        (20, 4, [5, 10, 15, 20]),
        (30, 10, [4, 8, 12, 16, 20, 22, 24, 26, 28, 30]),
        (240, 10, [4, 8, 12, 16, 20, 64, 108, 152, 196, 240]),
        (240, 3, [20, 130, 240]),
        (240, 1, [240]),
    ],
)
def test_surveys_are_spread_evenly_over_early_and_later_epochs(epochs, surveys, when):
    assert moments(epochs=epochs, surveys=surveys) == tuple(when)


@pytest.mark.parametrize("epochs", [21, 30, 60, 1000])
def test_longer_training_keeps_the_early_surveys(epochs):
    assert moments(epochs=epochs, surveys=10)[:5] == (4, 8, 12, 16, 20)
    assert moments(epochs=epochs, surveys=10)[-1] == epochs


class FixedPredictions(torch.nn.Module):
    """A network that predicts the given labels, but the next class for the first ``wrong`` samples."""

    def __init__(self, given):
        super().__init__()
        self.given, self.wrong = given, 0

    def forward(self, inputs):
        predicted = self.given.clone()
        predicted[: self.wrong] = (predicted[: self.wrong] + 1) % CLASSES
        return 4.0 * torch.nn.functional.one_hot(predicted, CLASSES)


def surveyed(contradicted, *, epochs=240):
    """Surveys of a network. In survey i it contradicts ``contradicted[i]`` of 100 labels."""
    data = images(100)
    survey = Survey(EvaluationSet(data, feed(data)), data.given, CLASSES)
    surveys = Surveys({"train": survey}, epochs=epochs, surveys=10)
    network = FixedPredictions(data.given)
    for epoch, network.wrong in zip(surveys.moments, contradicted, strict=True):
        surveys.take(network, {}, "float32", epoch)
    return surveys


def test_surveys_after_memorisation_do_not_count():
    surveys = surveyed([60, 50, 40, 40, 40, 38, 20, 10, 50, 5])
    points = points_of(surveys.history)
    assert [point.epoch for point in points] == list(surveys.moments)
    assert [round(100 * point.disagreement) for point in points] == [60, 50, 40, 40, 40, 38, 20, 10, 50, 5]
    assert [point.counts for point in points] == [True] * 6 + [False] * 4, "none counts after the first that does not"
    assert int(surveys.parts["train"].count) == 6
    assert memorised_from(points) == 108
    assert surveys.noise_rate() == points[-1].noise_rate == 0.4, "most of the six that count contradict 40"


def test_surveys_after_a_slow_fall_do_not_count():
    counts = [point.counts for point in points_of(surveyed([40] * 5 + [38, 36, 34, 33, 31]).history)]
    assert counts == [True] * 8 + [False] * 2, f"33 are fewer than {KEPT} of 40"


def test_all_surveys_count_without_memorisation():
    surveys = surveyed([60, 50, 45, 40, 40, 38, 36, 36, 35, 35])
    assert all(point.counts for point in points_of(surveys.history))
    assert memorised_from(points_of(surveys.history)) is None


def test_early_surveys_always_count():
    points = points_of(surveyed([60, 50, 40, 30, 20, 10, 5, 4, 3, 2], epochs=EARLY).history)
    assert all(point.counts for point in points)


def test_a_network_that_learned_late_has_not_memorised():
    points = [Point(20, 0.6, 0.6, True), Point(24, 0.54, 0.6, True), Point(28, 0.3, 0.6, False)]
    assert why_unreliable(points, {"a": 30, "b": 20}, 100).startswith(
        "The estimated noise rate is unreliable, because the network had hardly learned anything after 24 epochs."
    )
    assert why_unreliable(points, {"a": 30, "b": 19}, 100) is None
    assert why_unreliable(points[:2], {"a": 100}, 100) is None, "all surveys count"


@pytest.mark.parametrize(
    ("disagreements", "epochs", "expected"),
    [
        ((0.4, 0.39), (4, 9), True),
        ((0.6, 0.3), (6, 12), True),
        ((0.4, 0.39), (10, 20), False),
        ((0.4, 0.3, 0.29), (5, 10, 20), False),
        ((0.4, 0.1), (20, 40), False),
        ((0.6,), (1,), True),
        ((0.6,), (12,), False),
        ((0.22, 0.19, 0.18, 0.18, 0.18), (10, 14, 16, 18, 20), False),
        ((0.3, 0.3, 0.3, 0.26), (14, 16, 18, 20), True),
    ],
)
def test_training_is_unsettled_if_disagreement_falls_at_its_end(disagreements, epochs, expected):
    points = [Point(epoch, d, 0.3, True) for epoch, d in zip(epochs, disagreements, strict=True)]
    assert unsettled(points) is expected
    assert (why_unreliable(points, {}, 100) is not None) is expected


def test_no_results_without_surveys():
    surveys = Surveys({}, epochs=5, surveys=10)
    assert not surveys.due(5)
    assert surveys.noise_rate() is None
    assert (points_of(None), memorised_from([]), unsettled([])) == ([], None, False)


@pytest.mark.parametrize("batch", [7, 1000])
def test_means_over_surveys_match_those_by_hand(batch):
    net, data = network(drop=0.5), images(40)
    part = EvaluationSet(data, feed(data))
    part.batch = batch
    survey = Survey(part, data.given, CLASSES)
    other = {name: value + 0.3 for name, value in net.state_dict().items() if value.is_floating_point()}
    net.train()
    for weights in ({}, other):
        survey.add(survey.predict(net, weights, "float32"), torch.tensor(True))
    survey.add(survey.predict(net, {}, "float32"), torch.tensor(False))
    assert net.training
    H, margin, probabilities = [], [], []
    for weights in ({}, other):
        net.load_state_dict(net.state_dict() | weights)
        net.eval()
        with torch.no_grad():
            p = net(part.feed.plain(data.inputs)).double().softmax(1)
        for i, label in enumerate(data.given.tolist()):
            rival = max(float(p[i, j]) for j in range(CLASSES) if j != label)
            H.append(-p[i, label].log())
            margin.append((p[i, label] / rival).log())
        probabilities.append(p)
    means = survey.means()
    assert int(survey.count) == 2
    for name, values in (("H", H), ("margin", margin)):
        torch.testing.assert_close(means[name].double(), torch.stack(values).view(2, -1).mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        means["probabilities"].double(), torch.stack(probabilities).mean(0), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("average", [0.9, None])
def test_surveys_use_averaged_weights_if_available(tmp_path, average):
    one = job(tmp_path, net=network(), average=average, surveys=1)
    train([one], device="cpu")
    found = read_tensors(tmp_path / SAMPLES)[0]
    net = load_network(tmp_path, "averaged" if average else "last", network=network())
    with torch.no_grad():
        p = net(feed(one.data[0]).plain(one.data[0].inputs)).softmax(1)
    torch.testing.assert_close(found["survey.train.probabilities"], p, rtol=1e-4, atol=1e-5)


def test_surveys_do_not_affect_training(tmp_path):
    results = [train([job(tmp_path / str(n), surveys=n)], device="cpu")[0] for n in (0, 3)]
    plain, with_surveys = (read_tensors(tmp_path / str(n) / SAMPLES)[0] for n in (0, 3))
    means = {f"survey.train.{name}" for name in ("H", "margin", "probabilities")}
    assert with_surveys.keys() - plain.keys() == {*means, "survey.history"}
    assert results[0]["noise_rate"] is None
    assert all(torch.equal(value, with_surveys[name]) for name, value in plain.items())
    losses = [[epoch["loss"] for epoch in result["epochs"]] for result in results]
    assert losses[0] == losses[1]


def test_surveys_include_the_validation_but_not_the_test_set(tmp_path):
    one = job(tmp_path)
    sets = {"val": features(23, seed=4), "test": features(9, seed=5)}
    train([one._replace(data=(one.data[0], sets))], device="cpu")
    found = read_tensors(tmp_path / SAMPLES)[0]
    assert found["survey.val.probabilities"].shape == (23, CLASSES)
    assert not any(name.startswith("survey.test") for name in found)
    assert json.loads((tmp_path / "run.json").read_text())["recipe"]["surveys"] == 10


def test_run_resumes_with_another_number_of_surveys(tmp_path):
    """As with a checkpoint written before surveys existed."""
    with pytest.raises(Interrupted):
        train([job(tmp_path, surveys=0)], device="cpu", watch=StopAt(2, 1))
    assert not any("survey" in name for name in read_tensors(tmp_path / LAST)[0])
    train([job(tmp_path, surveys=10)], device="cpu", resume=True)
    assert int(read_tensors(tmp_path / LAST)[0]["samples.survey.train.count"]) == EPOCHS - 1
    found = read_tensors(tmp_path / SAMPLES)[0]
    train([job(tmp_path / "uninterrupted", surveys=10)], device="cpu")
    uninterrupted = read_tensors(tmp_path / "uninterrupted" / SAMPLES)[0]
    assert torch.equal(found["H"], uninterrupted["H"])
    assert not torch.equal(found["survey.train.margin"], uninterrupted["survey.train.margin"])
    assert found["survey.train.probabilities"].sum(1).sub(1).abs().max() < 1e-5


NOISE = LabelInfo("symmetric", 0.5, 0.4498, 0, CLASSES, None, "")


@pytest.mark.parametrize("known", [True, False])
def test_true_noise_rate_is_that_of_the_surveyed_labels(tmp_path, known):
    one = job(tmp_path, epochs=1)
    train_set, sets = one.data
    val = sets["again"] if known else replace(sets["again"], true=None)
    [result] = train([one._replace(data=(train_set, {"val": val, "test": sets["test"]}))], device="cpu")
    total = len(train_set) + len(val)
    wrong = sum(int((part.given != part.true).sum()) for part in (train_set, sets["again"]))
    expected = wrong / total if known else None
    assert result["true_noise_rate"] == read(tmp_path).true_noise_rate == expected
    if known:
        [named] = train([one._replace(data=(train_set, {"train": val, "val": val}), out=None)], device="cpu")
        assert named["true_noise_rate"] == expected
    [added] = train([one._replace(data=(train_set, {"val": val}), info=NOISE, out=None)], device="cpu")
    without = int((train_set.given != train_set.true).sum()) / total
    assert added["true_noise_rate"] == (expected if known else without)


def test_surveys_above_the_size_limit_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "LARGEST", 80 * CLASSES - 1)
    train([job(tmp_path)], device="cpu")
    assert not any(name.startswith("survey") for name in read_tensors(tmp_path / SAMPLES)[0])


def test_resumed_run_has_the_surveys_of_an_uninterrupted_one(tmp_path):
    with pytest.raises(Interrupted):
        train([job(tmp_path / "resumed")], device="cpu", watch=StopAt(2, 1))
    [resumed] = train([job(tmp_path / "resumed")], device="cpu", resume=True)
    [uninterrupted] = train([job(tmp_path / "uninterrupted")], device="cpu")
    assert len(resumed["surveys"]) == EPOCHS
    assert resumed["surveys"] == uninterrupted["surveys"]
    assert resumed["noise_rate"] == uninterrupted["noise_rate"] == uninterrupted["surveys"][-1]["noise_rate"]
    one, other = (read_tensors(tmp_path / name / SAMPLES)[0] for name in ("resumed", "uninterrupted"))
    assert all(torch.equal(value, other[name]) for name, value in one.items() if name.startswith("survey.train"))
