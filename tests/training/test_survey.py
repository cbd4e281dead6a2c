"""What the network is asked about its training samples: when, with which weights, and that asking changes nothing."""

import json

import pytest
import torch

from ogc.training import Interrupted, load_network, run, train
from ogc.training.checkpoint import LAST, SAMPLES, read
from ogc.training.evaluate import EvaluationSet
from ogc.training.survey import Survey, due
from small_runs import CLASSES, StopAt, features, feed, images, job, network, recipe

EPOCHS = recipe().epochs


@pytest.mark.parametrize(
    ("epochs", "surveys", "when"),
    [(7, 3, [3, 5, 7]), (4, 4, [1, 2, 3, 4]), (3, 10, [1, 2, 3]), (5, 1, [5]), (5, 0, []), (1, 10, [1])],
)
def test_moments_are_spread_evenly_up_to_the_end(epochs, surveys, when):
    assert [epoch for epoch in range(1, epochs + 1) if due(epoch, epochs=epochs, surveys=surveys)] == when


@pytest.mark.parametrize("batch", [7, 1000])
def test_means_over_surveys_by_hand(batch):
    net, data = network(drop=0.5), images(40)
    part = EvaluationSet(data, feed(data))
    part.batch = batch
    survey = Survey(part, data.given, CLASSES)
    other = {name: value + 0.3 for name, value in net.state_dict().items() if value.is_floating_point()}
    net.train()
    for weights in ({}, other):
        survey.ask(net, weights, "float32")
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
def test_the_averaged_weights_are_asked_where_there_are_any(tmp_path, average):
    one = job(tmp_path, net=network(), average=average, surveys=1)
    train([one], device="cpu")
    found = read(tmp_path / SAMPLES)[0]
    net = load_network(tmp_path, "averaged" if average else "last", network=network())
    with torch.no_grad():
        p = net(feed(one.data[0]).plain(one.data[0].inputs)).softmax(1)
    torch.testing.assert_close(found["survey.train.probabilities"], p, rtol=1e-4, atol=1e-5)


def test_asking_changes_nothing_but_what_is_known(tmp_path):
    results = [train([job(tmp_path / str(n), surveys=n)], device="cpu")[0] for n in (0, 3)]
    plain, asked = (read(tmp_path / str(n) / SAMPLES)[0] for n in (0, 3))
    assert asked.keys() - plain.keys() == {f"survey.train.{name}" for name in ("H", "margin", "probabilities")}
    assert all(torch.equal(value, asked[name]) for name, value in plain.items())
    losses = [[epoch["loss"] for epoch in result["epochs"]] for result in results]
    assert losses[0] == losses[1]


def test_the_validation_part_is_asked_too_and_the_test_set_is_not(tmp_path):
    one = job(tmp_path)
    sets = {"val": features(23, seed=4), "test": features(9, seed=5)}
    train([one._replace(data=(one.data[0], sets))], device="cpu")
    found = read(tmp_path / SAMPLES)[0]
    assert found["survey.val.probabilities"].shape == (23, CLASSES)
    assert not any(name.startswith("survey.test") for name in found)
    assert json.loads((tmp_path / "run.json").read_text())["recipe"]["surveys"] == 10


def test_a_run_goes_on_with_other_surveys_than_it_began_with(tmp_path):
    """As one does whose checkpoint is older than surveys are."""
    with pytest.raises(Interrupted):
        train([job(tmp_path, surveys=0)], device="cpu", watch=StopAt(2, 1))
    assert not any("survey" in name for name in read(tmp_path / LAST)[0])
    train([job(tmp_path, surveys=10)], device="cpu", resume=True)
    assert int(read(tmp_path / LAST)[0]["books.survey.train.count"]) == EPOCHS - 1
    found = read(tmp_path / SAMPLES)[0]
    train([job(tmp_path / "whole", surveys=10)], device="cpu")
    whole = read(tmp_path / "whole" / SAMPLES)[0]
    assert torch.equal(found["H"], whole["H"])
    assert not torch.equal(found["survey.train.margin"], whole["survey.train.margin"])
    assert found["survey.train.probabilities"].sum(1).sub(1).abs().max() < 1e-5


def test_what_does_not_fit_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "LARGEST", 80 * CLASSES - 1)
    train([job(tmp_path)], device="cpu")
    assert not any(name.startswith("survey") for name in read(tmp_path / SAMPLES)[0])
