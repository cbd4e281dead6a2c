import json
import shutil
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from children import held, ogc, wait_for
from ogc.cli.app import build
from ogc.training.recipe import RECIPES, override
from ogc.training.run import NonFinite
from ogc.training.source import Source
from ogc.training.stopping import Interrupted

SHORT = ["digits", "--epochs", "2", "--set", "hidden=16"]


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train(*arguments):
    result = CliRunner().invoke(build(), ["train", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def fails(result, code, message):
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    return True


@pytest.fixture
def calls(monkeypatch):
    """The jobs and options passed to training, which is replaced by a stub."""
    recorded = []

    def record(jobs, **options):
        recorded.append((jobs, options))
        return []

    monkeypatch.setattr("ogc.training.session.train", record)
    monkeypatch.setattr("ogc.report.table.table", lambda results: f"{len(results)} results")
    return recorded


def test_training_on_digits_writes_a_report():
    result = train(*SHORT, "--noise", "symmetric:0.5", "--method", "gce", "--set", "q=0.5")
    assert result.exit_code == 0, result.output
    folder = Path("runs/digits-gce-symmetric-0.5-0")
    assert f"Report: {folder / 'report.html'}" in result.output
    assert (folder / "report.html").stat().st_size > 10_000
    recorded = json.loads((folder / "run.json").read_text())
    assert recorded["recipe"]["parameters"] == {"q": 0.5}
    assert recorded["facts"]["noise"]["rate_asked"] == 0.5
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def test_training_on_a_table_and_arrays():
    rng = np.random.default_rng(0)
    lines = [f"{a:.3f},{b:.3f},c,{'yes' if a + b > 1 else 'no'}" for a, b in rng.normal(size=(200, 2))]
    Path("rows.csv").write_text("a,b,c,label\n" + "\n".join(lines) + "\n")
    result = train("rows.csv", "--label", "label", "--epochs", 5, "--set", "hidden=8", "--set", "batch_size=16")
    assert result.exit_code == 0, result.output
    summary = json.loads(Path("runs/rows-ce+ogc-0/result.json").read_text())["summary"]
    assert summary["set"] == "val"
    assert summary["best"] > 0.85
    assert "Note: Balanced accuracy (the mean over the classes) on val" in " ".join(result.output.split())
    assert result.output.endswith("\nTo predict new data: ogc predict runs/rows-ce+ogc-0 new.csv\n")
    report = Path("runs/rows-ce+ogc-0/report.html").read_text()
    assert (
        '<tr><th scope="row">b</th><td>number</td></tr>\n<tr><th scope="row">c</th><td>dropped, constant</td></tr>'
        in report
    )
    np.savez("x.npz", X=rng.normal(size=(40, 3)), y=np.arange(40) % 2)
    assert train("x.npz", "--epochs", 1, "--out", "here").exit_code == 0
    assert Path("here/result.json").exists()


@pytest.mark.parametrize("command", ["train", "compare"])
def test_noise_does_not_replace_given_labels(command):
    Path("rows.csv").write_text("a,b,found,right\n" + "1,2,x,y\n2,1,y,x\n" * 20)
    options = ["rows.csv", "--label", "found", "--true", "right", "--noise", "symmetric:0.2"]
    result = CliRunner().invoke(build(), [command, *options])
    message = "Parameter `--noise` should be omitted with --true: it would replace the given labels."
    assert fails(result, 2, message)


def test_changed_test_file_is_rejected_on_resuming():
    rng = np.random.default_rng(0)
    for name in ("rows.csv", "test.csv"):
        lines = [f"{a:.3f},{'yes' if a > 0 else 'no'}" for a in rng.normal(size=60)]
        Path(name).write_text("a,label\n" + "\n".join(lines) + "\n")
    options = ["--label", "label", "--test", "test.csv", "--epochs", 1, "--set", "hidden=4", "--out", "run"]
    assert train("rows.csv", *options).exit_code == 0
    Path("run/result.json").unlink()
    text = Path("test.csv").read_text()
    Path("test.csv").write_text(text.replace(",yes", "1,yes"))
    assert fails(
        train("--resume", "run"),
        1,
        "test.csv` has changed since run was trained (test file). Restore it, or train again.",
    )
    Path("test.csv").write_text(text)
    assert train("--resume", "run").exit_code == 0
    Path("test.csv").unlink()
    audited = CliRunner().invoke(build(), ["audit", "run"])  # of the training file alone
    assert audited.exit_code == 0, audited.output


def test_images_are_tested_on_another_folder():
    for root, count in (("photos", 5), ("checked", 2)):
        for label, colour in (("dark", 10), ("light", 240)):
            Path(root, label).mkdir(parents=True)
            for i in range(count):
                Image.new("L", (8, 8), colour + i).save(Path(root, label, f"{i}.png"))
    options = ["--test", "checked", "--epochs", 1, "--out", "run"]
    options += [text for name in ("network=mlp", "augment=none", "size=8") for text in ("--set", name)]
    assert train("photos", *options).exit_code == 0
    assert set(json.loads(Path("run/result.json").read_text())["epochs"][0]["accuracy"]) == {"val", "test"}
    result = Path("run/result.json").rename("result.json")
    Path("checked/dark/1.png").rename("checked/light/9.png")
    assert fails(train("--resume", "run"), 1, "checked` has changed since run was trained (labels of test).")
    result.rename("run/result.json")
    shutil.rmtree("checked")
    audited = CliRunner().invoke(build(), ["audit", "run"])  # of the training folder alone
    assert audited.exit_code == 0, audited.output


def test_resume_completes_the_run():
    assert train(*SHORT, "--out", "a").exit_code == 0
    before = json.loads(Path("a/result.json").read_text())
    Path("a/result.json").unlink()
    result = train("--resume", "a", "--device", "cpu", "--engine", "loop")
    assert result.exit_code == 0, result.output
    assert json.loads(Path("a/result.json").read_text())["epochs"] == before["epochs"]
    assert "Report: a/report.html" in result.output


def test_options_reach_training(calls):
    result = train(*SHORT, "--seeds", "3,7", "--noise", "pairflip:0.2", "--engine", "loop", "--tensorboard")
    assert result.exit_code == 0, result.output
    [(jobs, options)] = calls
    expected = override(RECIPES["digits"], {"epochs": 2, "hidden": "16", "noise": "pairflip:0.2"})
    assert [job.recipe for job in jobs] == [override(expected, {"seed": seed}) for seed in (3, 7)]
    assert [job.out for job in jobs] == [Path(f"runs/digits-ce+ogc-pairflip-0.2-{seed}") for seed in (3, 7)]
    assert jobs[0].data is jobs[1].data
    assert jobs[0].source == Source.parse("digits")
    assert jobs[0].info.rate_asked == 0.2
    watch = options.pop("watch")
    assert len(watch.rows) == 2
    assert options == {"device": "auto", "engine": "loop", "tensorboard": True, "resume": False}


def test_options_reach_the_source(calls, monkeypatch):
    read = []
    monkeypatch.setattr(
        "ogc.training.source.load", lambda source, recipe, **options: read.append((source, options)) or (0, None)
    )
    Path("photos").mkdir()
    Path("t.csv").touch()
    Path("r.csv").touch()
    train("photos", "--val", 0.3, "--skip-bad", "--true", "t.csv")
    train("r.csv", "--label", "l", "--true", "t", "--id", "i", "--test", "t.csv")
    train("cifar10", "--data", "there", "--labels", "t.csv", "--download")
    train("webvision", "--data", "there", "--ilsvrc", "photos")
    here = Path.cwd()
    assert [source for source, _ in read] == [
        Source(kind="folder", path=here / "photos", val=0.3, skip_bad=True, true=str(here / "t.csv")),
        Source(kind="table", path=here / "r.csv", label="l", true="t", id="i", test=here / "t.csv"),
        Source(kind="cifar10", path=here / "there", labels=here / "t.csv"),
        Source(kind="webvision", path=here / "there", ilsvrc=here / "photos"),
    ]
    assert [options["download"] for _, options in read] == [False, False, True, False]
    assert [jobs[0].recipe.name for jobs, _ in calls] == ["folder", "table", "cifar10", "webvision"]


def test_recipe_by_name_or_from_a_file(calls):
    Path("mine.toml").write_text('base = "digits"\nlr = 0.01\n')
    assert train("digits", "--recipe", "mine.toml", "--set", "epochs=3").exit_code == 0
    assert train("digits", "--recipe", "table").exit_code == 0
    recipes = [jobs[0].recipe for jobs, _ in calls]
    assert recipes == [override(RECIPES["digits"], {"lr": 0.01, "epochs": 3}), RECIPES["table"]]


def test_each_run_gets_a_new_folder(calls):
    for name in ("digits-ce+ogc-0", "digits-ce+ogc-0-2", "mine"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "run.json").touch()
    Path("runs/mine/result.json").touch()
    assert train("digits").exit_code == 0
    assert calls[0][0][0].out == Path("runs/digits-ce+ogc-0-3")
    assert fails(
        train("digits", "--out", "runs/mine"),
        2,
        "runs/mine already contains a run. Choose another --out, or resume it with: ogc train --resume runs/mine",
    )
    assert train("digits", "--out", "runs", "--seeds", "0,1").exit_code == 0
    assert [job.out for job in calls[1][0]] == [Path("runs/seed-0"), Path("runs/seed-1")]
    Path("runs/mine/result.json").unlink()
    assert train("digits", "--out", "runs/mine").exit_code == 0  # the run there has no result
    Path("runs/mine/run.json").rename("runs/mine/own.json")
    assert fails(train("digits", "--out", "runs/mine"), 2, "runs/mine has other files, which a run could overwrite")


def test_folder_name_has_no_colon(calls):
    Path("mine.py").write_text("from ogc.losses import CrossEntropy\nclass Mine(CrossEntropy):\n    pass\n")
    assert train("digits", "--method", "mine.py:Mine", "--noise", "symmetric:0.5").exit_code == 0
    assert calls[0][0][0].out == Path("runs/digits-mine.py-Mine-symmetric-0.5-0")


def test_print_shows_the_recipe_without_training(calls, monkeypatch):
    monkeypatch.setattr("ogc.training.source.load", None)
    result = train("cifar10", "--noise", "symmetric:0.5", "--epochs", 30, "--data", "d", "--seeds", "0,1", "--print")
    assert result.exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines() if line)
    assert (lines["epochs"], lines["milestones"], lines["epsilon0"]) == ("30", "10, 20", "20.0")
    assert lines["path"] == str(Path("d").absolute())
    assert result.output.endswith("cifar10-ce+ogc-symmetric-0.5-0\nout           runs/cifar10-ce+ogc-symmetric-0.5-1\n")
    assert not calls
    assert not Path("runs").exists()


def test_print_shows_the_classes_and_columns_of_own_data(calls):
    Path("rows.csv").write_text("id,age,tier\n" + "".join(f"{i},{i % 7},{'ab'[i % 2]}\n" for i in range(40)))
    result = train("rows.csv", "--label", "tier", "--print")
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines() if line)
    assert (lines["classes"], lines["train"], lines["val"]) == ("`a`, `b`", "set     32 samples", "set       8 samples")
    assert (lines["columns"], lines["skip_bad"]) == ("age: number; id: dropped, unique", "false")
    assert fails(train("rows.csv", "--label", "tear", "--print"), 1, "no column `tear`")
    assert not calls


