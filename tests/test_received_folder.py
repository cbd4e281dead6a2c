"""A folder from an untrusted source never runs code, whatever its files contain."""

import contextlib
import hashlib
import html
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edited import edited
from made_up_results import made_up
from ogc.audit.run import audit_run
from ogc.benchmark.plan import find
from ogc.benchmark.result import read_all, write
from ogc.cli.app import build
from ogc.report.report import write_report
from ogc.training import CheckpointError, Recipe, jobs_of, load_network, own_loss
from ogc.training.run_folder import RUN, read
from small_runs import StopAt

LOSS = """
from pathlib import Path
from torch import nn

Path(__file__).with_name("it ran").touch()


class Evil(nn.CrossEntropyLoss):
    def __init__(self):
        super().__init__()
"""
TRAIN = ("--noise", "symmetric:0.2", "--epochs", "3", "--set", "hidden=8")


@pytest.fixture(autouse=True)
def no_losses_allowed(monkeypatch):
    """Forget all losses, as in a new process."""
    monkeypatch.setattr(own_loss, "_allowed", {})
    monkeypatch.setattr(own_loss, "_modules", {})


def ogc(*words):
    result = CliRunner().invoke(build(), [str(word) for word in words], env={"COLUMNS": "500"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished and audited run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert ogc("train", "digits", *TRAIN, "--method", "ce", "--out", folder)[0] == 0
    assert ogc("audit", folder)[0] == 0
    return folder


@pytest.fixture(params=["with its checksum", "without a checksum"])
def received(request, finished, tmp_path, monkeypatch):
    """A finished and audited run whose ``run.json`` names a loss file in its folder. All checksums are valid."""
    folder = tmp_path / "received"
    shutil.copytree(finished, folder)
    (folder / "evil.py").write_text(LOSS)
    sha256 = hashlib.sha256(LOSS.encode()).hexdigest() if request.param == "with its checksum" else None
    method = {"method": f"{folder / 'evil.py'}:Evil", "method_sha256": sha256, "parameters": {}}
    edited(folder / RUN, lambda run: run["recipe"].update(method))
    monkeypatch.chdir(tmp_path)
    return folder


def ran(folder):
    return (folder / "it ran").exists()


def test_no_command_runs_the_loss(received):
    (received / "result.json").rename("result.json")  # so that training would resume
    code, output = ogc("train", "--resume", received)
    assert code != 0
    assert "If you trust the file, add --method" in output
    assert "cannot be used" not in output
    assert "\n" not in output.strip()
    assert not ran(received)
    (received.parent / "result.json").rename(received / "result.json")
    ogc("audit", received)
    ogc("audit", "apply", received, "--out", "fixed.npy")
    assert not ran(received)


def test_no_reading_function_runs_the_loss(received):
    for use in (read, write_report, load_network, audit_run, lambda folder: jobs_of([folder])):
        with contextlib.suppress(ValueError):
            use(received)
    assert not ran(received)


def test_loss_named_by_the_user_runs(tmp_path, monkeypatch):
    """It must be the loss that the run was trained with."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "evil.py"
    file.write_text(LOSS)
    monkeypatch.setattr("ogc.report.progress.Progress.moved", lambda self, run, **at: StopAt(2, 3).moved(run, **at))
    code, output = ogc("train", "digits", *TRAIN, "--method", "evil.py:Evil", "--out", "run")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert code == 143
    assert ran(tmp_path)
    command = output.partition("Resume with: ")[2].split("\n")[0]
    assert shlex.split(command) == ["ogc", "train", "--resume", "run", "--method", f"{file}:Evil"]
    monkeypatch.setattr(own_loss, "_allowed", {})
    assert "add --method" in ogc("train", "--resume", "run")[1]
    hint = "ogc train --resume run"  # without the loss: the folder, not the user, would name it
    for arguments in (["audit", "run"], ["train", "digits", *TRAIN, "--out", "run"]):
        assert ogc(*arguments)[1].splitlines()[0].endswith(f": {hint}")
    (tmp_path / "run/nonfinite.json").write_text("{}")
    with pytest.raises(CheckpointError, match=re.escape(f"({hint})")):
        read(Path("run"))
    report = html.unescape((tmp_path / "run/report.html").read_text())
    assert f">{hint}<" in re.sub("</?span[^>]*>", "", report)
    (tmp_path / "run/nonfinite.json").unlink()
    for other, words in (
        ("gce", "`--method` should be that of run"),
        ("evil.py:Other", "`--method` should be that of run"),
    ):
        assert words in ogc("train", "--resume", "run", "--method", other)[1]
    file.write_text(f"{LOSS}\n")
    assert "has changed since this run began" in ogc("train", "--resume", "run", "--method", "evil.py:Evil")[1]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "evil.py").write_text(LOSS)
    code, output = ogc("train", "--resume", "run", "--method", "elsewhere/evil.py:Evil")
    assert code == 0, output
    assert ogc("train", "digits", *TRAIN, "--method", "ce", "--out", "plain")[0] == 0
    assert "omitted with --resume" in ogc("train", "--resume", "plain", "--method", "elsewhere/evil.py:Evil")[1]


def test_reading_a_result_does_not_run_the_loss(tmp_path):
    (tmp_path / "evil.py").write_text(LOSS)
    path = write(tmp_path / "results", made_up(find("digits", ["ce"], ["symmetric:0.5"])[0]))
    method = f"{tmp_path / 'evil.py'}:Evil"
    for sha256 in (hashlib.sha256(LOSS.encode()).hexdigest(), None):
        change = {"method": method, "method_sha256": sha256, "parameters": {}}
        edited(path, lambda result, change=change: result["recipe"].update(change), method=method)
        read_all(path.parent)
        ogc("tables", "digits", "--results", path.parent)
        ogc("figures", "--results", path.parent, "--out", tmp_path / "figures")
        ogc("bench", "run", "digits", "--dry-run", "--out", path.parent)
    assert not ran(tmp_path)


def test_reading_a_recipe_does_not_run_the_loss(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(LOSS)
    (tmp_path / "recipe.toml").write_text('base = "digits"\nmethod = "evil.py:Evil"\n')
    code, output = ogc("train", "digits", "--recipe", "recipe.toml", "--print")
    assert code == 2
    assert "evil.py:Evil` is a loss from a file, which runs only if you name it yourself." in output
    with pytest.raises(ValueError, match="in Python call ogc"):
        Recipe(
            name="x",
            network="mlp",
            method="evil.py:Evil",
            epochs=1,
            batch_size=2,
            lr=1,
            weight_decay=0,
            schedule="constant",
        )
    assert not ran(tmp_path)
    assert ogc("train", "digits", "--recipe", "recipe.toml", "--method", "evil.py:Evil", "--print")[0] == 0
    assert ran(tmp_path)
