"""Jobs from start to finish: folders, results, loaded networks, TensorBoard, errors."""

import gc
import json
import math
import weakref
from pathlib import Path

import pytest
import torch

from edited import edited
from ogc import _provenance
from ogc._files import with_checksum
from ogc.engine import graphs
from ogc.training import (
    RECIPES,
    CheckpointError,
    Interrupted,
    Job,
    Source,
    jobs_of,
    load,
    load_network,
    loop,
    override,
    source,
    train,
)
from ogc.training.evaluate import EvaluationSet
from ogc.training.history import SilentWatch
from ogc.training.ranks import Ranks
from ogc.training.run import NonFinite
from ogc.training.run_folder import BEST, LAST, NONFINITE, RESULT, RUN, SAMPLES, read, read_part, read_tensors
from ogc.training.session import pick_device
from small_runs import StopAt, feed, job, metrics, network, train_with_stops


def digits(out, **changes):
    source = Source.parse("digits")
    recipe = override(RECIPES["digits"], {"epochs": 2, "noise": "symmetric:0.5", "hidden": "32", **changes})
    data, info = load(source, recipe)
    return Job(recipe, source, data, info, out)


def accuracy(net, one, name="test"):
    train_set, sets = one.data
    part = EvaluationSet(sets[name], feed(train_set))
    return int(part.hits(net, {}, "float32")) / part.samples


def test_contents_of_the_run_folder(tmp_path):
    one = digits(tmp_path)
    [result] = train([one])
    assert result == read_part(tmp_path / RESULT)
    run = json.loads((tmp_path / RUN).read_text())
    assert {name: run[name] for name in ("recipe", "source", "facts")} == {
        name: result[name] for name in ("recipe", "source", "facts")
    }
    assert run["facts"]["noise"]["rate_got"] == one.info.rate_got
    assert "confusion" not in run["facts"]["noise"]
    assert (run["facts"]["samples"], run["facts"]["batch"], run["facts"]["steps"]) == (1437, 128, 11)
    assert len(run["facts"]["classes"]) == 10
    assert run["facts"]["network"] == "mlp, 2,410 parameters"
    assert run["facts"]["commit"] == _provenance.commit()
    assert [epoch["epoch"] for epoch in result["epochs"]] == [1, 2]
    assert result["summary"]["set"] == "test"
    samples = read_tensors(tmp_path / SAMPLES)[0]
    assert torch.equal(samples["given"], one.data[0].given)
    assert torch.equal(samples["true"], one.data[0].true)
    assert int(samples["H"].isnan().sum()) < 100  # those left out of both epochs
    wrong, seen = samples["given"] != samples["true"], samples["predicted"] >= 0
    recovered = (samples["predicted"] == samples["true"])[wrong & seen].double().mean()
    assert result["epochs"][-1]["recovered"] == float(recovered)


def test_resume_from_the_folder_alone(tmp_path):
    [uninterrupted] = train([digits(tmp_path / "uninterrupted")])
    with pytest.raises(Interrupted):
        train([digits(tmp_path / "run")], watch=StopAt(2, 5))
    [result] = train(jobs_of([tmp_path / "run"]), resume=True)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "uninterrupted")
    assert result["summary"] == uninterrupted["summary"]
    assert result["facts"]["noise"] == uninterrupted["facts"]["noise"]


@pytest.mark.parametrize("average", [None, 0.9])
def test_loaded_networks_have_the_recorded_accuracy(tmp_path, average):
    one = job(tmp_path, net=network(), epochs=8, lr=0.2, average=average)
    [result] = train([one])
    last, facts = result["epochs"][-1], read_tensors(tmp_path / BEST)[1]
    for name in ("test", "again"):
        assert accuracy(load_network(tmp_path, "last", network(seed=1)), one, name) == last["accuracy"][name]
        averaged = last["averaged" if average else "accuracy"][name]
        assert accuracy(load_network(tmp_path, "averaged", network(seed=1)), one, name) == averaged
    assert accuracy(load_network(tmp_path, "best", network(seed=1)), one) == facts["score"]
    best = max(epoch["averaged" if average else "accuracy"]["test"] for epoch in result["epochs"])
    assert facts["score"] == best
    assert not load_network(tmp_path, "best", network()).training