def test_settings_may_follow_the_method(calls):
    assert train("digits", "--method", "gce:q=0.8").exit_code == 0
    assert calls[0][0][0].recipe == override(RECIPES["digits"], {"method": "gce", "q": 0.8})
    result = train("digits", "--method", "gce:q=0.8", "--set", "q=0.5")
    assert fails(result, 2, "Parameter `--set` should be omitted for q, which is already given.")
    result = train("digits", "--method", "gce:epochs=2", "--epochs", "5")
    assert fails(result, 2, "Parameter `--method` should be without epochs, which is given as an option.")
    for method in ("gce:q=0.8:q=0.5", "gce:method=ce"):
        assert fails(
            train("digits", "--method", method), 2, "should be METHOD:KEY=VALUE with each KEY once, and without method."
        )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("", 2, "The argument `SOURCE` is missing. Give digits, a folder of images, a table or an .npz file, as in: "),
        ("digit", 2, "There is no `digit`. Did you mean digits?"),
        ("no/such.csv", 1, "There is no `no/such.csv`."),
        ("digits --set lrr=1", 2, "There is no parameter 'lrr'. Did you mean lr?"),
        ("digits --set learning_rate=1", 2, "There is no parameter 'learning_rate'. Did you mean lr?"),
        ("digits --method ogc", 2, "There is no method named 'ogc'. Did you mean ce+ogc?"),
        ("digits --set lr", 2, "Parameter `--set` should be KEY=VALUE, as in lr=0.05. Found `--set 'lr'`."),
        ("digits --set =3", 2, "Parameter `--set` should be KEY=VALUE"),
        (
            "digits --set epochs=3 --epochs 4",
            2,
            "Parameter `--set` should be omitted for epochs, which is already given. Found `--set 'epochs=3'`.",
        ),
        ("digits --epochs 0", 2, "Parameter `--epochs` should be greater than or equal to 1. Found `--epochs 0`."),
        ("digits --seed -1", 2, "Parameter `--seed` should be"),
        (
            "digits --seeds 1-3",
            2,
            "Parameter `--seeds` should be distinct integers, as in 1,2,3. Found `--seeds '1-3'`.",
        ),
        ("digits --seed 1 --seeds 2", 2, "Parameter `--seed` should be omitted with --seeds. Found `--seed 1`."),
        ("digits --seeds 1,4294967296", 2, "Parameter `seed` should be less than 4294967296"),
        ("digits --method ce+ogx", 2, "There is no method named 'ce+ogx'. Did you mean ce+ogc"),
        ("digits --noise symmetric:2", 2, "Parameter `--noise` should be KIND:RATE with a rate in [0, 1], as in"),
        ("digits --set epochs=inf", 2, "Parameter `epochs` should be a valid integer. Found `epochs = 'inf'`."),
        ("digits --set size=32", 2, "Parameter `size` should be none with digits, which has features."),
        (
            "digits --noise asymmetric:0.2",
            2,
            "asymmetric noise is defined only for cifar10 or cifar100. Found digits. Use another kind",
        ),
        ("digits --recipe digitz", 2, "There is no recipe named 'digitz'. Did you mean digits?"),
        ("digits --recipe no.toml", 1, "There is no recipe file no.toml. Check its path, or choose from cifar10, "),
        (
            "digits --recipe zero.toml",
            2,
            "Parameter `epochs` should be greater than or equal to 1. Found `epochs = 0`.",
        ),
        ("digits --set network=timm:none_such", 1, "timm"),
        ("digits --device tpu", 2, "Parameter `--device` should be auto, cpu, cuda or cuda:N. Found `--device 'tpu'`."),
        (
            "digits --engine fast",
            2,
            "Parameter `--engine` should be one of auto, loop, graph. Found `--engine 'fast'`.",
        ),
        ("digits --device cpu --engine graph", 2, "Parameter `--engine` should be auto or loop without a GPU"),
        ("cifar10 --data nowhere", 1, "CIFAR-10 was not found in `"),
        ("--resume nowhere", 1, "There is no folder nowhere. Create a run with ogc train."),
        ("--resume .", 1, ". is not a run folder: it has no run.json."),
        ("digits --resume here", 2, "Parameter `source` cannot be combined with --resume, which uses"),
        ("--resume here --set lr=1", 2, "Parameter `--set` cannot be combined with --resume"),
        ("--resume here --epochs 9", 2, "Parameter `--epochs` cannot be combined with --resume"),
        ("--resume here --print", 2, "Parameter `--print` cannot be combined with --resume"),
    ],
)
def test_bad_value_fails_early_with_one_sentence(calls, arguments, code, message):
    Path("zero.toml").write_text('base = "digits"\nepochs = 0\n')
    assert fails(train(*arguments.split()), code, message)
    assert not calls
    assert not Path("runs").exists()


