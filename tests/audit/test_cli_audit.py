"""``ogc audit`` and ``ogc audit apply`` on small data of every kind."""

import csv
import dataclasses
import importlib
import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from typer.testing import CliRunner

import small_runs
from edited import edited
from ogc.audit import run as audit_of
from ogc.audit.run import audit_run, findings_of
from ogc.cli.app import build
from ogc.cli.audit import sentences, worst_table
from ogc.report.report import write_report
from ogc.training import session, train
from ogc.training.run_folder import SAMPLES, read_tensors
from ogc.training.source import ONLY_ADDED

FILES = ["audit.html", "audit.json", "issues.csv", "issues.parquet", "labels_fixed.csv"]
NAMES = ["plain", "with, comma", '"quoted"']


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def ogc(*arguments):
    result = CliRunner().invoke(build(), list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def works(*arguments):
    result = ogc(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def fails(code, message, *arguments):
    result = ogc(*arguments)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def rows(path, delimiter=","):
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def write_table(path="t.csv", n=240, seed=0):
    """Write informative numbers, missing cells, and cells with commas and quotes. Every sixth label is wrong."""
    draw = np.random.default_rng(seed)
    true = draw.integers(3, size=n)
    given = np.where(np.arange(n) % 6 == 0, (true + 1) % 3, true)
    columns = {"customer": [f"=c{i}" for i in range(n)]}
    for k in range(4):
        values = draw.normal(size=n) + 3 * (true == k % 3)
        columns[f"f{k}"] = ["" if draw.random() < 0.05 else f"{value:.3f}" for value in values]
    columns["note"] = [draw.choice(["a, b", 'say "x"', "two\nlines", "<b>"]) for _ in range(n)]
    columns["kind"] = [NAMES[i] for i in given]
    columns["truth"] = [NAMES[i] for i in true]
    if Path(path).suffix == ".parquet":
        parquet.write_table(pa.table(columns), path)
    else:
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if Path(path).suffix == ".tsv" else ",")
            writer.writerows([columns, *zip(*columns.values(), strict=True)])
    return given, true


TABLE = ["--label", "kind", "--true", "truth", "--id", "customer", "--epochs", "12", "--set", "hidden=16"]
TABLE += ["--set", "batch_size=32"]


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    """A table with every sixth label wrong, and an audited run on it."""
    folder = tmp_path_factory.mktemp("table")
    before = Path.cwd()
    os.chdir(folder)
    try:
        write_table()
        output = works("audit", "--table", "t.csv", *TABLE)
    finally:
        os.chdir(before)
    return folder, output


@pytest.fixture
def table(table_run, tmp_path):
    """A copy of ``table_run`` in the working directory."""
    shutil.copytree(table_run[0], tmp_path, dirs_exist_ok=True)
    run = Path("runs/t-ce+ogc-0")
    for path in (run / "run.json", run / "audit/audit.json"):  # contain absolute paths
        path.write_text(path.read_text().replace(str(table_run[0]), str(tmp_path)))
        edited(path)
    return run


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("digits") / "run"
    works("train", "digits", "--noise", "pairflip:0.2", "--epochs", "12", "--set", "hidden=32", "--out", out)
    return out


@pytest.fixture
def digits(digits_run, tmp_path):
    return Path(shutil.copytree(digits_run, "digits-run"))


# --- the audit -------------------------------------------------------------------------------------------------------


def test_noise_rate_is_reported_as_unreliable_after_short_training(tmp_path):
    output = works("train", "digits", "--noise", "pairflip:0.2", "--epochs", "2", "--out", tmp_path / "run")
    why = "The estimated noise rate is unreliable, because training was too short"
    assert f"Note: {why}" in output
    output = works("audit", tmp_path / "run")
    summary = json.loads((tmp_path / "run/audit/audit.json").read_bytes())
    assert summary["noise_rate"] == summary["issues"] / summary["samples"]
    assert summary["unreliable"].startswith(why)
    assert summary["unreliable"] in " ".join(output.split())
    assert summary["memorised_from"] is None
    assert "unreliable" not in " ".join(sentences(summary | {"unreliable": None}))


def test_doubtful_suggestions_are_reported(table):
    """Columns that say nothing about the labels. A limit that keeps the more certain half is suggested."""
    draw = np.random.default_rng(0)
    np.savez("x.npz", X=draw.normal(size=(600, 8)), y=draw.integers(4, size=600))
    output = works("audit", "x.npz", "--out", "run")
    note = "Note: Applying all suggestions may make the labels worse."
    assert output.index(note) < output.index("To apply all suggestions: ogc audit apply run --out labels-fixed.npy")
    assert (
        '<p class="notice">Applying all suggestions may make the labels worse.'
        in Path("run/audit/audit.html").read_text()
    )
    tip = r"To apply only the (\d+) of (\d+) suggestions with a P\(wrong\) of at least (\S+), add --accept-above \3\."
    kept, issues, limit = re.search(tip, output).groups()
    assert int(issues) == json.loads(Path("run/audit/audit.json").read_bytes())["issues"]
    assert int(issues) / 2 <= int(kept) < int(issues)
    applied = works("audit", "apply", "run", "--accept-above", limit, "--out", "some.npy")
    assert f"some.npy: {kept} of 600 labels changed." in applied
    assert note not in works("audit", table), "easy to learn"


def test_long_training_is_not_reported_as_too_short(tmp_path):
    """Without clipping, nearly all wrong labels are memorised in the end."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(400, 20, generator=draw)
    true = (x[:, 0] > 0).long()
    given = torch.where(torch.rand(400, generator=draw) < 0.3, 1 - true, true)
    np.savez("x.npz", X=x.numpy(), y=given.numpy())
    output = works("train", "x.npz", "--method", "ce", "--val", "0", "--epochs", "100", "--out", tmp_path / "run")
    assert "Note: The network probably memorised wrong labels after epoch " in output
    assert "too short" not in output
    output = " ".join(works("audit", tmp_path / "run").split())
    summary = json.loads((tmp_path / "run/audit/audit.json").read_bytes())
    assert summary["surveys"][-1]["disagreement"] < 0.05, "memorised"
    assert summary["memorised_from"] is not None
    assert summary["unreliable"] is None
    assert f"From epoch {summary['memorised_from']} on, the network fits labels that it contradicted before" in output
    assert "Training for more epochs would not help" in output
    assert "too short" not in output
    assert 0.15 < summary["noise_rate"] < 0.45, "memorisation has not erased the estimate"


def test_a_class_that_was_not_learned_is_reported(tmp_path):
    """Of 3,000 rows, 1 % belong to the class 1, and a twentieth of all labels are wrong."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 8, generator=draw)
    true = (x[:, 0] + 0.3 * torch.randn(3000, generator=draw) > 2.4).long()
    given = torch.where(torch.rand(3000, generator=draw) < 0.05, 1 - true, true)
    np.savez("x.npz", X=x.numpy(), y=given.numpy())
    output = " ".join(works("audit", "x.npz", "--set", "hidden=64", "--out", tmp_path / "run").split())
    labels = int(given.sum())
    assert f"Note: The network rejects almost all labels of the class 1 ({labels})." in output
    assert f"They include almost all labels of the class 1 ({labels})." in output
    assert output.count("Training for more epochs or with --method ce may help.") == 2
    summary = json.loads((tmp_path / "run/audit/audit.json").read_bytes())
    assert summary["unlearned"] == {"1": labels}
    assert f"include almost all labels of the class 1 ({labels})" in (tmp_path / "run/audit/audit.html").read_text()
    doubtful = " ".join(sentences(summary | {"memorised_from": 24, "unreliable": "Train for more epochs."}))
    assert "almost all labels of the class 1" in doubtful
    assert "fits labels that it contradicted before" not in doubtful
    assert "Training for" not in doubtful
    assert doubtful.endswith("Train for more epochs."), "one piece of advice is enough"


def test_noise_rate_is_the_same_everywhere(tmp_path):
    from ogc.report.report import headline, noise_sentences
    from ogc.training.run_folder import read

    output = works("train", "digits", "--noise", "symmetric:0.4", "--epochs", "8", "--out", tmp_path / "run")
    audit_output = " ".join(works("audit", tmp_path / "run").split())
    summary = json.loads((tmp_path / "run/audit/audit.json").read_bytes())
    result = json.loads((tmp_path / "run/result.json").read_bytes())
    run = read(tmp_path / "run")
    assert summary["noise_rate"] == result["noise_rate"] == result["surveys"][-1]["noise_rate"]
    rate = f"{100 * summary['noise_rate']:.1f}"
    assert f"{rate}/" in output, "the table at the end of ogc train"
    assert f"an estimated noise rate of {rate} %" in audit_output
    assert (f"{rate} %", "of the labels wrong (estimate)") in headline(run)
    assert f"An estimated {rate} % of the labels are wrong" in noise_sentences(run)[0]


def test_trains_on_and_audits_a_table(table_run):
    folder, output = table_run
    audit = folder / "runs/t-ce+ogc-0/audit"
    assert sorted(path.name for path in audit.iterdir()) == FILES
    summary = json.loads((audit / "audit.json").read_bytes())
    assert (summary["samples"], summary["splits"]) == (240, {"train": 240})
    assert summary["true_noise_rate"] == pytest.approx(1 / 6)
    assert summary["measures"]["auroc"] > 0.9
    assert f"{summary['issues']} of 240 labels are probably wrong" in output
    assert "AUROC 0.9" in output
    assert "with, comma" in output
    assert "Note: 240 ids or classes look like formulas, for example '=c0'." in " ".join(output.split())
    assert "ogc audit apply runs/t-ce+ogc-0 --out t-fixed.csv" in output
    worst = rows(audit / "issues.csv")
    assert all(name in output for name in [row["id"] for row in worst[:5]])
    placed = [(row["is_label_issue"] != "True", float(row["label_score"])) for row in worst]
    assert placed == sorted(placed), "issues first"
    fixed, original = rows(audit / "labels_fixed.csv"), rows(folder / "t.csv")
    assert [row["id"] for row in fixed] == [row["customer"] for row in original]
    assert [row["given_label"] for row in fixed] == [row["kind"] for row in original]
    before, after = (
        sum(row[k] != o["truth"] for row, o in zip(fixed, original, strict=True)) for k in ("given_label", "label")
    )
    assert after < before / 2


def test_findings_contain_the_rows_of_the_table(table):
    found = findings_of(table)
    for i, row in enumerate(rows("t.csv")):
        assert {name: cells[i] for name, cells in found.columns.items()} == {n: cell.strip() for n, cell in row.items()}
        assert found.image(i) is None


def test_split_table_is_audited_in_its_original_order():
    given, true = write_table()
    works("train", "t.csv", *TABLE, "--val", "0.3", "--out", "run")
    found = findings_of(Path("run"))
    assert found.issues.given_label.tolist() == [sorted(NAMES).index(NAMES[i]) for i in given]
    assert found.true.tolist() == [sorted(NAMES).index(NAMES[i]) for i in true]
    assert list(found.ids) == [f"=c{i}" for i in range(240)]
    assert found.splits.count("val") == 72
    assert found.columns["customer"][17] == "=c17"
    samples, _ = read_tensors(Path("run") / SAMPLES)
    for name in ("train", "val"):  # the survey of each part belongs to its samples
        chosen = torch.tensor([split == name for split in found.splits])
        assert torch.equal(found.issues.label_score[chosen], samples[f"survey.{name}.margin"].double().sigmoid())


@pytest.mark.filterwarnings("always")  # as outside tests
def test_duplicate_ids_get_a_row_number():
    write_table()
    text = Path("t.csv").read_text().replace("=c7,", "=c8,").replace("=c9,", ",")
    Path("t.csv").write_text(text.replace("=c10,", ","))
    output = works("audit", "--table", "t.csv", *TABLE, "--out", "run")
    assert "2 ids occur more than once" in output
    ids = [row["id"] for row in rows("run/audit/labels_fixed.csv")]
    assert ids[6:12] == ["=c6", "=c8 (row 8)", "=c8 (row 9)", " (row 10)", " (row 11)", "=c11"]
    assert len(set(ids)) == 240


def test_audit_of_digits_run(digits):
    output = works("audit", digits)
    summary = json.loads((digits / "audit/audit.json").read_bytes())
    assert summary["run"]["recipe"]["noise"] == "pairflip:0.2"
    assert summary["measures"]["auroc"] > 0.95
    assert "Compared with the true labels: AUROC" in output
    assert f"ogc audit apply {digits} --out labels-fixed.npy" in " ".join(output.split())
    found = findings_of(digits)
    image = found.image(3)
    assert (image.dtype, image.shape) == (torch.uint8, (1, 8, 8))
    assert found.key == summary["key"]
    assert works("audit", digits) == output  # can be repeated


def test_report_shows_audit_command(digits):
    write_report(digits)
    assert f"ogc audit {digits}" in (digits / "report.html").read_text()


@pytest.fixture
def photos():
    """Images bright in the channel of their class, of two sizes. Some are in the wrong folder."""
    draw = np.random.default_rng(0)
    for i in range(60):
        true, size = i % 3, (20, 30) if i % 2 else (80, 70)
        given = (true + 1) % 3 if i % 10 == 0 else true
        pixels = draw.integers(0, 120, (*size, 3))
        pixels[..., true] += 120
        path = Path("photos", ["blue", "green", "red"][given], "deep" if i % 4 == 0 else "", f"{i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype("uint8")).save(path)
    return Path("photos")


FOLDER = ["--epochs", "4", "--set", "size=8", "--set", "batch_size=16", "--set", "augment=none"]


def test_audits_a_folder_and_lists_files_to_move(photos):
    output = works("audit", "--folder", photos, *FOLDER)
    run = Path("runs/photos-ce+ogc-0")
    assert "To list the files to move: ogc audit apply runs/photos-ce+ogc-0 --out photos-moves.csv" in output
    fixed = rows(run / "audit/labels_fixed.csv")
    paths = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    assert [row["id"] for row in fixed] == paths
    assert all(row["id"].split("/")[0] == row["given_label"] for row in fixed)
    found = findings_of(run)
    assert found.image(0).shape == (3, 64, 64)
    assert not found.columns
    (photos / found.ids[0]).write_bytes(b"")
    assert found.image(0) is None
    # Accept two suggestions. The new path of one is already taken.
    one, other = fixed[0], fixed[1]
    target = "red/" + other["id"].split("/", 1)[1]
    (photos / target).parent.mkdir(exist_ok=True)
    (photos / target).write_bytes(b"taken")
    Path("d.csv").write_text(
        "id,decision,given_label,suggested_label\n"
        f"{one['id']},accept,{one['given_label']},green\n{other['id']},accept,{other['given_label']},red\n"
    )
    before = sorted(path.relative_to(photos) for path in photos.rglob("*"))
    output = works("audit", "apply", run, "--decisions", "d.csv", "--out", "moves.csv")
    assert "moves.csv: 2 of 60 files to move" in output
    stem = target.removesuffix(".png")
    moved = [
        {"from": one["id"], "to": one["id"].replace("blue", "green", 1)},
        {"from": other["id"], "to": f"{stem}-2.png"},
    ]
    assert rows("moves.csv") == moved
    assert sorted(path.relative_to(photos) for path in photos.rglob("*")) == before
    fails(2, "outside of", "audit", "apply", run, "--out", photos / "moves.csv")
    fails(2, "a .csv file", "audit", "apply", run, "--out", "moves.npy")
    (photos / one["id"]).unlink()
    fails(1, f"{one['id']} is missing", "audit", "apply", run, "--decisions", "d.csv", "--out", "again.csv")


def test_copies_a_folder_with_files_under_their_new_labels(photos, monkeypatch):
    (photos / "notes.txt").write_text("beside the classes")
    (photos / "same.txt").symlink_to("notes.txt")
    Path("secret.txt").write_text("of somebody else")
    (photos / "other.txt").symlink_to(Path("secret.txt").absolute())
    output = works("audit", photos, *FOLDER)
    run = Path("runs/photos-ce+ogc-0")
    assert "ogc audit apply runs/photos-ce+ogc-0 --copy photos-fixed" in output
    fixed = rows(run / "audit/labels_fixed.csv")
    one, other = (next(row for row in fixed if row["given_label"] == name) for name in ("blue", "red"))
    Path("d.csv").write_text(
        "id,decision,given_label,suggested_label\n"
        f"{one['id']},accept,blue,red\n{other['id']},accept,red,green\n{fixed[1]['id']},keep,blue,green\n"
    )

    def files(folder):
        paths = (path for path in Path(folder).rglob("*") if path.is_file() and path.name != "other.txt")
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}

    before = files(photos)
    apply = ["audit", "apply", run, "--decisions", "d.csv"]
    output = works(*apply, "--copy", "new/photos")
    assert "new/photos: 62 files copied, 2 of 60 images with a new label." in output
    moved = {one["id"]: one["id"].replace("blue", "red", 1), other["id"]: other["id"].replace("red", "green", 1)}
    assert files("new/photos") == {moved.get(name, name): content for name, content in before.items()}
    assert files(photos) == before
    assert not any(path.is_symlink() or path.name == "other.txt" for path in Path("new").rglob("*"))
    assert [path.name for path in Path("new").iterdir()] == ["photos"]
    works("train", "new/photos", *FOLDER, "--out", "again")

    fails(2, "Parameter `--copy` should be a new folder: nothing is overwritten.", *apply, "--copy", "new/photos")
    fails(2, "outside of", *apply, "--copy", photos / "fixed")
    fails(2, "Pass either --out FILE or --copy DIR, and not both", *apply)
    fails(2, "Pass either --out FILE or --copy DIR, and not both", *apply, "--copy", "x", "--out", "x.csv")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copystat", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert ogc(*apply, "--copy", "stopped").exit_code == 130
    assert not [path for path in Path().iterdir() if "stopped" in path.name]
    (photos / other["id"]).unlink()
    fails(1, f"{other['id']} is missing", *apply, "--copy", "late")
    assert not [path for path in Path().iterdir() if "late" in path.name]


def test_folder_with_its_own_split(photos):
    shutil.move(photos, "old")
    for name in ("train", "val"):
        shutil.copytree("old", photos / name)
    works("audit", "--folder", photos, *FOLDER, "--out", "run")
    fixed = rows("run/audit/labels_fixed.csv")
    assert {row["id"].split("/")[0] for row in fixed} == {"train", "val"}
    assert {row["split"] for row in rows("run/audit/issues.csv")} == {"train", "val"}
    row = next(row for row in fixed if row["id"].startswith("val/blue"))
    Path("d.csv").write_text(f"id,decision,given_label,suggested_label\n{row['id']},accept,blue,red\n")
    works("audit", "apply", "run", "--decisions", "d.csv", "--out", "moves.csv")
    assert rows("moves.csv") == [{"from": row["id"], "to": row["id"].replace("blue", "red", 1)}]


def test_renamed_or_moved_files_are_detected(photos):
    shutil.move(photos, "old")
    for name in ("train", "val"):
        shutil.copytree("old", photos / name)
    works("audit", "--folder", photos, *FOLDER, "--out", "run")
    one = min((photos / "train/red").glob("*.png"))
    one.rename(one.with_name("zz.png"))
    fails(2, "has changed since training (ids of train)", "audit", "run")
    one.with_name("zz.png").rename(one)
    blue, red = (min((photos / "val" / name).glob("*.png")) for name in ("blue", "red"))
    blue.rename(photos / "val/red/aa.png")
    red.rename(photos / "val/blue/zz.png")
    fails(2, "has changed since training (ids of val)", "audit", "run")


def test_folder_named_like_a_dataset(photos):
    shutil.move(photos, "digits")
    works("audit", "--folder", "digits", *FOLDER, "--out", "run")
    assert json.loads(Path("run/run.json").read_bytes())["source"]["kind"] == "folder"


def test_audit_of_data_from_python():
    job = small_runs.job(Path("run"))
    train([job])
    fails(2, "came from Python. Pass it to the audit: ogc.audit.run.audit_run('run', (train, sets))", "audit", "run")
    found = audit_run("run", job.data)
    assert list(found.ids) == job.data[0].ids
    assert sorted(path.name for path in Path("run/audit").iterdir()) == FILES
    works("audit", "apply", "run", "--out", "fixed.npy")
    assert np.array_equal(np.load("fixed.npy"), found.issues.suggested_label.numpy())


def test_audit_of_the_training_set_alone():
    job = small_runs.job(Path("run"))
    train_set, sets = job.data
    train([job._replace(data=(train_set, {"val": sets["again"]}))])
    assert len(audit_run("run", (train_set, {})).ids) == len(train_set)


def test_audit_of_images_and_network_from_python():
    job = small_runs.job(Path("run"), net=small_runs.network())
    train([job])
    found = audit_run("run", job.data)
    assert all(torch.equal(found.image(i), job.data[0].inputs[i]) for i in range(80))
    assert torch.equal(found.true, job.data[0].true)
    other = small_runs.job(seed=5, n=70).data
    with pytest.raises(ValueError, match="has changed since training"):
        audit_run("run", other)


@pytest.mark.filterwarnings("always")
def test_unreadable_images(photos):
    (photos / "red/broken.png").write_bytes(b"")
    fails(1, "1 of 61 images cannot be read: `red/broken.png`.", "audit", "--folder", photos, *FOLDER)
    assert "of 60 labels" in works("audit", "--folder", photos, *FOLDER, "--skip-bad")


def test_runs_that_cannot_be_audited(digits):
    (digits / "result.json").rename("result.json")
    fails(2, f"is not finished. Resume it first: ogc train --resume {digits}", "audit", digits)
    (digits / "run.json").write_text("{}")
    fails(1, "run.json cannot be used: it has no checksum. Restore it", "audit", digits)
    works("train", "digits", "--epochs", "1", "--set", "surveys=0", "--set", "hidden=8", "--out", "none")
    fails(2, "has no surveys, which an audit needs. Train again with --set surveys=10", "audit", "none")


def test_too_large_data_are_rejected_before_training(photos, monkeypatch):
    write_table()
    monkeypatch.setattr(audit_of, "LARGEST", 3 * 60 - 1)
    fails(
        2,
        "photos has 60 samples and 3 classes. An audit is limited to a product of 179",
        "audit",
        "--folder",
        photos,
        *FOLDER,
    )
    fails(2, "t.csv has 240 samples and 3 classes", "audit", "--table", "t.csv", *TABLE)
    np.savez("a.npz", X=np.zeros((90, 2)), y=np.arange(90) % 3)
    fails(2, "a.npz has 90 samples and 3 classes", "audit", "a.npz", "--epochs", "1")
    assert not Path("runs").exists()
    (photos / "red/notes.txt").write_text("no image")
    monkeypatch.setattr(audit_of, "LARGEST", 3 * 60)
    works("audit", "--folder", photos, *FOLDER)


def test_interrupted_training_can_be_resumed_and_audited(monkeypatch):
    write_table()
    real = session.train
    stop = small_runs.StopAt(2, None, signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(session, "train", lambda jobs, **options: real(jobs, **options | {"watch": stop}))
        result = ogc("audit", "--table", "t.csv", *TABLE, "--out", "run")
    assert result.exit_code == 130, result.output
    assert result.stderr == "Stopped by SIGINT. Resume with: ogc train --resume run\nThen: ogc audit run\n"
    works("train", "--resume", "run")
    assert "of 240 labels are probably wrong" in works("audit", "run")


def test_only_the_first_process_audits(table, monkeypatch):
    shutil.rmtree(table / "audit")
    monkeypatch.setattr("ogc.cli.train.run", lambda request, console: None)
    audit = ("audit", "--table", "t.csv", *TABLE, "--out", "new")
    monkeypatch.setenv("RANK", "0")
    fails(1, "There is no folder new. Create a run with ogc train.", *audit)  # because nothing was trained
    monkeypatch.setenv("RANK", "1")
    assert works(*audit) == ""
    monkeypatch.setenv("RANK", "3")
    assert works("audit", table) == ""
    assert not (table / "audit").exists()


def test_changed_data_are_rejected():
    write_table()
    works("audit", "--table", "t.csv", *TABLE, "--out", "run")
    before = Path("t.csv").read_bytes()
    write_table(seed=1)
    fails(2, "has changed since training (labels of train). Train again", "audit", "run")
    Path("t.csv").write_bytes(before.replace(b"with, comma", b"with, Comma"))
    fails(2, "has changed since training (classes of train)", "audit", "run")
    Path("t.csv").write_bytes(before)
    works("audit", "run")


def swap_rows(at, other):
    """Swap two rows of the table."""
    lines = rows("t.csv")
    assert lines[at]["kind"] == lines[other]["kind"]
    lines[at], lines[other] = lines[other], lines[at]
    with Path("t.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)


def two_rows_of_one_class():
    kinds = [row["kind"] for row in rows("t.csv")]
    return 0, kinds.index(kinds[0], 1)


def test_rows_swapped_within_a_class_are_detected(table):
    swap_rows(*two_rows_of_one_class())
    fails(1, "t.csv` has changed since it was audited", "audit", "apply", table, "--out", "f.csv")
    fails(2, "has changed since training (ids of train)", "audit", table)
    assert not Path("f.csv").exists()


def test_swapped_rows_without_ids_are_detected():
    write_table()
    works("audit", "--table", "t.csv", "--label", "kind", "--epochs", "1", "--out", "run")
    swap_rows(*two_rows_of_one_class())
    fails(2, "has changed since training (file)", "audit", "run")
    fails(1, "t.csv` has changed since it was audited", "audit", "apply", "run", "--out", "f.csv")


def test_reordered_fixed_labels_are_rejected(table):
    path = table / "audit/labels_fixed.csv"
    lines = path.read_text().splitlines(keepends=True)
    at, other = two_rows_of_one_class()
    lines[at + 1], lines[other + 1] = lines[other + 1], lines[at + 1]
    path.write_text("".join(lines))
    fails(1, "labels_fixed.csv has changed since audit.json was written", "audit", "apply", table, "--out", "f.csv")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            [],
            2,
            "The argument `RUN|DATA` is missing. Give the folder of a finished run, a table, a folder of images or",
        ),
        (["t.csv", "--folder", "x"], 2, "should be one path"),
        (["nowhere"], 2, "or the folder of a finished run of ogc train. Found `RUN|DATA = 'nowhere'`."),
        (
            ["digits"],
            2,
            "Parameter `RUN|DATA` should be an existing folder of images, table or .npz file, or the folder of a",
        ),
        (["empty"], 1, "empty` should have one sub-folder of images for each class."),
        (
            ["x.npy"],
            2,
            "Parameter `RUN|DATA` should be an existing folder of images, table or .npz file, or the folder of a",
        ),
        (
            ["t.csv"],
            2,
            "The column with the labels is missing. Give it with --label (label=... in Python). `t.csv` has `",
        ),
        (["t.csv", "--label", "kind", "--method", "cee"], 2, "There is no method named 'cee'. Did you mean ce"),
        (
            ["folder", "--id", "x"],
            2,
            "Parameter `--id` cannot be used with a folder of images. It is only for a table.",
        ),
        (["--folder", "nowhere"], 1, "There is no folder `nowhere`."),
        (["--table", "nowhere.csv", "--label", "y"], 1, "There is no `nowhere.csv`."),
        (["--table", "x.npz", "--label", "y"], 2, "Parameter `--table` should be a file that ends in one of .csv"),
        (["--table", "t.csv"], 2, "The column with the labels is missing."),
        (["--table", "t.csv", "--label", "nope"], 1, "has no column `nope`"),
        (["--table", "t.csv", "--label", "kind", "--set", "surveys=0"], 2, "Parameter `surveys` should be above 0"),
        (["--folder", ".", "--label", "kind"], 2, "Parameter `--label` cannot be used with a folder of images."),
    ],
)
def test_invalid_arguments_fail_before_training(arguments, code, message):
    write_table()
    Path("empty").mkdir()
    Path("folder/class").mkdir(parents=True)
    Path("x.npy").touch()
    fails(code, message, "audit", *arguments)
    assert not Path("runs").exists()