def test_load_network_builds_networks_by_name(tmp_path):
    one = digits(tmp_path)
    [result] = train([one])
    assert accuracy(load_network(tmp_path, "last"), one) == result["epochs"][-1]["accuracy"]["test"]
    assert accuracy(load_network(tmp_path), one) == result["epochs"][-1]["averaged"]["test"]
    assert accuracy(load_network(tmp_path, "best"), one) == read_tensors(tmp_path / BEST)[1]["score"]


@pytest.mark.slow
def test_loaded_resnet_has_the_recorded_accuracy(tmp_path):
    one = job(tmp_path, net=network())  # for its images
    one = one._replace(recipe=override(one.recipe, {"network": "resnet18-cifar", "epochs": 1}), network=None)
    [result] = train([one])
    for which, key in (("last", "accuracy"), ("averaged", "averaged")):
        assert accuracy(load_network(tmp_path, which), one) == result["epochs"][-1][key]["test"]


def test_load_network_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
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


def test_data_and_network_from_python_are_not_restored(tmp_path):
    train([job(tmp_path / "data", epochs=1)])
    with pytest.raises(ValueError, match=r"The data of .* came from Python"):
        jobs_of([tmp_path / "data"])
    train([digits(tmp_path / "network")._replace(network=torch.nn.Linear(64, 10))])
    with pytest.raises(ValueError, match=r"The network of .* came from Python"):
        jobs_of([tmp_path / "network"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, "cannot be used: ") for content in ("", "{", "[]", "null", "\x00\xff")),
        ("{}", "cannot be used: it has no checksum. Restore it from a backup"),
        ('{"recipe": 3, "source": null, "facts": null}', "cannot be used: it has no checksum. "),
        (
            json.dumps(with_checksum({"recipe": {}, "source": None})),
            "cannot be used: it has no 'facts'.",
        ),
    ],
)
def test_broken_description_is_rejected(tmp_path, content, message):
    (tmp_path / RUN).write_text(content)
    for use in (lambda folder: jobs_of([folder]), load_network):
        with pytest.raises(CheckpointError, match=f"{RUN} {message}"):
            use(tmp_path)


def test_description_with_an_invalid_recipe_is_rejected(tmp_path):
    train([digits(tmp_path)])
    edited(tmp_path / RUN, lambda run: run["recipe"].update(lr=-1))
    with pytest.raises(CheckpointError, match="`lr` should be greater than 0"):
        jobs_of([tmp_path])


