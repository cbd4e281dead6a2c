"""Command line of ``ogc bench``: options, output and error messages."""

import os
import signal
import subprocess
import sys
import warnings

import pytest
from typer.testing import CliRunner

from bench_runs import DIGITS, SMALL, TESTS, bench, epochs_done, only_results, results, tiny_cifar
from children import held, popen, wait_for
from made_up_results import MADE, made_up
from ogc._provenance import device_name
from ogc.benchmark import run as benchmark_run
from ogc.benchmark.plan import find, tuning
from ogc.benchmark.result import FOLDER, read_all, write
from ogc.benchmark.task import tasks_of
from ogc.cli.app import build
from ogc.cli.bench import RunOptions
from ogc.cli.bench_tables import grid_table
from ogc.training.run_folder import LAST, write_tensors
from small_runs import python_path

CUSTOM_LOSSES = """
import torch
from torch import nn
from ogc.losses import Pointwise


class Mine(nn.Module):
    def __init__(self, power: float = 2.0):
        super().__init__()
        self.power = power

    def forward(self, logits, labels):
        p = logits.float().softmax(1).gather(1, labels[:, None])
        return ((1 - p) ** self.power).mean()


class Brier(Pointwise):
    def value(self, p):
        return (1 - p) ** 2 / 2


class Focal(Mine):
    def __init__(self, gamma: float = 2.0):
        super().__init__(gamma)


class NoDefault(Mine):
    def __init__(self, classes):
        super().__init__()


class PerSample(Mine):
    def forward(self, logits, labels):
        return logits.sum(1)


class Nan(Mine):
    def forward(self, logits, labels):
        return super().forward(logits, labels) * float("nan")


class WithParameters(Mine):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))


class MissingAttribute(Mine):
    def forward(self, logits, labels):
        return self.missing
"""


@pytest.fixture
def loss_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CUSTOM_LOSSES)
    return path


# --- dry runs ---------------------------------------------------------------------------------------------------------


def test_dry_run_reports_status_and_changes_nothing(tmp_path):
    cells = find("digits", ["ce", "gce"], ["symmetric:0.5"])
    local = MADE.model_copy(update={"device": local_device_name()})
    write(tmp_path, made_up(cells[0], provenance=local))
    before = list(tmp_path.iterdir())
    args = ["bench", "run", "digits", "--methods", "ce,gce", "--noises", "symmetric:0.5", "--out", tmp_path]
    code, output = bench(*args, "--dry-run")
    assert code == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in output.splitlines() if " digits-" in line}
    assert lines == {"digits-ce-symmetric-0.5-1": "done", "digits-gce-symmetric-0.5-1": "to run"}
    assert (
        "1 of 2 runs are done, 1 missing. Estimated time: 3:25, including 0:05 of start-up, based on 1 result on"
        in output
    )
    assert list(tmp_path.iterdir()) == before
    assert "Time unknown" in bench(*args[:-1], tmp_path / "empty", "--dry-run")[1]
    assert not (tmp_path / "empty").exists()
    assert "These are trial runs" in bench(*args, "--dry-run", "--epochs", "3")[1]
    code, output = bench(
        "bench", "run", "cifar10", "--methods", "ce", "--data", tmp_path, "--out", tmp_path, "--dry-run"
    )
    assert (code, output.count("to run"), "CIFAR-10 was not found in `" in output) == (0, 6, True)


