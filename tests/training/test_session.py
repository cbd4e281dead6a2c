"""Jobs from beginning to end: folders, results, networks that come back, TensorBoard, refusals."""

import json
from pathlib import Path

import pytest
import torch

from ogc import _provenance
from ogc.training import (
    RECIPES,
    CheckpointError,
    Interrupted,
    Job,
    Source,
    load,
    load_network,
    override,
    resume,
    train,
)
from ogc.training.checkpoint import BEST, LAST, RESULT, RUN, SAMPLES, read
from ogc.training.evaluate import EvaluationSet
from ogc.training.session import job_of, pick_device
from small_runs import StopAt, feed, job, metrics, network, train_in_pieces


def digits(out, **changes):
    source = Source.parse("digits")
    recipe = override(RECIPES["digits"], {"epochs": 2, "noise": "symmetric:0.5", "hidden": "32", **changes})
    data, info = load(source, recipe)
    return Job(recipe, source, data, info, out)


def accuracy(net, one, name="test"):
    train_set, sets = one.data
    part = EvaluationSet(sets[name], feed(train_set))
    return int(part.hits(net, {}, "float32")) / part.samples


def test_what_is_left_in_the_folder(tmp_path):
    one = digits(tmp_path)
    [result] = train([one])
    assert result == json.loads((tmp_path / RESULT).read_text())
    run = json.loads((tmp_path / RUN).read_text())
    assert {name: run[name] for name in run} == {name: result[name] for name in ("recipe", "source", "facts")}
    assert run["facts"]["noise"]["rate_got"] == one.info.rate_got
    assert "confusion" not in run["facts"]["noise"]
    assert run["facts"]["samples"] == 1437
    assert len(run["facts"]["classes"]) == 10
    assert run["facts"]["network"] == "mlp, 2,410 parameters"
    assert run["facts"]["commit"] == _provenance.commit()
    assert [epoch["epoch"] for epoch in result["epochs"]] == [1, 2]
    assert result["summary"]["set"] == "test"
    samples = read(tmp_path / SAMPLES)[0]
    assert torch.equal(samples["given"], one.data[0].given)
    assert torch.equal(samples["true"], one.data[0].true)
    assert int(samples["H"].isnan().sum()) < 100  # those that sat both epochs out
    wrong, seen = samples["given"] != samples["true"], samples["predicted"] >= 0
    recovered = (samples["predicted"] == samples["true"])[wrong & seen].double().mean()
    assert result["epochs"][-1]["recovered"] == float(recovered)


def test_resume_by_folder_alone(tmp_path):
    [whole] = train([digits(tmp_path / "whole")])
    with pytest.raises(Interrupted):
        train([digits(tmp_path / "run")], watch=StopAt(2, 5))
    [result] = resume([tmp_path / "run"])
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert result["summary"] == whole["summary"]
    assert result["facts"]["noise"] == whole["facts"]["noise"]


@pytest.mark.parametrize("average", [None, 0.9])
def test_networks_come_back_as_they_were_measured(tmp_path, average):
    one = job(tmp_path, net=network(), epochs=8, lr=0.2, average=average)
    [result] = train([one])
    last, facts = result["epochs"][-1], read(tmp_path / BEST)[1]
    for name in ("test", "again"):
        assert accuracy(load_network(tmp_path, "last", network(seed=1)), one, name) == last["accuracy"][name]
        averaged = last["averaged" if average else "accuracy"][name]
        assert accuracy(load_network(tmp_path, "averaged", network(seed=1)), one, name) == averaged
    assert accuracy(load_network(tmp_path, "best", network(seed=1)), one) == facts["score"]
    best = max(epoch["averaged" if average else "accuracy"]["test"] for epoch in result["epochs"])
    assert facts["score"] == best
    assert not load_network(tmp_path, "best", network()).training


def test_networks_by_name_are_built(tmp_path):
    one = digits(tmp_path)
    [result] = train([one])
    assert accuracy(load_network(tmp_path, "last"), one) == result["epochs"][-1]["accuracy"]["test"]
    assert accuracy(load_network(tmp_path), one) == result["epochs"][-1]["averaged"]["test"]
    assert accuracy(load_network(tmp_path, "best"), one) == read(tmp_path / BEST)[1]["score"]


@pytest.mark.slow
def test_a_resnet_comes_back(tmp_path):
    one = job(tmp_path, net=network())  # for its images
    one = one._replace(recipe=override(one.recipe, {"network": "resnet18-cifar", "epochs": 2}), network=None)
    [result] = train([one])
    for which, key in (("last", "accuracy"), ("averaged", "averaged")):
        assert accuracy(load_network(tmp_path, which), one) == result["epochs"][-1][key]["test"]


