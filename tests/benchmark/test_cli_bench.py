"""What a person types after ``ogc bench``, and what is said to them."""

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

OWN = """
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


class Needy(Mine):
    def __init__(self, classes):
        super().__init__()


class Rows(Mine):
    def forward(self, logits, labels):
        return logits.sum(1)


class Empty(Mine):
    def forward(self, logits, labels):
        return super().forward(logits, labels) * float("nan")


class Learning(Mine):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))


class Dreaming(Mine):
    def forward(self, logits, labels):
        return self.nowhere
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


# --- dry runs ---------------------------------------------------------------------------------------------------------


def test_a_dry_run_does_nothing_and_tells_what_stands_where(tmp_path):
    cells = find("digits", ["ce", "gce"], ["symmetric:0.5"])
    here = MADE.model_copy(update={"device": device_name_here()})
    write(tmp_path, made_up(cells[0], provenance=here))
    before = list(tmp_path.iterdir())
    args = ["bench", "run", "digits", "--methods", "ce,gce", "--noises", "symmetric:0.5", "--out", tmp_path]
    code, said = bench(*args, "--dry-run")
    assert code == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in said.splitlines() if " digits-" in line}
    assert lines == {"digits-ce-symmetric-0.5-1": "done", "digits-gce-symmetric-0.5-1": "to run"}
    assert (
        "1 of 2 runs are done, 1 missing. Estimated time: 3:25, including 0:05 of start-up, based on 1 result on"
        in said
    )
    assert list(tmp_path.iterdir()) == before
    assert "Time unknown" in bench(*args[:-1], tmp_path / "empty", "--dry-run")[1]
    assert not (tmp_path / "empty").exists()
    assert "These are trial runs" in bench(*args, "--dry-run", "--epochs", "3")[1]
    code, said = bench("bench", "run", "cifar10", "--methods", "ce", "--data", tmp_path, "--out", tmp_path, "--dry-run")
    assert (code, said.count("to run"), "CIFAR-10 was not found in `" in said) == (0, 6, True)


def test_a_dry_run_for_a_cluster_looks_for_no_device_here(tmp_path, monkeypatch):
    monkeypatch.setattr("ogc.training.session.pick_device", None)  # which would fail if it were called
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
        code, said = bench(*args, *trial, "--engine", "ray", "--address", "10.0.0.1:6379", "--device", device)
        assert code == 0
        time = "Time unknown: it depends on the devices of the Ray cluster."
        assert f"{left} {time}" in " ".join(said.split())
    code, said = bench(*args, "--engine", "ray", "--device", "cuda:1")
    assert (code, "should be auto, cuda or cpu with engine = ray" in said) == (2, True)


def test_a_dry_run_tells_what_there_is_to_go_on_with(tmp_path):
    [task] = tasks_of(find("digits", ["ce"], ["symmetric:0.5"]), [1])
    args = ["bench", "run", "digits", "--methods", "ce", "--noises", "symmetric:0.5", "--out", tmp_path, "--dry-run"]
    work = task.work(tmp_path)
    work.mkdir(parents=True)
    (work / "metrics.jsonl").write_text("{}\n" * 13)  # of a process that was killed before it saved anything
    assert " to run" in bench(*args)[1]
    write_tensors(work / LAST, "id", {}, {"epoch": 7})
    assert " started, 7 of 120 epochs" in bench(*args)[1]
    write_tensors(work / LAST, "id", {}, {})
    assert "cannot be used: it has no 'epoch'." in " ".join(bench(*args)[1].split())
    (work / LAST).write_text("nonsense")
    assert "cannot be used" in " ".join(bench(*args)[1].split())


@pytest.mark.parametrize("columns", [80, 50])
def test_a_dry_run_shows_names_whole_and_folders_as_they_are(columns, tmp_path, mine):
    out = tmp_path / "[/red]x"
    own = mine.rename(tmp_path / f"a_rather_{'long_' * 14}name.py")
    arguments = ["bench", "run", "digits", "--noises", "symmetric:0.5", "--method", f"{own}:Mine", "--out", str(out)]
    arguments += ["--methods", "ce", "--dry-run"]
    out.mkdir(parents=True)
    (out / "digits-ce-symmetric-0.5-1.json").write_text("{}")
    result = CliRunner().invoke(build(), arguments, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.exception
    first = "".join(line.split()[0] for line in result.output.splitlines() if line.strip())
    assert f"digits-{own.name}-Mine-" in first
    assert " to run" in result.output
    assert "INVALID" in result.output
    assert "…" not in result.output


def test_which_are_trials(tmp_path, mine):
    def said(*arguments):
        return bench("bench", "run", "digits", *arguments, "--out", tmp_path, "--dry-run")[1]

    assert "are trial runs" not in said("--method", f"{mine}:Mine", "--set", "power=3"), (
        "a row of its own, which says so"
    )
    assert "These are trial runs" in said("--method", f"{mine}:Mine", "--set", "power=3", "--epochs", "2")
    assert "These are trial runs" in said("--methods", "gce", "--set", "q=0.123")
    assert "These are trial runs" in said("--methods", "gce", "--method", f"{mine}:Mine", "--set", "noise_seed=3")
    some = ["--methods", "fl", "--method", f"{mine}:Focal", "--noises", "symmetric:0.5", "--set", "gamma=0.7"]
    assert "1 of these are trial runs" in said(*some)
    for table, method in (("epsilon", "fl+ogc"), ("time", "gce")):
        asked = ["--methods", method, "--data", tmp_path, "--out", tmp_path, "--dry-run"]
        assert "These are trial runs" in bench("bench", "run", table, *asked)[1], "a key that no table has"
    tuned = ["tune", "cifar10", "gce", "--data", tmp_path, "--out", tmp_path, "--dry-run"]
    assert "are trial runs" not in bench("bench", *tuned)[1]


def test_a_run_that_no_table_has_is_told_before_it_begins(tmp_path):
    asked = ["digits", "--methods", "gce", "--noises", "symmetric:0.5", "--epochs", "1", "--set", "hidden=8"]
    said = bench("bench", "run", *asked, "--out", tmp_path)[1]
    assert said.index("These are trial runs, which the tables leave out.") < said.index(" ...")


@pytest.mark.filterwarnings("default")
def test_warnings_are_sentences(tmp_path, monkeypatch):
    def warned(*arguments, **options):
        warnings.warn("a poor fit", stacklevel=1)
        return works(*arguments, **options)

    works = benchmark_run.run
    monkeypatch.setattr(benchmark_run, "run", warned)
    said = bench(*DIGITS, "--methods", "ce", "--out", tmp_path)[1]
    assert "Note: a poor fit" in said.splitlines()
    assert "UserWarning" not in said


def test_nothing_is_fetched_for_what_is_there(tmp_path):
    [cell] = find("cifar10", ["ce"], ["human:worse"])
    write(tmp_path, made_up(cell))
    asked = ["cifar10", "--methods", "ce", "--noises", "human:worse", "--data", tmp_path / "none", "--out", tmp_path]
    code, said = bench("bench", "run", *asked, "--download")
    assert (code, "1 of 1 runs are done, 0 of them new." in said) == (0, True)


def device_name_here():
    import torch

    return device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def test_names_are_those_that_any_machine_takes():
    for table in ("cifar10", "cifar100", "epsilon", "queue", "every", "time", "digits"):
        for task in tasks_of(find(table), [1]):
            assert set(task.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def test_only(tmp_path):
    name = "digits-ce-symmetric-0.5-epochs-6-hidden-16-2"
    args = [*DIGITS, "--methods", "ce,gce", "--seeds", "1,2", "--out", tmp_path]
    assert bench(*args, "--only", name)[0] == 0
    assert only_results(tmp_path)
    assert [path.stem for path in tmp_path.glob("*.json")] == [name]
    assert bench(*args, "--only", "digits-ce-2") == (
        2,
        "Parameter `only` should be names of selected runs, as shown by --dry-run. Found `only = 'digits-ce-2'`.\n",
    )


# --- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["cifar1"], 2, "There is no table named 'cifar1'. Did you mean cifar10"),
        (["digits", "--methods", "cee"], 2, "There is no method named 'cee'. Did you mean ce"),
        (["digits", "--noises", "symmetric:0.3"], 2, "`noises` should be among those of the table digits"),
        (
            ["digits", "--seeds", "one"],
            2,
            "`seeds` should be different whole numbers, as in 1,2,3. Found `seeds = 'one'`",
        ),
        (["digits", "--set", "lr"], 2, "`set` should be KEY=VALUE"),
        (["digits", "--set", "seed=3"], 2, "`set` should be a setting that is part of a run's name"),
        (["digits", "--set", "average=none"], 2, "`set` should be a setting that is part of a run's name"),
        (["cifar10", "--set", "network=auto"], 2, "`set` should be the name of a network, because auto depends"),
        (["digits", "--set", "lrr=3"], 2, "There is no parameter 'lrr'. Did you mean lr?"),
        (["digits", "--epochs", "3", "--set", "epochs=4"], 2, "`epochs` should be given once"),
        (["digits", "--max-minutes", "0"], 2, "`max-minutes` should be above 0"),
        (["digits", "--engine", "slurm"], 2, "`engine` should be auto or ray"),
        (["digits", "--address", "1.2.3.4:5"], 2, "`address` should be omitted without --engine ray"),
        (["digits", "--device", "tpu"], 2, "`device` should be auto, cpu, cuda"),
        (["digits", "--device", "cpu", "--side-by-side", "2"], 2, "`side-by-side` should be 1 without a GPU"),
        (["cifar10", "--data", "nowhere", "--noises", "symmetric:0.5"], 1, "CIFAR-10 was not found in"),
        (["cifar10", "--data", "nowhere"], 1, "human:worse is read from"),
        (["digits", "--only", "digits-ce-symmetric-0.5"], 2, "Did you mean digits-ce-symmetric-0.5-1"),
        (["digits", "--noises", "symmetric:0.4"], 2, "Found `noises = 'symmetric:0.4'`. Did you mean symmetric:0."),
        (["digits", "--method", "no.py:Mine"], 2, "There is no loss file `"),
        (["digits", "--method", "mine.py:Min"], 2, "has no torch module 'Min'. Did you mean Mine? It has Mine, "),
        (["digits", "--method", "mine.py:Mine+ogc"], 2, "OGC needs a pointwise loss"),
        (["digits", "--method", "mine.py:Needy"], 2, "Needy cannot be constructed: TypeError"),
        (["digits", "--method", "broken.py:Mine"], 2, "cannot be loaded: SyntaxError"),
    ],
)
def test_one_sentence(arguments, code, sentence, tmp_path, mine, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def")
    found, said = bench("bench", "run", *arguments, "--out", "out")
    assert found == code
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_no_endless_wait(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "not" / "mounted")
    code, said = bench(*DIGITS, "--methods", "ce", "--out", tmp_path / "link")
    assert code == 1
    assert f"Cannot use {tmp_path}/link" in said


@pytest.mark.parametrize("command", [["run", "--dry-run"], ["export", "--slurm"]])
def test_data_that_are_not_there_are_told_of_before(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["cifar10", "--methods", "ce", "--noises", "symmetric:0.5,human:worse", "--data", "none", "--out", "out"]
    code, said = bench("bench", *command, *asked)
    assert (code, said.count("CIFAR-10 was not found in `")) == (0, 1), said
    assert said.count("human:worse is read from CIFAR-10_human.pt, which is not in `") == 1


def test_the_default_folder_is_where_the_tables_look():
    assert RunOptions().out == FOLDER


# --- a loss of one's own ----------------------------------------------------------------------------------------------


def test_a_loss_of_ones_own_is_a_row(tmp_path, mine):
    out = tmp_path / "out"
    code, said = bench(*DIGITS, "--method", f"{mine}:Mine", "--method", f"{mine}:Brier+ogc", "--out", out)
    assert code == 0, said
    first, second = read_all(out)[0]
    assert {first.method, second.method} == {"mine.py:Mine", "mine.py:Brier+ogc"}  # not where it was
    assert first.recipe.method_sha256 == second.recipe.method_sha256 != None  # noqa: E711
    assert {"power": 2.0} in (first.recipe.parameters, second.recipe.parameters)
    assert first.summary != second.summary
    again = bench(*DIGITS, "--method", f"{mine}:Mine", "--method", f"{mine}:Brier+ogc", "--out", out)
    assert again == (0, "2 of 2 runs are done, 0 of them new.\n")
    mine.write_text(OWN + "\n# another\n")
    assert "0 of 1 runs are done" in bench(*DIGITS, "--method", f"{mine}:Mine", "--out", out, "--dry-run")[1]
    mine.unlink()
    assert len(read_all(out)[0]) == 2  # which nobody needs the file for


def test_it_runs_under_the_noises_that_were_asked_for(tmp_path, mine):
    own = ["--methods", "all", "--method", f"{mine}:Mine", "--noises", "symmetric:0.5"]
    code, said = bench("bench", "run", "digits", *own, "--out", tmp_path / "out", "--dry-run")
    rows = [line for line in said.splitlines() if " to run" in line]
    assert code == 0
    assert len(rows) > 2
    assert all("-symmetric-0.5-" in row for row in rows)
    assert sum("mine.py-Mine" in row for row in rows) == 1


def test_a_value_and_its_negative_are_two_runs(tmp_path, mine):
    args = [*DIGITS, "--method", f"{mine}:Mine", "--out", tmp_path / "out", "--set"]
    for value in ("power=1", "power=-1"):
        assert "1 of 1 runs are done, 1 of them new." in bench(*args, value)[1]
    assert {result.recipe.parameters["power"] for result in read_all(tmp_path / "out")[0]} == {1, -1}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Rows", "should return a finite scalar with a gradient for zero logits. Found a tensor of shape (4,)."),
        ("Learning", "has parameters, which would not be trained"),
        ("Empty", "should return a finite scalar with a gradient for zero logits. Found tensor(nan"),
        ("Dreaming", "fails on logits (4, 10) and labels (4,): AttributeError: 'Dreaming' object has no attribute"),
    ],
)
def test_a_loss_that_cannot_train_is_told_before_anything_begins(name, sentence, tmp_path, mine):
    args = ["digits", "--methods", "ce", "--method", f"{mine}:{name}", "--out", tmp_path / "out"]
    for command in (["run"], ["run", "--dry-run"], ["export", "--slurm", "--script", tmp_path / "x"]):
        code, said = bench("bench", *command, *args)
        assert (code, sentence in said) == (2, True), said
    assert list(tmp_path.iterdir()) == [mine]


# --- tuning -----------------------------------------------------------------------------------------------------------


def test_tune(tmp_path, monkeypatch):
    folder = tiny_cifar(tmp_path / "data", monkeypatch)
    trial = ["--epochs", "1", "--set", "network=resnet20-cifar", "--set", "batch_size=20"]
    args = ["bench", "tune", "cifar10", "gce+ogc", "--data", folder, "--out", tmp_path / "out", *trial]
    code, said = bench(*args, "--dry-run")
    assert (code, said.count("to run")) == (0, 4)
    code, said = bench(*args)
    assert code == 0, said
    assert "gce+ogc on cifar10, symmetric:0.5" in said
    rows = [line.split() for line in said.splitlines() if line.split()[:1] in (["100"], ["50"], ["20"], ["10"])]
    assert [row[0] for row in rows] == ["100", "50", "20", "10"]
    found = {f"{r.recipe.parameters['epsilon0']:g}": r.measured("test") for r in read_all(tmp_path / "out")[0]}
    assert {row[0]: row[1] for row in rows} == {point: f"{share:.2f}" for point, share in found.items()}
    assert "paper" in " ".join(rows[2])
    assert any("best" in row[3] for row in rows if len(row) > 3)
    assert bench("bench", "tune", "cifar10", "ce")[0] == 2


def test_a_point_that_lacks_a_noise_is_not_the_best(tmp_path):
    cells = tuning("cifar10", "ce+linear")
    at = {cell.changes["beta"]: [] for cell in cells}
    for cell in cells:
        at[cell.changes["beta"]].append(cell)
    numbers = {1: [95.0] * 4, 2: [50.0, 60.0, 70.0, 80.0, 90.0], 10: [40.0] * 5}  # of 1 the last noise lacks
    for beta, percents in numbers.items():
        for cell, percent in zip(at[beta], percents, strict=False):
            write(tmp_path, made_up(cell, 1, percent))
    write(tmp_path, made_up(at[10][0], 2, 60.0))  # a noise counts once, however many runs it has
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
    """A script whose tasks are run by our own ``ogc``, and a folder with a ``scontrol`` that notes what is asked."""
    script, out = tmp_path / "jobs" / "digits.sbatch", tmp_path / "out"
    args = ["--noises", "symmetric:0.5", *SMALL, "--methods", "ce,ce+ogc", "--seeds", "1,2,3", "--out", out]
    args += ["--script", script, "--sbatch", "--partition=gpu", "--time", "01:00:00"]
    code, said = bench("bench", "export", "--slurm", "digits", *args)
    assert (code, said) == (0, f"{script}: 2 tasks. Submit it with: sbatch {script}\n")
    text = script.read_text()
    script.write_text(text.replace(f"{sys.executable} -m ogc", f"{sys.executable} {TESTS / 'bench_runs.py'}"))
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    (bin / "scontrol").chmod(0o755)
    return script, out, text


def submit(script, task, **more):
    env = {**os.environ, "PATH": f"{script.parent.parent / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": python_path()}
    env |= {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "77", "OMP_NUM_THREADS": "1", **more}
    return popen(["bash", str(script)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_script(exported):
    text = exported[2]
    for option in ("--array=0-1", "--requeue", "--time=01:00:00", "--partition=gpu", "--signal=B:TERM@120"):
        assert f"#SBATCH {option}\n" in text
    assert text.startswith("#!/bin/bash\n#SBATCH")
    directives = [i for i, line in enumerate(text.splitlines()) if line.startswith("#SBATCH")]
    assert directives == list(range(1, len(directives) + 1))  # sbatch stops reading at the first command
    assert bench("bench", "export", "digits")[0] == 2


def test_what_is_no_result_is_told(tmp_path):
    for name in ("ce", "gce"):
        args = ["--methods", "ce,gce", "--noises", "symmetric:0.5", "--out", tmp_path, "--script", tmp_path / "x"]
        (tmp_path / f"digits-{name}-symmetric-0.5-1.json").write_text("{}")
        code, said = bench("bench", "export", "--slurm", "digits", *args)
        assert f"digits-{name}-symmetric-0.5-1 is skipped. " in said
        assert "move it away" in said
        assert code == (0 if name == "ce" else 2)


def test_any_folder_for_the_script(tmp_path):
    def export(folder, *more):
        args = ["--methods", "ce", "--out", tmp_path / "out", "--script", tmp_path / folder / "x.sbatch"]
        return bench("bench", "export", "--slurm", "digits", *args, *more)

    assert export('a "b" 50%')[0] == 0
    text = (tmp_path / 'a "b" 50%' / "x.sbatch").read_text()
    assert rf'#SBATCH --output="{tmp_path}/a \"b\" 50%%/x.%A_%a.log"' in text.splitlines()
    for folder, more in (("a\nrm x", ()), ("a", ("--time", "1\nrm x")), ("a", ("--sbatch", "--x\nrm x"))):
        code, said = export(folder, *more)
        assert (code, "should be on one line" in said) == (2, True), said
        assert not (tmp_path / folder).exists()


@pytest.mark.slow
def test_a_task_saves_when_slurm_says_so_and_is_queued_again(exported, tmp_path):
    script, out, _ = exported
    task = submit(script, 0, **held(hold := tmp_path / "hold", after=25))  # of 11 steps per epoch
    wait_for(hold.exists, "the third epoch", task)
    task.send_signal(signal.SIGTERM)
    said = task.communicate()[0]
    assert task.returncode == 143, said
    assert (tmp_path / "asked").read_text() == "requeue 77_0\n"
    assert epochs_done(out)
    task = submit(script, 0)
    assert "3 of 3 runs are done" in task.communicate()[0]
    assert task.returncode == 0
    assert len(results(out)) == 3
    assert (tmp_path / "asked").read_text() == "requeue 77_0\n"

    # The other task of the array runs the others.
    script.write_text(script.read_text().replace(f"{sys.executable} {TESTS / 'bench_runs.py'}", "echo"))
    named = submit(script, 1).communicate()[0].rpartition("--only ")[2].strip().split(",")
    assert len(named) == 3
    assert not {f"{name}.json" for name in named} & results(out).keys()