def test_dry_run_for_cluster_needs_no_local_device(tmp_path, monkeypatch):
    monkeypatch.setattr("ogc.training.session.pick_device", None)  # fails if called
    args = [
        "bench",
        "run",
        "digits",
        "--methods",
        "ce,gce",
        "--noises",
        "symmetric:0.5",
        "--out",
        tmp_path,
        "--dry-run",
    ]
    write(tmp_path, made_up(find("digits", ["ce"], ["symmetric:0.5"])[0]))
    for device, trial, left in (
        ("auto", [], "1 of 2 runs are done, 1 missing. 120 epochs left."),
        ("cuda", [], "1 of 2 runs are done, 1 missing. 120 epochs left."),
        ("auto", ["--epochs", 1, "--methods", "gce"], "0 of 1 runs are done, 1 missing. 1 epoch left."),
        ("auto", ["--epochs", 3000, "--methods", "gce"], "0 of 1 runs are done, 1 missing. 3,000 epochs left."),
    ):
        code, output = bench(*args, *trial, "--engine", "ray", "--address", "10.0.0.1:6379", "--device", device)
        assert code == 0
        time = "Time unknown: it depends on the devices of the Ray cluster."
        assert f"{left} {time}" in " ".join(output.split())
    code, output = bench(*args, "--engine", "ray", "--device", "cuda:1")
    assert (code, "should be auto, cuda or cpu with engine = ray" in output) == (2, True)


def test_dry_run_reports_resumable_runs(tmp_path):
    [task] = tasks_of(find("digits", ["ce"], ["symmetric:0.5"]), [1])
    args = ["bench", "run", "digits", "--methods", "ce", "--noises", "symmetric:0.5", "--out", tmp_path, "--dry-run"]
    work = task.work(tmp_path)
    work.mkdir(parents=True)
    (work / "metrics.jsonl").write_text("{}\n" * 13)  # from a process killed before its first checkpoint
    assert " to run" in bench(*args)[1]
    write_tensors(work / LAST, "id", {}, {"epoch": 7})
    assert " started, 7 of 120 epochs" in bench(*args)[1]
    write_tensors(work / LAST, "id", {}, {})
    assert "cannot be used: it has no 'epoch'." in " ".join(bench(*args)[1].split())
    (work / LAST).write_text("nonsense")
    assert "cannot be used" in " ".join(bench(*args)[1].split())


