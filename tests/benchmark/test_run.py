"""``ogc bench run``: missing runs are trained once, however the process ends."""

import json
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from bench_runs import DIGITS, bench, only_results, results, start, tiny_cifar
from children import held, wait_for
from made_up_results import made_up
from ogc.benchmark import batch as batch_module
from ogc.benchmark.batch import SESSION, Outcome, SessionWatch, train_batch
from ogc.benchmark.data import Data
from ogc.benchmark.plan import find
from ogc.benchmark.result import from_training, read_all, write
from ogc.benchmark.run import RunQueue
from ogc.benchmark.status import Status, estimate, result_status
from ogc.benchmark.task import batches, runs_per_device, tasks_of
from ogc.cli import bench as bench_command
from ogc.report.progress import Progress
from ogc.training import NonFinite, allow_loss, source, stopping
from ogc.training.history import SilentWatch
from ogc.training.run import described
from ogc.training.run_folder import write_run
from ogc.training.stopping import Stop

TRIAL = {"hidden": "16", "epochs": 6}
BAD = """
from torch import nn


class Bad(nn.CrossEntropyLoss):
    steps = 0

    def forward(self, logits, labels):
        self.steps += 1
        return super().forward(logits, labels) * (float("nan") if self.steps > 20 else 1)
"""
FAILS_LATE = """
import sys
from torch import nn


class RaisesKeyError(nn.CrossEntropyLoss):
    steps = 0

    def forward(self, logits, labels):
        self.steps += 1
        return super().forward(logits, labels) if self.steps < 5 else {}["x"]


class CallsExit(RaisesKeyError):
    def forward(self, logits, labels):
        if self.steps == 3:
            sys.exit(0)
        return super().forward(logits, labels)
"""
FOUR = (*DIGITS, "--methods", "ce,ce+ogc", "--seeds", "1,2")