def test_training_options_are_rejected_for_a_run(digits):
    fails(2, "Parameter `--epochs` cannot be combined with a run, which is already", "audit", digits, "--epochs", "3")
    fails(2, "Parameter `--set` cannot be combined with a run", "audit", digits, "--set", "lr=1")
    fails(2, "Parameter `--method` cannot be combined with a run", "audit", digits, "--method", "ce")


def test_help_has_examples_of_audit_and_apply():
    output = works("audit", "--help")
    assert "audit [OPTIONS]" in output
    assert "audit --help' for help" in ogc("audit", "--unknown").stderr
    assert "ogc audit customers.csv --label churned --id customer" in output
    assert "ogc audit apply runs/customers-ce+ogc-0 --out customers-fixed.csv" in output
    assert "--skip-bad" in output
    output = works("audit", "apply", "--help")
    assert "--decisions" in output
    assert "ogc audit apply runs/digits" in output
    assert "ogc audit apply runs/photos --decisions mine.csv --copy photos-fixed" in output


def test_kind_of_input_is_detected(photos):
    write_table()
    works("audit", "t.csv", *TABLE, "--method", "gce+ogc")
    summary = json.loads(Path("runs/t-gce+ogc-0/audit/audit.json").read_bytes())
    assert (summary["run"]["source"]["kind"], summary["run"]["recipe"]["method"]) == ("table", "gce+ogc")
    assert summary["splits"] == {"train": 240}
    works("audit", photos, *FOLDER)
    assert len(rows("runs/photos-ce+ogc-0/audit/issues.csv")) == 60
    labels = np.arange(120) % 3
    write_arrays(labels)
    output = works("audit", "a.npz", "--epochs", "4", "--set", "hidden=8")
    assert len(rows("runs/a-ce+ogc-0/audit/issues.csv")) == 120
    assert "ogc audit apply runs/a-ce+ogc-0 --out labels-fixed.npy" in output
    works("audit", "runs/a-ce+ogc-0")  # a run, although it has sub-folders