@pytest.mark.parametrize("columns", [80, 50])
def test_dry_run_does_not_truncate_names_or_interpret_markup(columns, tmp_path, loss_file):
    out = tmp_path / "[/red]x"
    long = loss_file.rename(tmp_path / f"a_very_{'long_' * 14}name.py")
    arguments = ["bench", "run", "digits", "--noises", "symmetric:0.5", "--method", f"{long}:Mine", "--out", str(out)]
    arguments += ["--methods", "ce", "--dry-run"]
    out.mkdir(parents=True)
    (out / "digits-ce-symmetric-0.5-1.json").write_text("{}")
    result = CliRunner().invoke(build(), arguments, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.exception
    first = "".join(line.split()[0] for line in result.output.splitlines() if line.strip())
    assert f"digits-{long.name}-Mine-" in first
    assert " to run" in result.output
    assert "INVALID" in result.output
    assert "…" not in result.output


def test_trial_runs_are_marked(tmp_path, loss_file):
    def dry_run(*arguments):
        return bench("bench", "run", "digits", *arguments, "--out", tmp_path, "--dry-run")[1]

    assert "are trial runs" not in dry_run("--method", f"{loss_file}:Mine", "--set", "power=3"), (
        "a separate row, labelled with its parameters"
    )
    assert "These are trial runs" in dry_run("--method", f"{loss_file}:Mine", "--set", "power=3", "--epochs", "2")
    assert "These are trial runs" in dry_run("--methods", "gce", "--set", "q=0.123")
    assert "These are trial runs" in dry_run(
        "--methods", "gce", "--method", f"{loss_file}:Mine", "--set", "noise_seed=3"
    )
    both = ["--methods", "fl", "--method", f"{loss_file}:Focal", "--noises", "symmetric:0.5", "--set", "gamma=0.7"]
    assert "1 of these are trial runs" in dry_run(*both)
    for table, method in (("epsilon", "fl+ogc"), ("time", "gce")):
        options = ["--methods", method, "--data", tmp_path, "--out", tmp_path, "--dry-run"]
        assert "These are trial runs" in bench("bench", "run", table, *options)[1], "its key is in no table"
    tuned = ["tune", "cifar10", "gce", "--data", tmp_path, "--out", tmp_path, "--dry-run"]
    assert "are trial runs" not in bench("bench", *tuned)[1]


def test_trial_run_is_announced_before_training(tmp_path):
    options = ["digits", "--methods", "gce", "--noises", "symmetric:0.5", "--epochs", "1", "--set", "hidden=8"]
    output = bench("bench", "run", *options, "--out", tmp_path)[1]
    assert output.index("These are trial runs, which the tables leave out.") < output.index(" ...")


@pytest.mark.filterwarnings("default")
def test_warnings_are_printed_as_notes(tmp_path, monkeypatch):
    def run_with_warning(*arguments, **options):
        warnings.warn("a poor fit", stacklevel=1)
        return original_run(*arguments, **options)

    original_run = benchmark_run.run
    monkeypatch.setattr(benchmark_run, "run", run_with_warning)
    output = bench(*DIGITS, "--methods", "ce", "--out", tmp_path)[1]
    assert "Note: a poor fit" in output.splitlines()
    assert "UserWarning" not in output


def test_completed_runs_need_no_download(tmp_path):
    [cell] = find("cifar10", ["ce"], ["human:worse"])
    write(tmp_path, made_up(cell))
    options = ["cifar10", "--methods", "ce", "--noises", "human:worse", "--data", tmp_path / "none", "--out", tmp_path]
    code, output = bench("bench", "run", *options, "--download")
    assert (code, "1 of 1 runs are done, 0 of them new." in output) == (0, True)


def local_device_name():
    import torch

    return device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def test_task_names_are_portable_file_names():
    for table in ("cifar10", "cifar100", "epsilon", "queue", "every", "time", "digits"):
        for task in tasks_of(find(table), [1]):
            assert set(task.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def test_only_runs_the_named_task(tmp_path):
    name = "digits-ce-symmetric-0.5-epochs-6-hidden-16-2"
    args = [*DIGITS, "--methods", "ce,gce", "--seeds", "1,2", "--out", tmp_path]
    assert bench(*args, "--only", name)[0] == 0
    assert only_results(tmp_path)
    assert [path.stem for path in tmp_path.glob("*.json")] == [name]
    assert bench(*args, "--only", "digits-ce-2") == (
        2,
        "Parameter `--only` should be names of selected runs, as shown by --dry-run. Found `--only 'digits-ce-2'`.\n",
    )


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["cifar1"], 2, "There is no table named 'cifar1'. Did you mean cifar10"),
        (["digits", "--methods", "cee"], 2, "There is no method named 'cee'. Did you mean ce"),
        (["digits", "--noises", "symmetric:0.3"], 2, "`--noises` should be among those of the table digits"),
        (
            ["digits", "--seeds", "one"],
            2,
            "`--seeds` should be distinct integers, as in 1,2,3. Found `--seeds 'one'`",
        ),
        (["digits", "--set", "lr"], 2, "`--set` should be KEY=VALUE"),
        (["digits", "--set", "seed=3"], 2, "`--set` should be a setting that is part of a run's name"),
        (["digits", "--set", "average=none"], 2, "`--set` should be a setting that is part of a run's name"),
        (["cifar10", "--set", "network=auto"], 2, "`--set` should be the name of a network, because auto depends"),
        (["digits", "--set", "lrr=3"], 2, "There is no parameter 'lrr'. Did you mean lr?"),
        (["digits", "--epochs", "3", "--set", "epochs=4"], 2, "`--set` should be omitted for epochs, which"),
        (["digits", "--max-minutes", "0"], 2, "`--max-minutes` should be above 0"),
        (["digits", "--engine", "slurm"], 2, "`--engine` should be auto or ray"),
        (["digits", "--address", "1.2.3.4:5"], 2, "`--address` should be omitted without --engine ray"),
        (["digits", "--device", "tpu"], 2, "`--device` should be auto, cpu, cuda"),
        (["digits", "--device", "cpu", "--side-by-side", "2"], 2, "`--side-by-side` should be 1 without a GPU"),
        (["cifar10", "--data", "nowhere", "--noises", "symmetric:0.5"], 1, "CIFAR-10 was not found in"),
        (["cifar10", "--data", "nowhere"], 1, "human:worse is read from"),
        (["digits", "--only", "digits-ce-symmetric-0.5"], 2, "Did you mean digits-ce-symmetric-0.5-1"),
        (["digits", "--noises", "symmetric:0.4"], 2, "Found `--noises 'symmetric:0.4'`. Did you mean symmetric:0."),
        (["digits", "--method", "no.py:Mine"], 2, "There is no loss file `"),
        (["digits", "--method", "mine.py:Min"], 2, "has no torch module 'Min'. Did you mean Mine? It has Mine, "),
        (["digits", "--method", "mine.py:Mine+ogc"], 2, "OGC needs a loss of p"),
        (["digits", "--method", "mine.py:NoDefault"], 2, "NoDefault cannot be constructed: TypeError"),
        (["digits", "--method", "broken.py:Mine"], 2, "cannot be loaded: SyntaxError"),
    ],
)
def test_error_is_one_line(arguments, code, sentence, tmp_path, loss_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def")
    found, output = bench("bench", "run", *arguments, "--out", "out")
    assert found == code
    assert sentence in output
    assert len(output.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_output_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "not" / "mounted")
    code, output = bench(*DIGITS, "--methods", "ce", "--out", tmp_path / "link")
    assert code == 1
    assert f"Cannot use {tmp_path}/link" in output


@pytest.mark.parametrize("command", [["run", "--dry-run"], ["export", "--slurm"]])
def test_missing_data_is_reported_before_running(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["cifar10", "--methods", "ce", "--noises", "symmetric:0.5,human:worse", "--data", "none", "--out", "out"]
    code, output = bench("bench", *command, *options)
    assert (code, output.count("CIFAR-10 was not found in `")) == (0, 1), output
    assert output.count("human:worse is read from CIFAR-10_human.pt, which is not in `") == 1


def test_default_output_folder_is_read_by_tables():
    assert RunOptions().out == FOLDER


# --- custom losses ----------------------------------------------------------------------------------------------------


def test_custom_loss_is_benchmarked(tmp_path, loss_file):
    out = tmp_path / "out"
    code, output = bench(*DIGITS, "--method", f"{loss_file}:Mine", "--method", f"{loss_file}:Brier+ogc", "--out", out)
    assert code == 0, output
    first, second = read_all(out)[0]
    assert {first.method, second.method} == {"mine.py:Mine", "mine.py:Brier+ogc"}  # without the folder
    assert first.recipe.method_sha256 == second.recipe.method_sha256 != None  # noqa: E711
    assert {"power": 2.0} in (first.recipe.parameters, second.recipe.parameters)
    assert first.summary != second.summary
    again = bench(*DIGITS, "--method", f"{loss_file}:Mine", "--method", f"{loss_file}:Brier+ogc", "--out", out)
    assert again == (0, "2 of 2 runs are done, 0 of them new.\n")
    loss_file.write_text(CUSTOM_LOSSES + "\n# another\n")
    assert "0 of 1 runs are done" in bench(*DIGITS, "--method", f"{loss_file}:Mine", "--out", out, "--dry-run")[1]
    loss_file.unlink()
    assert len(read_all(out)[0]) == 2  # results can be read without the loss file


def test_custom_loss_runs_under_selected_noises(tmp_path, loss_file):
    options = ["--methods", "all", "--method", f"{loss_file}:Mine", "--noises", "symmetric:0.5"]
    code, output = bench("bench", "run", "digits", *options, "--out", tmp_path / "out", "--dry-run")
    rows = [line for line in output.splitlines() if " to run" in line]
    assert code == 0
    assert len(rows) > 2
    assert all("-symmetric-0.5-" in row for row in rows)
    assert sum("mine.py-Mine" in row for row in rows) == 1


def test_value_and_its_negative_are_two_runs(tmp_path, loss_file):
    args = [*DIGITS, "--method", f"{loss_file}:Mine", "--out", tmp_path / "out", "--set"]
    for value in ("power=1", "power=-1"):
        assert "1 of 1 runs are done, 1 of them new." in bench(*args, value)[1]
    assert {result.recipe.parameters["power"] for result in read_all(tmp_path / "out")[0]} == {1, -1}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("PerSample", "should return a finite scalar with a gradient for zero logits. Found a tensor of shape (4,)."),
        ("WithParameters", "has parameters, which would not be trained"),
        ("Nan", "should return a finite scalar with a gradient for zero logits. Found tensor(nan"),
        (
            "MissingAttribute",
            "fails on logits (4, 10) and labels (4,): AttributeError: 'MissingAttribute' object has no attribute",
        ),
    ],
)
def test_unusable_custom_loss_is_rejected_before_training(name, sentence, tmp_path, loss_file):
    args = ["digits", "--methods", "ce", "--method", f"{loss_file}:{name}", "--out", tmp_path / "out"]
    for command in (["run"], ["run", "--dry-run"], ["export", "--slurm", "--script", tmp_path / "x"]):
        code, output = bench("bench", *command, *args)
        assert (code, sentence in output) == (2, True), output
    assert list(tmp_path.iterdir()) == [loss_file]