def test_unreadable_data_is_a_file_error(calls):
    Path("rows.csv").write_text("a,label\n1,x\n2,y\n")
    assert fails(train("rows.csv", "--label", "z"), 1, "has no column `z`. Found `a`, `label`.")
    Path("broken").mkdir()
    Path("broken/run.json").write_text("{")
    assert fails(train("--resume", "broken"), 1, "broken")
    assert not calls


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Interrupted(signal.SIGINT, {Path("a"): "ce"}), 130, "ogc train --resume a"),
        (Interrupted(signal.SIGTERM, {Path("a"): "ce"}), 143, "ogc train --resume a"),
        (KeyboardInterrupt(), 130, "Stopped. To resume a saved run: ogc train --resume RUN"),
        (NonFinite("The loss is nan at step 3."), 1, "The loss is nan at step 3."),
        (torch.OutOfMemoryError("CUDA out of memory"), 1, "use --set accumulate=2, or a smaller batch_size"),
        (OSError(28, "No space left on device", "a/last"), 1, "Cannot use a/last: No space left on device."),
        (ImportError("TensorBoard is missing"), 1, "TensorBoard is missing"),
        (ValueError("The engine cannot serve here."), 2, "The engine cannot serve here."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_code_and_message_of_each_error(monkeypatch, error, code, message):
    def stop(*args, **options):
        raise error

    monkeypatch.setattr("ogc.training.session.train", stop)
    assert fails(train("digits"), code, message)


def test_internal_errors_are_not_hidden(monkeypatch):
    def crash(*args, **options):
        raise RuntimeError("a bug")

    monkeypatch.setattr("ogc.training.session.train", crash)
    result = CliRunner().invoke(build(), ["train", "digits"])
    assert isinstance(result.exception, RuntimeError)


def test_only_started_runs_get_a_report(monkeypatch):
    written = []
    monkeypatch.setattr("ogc.report.report.write_report", written.append)

    def stop(jobs, **options):
        for job in jobs:
            job.out.mkdir(parents=True)
            (job.out / "metrics.jsonl").touch()
        options["watch"].began(0, epoch=0, epochs=2, steps=3)
        raise NonFinite("The loss is nan.")

    monkeypatch.setattr("ogc.training.session.train", stop)
    monkeypatch.setattr("ogc.training.run_folder.read", lambda folder: None)
    monkeypatch.setattr("ogc.report.report.balanced_sentences", lambda run: [])
    monkeypatch.setattr("ogc.report.report.training_notes", lambda run: [])
    assert fails(train("digits", "--seeds", "0,1", "--out", "a"), 1, "The loss is nan.")
    assert written == [Path("a/seed-0")]


def test_changed_label_file_is_named_on_resuming():
    y = np.arange(40) % 2
    np.save("x.npy", np.random.default_rng(0).normal(size=(40, 3)))
    np.save("y.npy", y)
    assert train("x.npy", "--labels", "y.npy", "--epochs", 1, "--out", "run").exit_code == 0
    y[:2] = 1, 0
    np.save("y.npy", y)
    message = f"`{Path('y.npy').absolute()}` has changed since run was trained (labels of train). Restore it"
    assert fails(train("--resume", "run"), 1, message)


def test_failed_resume_prints_only_the_error():
    X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    np.savez("x.npz", X=X, y=y)
    assert train("x.npz", "--epochs", 1, "--out", "here").exit_code == 0
    y[0] = 1
    for changed, what in (((X, y), "labels of train"), ((X[:35], y[:35]), "32 training samples, now 28")):
        np.savez("x.npz", X=changed[0], y=changed[1])
        result = train("--resume", "here")
        message = (
            f"`{Path('x.npz').absolute()}` has changed since here was trained ({what}). Restore it, or train again."
        )
        assert fails(result, 1, message)
        assert result.stdout == ""


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(28, "No space left on device", "a/report.html"), "[Errno 28] No space left"),
        (KeyboardInterrupt(), "it was interrupted.\n"),
    ],
)
def test_report_error_does_not_hide_another_error(monkeypatch, error, why):
    def stop(jobs, **options):
        jobs[0].out.mkdir(parents=True)
        (jobs[0].out / "metrics.jsonl").touch()
        options["watch"].began(0, epoch=0, epochs=2, steps=3)
        raise Interrupted(signal.SIGTERM, {jobs[0].out: "ce"})

    def full(folder):
        raise error

    monkeypatch.setattr("ogc.training.session.train", stop)
    monkeypatch.setattr("ogc.report.report.write_report", full)
    result = train("digits", "--out", "a")
    assert fails(result, 143, "Stopped by SIGTERM. Resume with: ogc train --resume a")
    assert f"The report could not be written: {why}" in result.stdout