def test_jobs_need_different_folders(tmp_path):
    with pytest.raises(ValueError, match="`out` should be a different folder for each job"):
        train([job(tmp_path), job(tmp_path / "." / ".." / tmp_path.name)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("samples", "batch"), [(80, 16), (191, 16), (192, 32), (383, 32), (384, 64), (800, 64)])
def test_automatic_batch_size_leaves_enough_steps(samples, batch):
    [result] = train([job(n=samples, epochs=1, batch_size="auto", surveys=0)], device="cpu")
    assert result["recipe"]["batch_size"] == result["facts"]["batch"] == batch
    assert result["facts"]["steps"] == samples // batch
    assert RECIPES["folder"].batch_size == RECIPES["folder-large"].batch_size == "auto"


def test_resumed_run_keeps_its_automatic_batch_size(tmp_path):
    with pytest.raises(Interrupted):
        train([job(tmp_path, n=180, batch_size="auto")], device="cpu", watch=StopAt(2, 2))
    with pytest.raises(CheckpointError, match=r"\(180 training samples, now 200\)"):
        train([job(tmp_path, n=200, batch_size="auto")], device="cpu", resume=True)


def test_indivisible_batches_are_rejected():
    with pytest.raises(ValueError, match="`batch_size` should be a multiple of 2"):
        train([job(n=15, accumulate=2)])


def test_invalid_devices_and_engines_are_rejected():
    assert pick_device("cpu").type == "cpu"
    for name in ("tpu", "mps", "cuda:99"):
        with pytest.raises(ValueError, match="`device` should be"):
            pick_device(name)
    with pytest.raises(ValueError, match="`engine` should be one of"):
        train([job()], engine="diesel")
    with pytest.raises(ValueError, match="The engine cannot train these jobs: there is no GPU"):
        train([job()], engine="graph", device="cpu")


def test_evaluation_set_with_other_classes_is_rejected():
    one = job()
    other = digits(None).data[1]["test"]
    with pytest.raises(ValueError, match=r"`other\.num_classes` should be 3, as in training"):
        train([one._replace(data=(one.data[0], {"other": other}))])
    for data in (one.data[0], (one.data[0], other)):
        with pytest.raises(ValueError, match=r"`data` should be a training set and the others by name"):
            train([one._replace(data=data)])


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore:.*(distutils|np.bool8|datetime|pkg_resources).*")
def test_tensorboard(tmp_path):
    """Every number is logged once per epoch. Events written after the last save are discarded."""
    [uninterrupted] = train([job(tmp_path / "uninterrupted")], tensorboard=True)
    logged = events(tmp_path / "uninterrupted")
    assert [step for step, _ in logged["loss"]] == [1, 2, 3, 4]
    assert logged["accuracy/test"][-1][1] == pytest.approx(uninterrupted["epochs"][-1]["accuracy"]["test"])
    assert {"lr", "averaged/test", "true_ratio", "mixture/noisy_weight", "images_per_second"} <= logged.keys()

    class Crash(StopAt):
        def ended_epoch(self, run, epoch):
            if epoch.epoch == 3:
                raise RuntimeError("killed")

    with pytest.raises(Interrupted):
        train([job(tmp_path / "run")], tensorboard=True, watch=StopAt(2, 2))
    with pytest.raises(RuntimeError, match="killed"):
        train([job(tmp_path / "run")], tensorboard=True, watch=Crash(0, 0), resume=True)
    train([job(tmp_path / "run")], tensorboard=True, resume=True)
    resumed = events(tmp_path / "run")
    assert resumed["loss"] == logged["loss"]


def test_consecutive_jobs_equal_separate_ones(tmp_path):
    alone = [train([job(None, method)])[0] for method in ("ce", "gce")]
    together = train([job(tmp_path / method, method) for method in ("ce", "gce")])
    assert [result["summary"] for result in together] == [result["summary"] for result in alone]


# --- side by side: a stand-in for the engine that trains with the loop ---


@pytest.fixture
def engine(monkeypatch):
    def run_all(lanes, *, stop, save_every):
        first_error = None
        for run in lanes:
            try:
                loop.train(run, ranks=Ranks(), watch=run.watch, stop=stop, save_every=save_every)
            except NonFinite as error:
                first_error = first_error or error
        return first_error

    def prepare(runs, watch):
        lanes = [run for run in runs if not run.done]
        for run in lanes:
            run.watch = watch
        return lanes

    monkeypatch.setattr(graphs, "unsupported_reason", lambda *_: None)
    monkeypatch.setattr(graphs, "prepare", prepare)
    monkeypatch.setattr(graphs, "train", run_all)
    return monkeypatch


def broken(out):
    one = job(out, "ce")
    one.data[0].inputs[:] = math.nan
    return one


class StopRun(StopAt):
    """Stop one of the runs, and record which ones have started."""

    def __init__(self, run):
        super().__init__(2, 2)
        self.run, self.started = run, []

    def began(self, run, *, epoch, epochs, steps):
        self.started.append((run, epoch))

    def moved(self, run, **where):
        if run == self.run:
            super().moved(run, **where)


@pytest.mark.parametrize("how", ["side by side", "one by one"])
def test_nonfinite_and_stopped_runs_are_both_reported(tmp_path, request, how):
    """Neither hides the other, and finished runs are written."""
    if how == "side by side":
        request.getfixturevalue("engine")
    jobs = [broken(tmp_path / "broken"), job(tmp_path / "done"), job(tmp_path / "stopped"), job(tmp_path / "last")]
    with pytest.raises(Interrupted) as info:
        train(jobs, watch=StopRun(2))
    assert info.value.folders == [tmp_path / "stopped", tmp_path / "last"]
    assert str(info.value).startswith("The loss is nan at step 1 of epoch 1")
    assert str(info.value).endswith("Resume with: ogc.training.train(jobs, resume=True)")
    assert (tmp_path / "broken" / NONFINITE).exists()
    assert (tmp_path / "done" / SAMPLES).exists()
    assert [one.out.name for one in jobs if (one.out / RESULT).exists()] == ["done"]

    again, watch = jobs[1:], StopRun(None)
    assert len(train(again, watch=watch, resume=True)) == 3
    assert watch.started[0] == (0, 4)  # it is already finished
    assert {run for run, _ in watch.started} == {0, 1, 2}


@pytest.mark.parametrize("how", ["side by side", "one by one"])
def test_run_with_nonfinite_last_step_has_no_result(tmp_path, request, how):
    if how == "side by side":
        request.getfixturevalue("engine")

    class BreakWeights(SilentWatch):
        def moved(self, run, *, epoch, step, images_per_second):
            if (run, epoch, step) == (0, 3, 5):
                torch.nn.init.constant_(jobs[0].network.weight, math.nan)

    jobs = [job(tmp_path / "broken")._replace(network=torch.nn.Linear(192, 3)), job(tmp_path / "done")]
    with pytest.raises(NonFinite, match="not finite at step 5 of epoch 4"):
        train(jobs, watch=BreakWeights())
    assert not (tmp_path / "broken" / RESULT).exists()
    assert (tmp_path / "done" / RESULT).exists()


def test_failed_capture_releases_memory(engine, tmp_path):
    runs_seen, left = [], []

    def prepare(runs, watch):
        runs_seen.extend(weakref.ref(run) for run in runs)
        lanes = list(runs)
        raise graphs.CaptureError(f"{len(lanes)} cannot be captured.")

    class CheckReleased(SilentWatch):
        def said(self, sentence):
            gc.collect()
            left.extend(ref() for ref in runs_seen)
            assert sentence == "2 cannot be captured. Training with the plain loop instead."

    engine.setattr(graphs, "prepare", prepare)
    jobs = [job(tmp_path / "one", epochs=1, method="ce"), job(tmp_path / "two", epochs=1, method="ce")]
    assert len(train(jobs, watch=CheckReleased())) == 2
    assert left == [None, None]
    with pytest.raises(ValueError, match="2 cannot be captured"):
        train(jobs, engine="graph")


def test_runs_share_images_with_earlier_ones(engine):
    seen = []
    prepare = graphs.prepare
    engine.setattr(graphs, "prepare", lambda runs, watch: seen.extend(runs) or prepare(runs, watch))
    one, other = (job(None, "ce", net=network(), augment="cifar", epochs=1) for _ in range(2))
    train([one, other, one._replace(recipe=override(one.recipe, {"seed": 1}), network=network())])
    assert seen[2].feed.augment is seen[0].feed.augment
    assert seen[2].sets["test"].inputs is seen[0].sets["test"].inputs
    assert seen[1].feed.augment is not seen[0].feed.augment


def test_resumed_runs_share_their_data(tmp_path, monkeypatch):
    for name, changes in (("a", {}), ("b", {"seed": 1}), ("c", {"noise": "pairflip:0.2"})):
        train([digits(tmp_path / name, epochs=1, **changes)])
    read_from_disk, read_digits = [], source.data.load_digits
    monkeypatch.setattr(source.data, "load_digits", lambda: read_from_disk.append(1) or read_digits())
    a, b, c = jobs_of([tmp_path / name for name in "abc"])
    assert len(read_from_disk) == 1
    assert a.data[0].inputs is b.data[0].inputs is c.data[0].inputs
    assert a.data[1]["test"].inputs is c.data[1]["test"].inputs
    assert torch.equal(a.data[0].given, b.data[0].given)
    assert not torch.equal(a.data[0].given, c.data[0].given)
    assert a.info.rate_asked == 0.5
    assert c.info.rate_asked == 0.2


def test_network_from_python_keeps_the_number_of_threads():
    seen = []

    class RecordThreads(torch.nn.Linear):
        def forward(self, inputs):
            seen.append(torch.get_num_threads())
            return super().forward(inputs)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        train([job(None, "ce", epochs=1)._replace(network=RecordThreads(192, 3))])
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {2}


def test_message_at_the_start_if_nothing_will_be_clipped():
    class Recorder(SilentWatch):
        def __init__(self):
            self.events = []

        def began(self, run, **_):
            self.events.append("began")

        def said(self, sentence):
            self.events.append(sentence)

    watch = Recorder()
    train([job(None, epochs=1, parameters={"queue_size": 512, "every": 1})], watch=watch)
    sentence, began = watch.events
    assert sentence == (
        "ce+ogc clips nothing in 5 steps of 16 samples: tau moves every step, "
        "once 256 samples are queued. To fix this, add --set queue_size=16, or train for more epochs."
    )
    assert began == "began"


def test_rejected_job_creates_no_folder(tmp_path):
    odd = job(tmp_path / "b", accumulate=2, batch_size=90, n=81)
    with pytest.raises(ValueError, match="`batch_size` should be a multiple of 2"):
        train([job(tmp_path / "a"), odd])
    assert not list(tmp_path.iterdir())


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train([job()], save_every=0)
    assert not list(tmp_path.iterdir())


def test_resumed_run_without_evaluation_sets(tmp_path):
    def bare():
        one = job(tmp_path)
        return one._replace(data=(one.data[0], {}))

    result, positions = train_with_stops(bare, [(2, 2)])
    assert positions == [(1, 2)]
    assert (result["summary"], result["summaries"]) == ({"set": None}, [])
    assert result["epochs"][0]["accuracy"] == {}
    assert not (tmp_path / BEST).exists()
    assert (tmp_path / LAST).exists()


def test_evaluation_set_may_be_added_on_resuming(tmp_path):
    """Its numbers are those of the epochs that have it."""
    jobs = [job(tmp_path, epochs=4) for _ in range(2)]
    train_set, sets = jobs[0].data
    jobs[0] = jobs[0]._replace(data=(train_set, {"test": sets["test"]}))

    result, positions = train_with_stops(iter(jobs).__next__, [(3, 2)])
    assert positions == [(2, 2)]
    assert [list(epoch["accuracy"]) for epoch in result["epochs"]] == [["test"]] * 2 + [["test", "again"]] * 2
    first, added = result["summaries"]
    assert first == result["summary"]
    shares = {epoch["epoch"]: epoch["accuracy"]["again"] for epoch in result["epochs"][2:]}
    assert (added["set"], added["best"], added["last"]) == ("again", max(shares.values()), shares[4])
    assert shares[added["best_epoch"]] == added["best"]
    assert read(tmp_path).summaries == result["summaries"]


@pytest.mark.parametrize(("average", "which"), [(0.9, "averaged"), (None, "last")])
def test_recall_of_sets_whose_classes_differ_in_size(tmp_path, average, which):
    one = job(tmp_path, average=average)
    train_set, sets = one.data
    test = sets["test"]
    rare = test.subset(
        torch.nonzero((test.true != 1) | (torch.arange(len(test)) == int((test.true == 1).nonzero()[0])))[:, 0]
    )
    [result] = train([one._replace(data=(train_set, {**sets, "rare": rare}))])
    predicted = load_network(tmp_path, which)(rare.inputs).argmax(1)
    right = {name: (predicted == rare.true)[rare.true == label] for label, name in enumerate("abc")}
    assert [len(shares) for shares in right.values()][1] == 1
    assert result["recall"] == {
        "rare": {name: pytest.approx(float(hit.double().mean())) for name, hit in right.items()}
    }
    assert read(tmp_path).recall == result["recall"]


def test_commit_is_that_of_this_code(monkeypatch, tmp_path):
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
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "unrelated"], check=True)
    _provenance.commit.cache_clear()
    assert _provenance.commit() is None  # in another repository, but not tracked by it
    subprocess.run([*git, "add", "__init__.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "ours"], check=True)
    _provenance.commit.cache_clear()
    found = _provenance.commit()
    assert len(found) == 12
    package.write_text("changed")
    _provenance.commit.cache_clear()
    assert _provenance.commit() == f"{found}+"
    _provenance.commit.cache_clear()