# --- tuning -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Symmetric noise")  # classes of 5 images
def test_tune(tmp_path, monkeypatch):
    folder = tiny_cifar(tmp_path / "data", monkeypatch)
    trial = ["--epochs", "1", "--set", "network=resnet20-cifar", "--set", "batch_size=20"]
    args = ["bench", "tune", "cifar10", "gce+ogc", "--data", folder, "--out", tmp_path / "out", *trial]
    code, output = bench(*args, "--dry-run")
    assert (code, output.count("to run")) == (0, 4)
    code, output = bench(*args)
    assert code == 0, output
    assert "gce+ogc on cifar10, symmetric:0.5" in output
    rows = [line.split() for line in output.splitlines() if line.split()[:1] in (["100"], ["50"], ["20"], ["10"])]
    assert [row[0] for row in rows] == ["100", "50", "20", "10"]
    found = {f"{r.recipe.parameters['epsilon0']:g}": r.measured("test") for r in read_all(tmp_path / "out")[0]}
    assert {row[0]: row[1] for row in rows} == {point: f"{share:.2f}" for point, share in found.items()}
    assert "paper" in " ".join(rows[2])
    assert any("best" in row[3] for row in rows if len(row) > 3)
    assert bench("bench", "tune", "cifar10", "ce")[0] == 2