def test_report_error_is_printed(monkeypatch):
    def full(folder):
        raise OSError(28, "No space left on device", "a/report.html")

    monkeypatch.setattr("ogc.report.report.write_report", full)
    assert fails(train(*SHORT, "--out", "a"), 1, "Cannot use a/report.html: No space left on device.")


def test_warnings_are_printed_as_notes(calls, monkeypatch):
    def warn(jobs, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a class is small.", stacklevel=1)
        return []

    monkeypatch.setattr("ogc.training.session.train", warn)
    result = train("digits")
    assert "Note: a class is small.\n" in result.output
    assert result.stderr == ""


def test_only_rank_0_prints_and_writes_a_report(calls, monkeypatch):
    monkeypatch.setattr("ogc.report.report.write_report", None)
    monkeypatch.setenv("RANK", "1")
    result = train("digits")
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    ("error", "output"),
    [
        (NonFinite("The loss is nan."), ""),
        (Interrupted(signal.SIGTERM, {Path("a"): "ce"}), ""),
        (ValueError("The batch is odd."), ""),
        (OSError(5, "Input/output error", "x.npy"), "Process 1: Cannot use x.npy: Input/output error.\n"),
        (torch.OutOfMemoryError(), "Process 1: Out of GPU memory. "),
        (ImportError("TensorBoard is missing"), "Process 1: TensorBoard is missing\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_ranks_print_only_their_own_errors(monkeypatch, error, output):
    def stop(*args, **options):
        raise error

    monkeypatch.setattr("ogc.training.session.train", stop)
    monkeypatch.setenv("RANK", "1")
    result = train("digits")
    assert result.exit_code != 0
    assert result.output.startswith(output)
    assert bool(result.output) == bool(output)


def test_help_has_examples():
    result = train("--help")
    assert result.exit_code == 0
    for part in ("ogc train digits --noise symmetric:0.5", "--resume", "--set", "runs/SOURCE-METHOD-NOISE-SEED"):
        assert part in result.output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_saves_and_prints_the_resume_command(tmp_path, number, code):
    command = ("train", "digits", "--epochs", 6, "--set", "hidden=8", "--out", "a")
    process = ogc(*command, env=held(hold := tmp_path / "hold", after=15))  # 11 steps per epoch
    wait_for(hold.exists, "the second epoch", process)
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == code
    assert "ogc train --resume a" in stderr
    assert stderr.count("\n") == 1
    assert (tmp_path / "a" / "last.safetensors").exists()
    assert "This run is not finished" in (tmp_path / "a" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "batch_size=1000", "--set", "accumulate=2"], "`batch_size` should be a multiple of 2"),
        (["--set", "network=resnet18-cifar"], "`network` should be mlp with features of shape (3,)"),
        (["--set", "augment=cifar"], "`augment` should be none with features"),
    ],
)
def test_rejected_run_creates_no_folder(arguments, message):
    np.savez("x.npz", X=np.random.default_rng(0).normal(size=(51, 3)), y=np.arange(51) % 2)
    assert fails(train("x.npz", *arguments, "--out", "a", "--val", 0), 2, message)
    assert not Path("a").exists()