def test_worst_table_lists_only_issues(digits):
    found = findings_of(digits)
    issues = found.issues
    worst = [i for i in issues.worst_first.tolist() if issues.is_label_issue[i]]
    [ids, given, suggested] = (list(column.cells) for column in worst_table(found).columns[:3])
    assert [str(cell) for cell in ids] == [found.ids[i] for i in worst[:5]]
    assert all(str(one) != str(other) for one, other in zip(given, suggested, strict=True))
    few = torch.zeros(len(issues), dtype=torch.bool)
    few[issues.worst_first[[2, 7]]] = True
    fewer = dataclasses.replace(found, issues=dataclasses.replace(issues, is_label_issue=few))
    assert [str(cell) for cell in worst_table(fewer).columns[0].cells] == [
        found.ids[i] for i in issues.worst_first[[2, 7]].tolist()
    ]


# --- ogc audit apply -------------------------------------------------------------------------------------------------


def test_apply_copies_a_table_with_changed_labels(table):
    before = Path("t.csv").read_bytes()
    output = works("audit", "apply", table, "--out", "new/fixed.csv")
    issues = json.loads((table / "audit/audit.json").read_bytes())["issues"]
    assert f"new/fixed.csv: {issues} of 240 labels changed." in output
    fixed = rows(table / "audit/labels_fixed.csv")
    assert rows("new/fixed.csv") == [
        row | {"kind": new["label"]} for row, new in zip(rows("t.csv"), fixed, strict=True)
    ]
    assert Path("t.csv").read_bytes() == before
    works("train", "new/fixed.csv", *TABLE, "--epochs", "1", "--out", "again")