def test_grid_point_with_missing_noise_is_not_best(tmp_path):
    cells = tuning("cifar10", "ce+linear")
    at = {cell.changes["beta"]: [] for cell in cells}
    for cell in cells:
        at[cell.changes["beta"]].append(cell)
    numbers = {1: [95.0] * 4, 2: [50.0, 60.0, 70.0, 80.0, 90.0], 10: [40.0] * 5}  # beta = 1 lacks the last noise
    for beta, percents in numbers.items():
        for cell, percent in zip(at[beta], percents, strict=False):
            write(tmp_path, made_up(cell, 1, percent))
    write(tmp_path, made_up(at[10][0], 2, 60.0))  # each noise counts once, however many runs it has
    shown = grid_table(tasks_of(cells, [1, 2]), tmp_path, ["beta"])
    assert shown.title == "ce+linear on cifar10, mean over 5 noise types"
    columns = [list(column.cells) for column in shown.columns]
    assert list(zip(*columns, strict=True)) == [
        ("1", "-", "4", ""),
        ("2", "70.00", "5", "best"),
        ("5", "-", "0", ""),
        ("10", "42.00", "6", "paper"),
    ]


# --- Slurm ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(tmp_path):
    """Export a Slurm script that runs ``bench_runs.py``, and make a ``scontrol`` that logs its arguments."""
    script, out = tmp_path / "jobs" / "digits.sbatch", tmp_path / "out"
    args = ["--noises", "symmetric:0.5", *SMALL, "--methods", "ce,ce+ogc", "--seeds", "1,2,3", "--out", out]
    args += ["--script", script, "--sbatch", "--partition=gpu", "--time", "01:00:00"]
    code, output = bench("bench", "export", "--slurm", "digits", *args)
    assert (code, output) == (0, f"{script}: 2 tasks. Submit it with: sbatch {script}\n")
    text = script.read_text()
    script.write_text(text.replace(f"{sys.executable} -m ogc", f"{sys.executable} {TESTS / 'bench_runs.py'}"))
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/scontrol.log\n')
    (bin / "scontrol").chmod(0o755)
    return script, out, text