def end_to_end(*arguments):
    """Run ``ogc train`` in a separate process. Return the contents of result.json."""
    process = ogc("train", *arguments, "--out", "a")
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert Path("a/report.html").exists()
    return json.loads(Path("a/result.json").read_text())


@pytest.mark.parametrize(
    "length",
    [pytest.param(["--epochs", 30], marks=pytest.mark.slow), pytest.param([], marks=pytest.mark.kill)],
    ids=["quarter", "full"],  # test_demo.py trains for the full length, too
)
def test_digits_end_to_end(length):
    result = end_to_end("digits", "--noise", "symmetric:0.5", "--method", "ce+ogc", *length)
    assert result["summary"]["last"] > 0.9
    taus = [epoch["tau"] for epoch in result["epochs"] if epoch["tau"] is not None]
    assert taus[-1] < taus[0] / 10
    if not length:  # in a quarter of the time, plain CE memorises nothing either
        assert result["epochs"][-1]["memorised"] < 0.3


@pytest.mark.slow
def test_table_of_20000_rows():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20_000, 10))
    lines = [",".join(f"{x:.3f}" for x in row) + ("," + "abcd"[int(np.abs(row[:4]).argmax())]) for row in rows]
    Path("rows.csv").write_text(",".join([*(f"x{i}" for i in range(10)), "label"]) + "\n" + "\n".join(lines))
    result = end_to_end("rows.csv", "--label", "label", "--noise", "symmetric:0.3", "--epochs", 4)
    assert result["facts"]["samples"] == 16_000
    assert result["summary"]["best"] > 0.8
    assert abs(result["epochs"][-1]["mixture"]["noisy_weight"] - 0.22) < 0.2


@pytest.mark.slow
def test_folder_of_2000_images():
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(2000):
        name = "abc"[number % 3]
        pixels = rng.integers(140, size=(16, 16, 3))
        pixels[..., number % 3] += 100
        Path("photos", name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(Path("photos", name, f"{number}.png"))
    small = ["--set", "size=16", "--set", "network=resnet20-cifar"]
    result = end_to_end("photos", *small, "--epochs", 1)
    assert result["facts"]["samples"] == 1601
    assert result["summary"]["set"] == "val"
    assert result["summary"]["best"] > 0.5