def tasks(*methods, seeds=(1,), noises=("symmetric:0.5",), table="digits", changes=TRIAL):
    for method in methods:
        allow_loss(method)
    return tasks_of(find(table, methods, noises), seeds, changes)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Results of two methods with two seeds, trained without interruption."""
    out = tmp_path_factory.mktemp("uninterrupted")
    code, output = bench(*FOUR, "--out", out)
    assert code == 0, output
    return out


@pytest.fixture
def epochs(monkeypatch):
    """Record the epochs that are trained, in order."""
    seen, ended = [], SessionWatch.ended_epoch

    def record(self, number, epoch):
        seen.append((self.jobs[number].out.name, epoch.epoch))
        ended(self, number, epoch)

    monkeypatch.setattr(SessionWatch, "ended_epoch", record)
    return seen


@pytest.fixture
def now(monkeypatch):
    """Replace the monotonic clock of ``ogc bench``. Return a list that holds its time."""
    now = [1000.0]
    for module in (batch_module, stopping, bench_command):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


# --- runs -------------------------------------------------------------------------------------------------------------


def test_results_are_complete_and_no_other_files_are_left(uninterrupted):
    found, complaints = read_all(uninterrupted)
    assert not complaints
    assert {(result.method, result.seed) for result in found} == {("ce", 1), ("ce", 2), ("ce+ogc", 1), ("ce+ogc", 2)}
    assert all(result.side_by_side == 1 and result.wall_seconds >= result.seconds > 0 for result in found)
    assert len({result.noise_sha256 for result in found}) == 1
    assert all(epoch.averaged for result in found for epoch in result.epochs)
    assert only_results(uninterrupted)


def test_existing_results_are_not_run_again(uninterrupted, epochs):
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.iterdir()}
    code, output = bench(*FOUR, "--out", uninterrupted)
    assert (code, output.strip()) == (0, "4 of 4 runs are done, 0 of them new.")
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.iterdir()} == before
    assert epochs == []


def test_a_run_in_two_tables_runs_once():
    both = [*find("cifar10", ["ce+ogc"]), *find("adjusting", ["ce+ogc"]), *find("queue")]
    assert len(tasks_of(both, [1])) == 6 + len(find("queue")) // 2


def test_trial_runs_have_different_names():
    names = [task.name for task in tasks("ce", "ce+ogc", changes={})]
    assert names == ["digits-ce-symmetric-0.5-1", "digits-ce_ogc-symmetric-0.5-1"]
    for changes in ({"epochs": 6}, {"hidden": "16"}, {"lr": 0.2}):
        assert not set(names) & {task.name for task in tasks("ce", "ce+ogc", changes=changes)}


def test_batches_have_one_kind_and_even_sizes(tmp_path):
    (tmp_path / "mine.py").write_text("from ogc.losses import CrossEntropy\nclass Mine(CrossEntropy): ...\n")
    noises = ("symmetric:0.2", "symmetric:0.5", "symmetric:0.8")
    some = tasks("ce", "gce", f"{tmp_path}/mine.py:Mine", noises=noises) + tasks_of(find("plus"), [1])
    found = batches(some, 4)
    assert [len(batch) for batch in found] == [3, 3, 3, 4, 4, 4, 4]
    kinds = [{(task.recipe.name, "Mine" in task.name) for task in batch} for batch in found]
    assert all(len(kind) == 1 for kind in kinds)
    assert sorted(task.name for batch in found for task in batch) == sorted(task.name for task in some)


def test_runs_per_device():
    some, timed = tasks("ce"), tasks_of(find("time"), [1])
    assert (runs_per_device("cuda", some), runs_per_device("cpu", some), runs_per_device("cuda", some, 7)) == (4, 1, 7)
    assert (runs_per_device("cuda", timed), runs_per_device("cuda", timed, 7)) == (1, 1)
    with pytest.raises(ValueError, match="should be 1 without a GPU"):
        runs_per_device("cpu", some, 2)
    with pytest.raises(ValueError, match="should be at least 1"):
        runs_per_device("cuda", some, 0)


@pytest.mark.filterwarnings("ignore:Symmetric noise")  # classes of 5 images
def test_images_are_read_once(tmp_path, monkeypatch):
    data = Data(tiny_cifar(tmp_path / "data", monkeypatch))
    cells = [
        cell for table in ("cifar10", "plus") for cell in find(table, ["ce+ogc"], ["symmetric:0.5", "instance:0.4"])
    ]
    some = tasks_of(cells, [1, 2])
    assert {task.recipe.name for task in some} == {"cifar10", "cifar10-plus"}
    reads = []
    monkeypatch.setattr(source, "_read", lambda *given, read=source._read: (reads.append(given), read(*given))[1])
    jobs = [data.job(task, tmp_path) for task in some]
    assert len(reads) == 1
    assert len({id(job.data[0].inputs) for job in jobs}) == len({id(job.data[1]["test"]) for job in jobs}) == 1
    assert len({id(job.data[0].given) for job in jobs}) == 2  # one per noise
    assert all(job.info.kind == job.recipe.noise.partition(":")[0] for job in jobs)


@pytest.mark.filterwarnings("ignore:Symmetric noise")  # classes of 5 images
def test_cifar(tmp_path, monkeypatch):
    folder = tiny_cifar(tmp_path / "data", monkeypatch)
    args = ["--methods", "ce,ce+ogc", "--noises", "symmetric:0.5,asymmetric:0.4", "--epochs", "1"]
    args += ["--set", "network=resnet20-cifar", "--set", "batch_size=20", "--out", tmp_path / "out"]
    code, output = bench("bench", "run", "cifar10", "--data", folder, *args)
    assert (code, len(read_all(tmp_path / "out")[0])) == (0, 4), output


def test_plus(tmp_path, monkeypatch):
    """The plus recipe reports and prints the accuracy of the averaged weights."""
    folder = tiny_cifar(tmp_path / "data", monkeypatch)
    only = "cifar10-plus-ce_ogc-pairflip-0.4-epochs-3-network-resnet20-cifar-batch_size-20-1"
    args = ["plus", "--data", folder, "--out", tmp_path / "out", "--epochs", "3", "--noises", "pairflip:0.4"]
    args += ["--set", "network=resnet20-cifar", "--set", "batch_size=20", "--only", only]
    code, output = bench("bench", "run", *args)
    assert code == 0, output
    [result] = read_all(tmp_path / "out")[0]
    assert (result.recipe.name, result.recipe.report, result.recipe.milestones) == ("cifar10-plus", "averaged", (2,))
    averaged = [epoch.averaged["test"] for epoch in result.epochs]
    assert result.measured("test") == pytest.approx(100 * sum(averaged) / 3)
    assert result.summary["averaged_last"] == pytest.approx(sum(averaged) / 3)
    assert f"{only}  {result.measured('test'):.2f} %, best {100 * max(averaged):.2f}" in output
    assert "1 of 1 runs are done, 0 of them new." in bench("bench", "run", *args)[1]


def test_a_result_on_another_draw_is_refused(tmp_path):
    [task] = tasks("ce", table="cifar10", noises=["instance:0.4"], changes={})
    write(tmp_path, made_up(task.cell, noise_sha256="9c" * 32))
    status = result_status(task, tmp_path)
    assert status.state == "invalid"
    assert "was trained on labels other than those of the tables. Move it away to repeat the run." in status.note
    write(tmp_path, made_up(task.cell))
    assert result_status(task, tmp_path).state == "done"


@pytest.mark.parametrize("is_first", [True, False])
def test_session_records_time_and_side_by_side_runs(is_first, tmp_path, now):
    """Two runs side by side, after one that was already complete, and then one alone.

    The three seconds of preparation are start-up time in the first batch of a process, and part of later batches.
    """
    [task] = tasks("ce")
    jobs = [Data(None).job(task, tmp_path)._replace(out=tmp_path / str(i)) for i in range(4)]
    session = SessionWatch(SilentWatch(), jobs, torch.device("cpu"), started=now[0] - 4 if is_first else None)
    last = made_up(task.cell).epochs[-1]

    def began(run, epoch):
        session.began(run, epoch=epoch, epochs=last.epoch, steps=11)

    def ended(run):
        jobs[run].out.mkdir()
        write_run(jobs[run].out, "id", described(jobs[run]), None)
        session.ended_epoch(run, last)
        return json.loads((jobs[run].out / SESSION).read_bytes())

    began(0, last.epoch)
    now[0] += 3
    began(1, 0)
    began(2, 3)
    now[0] += 5
    first, second = ended(1), ended(2)
    assert (first["side_by_side"], second["side_by_side"]) == (2, 2)
    assert (first["earlier"], second["earlier"]) == (0, 3)
    assert first["seconds"] == second["seconds"] == (5 if is_first else 3 + 5)
    assert first["startup_seconds"] == second["startup_seconds"] == (4 + 3 if is_first else None)
    began(3, 0)
    now[0] += 2
    third = ended(3)
    assert third["side_by_side"] == 1
    assert third["seconds"] == 2


def test_wall_time_of_a_resumed_run(tmp_path, uninterrupted):
    """The time of its last session plus the training time of earlier epochs."""
    [task] = tasks("ce")
    result = json.loads(task.result(uninterrupted).read_bytes())
    trained = {"recipe": result["recipe"], "epochs": result["epochs"], "summary": result["summary"]}
    trained |= {"seconds": 12.0, "images_per_second": 9.0}
    facts = {"device": "a device", "commit": None, "started": "now", "network": "mlp"}
    facts |= {"noise": {"sha256": "5a" * 32, "rate_got": 0.5}, "versions": {"torch": "2", "python": "3", "ogc": "0"}}
    for epoch in trained["epochs"]:
        epoch["seconds"] = 2.0
    session = {"seconds": 100.0, "earlier": 4, "side_by_side": 3, "memory_gib": 1.5}
    made = from_training(task.cell, trained | {"facts": facts}, session)
    assert (made.wall_seconds, made.side_by_side, made.memory_gib) == (108.0, 3, 1.5)


# --- invalid files and failing runs -----------------------------------------------------------------------------------


def test_invalid_result_is_reported_and_kept(tmp_path):
    [task] = tasks("ce")
    broken = task.result(tmp_path)
    broken.write_text('{"version": 1}')
    for dry in (["--dry-run"], []):
        code, output = bench(*DIGITS, "--methods", "ce,gce", "--out", tmp_path, *dry)
        words = " ".join(output.split())  # a long path wraps
        assert "cannot be used: Parameter `key` should be given. Restore it from a backup" in words
        assert "move it away" in words
        assert code == (0 if dry else 1)
        assert broken.read_text() == '{"version": 1}'
    assert [result.method for result in read_all(tmp_path)[0]] == ["gce"]  # it did run


def test_result_of_another_run_with_the_same_name_is_rejected(tmp_path):
    """Classes whose names differ only in non-ASCII letters give the same run name."""
    names = ("Lossä", "Lossö")
    text = "".join(f"class {name}(CrossEntropy): ...\n" for name in names)
    (tmp_path / "mine.py").write_text(f"from ogc.losses import CrossEntropy\n{text}")
    first, second = (tasks(f"{tmp_path}/mine.py:{name}")[0] for name in names)
    assert first.name == second.name
    with pytest.raises(ValueError, match=r"Two different runs have the same name, .*: method is 'mine.py:Lossä' there"):
        tasks(first.cell.method, second.cell.method)
    write(tmp_path, made_up(first.cell))
    assert result_status(first, tmp_path).state == "done"
    status = result_status(second, tmp_path)
    assert status.state == "invalid"
    assert "belongs to another run: method is 'mine.py:Lossä' there and 'mine.py:Lossö' here." in status.note
    moved = tmp_path / "sub" / "mine.py"
    moved.parent.mkdir()
    moved.write_bytes((tmp_path / "mine.py").read_bytes())
    assert result_status(tasks(f"{moved}:Lossä")[0], tmp_path).state == "done", "the file's folder does not matter"


def test_invalid_result_does_not_remove_the_checkpoint(tmp_path):
    [task] = tasks("ce")
    saved = task.work(tmp_path) / "last.safetensors"
    saved.parent.mkdir(parents=True)
    saved.write_bytes(b"hours of work")
    task.result(tmp_path).write_text("{}")
    assert bench(*DIGITS, "--methods", "ce", "--out", tmp_path)[0] == 1
    assert saved.read_bytes() == b"hours of work"


def test_failed_run_does_not_affect_other_runs(tmp_path):
    (tmp_path / "bad.py").write_text(BAD)
    out = tmp_path / "out"
    methods = ("--methods", "ce", "--method", f"{tmp_path}/bad.py:Bad")
    code, output = bench(*DIGITS, *methods, "--seeds", "1,2", "--out", out)
    assert code == 1
    assert output.count("The loss is nan at step 10 of epoch 2") == 2
    assert "2 of 4 runs are done, 2 of them new. 2 failed." in output
    assert {result.method for result in read_all(out)[0]} == {"ce"}


def test_failed_run_does_not_affect_its_batch(tmp_path):
    (tmp_path / "bad.py").write_text(BAD)
    data = Data(None)
    jobs = [data.job(task, tmp_path) for task in tasks("ce", f"{tmp_path}/bad.py:Bad", "gce")]
    first, bad, third = train_batch(jobs, device="cpu", console=Console(quiet=True))
    assert (first.error, third.error, bad.result) == (None, None, None)
    assert [len(each.result["epochs"]) for each in (first, third)] == [6, 6]
    assert "The loss is nan at step 10 of epoch 2" in bad.error


def test_errors_of_custom_losses_during_training_are_reported(tmp_path):
    """One loss raises an unexpected exception, the other calls ``sys.exit``."""
    (tmp_path / "bad.py").write_text(FAILS_LATE)
    methods = [word for name in ("RaisesKeyError", "CallsExit") for word in ("--method", f"{tmp_path}/bad.py:{name}")]
    code, output = bench(*DIGITS, "--methods", "ce", *methods, "--out", tmp_path / "out")
    assert code == 1
    assert "-1: KeyError: 'x'." in output
    assert "-1: SystemExit: 0." in output
    assert "1 of 3 runs are done, 1 of them new. 2 failed." in output


def test_invalid_checkpoint_is_reported(tmp_path):
    [task] = tasks("ce")
    task.work(tmp_path).mkdir(parents=True)
    (task.work(tmp_path) / "last.safetensors").write_bytes(b"no checkpoint")
    code, output = bench(*DIGITS, "--methods", "ce,gce", "--out", tmp_path)
    assert code == 1
    assert "last.safetensors cannot be used" in output
    assert (
        f"use the version of ogc that wrote it, or train again. To train again, remove {task.work(tmp_path)}." in output
    )
    assert [result.method for result in read_all(tmp_path)[0]] == ["gce"]


def test_files_left_by_a_killed_process_are_removed(uninterrupted):
    [task] = tasks("ce")
    task.work(uninterrupted).mkdir(parents=True)
    (task.work(uninterrupted) / "last.safetensors").write_bytes(b"")
    task.lock(uninterrupted).touch()
    RunQueue(uninterrupted, Console(quiet=True), [task])
    assert only_results(uninterrupted)


def test_trained_run_without_a_result_is_not_trained_again(tmp_path, uninterrupted, epochs, monkeypatch):
    def crash(*_):
        raise OSError("power failure")

    with monkeypatch.context() as patch:
        patch.setattr(RunQueue, "finish", crash)
        assert bench(*DIGITS, "--methods", "ce", "--out", tmp_path)[0] == 1
    assert not list(tmp_path.glob("*.json"))
    assert bench(*DIGITS, "--methods", "ce", "--out", tmp_path)[0] == 0
    assert len(epochs) == TRIAL["epochs"]
    found = results(tmp_path)
    assert found == {name: results(uninterrupted)[name] for name in found}


# --- stopping and resuming --------------------------------------------------------------------------------------------


def test_max_minutes_saves_and_exits(tmp_path, uninterrupted, epochs, now, monkeypatch):
    def moved(self, *arguments, before=Progress.moved, **options):
        now[0] += 1
        before(self, *arguments, **options)

    monkeypatch.setattr(Progress, "moved", moved)
    for stop in (100, 200, 264):  # 4 runs of 6 epochs with 11 steps
        code, output = bench(*FOUR, "--out", tmp_path, "--max-minutes", 100 / 60)
        done = len(read_all(tmp_path)[0])
        assert (code, done, now[0] - 1000) == (0 if stop == 264 else 3, stop // 66, stop)
        assert ("left: run the same command again" in output) == (done < 4)
    assert set(Counter(epochs).values()) == {1}  # none is trained twice
    assert results(tmp_path) == results(uninterrupted)


def test_max_minutes_too_short_to_start(tmp_path):
    code, output = bench(*FOUR, "--out", tmp_path, "--max-minutes", "1e-9")
    assert code == 3
    assert output.splitlines() == [
        "These are trial runs, which the tables leave out.",
        "0 of 4 runs are done, 0 of them new. 4 left: run the same command again.",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_reading_data_stops_before_training(number, tmp_path, epochs, monkeypatch):
    job = Data.job

    def stopped(self, task, out):
        if task.recipe.method == "gce":
            signal.raise_signal(number)
        return job(self, task, out)

    monkeypatch.setattr(Data, "job", stopped)
    code, output = bench(*DIGITS, "--methods", "ce,gce,mae", "--out", tmp_path)
    assert code == 128 + number
    assert len(epochs) == TRIAL["epochs"]
    assert "1 of 3 runs are done, 1 of them new. 2 left: run the same command again" in output
    assert only_results(tmp_path)


def test_stop_request_before_training_prevents_it(tmp_path, epochs):
    stop = Stop()
    stop.signal = signal.SIGTERM
    data = Data(None)
    jobs = [data.job(task, tmp_path) for task in tasks("ce", "gce")]
    outcomes = train_batch(jobs, device="cpu", console=Console(quiet=True), stop=stop)
    assert outcomes == [Outcome(), Outcome()]
    assert stop.signal == signal.SIGTERM
    assert epochs == []
    (tmp_path / "bad.py").write_text(BAD)
    jobs = [data.job(task, tmp_path) for task in tasks(f"{tmp_path}/bad.py:Bad", "gce")]

    stop = Stop()

    def break_and_stop(*_, **__):
        epochs.append("broken")
        stop.signal = signal.SIGTERM
        raise NonFinite("The loss is nan.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_module, "train", break_and_stop)
        train_batch(jobs, device="cpu", console=Console(quiet=True), stop=stop)
    assert epochs == ["broken"], "not retried one by one after a stop request"


def test_a_deadline_saves_and_stops(tmp_path):
    stop, data = Stop(deadline=time.monotonic() + 0.5), Data(None)
    jobs = [data.job(task, tmp_path) for task in tasks("ce", "gce", changes=TRIAL | {"epochs": 100_000})]
    outcomes = train_batch(jobs, device="cpu", console=Console(quiet=True), stop=stop)
    assert outcomes == [Outcome(), Outcome()]
    assert stop.signal == signal.SIGALRM
    assert (jobs[0].out / "last.safetensors").exists()


@pytest.mark.slow
def test_resumes_after_sigint_sigterm_and_sigkill(tmp_path, uninterrupted, epochs):
    out, log = tmp_path / "out", tmp_path / "log"
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        hold = tmp_path / f"hold {number}"
        save_every = 1000 if code > 0 else 0
        process = start(*FOUR, "--out", out, "--save-every", save_every, hold=held(hold, after=70), log=log)
        wait_for(hold.exists, "the seventh epoch", process)
        process.send_signal(number)
        output = process.communicate()[0]
        assert process.returncode == code, output
        if code > 0:
            assert " left: run the same command again" in output
        assert read_all(out)[1] == []
    code, output = bench(*FOUR, "--out", out)
    assert code == 0, output
    assert results(out) == results(uninterrupted)
    assert only_results(out)
    counts = Counter([*log.read_text().splitlines(), *(f"{name} {number}" for name, number in epochs)])
    assert counts == dict.fromkeys(counts, 1)
    assert len(counts) == 4 * TRIAL["epochs"]


def test_result_just_written_by_another_process_is_not_trained_again(tmp_path, uninterrupted):
    [task] = tasks("ce")
    queue = RunQueue(tmp_path, Console(quiet=True), [task])
    shutil.copy(task.result(uninterrupted), tmp_path)
    assert queue.claim([task]) == []
    assert queue.existing == [task]


@pytest.mark.slow
def test_two_processes_share_the_work(tmp_path, uninterrupted):
    out, log = tmp_path / "out", tmp_path / "log"
    holds = [tmp_path / "first", tmp_path / "second"]
    processes = [start(*FOUR, "--out", out, hold=held(hold), log=log) for hold in holds]
    wait_for(lambda: all(hold.exists() for hold in holds), "both to begin", *processes)
    for hold in holds:
        hold.unlink()
    output = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], output
    assert set(Counter(log.read_text().splitlines()).values()) == {1}
    new = [int(text.rpartition(" of them new")[0].split()[-1]) for text in output]
    assert sum(new) == 4
    assert min(new) > 0
    assert results(out) == results(uninterrupted)


@pytest.mark.slow
def test_tasks_of_a_killed_process_are_taken_over(tmp_path):
    """A process that has run everything else tries them again."""
    out, holds = tmp_path / "out", [tmp_path / "first", tmp_path / "second"]
    args = (*DIGITS, "--methods", "ce", "--out", out)
    first = start(*args, hold=held(holds[0]))
    wait_for(holds[0].exists, "the first to begin", first)
    assert "running" in bench(*args, "--dry-run")[1]
    second = start(*args, "--seeds", "1,2", hold=held(holds[1]))
    wait_for(holds[1].exists, "the second to begin", second)
    first.kill()
    first.communicate()
    holds[1].unlink()
    output = second.communicate()[0]
    assert second.returncode == 0
    assert "2 of 2 runs are done, 2 of them new." in output


@pytest.mark.kill
def test_killed_a_hundred_times(tmp_path, uninterrupted):
    """Kill at random moments. Written results stay valid and unchanged, and equal those of uninterrupted runs."""
    draw, kills, rounds, written = random.Random(0), 0, 0, {}
    for name in ("first", "warm"):
        began = time.monotonic()
        assert start(*FOUR, "--out", tmp_path / name).wait() == 0
        longest = time.monotonic() - began
    while kills < 100:
        rounds += 1
        out, code = tmp_path / f"round {rounds}", None
        while code != 0:
            process = start(*FOUR, "--out", out, "--save-every", 0)
            if kills < 100:
                time.sleep(draw.uniform(0, longest))
                process.kill()
            output, _ = process.communicate()
            code = process.returncode
            assert code in (0, -signal.SIGKILL), output
            kills += code != 0
            assert read_all(out)[1] == []
            assert all(path.read_bytes() == content for path, content in written.items())
            written |= {path: path.read_bytes() for path in out.glob("*.json")}
        assert results(out) == results(uninterrupted)
        assert only_results(out)
    assert rounds > 1


# --- estimates --------------------------------------------------------------------------------------------------------


def test_estimate_uses_results_of_the_same_device_and_network():
    left = [Status(task, "missing") for task in tasks("ce", "gce", "mae", noises=None, changes={})]
    [done] = tasks("fl", changes={})
    made = made_up(done.cell)  # 200 seconds
    four = made_up(done.cell, seed=2, side_by_side=4, wall_seconds=400.0)

    def seconds(left, results, device="a device"):
        found = estimate(left, results, device=device, kind="cpu")
        return None if found is None else found.seconds / len(left)

    assert seconds(left, []) is None
    assert seconds(left, [made], device="another") is None
    assert seconds(left, [made]) == pytest.approx(200)
    assert seconds([each._replace(epochs=60) for each in left], [made]) == pytest.approx(100)
    assert seconds(left, [four]) == pytest.approx(100)
    assert seconds(left, [made, four]) == pytest.approx(150)
    alone = [each._replace(task=replace(each.task, cell=replace(each.task.cell, alone=True))) for each in left]
    assert seconds(alone, [made, four]) == pytest.approx(200), "from runs that had the device to themselves"
    assert seconds(alone, [four]) == pytest.approx(100)
    other = [Status(task, "missing") for task in tasks("ce", table="cifar10", changes={})]
    assert seconds([*left, *other], [made, four]) is None
    assert estimate(left, [made, four], device="a device", kind="cpu").by == 2


def test_estimate_includes_the_recorded_startup_time():
    left = [Status(task, "missing") for task in tasks("ce", noises=None, changes={})]
    [done] = tasks("fl", changes={})
    made = [
        made_up(done.cell, seed, startup_seconds=seconds)
        for seed, seconds in ((1, None), (2, 10.0), (3, 30.0), (4, 12.0))
    ]

    def startup(results, kind="cuda"):
        return estimate(left, results, device="a device", kind=kind).startup

    assert (startup(made[:1]), startup(made[:1], "cpu")) == (35.0, 5.0)
    assert startup(made) == 12.0
    assert startup([each.model_copy(update={"version": 2}) for each in made]) == 35.0, "files without the whole time"
    assert estimate(left, made, device="a device", kind="cpu").seconds == pytest.approx(200 * len(left))


def test_first_batch_of_a_process_records_its_startup_time(tmp_path):
    began = time.monotonic()
    code, output = bench(*DIGITS, "--methods", "ce,gce", "--out", tmp_path)
    assert code == 0, output
    first, second = read_all(tmp_path)[0]  # one after the other, on a CPU
    assert 0 < first.startup_seconds < time.monotonic() - began
    assert second.startup_seconds is None