def submit(script, task, **more):
    env = {**os.environ, "PATH": f"{script.parent.parent / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": python_path()}
    env |= {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "77", "OMP_NUM_THREADS": "1", **more}
    return popen(["bash", str(script)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_slurm_script(exported):
    text = exported[2]
    for option in ("--array=0-1", "--requeue", "--time=01:00:00", "--partition=gpu", "--signal=B:TERM@120"):
        assert f"#SBATCH {option}\n" in text
    assert text.startswith("#!/bin/bash\n#SBATCH")
    directives = [i for i, line in enumerate(text.splitlines()) if line.startswith("#SBATCH")]
    assert directives == list(range(1, len(directives) + 1))  # sbatch stops reading at the first command
    assert bench("bench", "export", "digits")[0] == 2


def test_export_skips_invalid_results(tmp_path):
    for name in ("ce", "gce"):
        args = ["--methods", "ce,gce", "--noises", "symmetric:0.5", "--out", tmp_path, "--script", tmp_path / "x"]
        (tmp_path / f"digits-{name}-symmetric-0.5-1.json").write_text("{}")
        code, output = bench("bench", "export", "--slurm", "digits", *args)
        assert f"digits-{name}-symmetric-0.5-1 is skipped. " in output
        assert "move it away" in output
        assert code == (0 if name == "ce" else 2)


def test_script_path_is_escaped(tmp_path):
    def export(folder, *more):
        args = ["--methods", "ce", "--out", tmp_path / "out", "--script", tmp_path / folder / "x.sbatch"]
        return bench("bench", "export", "--slurm", "digits", *args, *more)

    assert export('a "b" 50%')[0] == 0
    text = (tmp_path / 'a "b" 50%' / "x.sbatch").read_text()
    assert rf'#SBATCH --output="{tmp_path}/a \"b\" 50%%/x.%A_%a.log"' in text.splitlines()
    for folder, more in (("a\nrm x", ()), ("a", ("--time", "1\nrm x")), ("a", ("--sbatch", "--x\nrm x"))):
        code, output = export(folder, *more)
        assert (code, "should be on one line" in output) == (2, True), output
        assert not (tmp_path / folder).exists()


@pytest.mark.slow
def test_slurm_task_saves_on_sigterm_and_is_requeued(exported, tmp_path):
    script, out, _ = exported
    task = submit(script, 0, **held(hold := tmp_path / "hold", after=25))  # 11 steps per epoch
    wait_for(hold.exists, "the third epoch", task)
    task.send_signal(signal.SIGTERM)
    output = task.communicate()[0]
    assert task.returncode == 143, output
    assert (tmp_path / "scontrol.log").read_text() == "requeue 77_0\n"
    assert epochs_done(out)
    task = submit(script, 0)
    assert "3 of 3 runs are done" in task.communicate()[0]
    assert task.returncode == 0
    assert len(results(out)) == 3
    assert (tmp_path / "scontrol.log").read_text() == "requeue 77_0\n"

    # The array's second task runs the remaining runs.
    script.write_text(script.read_text().replace(f"{sys.executable} {TESTS / 'bench_runs.py'}", "echo"))
    named = submit(script, 1).communicate()[0].rpartition("--only ")[2].strip().split(",")
    assert len(named) == 3
    assert not {f"{name}.json" for name in named} & results(out).keys()