def test_refusals_of_load_network(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        load_network(tmp_path)
    train([job(tmp_path, net=network(), epochs=1)])
    with pytest.raises(ValueError, match=r"`network` should be given: that of .* came from Python"):
        load_network(tmp_path)
    with pytest.raises(ValueError, match="`which` should be one of last, averaged, best"):
        load_network(tmp_path, "first")
    with pytest.raises(CheckpointError, match=r"does not fit Linear: it has no bias\."):
        load_network(tmp_path, network=torch.nn.Linear(3, 3))
    (tmp_path / BEST).unlink()
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        load_network(tmp_path, "best", network())


def test_what_came_from_python_goes_on_from_python(tmp_path):
    train([job(tmp_path / "data", epochs=1)])
    with pytest.raises(ValueError, match=r"The data of .* came from Python"):
        job_of(tmp_path / "data")
    train([digits(tmp_path / "network")._replace(network=torch.nn.Linear(64, 10))])
    with pytest.raises(ValueError, match=r"The network of .* came from Python"):
        job_of(tmp_path / "network")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "null", '{"recipe": 3, "source": null, "facts": null}', "\x00\xff"]
)
def test_a_broken_description(tmp_path, content):
    (tmp_path / RUN).write_text(content)
    for use in (job_of, load_network):
        with pytest.raises(CheckpointError, match=f"{RUN} is broken: "):
            use(tmp_path)


def test_a_description_with_another_recipe(tmp_path):
    train([digits(tmp_path)])
    run = json.loads((tmp_path / RUN).read_text())
    run["recipe"]["lr"] = -1
    (tmp_path / RUN).write_text(json.dumps(run))
    with pytest.raises(CheckpointError, match="`lr` should be greater than 0"):
        job_of(tmp_path)


def test_one_folder_for_each_job(tmp_path):
    with pytest.raises(ValueError, match="`out` should be another folder for each job"):
        train([job(tmp_path), job(tmp_path / "." / ".." / tmp_path.name)])
    assert not list(tmp_path.iterdir())


def test_batches_that_cannot_be_cut():
    with pytest.raises(ValueError, match="`batch_size` should be a multiple of 2"):
        train([job(n=15, accumulate=2)])


def test_devices_and_engines():
    assert pick_device("cpu").type == "cpu"
    for name in ("tpu", "mps", "cuda:99"):
        with pytest.raises(ValueError, match="`device` should be"):
            pick_device(name)
    with pytest.raises(ValueError, match="`engine` should be one of"):
        train([job()], engine="diesel")
    with pytest.raises(ValueError, match="The engine cannot serve here: there is no GPU"):
        train([job()], engine="graph", device="cpu")


def test_evaluation_sets_of_other_classes():
    one = job()
    other = digits(None).data[1]["test"]
    with pytest.raises(ValueError, match="`other` should be of 3 classes"):
        train([one._replace(data=(one.data[0], {"other": other}))])


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore:.*(distutils|np.bool8|datetime|pkg_resources).*")
def test_tensorboard(tmp_path):
    """Every number of every epoch, once: what was written after the last save is forgotten."""
    [whole] = train([job(tmp_path / "whole")], tensorboard=True)
    told = events(tmp_path / "whole")
    assert [step for step, _ in told["loss"]] == [1, 2, 3, 4]
    assert told["accuracy/test"][-1][1] == pytest.approx(whole["epochs"][-1]["accuracy"]["test"])
    assert {"lr", "averaged/test", "true_ratio", "mixture/noisy_weight", "images_per_second"} <= told.keys()

    class Dies(StopAt):
        def ended_epoch(self, run, epoch):
            if epoch.epoch == 3:
                raise RuntimeError("killed")

    with pytest.raises(Interrupted):
        train([job(tmp_path / "run")], tensorboard=True, watch=StopAt(2, 2))
    with pytest.raises(RuntimeError, match="killed"):
        train([job(tmp_path / "run")], tensorboard=True, watch=Dies(0, 0), resume=True)
    train([job(tmp_path / "run")], tensorboard=True, resume=True)
    again = events(tmp_path / "run")
    assert again["loss"] == told["loss"]


def test_jobs_one_after_the_other(tmp_path):
    alone = [train([job(None, method)])[0] for method in ("ce", "gce")]
    together = train([job(tmp_path / method, method) for method in ("ce", "gce")])
    assert [result["summary"] for result in together] == [result["summary"] for result in alone]


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train([job()], save_every=0)
    assert not list(tmp_path.iterdir())


def test_pieces_of_a_run_without_evaluation(tmp_path):
    def bare():
        one = job(tmp_path)
        return one._replace(data=(one.data[0], {}))

    result, stood = train_in_pieces(bare, [(2, 2)])
    assert stood == [(1, 2)]
    assert result["summary"] == {"set": None}
    assert result["epochs"][0]["accuracy"] == {}
    assert not (tmp_path / BEST).exists()
    assert (tmp_path / LAST).exists()


def test_the_commit_is_that_of_this_code(monkeypatch, tmp_path):
    _provenance.commit.cache_clear()
    monkeypatch.setenv("OGC_COMMIT", "abc")
    assert _provenance.commit() == "abc"
    monkeypatch.delenv("OGC_COMMIT")
    _provenance.commit.cache_clear()
    monkeypatch.setattr(_provenance, "HERE", tmp_path)
    assert _provenance.commit() is None
    import subprocess

    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    package = Path(tmp_path) / "__init__.py"
    package.write_text("")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "of somebody else"], check=True)
    _provenance.commit.cache_clear()
    assert _provenance.commit() is None  # in somebody's repository, but no part of it
    subprocess.run([*git, "add", "__init__.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "ours"], check=True)
    _provenance.commit.cache_clear()
    found = _provenance.commit()
    assert len(found) == 12
    package.write_text("changed")
    _provenance.commit.cache_clear()
    assert _provenance.commit() == f"{found}+"
    _provenance.commit.cache_clear()