def test_apply_reports_a_class_without_labels_left(table, monkeypatch):
    kinds = [row["kind"] for row in rows("t.csv")]
    lost, other = sorted(set(kinds))[:2]
    labels = [other if kind == lost else kind for kind in kinds]
    monkeypatch.setattr(importlib.import_module("ogc.audit.apply"), "decided", lambda *_: labels)
    note = f"Note: This changed all labels of the class {lost} ({kinds.count(lost)})."
    assert note in " ".join(works("audit", "apply", table, "--out", "fixed.csv").split())
    Path("d.csv").write_text("id,decision\n")
    decided = works("audit", "apply", table, "--decisions", "d.csv", "--out", "again.csv")
    assert note not in " ".join(decided.split())


def test_apply_changes_only_accepted_labels(table):
    worst = rows(table / "audit/issues.csv")
    chosen = {"accept": worst[0], "keep": worst[1], "skip": worst[2]}
    with Path("d.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "decision", "given_label", "suggested_label"])
        for decision, row in chosen.items():
            writer.writerow([row["id"], decision, row["given_label"], row["predicted_label"]])
    works("audit", "apply", table, "--decisions", "d.csv", "--out", "fixed.csv")
    changed = [
        (new["customer"], new["kind"]) for old, new in zip(rows("t.csv"), rows("fixed.csv"), strict=True) if old != new
    ]
    assert changed == [(worst[0]["id"], worst[0]["predicted_label"])]

    # Also accept likely suggestions, except those that were kept or skipped.
    issues = [row for row in worst if row["is_label_issue"] == "True"]
    probabilities = sorted(float(row["wrong_probability"]) for row in issues)
    middle = probabilities[len(probabilities) // 2]
    likely = {row["id"]: row["predicted_label"] for row in issues if float(row["wrong_probability"]) >= middle}
    assert 3 < len(likely) < len(issues)
    for extra, expected in (
        ((), likely),
        (("--decisions", "d.csv"), {**likely, worst[0]["id"]: worst[0]["predicted_label"]}),
    ):
        works("audit", "apply", table, *extra, "--accept-above", middle, "--out", f"likely{len(extra)}.csv")
        pairs = zip(rows("t.csv"), rows(f"likely{len(extra)}.csv"), strict=True)
        decided = {worst[1]["id"], worst[2]["id"]} if extra else set()
        wanted = {id: name for id, name in expected.items() if id not in decided}
        assert {new["customer"]: new["kind"] for old, new in pairs if old != new} == wanted
    assert likely.keys() & decided
    result = ogc("audit", "apply", table, "--accept-above", "50", "--out", "no.csv")
    assert result.exit_code == 2
    assert "Parameter `--accept-above` should be a probability in [0, 1]. Found `--accept-above 50.0`." in result.stderr


def test_original_is_never_overwritten(table):
    before = Path("t.csv").read_bytes()
    Path("soft.csv").symlink_to("t.csv")
    os.link("t.csv", "hard.csv")
    Path("d.csv").write_text("id,decision,given_label,suggested_label\n")
    for out in ("t.csv", "../" + Path.cwd().name + "/t.csv", "soft.csv", "hard.csv", "d.csv"):
        fails(
            2,
            "Parameter `--out` should be a new file",
            "audit",
            "apply",
            table,
            "--decisions",
            "d.csv",
            "--out",
            out,
        )
    fails(2, "outside of", "audit", "apply", table, "--out", table / "audit/issues.csv")
    fails(2, "a .csv file, like", "audit", "apply", table, "--out", "t.tsv")
    fails(
        2,
        "of images are copied. Use --out (out=... in Python). Found `--copy 'new'`.",
        "audit",
        "apply",
        table,
        "--copy",
        "new",
    )
    assert Path("t.csv").read_bytes() == before
    assert Path("soft.csv").is_symlink()


def test_existing_files_are_not_overwritten(table):
    Path("mine.csv").write_text("corrected by hand")
    Path("loose.csv").symlink_to("nowhere.csv")
    for name in ("mine.csv", "loose.csv"):
        fails(2, "Parameter `--out` should be a new file", "audit", "apply", table, "--out", name)
    assert Path("mine.csv").read_text() == "corrected by hand"
    assert Path("loose.csv").is_symlink()


def test_apply_rejects_a_changed_original(table):
    text = Path("t.csv").read_text()
    lines = rows("t.csv")
    Path("t.csv").write_text(text[: text.index("=c239")])
    fails(1, "t.csv` has changed since it was audited.", "audit", "apply", table, "--out", "f.csv")
    new = next(name for name in NAMES if name != lines[0]["kind"])
    with Path("t.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows([lines[0] | {"kind": new}, *lines[1:]])
    fails(1, "t.csv` has changed since it was audited.", "audit", "apply", table, "--out", "f.csv")
    assert not Path("f.csv").exists()


def test_decisions_of_another_audit_are_rejected(table):
    row = rows(table / "audit/issues.csv")[0]
    other = next(name for name in ("plain", "with, comma") if name != row["given_label"])
    Path("d.csv").write_text(f'id,decision,given_label,suggested_label\n{row["id"]},accept,"{other}","{other}"\n')
    fails(
        1,
        "d.csv, line 2: `given_label` should be ",
        "audit",
        "apply",
        table,
        "--decisions",
        "d.csv",
        "--out",
        "f.csv",
    )
    fails(
        1,
        "Cannot use no.csv: No such file or directory. Check the path.",
        "audit",
        "apply",
        table,
        "--decisions",
        "no.csv",
        "--out",
        "f.csv",
    )
    assert not Path("f.csv").exists()


def test_audit_of_a_different_run_is_rejected(digits):
    works("audit", digits)
    edited(digits / "run.json", id="another")
    fails(1, "belongs to a different run than", "audit", "apply", digits, "--out", "f.npy")


@pytest.mark.parametrize("suffix", ["tsv", "parquet"])
def test_apply_to_other_table_formats(suffix):
    write_table(f"t.{suffix}")
    works("audit", "--table", f"t.{suffix}", *TABLE, "--out", "run")
    works("audit", "apply", "run", "--out", f"f.{suffix}")
    labels = [row["label"] for row in rows("run/audit/labels_fixed.csv")]
    assert any(row["changed"] == "True" for row in rows("run/audit/labels_fixed.csv"))
    if suffix == "parquet":
        old, new = parquet.read_table("t.parquet"), parquet.read_table("f.parquet")
        assert new.column("kind").to_pylist() == labels
        assert new.drop(["kind"]).equals(old.drop(["kind"]))
        assert new.schema.equals(old.schema, check_metadata=True)
    else:
        old, new = (rows(name, "\t") for name in ("t.tsv", "f.tsv"))
        assert new == [row | {"kind": label} for row, label in zip(old, labels, strict=True)]


def test_fixed_labels_of_digits_can_be_trained_on(digits):
    Path("customers.csv").write_text("a,label\n1,x\n")
    for path in ("nowhere", "customers.csv", "."):
        why = f"There is no run in {path}. Pass the folder of a run that ogc audit has audited."
        fails(1, why, "audit", "apply", path, "--out", "f.npy")
    fails(1, f"{digits} has no audit. To make one: ogc audit {digits}.", "audit", "apply", digits, "--out", "f.npy")
    works("audit", digits)
    for name in ("f.npy", "f.csv"):
        output = works("audit", "apply", digits, "--out", name)
        assert f"To train on them, add --labels {name} to ogc train" in output
        works("train", "digits", "--labels", name, "--epochs", "1", "--set", "hidden=8", "--out", f"after-{name}")
        facts = json.loads(Path(f"after-{name}/run.json").read_bytes())["facts"]
        summary = json.loads((digits / "audit/audit.json").read_bytes())
        assert facts["noise"]["rate_got"] == pytest.approx(summary["measures"]["wrong_after"])
    fails(2, "a .npy or .csv file of labels", "audit", "apply", digits, "--out", "f.txt")


@pytest.mark.parametrize("text", [False, True])
def test_fixed_labels_of_arrays_keep_their_dtype(text):
    given, _ = write_table()
    draw = np.random.default_rng(0)
    labels = np.array(["x", "yy", "zzz"])[given] if text else given * 10 + 5
    np.savez("a.npz", X=draw.normal(size=(240, 4)) + given[:, None] * 3, y=labels)
    works("train", "a.npz", "--val", "0.25", "--epochs", "2", "--set", "hidden=8", "--out", "run")
    works("audit", "run")
    row = rows("run/audit/labels_fixed.csv")[7]
    assert [row["id"], row["given_label"]] == ["7", str(labels[7])]
    other = next(str(value) for value in sorted(set(labels.tolist())) if value != labels[7])
    Path("d.csv").write_text(f"id,decision,given_label,suggested_label\n7,accept,{labels[7]},{other}\n")
    output = works("audit", "apply", "run", "--decisions", "d.csv", "--out", "f.npy")
    assert "f.npy: 1 of 240 labels changed." in output
    found = np.load("f.npy", allow_pickle=False)
    assert found.dtype == labels.dtype
    assert str(found[7]) == other
    assert np.array_equal(np.delete(found, 7), np.delete(labels, 7))
    works("train", "a.npz", "--labels", "f.npy", "--epochs", "1", "--set", "hidden=8", "--out", "again")


def write_arrays(labels, seed=0):
    draw = np.random.default_rng(seed)
    np.savez("a.npz", X=draw.normal(size=(len(labels), 4)) + 3 * labels[:, None], y=labels)


def test_changed_arrays_are_rejected():
    labels = np.arange(120) % 3
    write_arrays(labels)
    works("train", "a.npz", "--epochs", "2", "--set", "hidden=8", "--out", "run")
    works("audit", "run")
    apply = ["audit", "apply", "run", "--out", "f.npy"]
    write_arrays(labels, seed=1)
    fails(1, "a.npz` has changed since it was audited. Train and audit again.", *apply)
    for changed in (labels[::-1], labels % 2, labels[:90]):
        write_arrays(changed)
        fails(1, "a.npz` have changed. Train and audit again.", *apply)
    write_arrays(labels)
    works(*apply)


@pytest.mark.parametrize("name", ["t.csv", "a.npz"])
def test_apply_rejects_runs_with_added_noise(name):
    write_table()
    write_arrays(np.arange(120) % 3)
    options = ["--label", "truth", "--id", "customer"] if name == "t.csv" else []
    noise = ["--noise", "symmetric:0.2", "--epochs", "2", "--set", "hidden=8"]
    output = works("train", name, *options, *noise, "--out", "run")
    assert ONLY_ADDED in " ".join(output.split())
    output = works("audit", "run")
    assert "ogc audit apply" not in output
    assert "Compared with the true labels" in output
    assert ONLY_ADDED in " ".join(output.split())
    message = "symmetric:0.2 was added to the labels of run for training. Its data does not contain these labels"
    fails(2, message, "audit", "apply", "run", "--out", "f.npy")
