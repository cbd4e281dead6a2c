"""``ogc audit`` and ``ogc audit apply`` as a user types them, on small data of every kind."""

import csv
import dataclasses
import json
import os
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

FILES = ["audit.html", "audit.json", "issues.csv", "issues.parquet", "labels_fixed.csv"]
NAMES = ["plain", "with, comma", '"quoted"']


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def ogc(*arguments):
    result = CliRunner().invoke(build(), list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def works(*arguments):
    result = ogc(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def fails(code, sentence, *arguments):
    result = ogc(*arguments)
    assert result.exit_code == code, result.output
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def rows(path, delimiter=","):
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def a_table(path="t.csv", n=240, seed=0):
    """Numbers that tell the class, a category, missing cells, cells with commas and quotes; every sixth label wrong."""
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
        a_table()
        said = works("audit", "--table", "t.csv", *TABLE)
    finally:
        os.chdir(before)
    return folder, said


@pytest.fixture
def table(table_run, tmp_path):
    """A copy of it, here."""
    shutil.copytree(table_run[0], tmp_path, dirs_exist_ok=True)
    run = Path("runs/t-ce+ogc-0")
    for path in (run / "run.json", run / "audit/audit.json"):  # paths in them are absolute
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


def test_the_noise_rate_after_a_short_training_is_doubted(tmp_path):
    works("train", "digits", "--noise", "pairflip:0.2", "--epochs", "2", "--out", tmp_path / "run")
    said = works("audit", tmp_path / "run")
    told = json.loads((tmp_path / "run/audit/audit.json").read_bytes())
    assert told["noise_rate"] == told["issues"] / told["samples"]
    assert told["unsettled"]
    assert "The estimated rate is probably too high, because training was too short" in " ".join(said.split())
    assert told["memorised_from"] is None
    assert "too high" not in " ".join(sentences(told | {"unsettled": False}))


def test_a_long_training_is_not_called_too_short(tmp_path):
    """Two classes, a third of the labels wrong and no clipping: nearly all are memorised in the end."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(400, 20, generator=draw)
    true = (x[:, 0] > 0).long()
    given = torch.where(torch.rand(400, generator=draw) < 0.3, 1 - true, true)
    np.savez("x.npz", X=x.numpy(), y=given.numpy())
    works("train", "x.npz", "--method", "ce", "--val", "0", "--epochs", "100", "--out", tmp_path / "run")
    said = " ".join(works("audit", tmp_path / "run").split())
    told = json.loads((tmp_path / "run/audit/audit.json").read_bytes())
    assert told["surveys"][-1]["disagreement"] < 0.05, "memorised"
    assert told["memorised_from"] is not None
    assert not told["unsettled"]
    assert f"From epoch {told['memorised_from']} on, the network fits labels that it contradicted before" in said
    assert "Training for more epochs would not help" in said
    assert "too short" not in said
    assert 0.15 < told["noise_rate"] < 0.45, "memorisation has not erased the estimate"


def test_one_noise_rate_everywhere(tmp_path):
    from ogc.report.report import headline, noise_sentences
    from ogc.training.run_folder import read

    said = works("train", "digits", "--noise", "symmetric:0.4", "--epochs", "8", "--out", tmp_path / "run")
    audited = " ".join(works("audit", tmp_path / "run").split())
    told = json.loads((tmp_path / "run/audit/audit.json").read_bytes())
    result = json.loads((tmp_path / "run/result.json").read_bytes())
    run = read(tmp_path / "run")
    assert told["noise_rate"] == result["noise_rate"] == result["surveys"][-1]["noise_rate"]
    rate = f"{100 * told['noise_rate']:.1f}"
    assert f"{rate}/" in said, "the table at the end of ogc train"
    assert f"an estimated noise rate of {rate} %" in audited
    assert (f"{rate} %", "of the labels wrong (estimate)") in headline(run)
    assert f"An estimated {rate} % of the labels are wrong" in noise_sentences(run)[0]


def test_a_table_in_one_go(table_run):
    folder, said = table_run
    audit = folder / "runs/t-ce+ogc-0/audit"
    assert sorted(path.name for path in audit.iterdir()) == FILES
    told = json.loads((audit / "audit.json").read_bytes())
    assert (told["samples"], told["splits"]) == (240, {"train": 240})
    assert told["true_noise_rate"] == pytest.approx(1 / 6)
    assert told["measures"]["auroc"] > 0.9
    assert f"{told['issues']} of 240 labels are probably wrong" in said
    assert "AUROC 0.9" in said
    assert "with, comma" in said
    assert "Note: 240 ids or classes look like formulas, for example '=c0'." in " ".join(said.split())
    assert "ogc audit apply runs/t-ce+ogc-0 --out t-fixed.csv" in said
    worst = rows(audit / "issues.csv")
    assert all(name in said for name in [row["id"] for row in worst[:5]])
    assert [float(row["label_score"]) for row in worst] == sorted(float(row["label_score"]) for row in worst)
    fixed, original = rows(audit / "labels_fixed.csv"), rows(folder / "t.csv")
    assert [row["id"] for row in fixed] == [row["customer"] for row in original]
    assert [row["given_label"] for row in fixed] == [row["kind"] for row in original]
    before, after = (
        sum(row[k] != o["truth"] for row, o in zip(fixed, original, strict=True)) for k in ("given_label", "label")
    )
    assert after < before / 2


def test_rows_are_shown_as_they_stand(table):
    found = findings_of(table)
    for i, row in enumerate(rows("t.csv")):
        assert {name: cells[i] for name, cells in found.columns.items()} == {n: cell.strip() for n, cell in row.items()}
        assert found.image(i) is None


def test_a_split_table_is_put_together_in_its_order():
    given, true = a_table()
    works("train", "t.csv", *TABLE, "--val", "0.3", "--out", "run")
    found = findings_of(Path("run"))
    assert found.issues.given_label.tolist() == [sorted(NAMES).index(NAMES[i]) for i in given]
    assert found.true.tolist() == [sorted(NAMES).index(NAMES[i]) for i in true]
    assert list(found.ids) == [f"=c{i}" for i in range(240)]
    assert found.splits.count("val") == 72
    assert found.columns["customer"][17] == "=c17"
    samples, _ = read_tensors(Path("run") / SAMPLES)
    for name in ("train", "val"):  # what was asked of each part stands at its samples
        chosen = torch.tensor([split == name for split in found.splits])
        assert torch.equal(found.issues.label_score[chosen], samples[f"survey.{name}.margin"].double().sigmoid())


@pytest.mark.filterwarnings("always")  # as outside of tests
def test_ids_that_occur_twice_get_their_row():
    a_table()
    text = Path("t.csv").read_text().replace("=c7,", "=c8,").replace("=c9,", ",")
    Path("t.csv").write_text(text.replace("=c10,", ","))
    said = works("audit", "--table", "t.csv", *TABLE, "--out", "run")
    assert "2 ids occur more than once" in said
    ids = [row["id"] for row in rows("run/audit/labels_fixed.csv")]
    assert ids[6:12] == ["=c6", "=c8 (row 8)", "=c8 (row 9)", " (row 10)", " (row 11)", "=c11"]
    assert len(set(ids)) == 240


def test_a_run_on_digits(digits):
    said = works("audit", digits)
    told = json.loads((digits / "audit/audit.json").read_bytes())
    assert told["run"]["recipe"]["noise"] == "pairflip:0.2"
    assert told["measures"]["auroc"] > 0.95
    assert "Compared with the true labels: AUROC" in said
    assert f"ogc audit apply {digits} --out labels-fixed.npy" in " ".join(said.split())
    found = findings_of(digits)
    image = found.image(3)
    assert (image.dtype, image.shape) == (torch.uint8, (1, 8, 8))
    assert found.key == told["key"]
    assert works("audit", digits) == said  # as often as one likes


def test_the_report_says_how_to_audit(digits):
    write_report(digits)
    assert f"ogc audit {digits}" in (digits / "report.html").read_text()


@pytest.fixture
def photos():
    """Bright in the class's own channel, larger and smaller than they are trained on; some are in the wrong folder."""
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


def test_a_folder_in_one_go_and_its_list_of_moves(photos):
    said = works("audit", "--folder", photos, *FOLDER)
    run = Path("runs/photos-ce+ogc-0")
    assert "To list the files to move: ogc audit apply runs/photos-ce+ogc-0 --out photos-moves.csv" in said
    fixed = rows(run / "audit/labels_fixed.csv")
    there = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    assert [row["id"] for row in fixed] == there
    assert all(row["id"].split("/")[0] == row["given_label"] for row in fixed)
    found = findings_of(run)
    assert found.image(0).shape == (3, 64, 64)
    assert not found.columns
    (photos / found.ids[0]).write_bytes(b"")
    assert found.image(0) is None
    # two are accepted, one of them where its name is taken
    one, other = fixed[0], fixed[1]
    goal = "red/" + other["id"].split("/", 1)[1]
    (photos / goal).parent.mkdir(exist_ok=True)
    (photos / goal).write_bytes(b"taken")
    Path("d.csv").write_text(
        "id,decision,given_label,suggested_label\n"
        f"{one['id']},accept,{one['given_label']},green\n{other['id']},accept,{other['given_label']},red\n"
    )
    before = sorted(path.relative_to(photos) for path in photos.rglob("*"))
    said = works("audit", "apply", run, "--decisions", "d.csv", "--out", "moves.csv")
    assert "moves.csv: 2 of 60 files to move" in said
    stem = goal.removesuffix(".png")
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


def test_a_folder_is_copied_with_its_files_under_their_new_labels(photos, monkeypatch):
    (photos / "notes.txt").write_text("beside the classes")
    (photos / "same.txt").symlink_to("notes.txt")
    Path("secret.txt").write_text("of somebody else")
    (photos / "other.txt").symlink_to(Path("secret.txt").absolute())
    said = works("audit", photos, *FOLDER)
    run = Path("runs/photos-ce+ogc-0")
    assert "ogc audit apply runs/photos-ce+ogc-0 --copy photos-fixed" in said
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
    said = works(*apply, "--copy", "new/photos")
    assert "new/photos: 62 files copied, 2 of 60 images with a new label." in said
    moved = {one["id"]: one["id"].replace("blue", "red", 1), other["id"]: other["id"].replace("red", "green", 1)}
    assert files("new/photos") == {moved.get(name, name): content for name, content in before.items()}
    assert files(photos) == before
    assert not any(path.is_symlink() or path.name == "other.txt" for path in Path("new").rglob("*"))
    assert [path.name for path in Path("new").iterdir()] == ["photos"]
    works("train", "new/photos", *FOLDER, "--out", "again")

    fails(2, "Parameter `copy` should be a new folder: nothing is overwritten.", *apply, "--copy", "new/photos")
    fails(2, "outside of", *apply, "--copy", photos / "fixed")
    fails(2, "Pass either `out` or `copy`, and not both.", *apply)
    fails(2, "Pass either `out` or `copy`, and not both.", *apply, "--copy", "x", "--out", "x.csv")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copystat", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert ogc(*apply, "--copy", "stopped").exit_code == 130
    assert not [path for path in Path().iterdir() if "stopped" in path.name]
    (photos / other["id"]).unlink()
    fails(1, f"{other['id']} is missing", *apply, "--copy", "late")
    assert not [path for path in Path().iterdir() if "late" in path.name]


def test_a_folder_with_a_split_of_its_own(photos):
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


def test_files_that_changed_places_are_noticed(photos):
    shutil.move(photos, "old")
    for name in ("train", "val"):
        shutil.copytree("old", photos / name)
    works("audit", "--folder", photos, *FOLDER, "--out", "run")
    one = min((photos / "train/red").glob("*.png"))
    one.rename(one.with_name("zz.png"))
    fails(2, "have changed since training (ids of train)", "audit", "run")
    one.with_name("zz.png").rename(one)
    blue, red = (min((photos / "val" / name).glob("*.png")) for name in ("blue", "red"))
    blue.rename(photos / "val/red/aa.png")
    red.rename(photos / "val/blue/zz.png")
    fails(2, "have changed since training (ids of val)", "audit", "run")


def test_a_folder_named_like_a_data_set(photos):
    shutil.move(photos, "digits")
    works("audit", "--folder", "digits", *FOLDER, "--out", "run")
    assert json.loads(Path("run/run.json").read_bytes())["source"]["kind"] == "folder"


def test_data_from_python():
    job = small_runs.job(Path("run"))
    train([job])
    fails(2, "came from Python. Pass it to the audit: ogc.audit.run.audit_run('run', (train, sets))", "audit", "run")
    found = audit_run("run", job.data)
    assert list(found.ids) == job.data[0].ids
    assert sorted(path.name for path in Path("run/audit").iterdir()) == FILES
    works("audit", "apply", "run", "--out", "fixed.npy")
    assert np.array_equal(np.load("fixed.npy"), found.issues.suggested_label.numpy())


def test_images_and_a_network_from_python():
    job = small_runs.job(Path("run"), net=small_runs.network())
    train([job])
    found = audit_run("run", job.data)
    assert all(torch.equal(found.image(i), job.data[0].inputs[i]) for i in range(80))
    assert torch.equal(found.true, job.data[0].true)
    other = small_runs.job(seed=5, n=70).data
    with pytest.raises(ValueError, match="have changed since training"):
        audit_run("run", other)


@pytest.mark.filterwarnings("always")
def test_images_that_cannot_be_read(photos):
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


def test_what_is_too_large_is_not_trained_on(photos, monkeypatch):
    a_table()
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


def test_a_training_that_is_stopped_can_be_gone_on_with_and_audited(monkeypatch):
    a_table()
    real = session.train
    stop = small_runs.StopAt(2, None, signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(session, "train", lambda jobs, **options: real(jobs, **options | {"watch": stop}))
        result = ogc("audit", "--table", "t.csv", *TABLE, "--out", "run")
    assert result.exit_code == 130, result.output
    assert result.stderr == "Stopped by SIGINT. Resume with: ogc train --resume run\nThen: ogc audit run\n"
    works("train", "--resume", "run")
    assert "of 240 labels are probably wrong" in works("audit", "run")


def test_of_several_processes_the_first_one_audits(table, monkeypatch):
    shutil.rmtree(table / "audit")
    monkeypatch.setattr("ogc.cli.train.run", lambda request, console: None)
    for code, rank in ((0, "1"), (1, "0")):  # after training, which others may be done with sooner
        monkeypatch.setenv("RANK", rank)
        assert ogc("audit", "--table", "t.csv", *TABLE, "--out", "new").exit_code == code
    monkeypatch.setenv("RANK", "3")
    assert works("audit", table) == ""
    assert not (table / "audit").exists()


def test_data_that_changed_are_refused():
    a_table()
    works("audit", "--table", "t.csv", *TABLE, "--out", "run")
    before = Path("t.csv").read_bytes()
    a_table(seed=1)
    fails(2, "have changed since training (labels of train). Train again", "audit", "run")
    Path("t.csv").write_bytes(before.replace(b"with, comma", b"with, Comma"))
    fails(2, "have changed since training (classes of train)", "audit", "run")
    Path("t.csv").write_bytes(before)
    works("audit", "run")


def swapped(at, other):
    """The table with two of its rows in each other's place."""
    lines = rows("t.csv")
    assert lines[at]["kind"] == lines[other]["kind"]
    lines[at], lines[other] = lines[other], lines[at]
    with Path("t.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)


def of_one_class():
    kinds = [row["kind"] for row in rows("t.csv")]
    return 0, kinds.index(kinds[0], 1)


def test_rows_that_moved_within_their_class_are_noticed(table):
    swapped(*of_one_class())
    fails(1, "t.csv` has changed since it was audited", "audit", "apply", table, "--out", "f.csv")
    fails(2, "have changed since training (ids of train)", "audit", table)
    assert not Path("f.csv").exists()


def test_rows_without_ids_that_moved_are_noticed():
    a_table()
    works("audit", "--table", "t.csv", "--label", "kind", "--epochs", "1", "--out", "run")
    swapped(*of_one_class())
    fails(2, "have changed since training (file)", "audit", "run")
    fails(1, "t.csv` has changed since it was audited", "audit", "apply", "run", "--out", "f.csv")


def test_a_list_of_fixed_labels_in_another_order_is_refused(table):
    path = table / "audit/labels_fixed.csv"
    lines = path.read_text().splitlines(keepends=True)
    at, other = of_one_class()
    lines[at + 1], lines[other + 1] = lines[other + 1], lines[at + 1]
    path.write_text("".join(lines))
    fails(1, "labels_fixed.csv has changed since audit.json was written", "audit", "apply", table, "--out", "f.csv")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "Parameter `RUN|DATA` should be one path, or --folder or --table instead. Found `RUN|DATA = None`."),
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
        (["t.csv"], 2, "Parameter `label` should be given"),
        (["t.csv", "--label", "kind", "--method", "cee"], 2, "There is no method named 'cee'. Did you mean ce"),
        (["folder", "--id", "x"], 2, "Parameter `id` should be omitted with folder"),
        (["--folder", "nowhere"], 1, "There is no folder `nowhere`."),
        (["--table", "nowhere.csv", "--label", "y"], 1, "There is no `nowhere.csv`."),
        (["--table", "x.npz", "--label", "y"], 2, "Parameter `table` should be a file that ends in one of .csv"),
        (["--table", "t.csv"], 2, "Parameter `label` should be given"),
        (["--table", "t.csv", "--label", "nope"], 1, "has no column `nope`"),
        (["--table", "t.csv", "--label", "kind", "--set", "surveys=0"], 2, "Parameter `surveys` should be above 0"),
        (["--folder", ".", "--label", "kind"], 2, "Parameter `label` should be omitted with folder"),
    ],
)
def test_what_cannot_be_is_said_before_any_work(arguments, code, sentence):
    a_table()
    Path("empty").mkdir()
    Path("folder/class").mkdir(parents=True)
    Path("x.npy").touch()
    fails(code, sentence, "audit", *arguments)
    assert not Path("runs").exists()


def test_a_run_takes_no_options_of_training(digits):
    fails(2, "Parameter `epochs` cannot be combined with a run, which is already", "audit", digits, "--epochs", "3")
    fails(2, "Parameter `set` cannot be combined with a run", "audit", digits, "--set", "lr=1")
    fails(2, "Parameter `method` cannot be combined with a run", "audit", digits, "--method", "ce")


def test_help_shows_both_with_examples():
    said = works("audit", "--help")
    assert "ogc audit customers.csv --label churned --id customer" in said
    assert "ogc audit apply runs/customers-ce+ogc-0 --out customers-fixed.csv" in said
    assert "--skip-bad" in said
    said = works("audit", "apply", "--help")
    assert "--decisions" in said
    assert "ogc audit apply runs/digits" in said
    assert "ogc audit apply runs/photos --decisions mine.csv --copy photos-fixed" in said


def test_what_is_given_is_worked_out(photos):
    a_table()
    works("audit", "t.csv", *TABLE, "--method", "gce+ogc")
    told = json.loads(Path("runs/t-gce+ogc-0/audit/audit.json").read_bytes())
    assert (told["run"]["source"]["kind"], told["run"]["recipe"]["method"]) == ("table", "gce+ogc")
    assert told["splits"] == {"train": 240}
    works("audit", photos, *FOLDER)
    assert len(rows("runs/photos-ce+ogc-0/audit/issues.csv")) == 60
    labels = np.arange(120) % 3
    some_arrays(labels)
    said = works("audit", "a.npz", "--epochs", "4", "--set", "hidden=8")
    assert len(rows("runs/a-ce+ogc-0/audit/issues.csv")) == 120
    assert "ogc audit apply runs/a-ce+ogc-0 --out labels-fixed.npy" in said
    works("audit", "runs/a-ce+ogc-0")  # a run, though it has folders, too


def test_the_worst_are_issues(digits):
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


# --- applied ---------------------------------------------------------------------------------------------------------


def test_a_table_is_copied_with_its_labels_changed(table):
    before = Path("t.csv").read_bytes()
    said = works("audit", "apply", table, "--out", "new/fixed.csv")
    issues = json.loads((table / "audit/audit.json").read_bytes())["issues"]
    assert f"new/fixed.csv: {issues} of 240 labels changed." in said
    fixed = rows(table / "audit/labels_fixed.csv")
    assert rows("new/fixed.csv") == [
        row | {"kind": new["label"]} for row, new in zip(rows("t.csv"), fixed, strict=True)
    ]
    assert Path("t.csv").read_bytes() == before
    works("train", "new/fixed.csv", *TABLE, "--epochs", "1", "--out", "again")


def test_only_what_was_accepted(table):
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

    # The likely suggestions without a decision as well: what was kept or skipped stays.
    issues = [row for row in worst if row["is_label_issue"] == "True"]
    by_chance = sorted(float(row["wrong_probability"]) for row in issues)
    middle = by_chance[len(by_chance) // 2]
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
    said = ogc("audit", "apply", table, "--accept-above", "50", "--out", "no.csv")
    assert said.exit_code == 2
    assert "Parameter `accept_above` should be a probability in [0, 1]. Found `accept_above = 50.0`." in said.stderr


def test_the_original_is_never_written_to(table):
    before = Path("t.csv").read_bytes()
    Path("soft.csv").symlink_to("t.csv")
    os.link("t.csv", "hard.csv")
    Path("d.csv").write_text("id,decision,given_label,suggested_label\n")
    for out in ("t.csv", "../" + Path.cwd().name + "/t.csv", "soft.csv", "hard.csv", "d.csv"):
        fails(
            2,
            "Parameter `out` should be a new file",
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
    fails(2, "Parameter `copy` should be omitted, because only folders", "audit", "apply", table, "--copy", "new")
    assert Path("t.csv").read_bytes() == before
    assert Path("soft.csv").is_symlink()


def test_nothing_is_written_over(table):
    Path("mine.csv").write_text("corrected by hand")
    Path("loose.csv").symlink_to("nowhere.csv")
    for name in ("mine.csv", "loose.csv"):
        fails(2, "Parameter `out` should be a new file", "audit", "apply", table, "--out", name)
    assert Path("mine.csv").read_text() == "corrected by hand"
    assert Path("loose.csv").is_symlink()


def test_an_original_that_changed_is_refused(table):
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


def test_decisions_of_another_audit_are_refused(table):
    row = rows(table / "audit/issues.csv")[0]
    other = next(name for name in ("plain", "with, comma") if name != row["given_label"])
    Path("d.csv").write_text(f'id,decision,given_label,suggested_label\n{row["id"]},accept,"{other}","{other}"\n')
    fails(
        1,
        "d.csv, line 2: there should be a sample of ",
        "audit",
        "apply",
        table,
        "--decisions",
        "d.csv",
        "--out",
        "f.csv",
    )
    fails(1, "Cannot use no.csv", "audit", "apply", table, "--decisions", "no.csv", "--out", "f.csv")
    assert not Path("f.csv").exists()


def test_an_audit_of_an_older_run_is_refused(digits):
    works("audit", digits)
    edited(digits / "run.json", id="another")
    fails(1, "belongs to a different run than", "audit", "apply", digits, "--out", "f.npy")


@pytest.mark.parametrize("ending", ["tsv", "parquet"])
def test_other_kinds_of_tables(ending):
    a_table(f"t.{ending}")
    works("audit", "--table", f"t.{ending}", *TABLE, "--out", "run")
    works("audit", "apply", "run", "--out", f"f.{ending}")
    labels = [row["label"] for row in rows("run/audit/labels_fixed.csv")]
    assert any(row["changed"] == "True" for row in rows("run/audit/labels_fixed.csv"))
    if ending == "parquet":
        old, new = parquet.read_table("t.parquet"), parquet.read_table("f.parquet")
        assert new.column("kind").to_pylist() == labels
        assert new.drop(["kind"]).equals(old.drop(["kind"]))
        assert new.schema.equals(old.schema, check_metadata=True)
    else:
        old, new = (rows(name, "\t") for name in ("t.tsv", "f.tsv"))
        assert new == [row | {"kind": label} for row, label in zip(old, labels, strict=True)]


def test_labels_of_digits_can_be_trained_on(digits):
    fails(1, f"{digits} has no audit. To make one: ogc audit {digits}.", "audit", "apply", digits, "--out", "f.npy")
    works("audit", digits)
    for name in ("f.npy", "f.csv"):
        said = works("audit", "apply", digits, "--out", name)
        assert f"To train on them, add --labels {name} to ogc train" in said
        works("train", "digits", "--labels", name, "--epochs", "1", "--set", "hidden=8", "--out", f"after-{name}")
        facts = json.loads(Path(f"after-{name}/run.json").read_bytes())["facts"]
        told = json.loads((digits / "audit/audit.json").read_bytes())
        assert facts["noise"]["rate_got"] == pytest.approx(told["measures"]["wrong_after"])
    fails(2, "a .npy or .csv file of labels", "audit", "apply", digits, "--out", "f.txt")


@pytest.mark.parametrize("text", [False, True])
def test_labels_of_arrays_are_of_their_own_kind(text):
    given, _ = a_table()
    draw = np.random.default_rng(0)
    labels = np.array(["x", "yy", "zzz"])[given] if text else given * 10 + 5
    np.savez("a.npz", X=draw.normal(size=(240, 4)) + given[:, None] * 3, y=labels)
    works("train", "a.npz", "--val", "0.25", "--epochs", "2", "--set", "hidden=8", "--out", "run")
    works("audit", "run")
    row = rows("run/audit/labels_fixed.csv")[7]
    assert [row["id"], row["given_label"]] == ["7", str(labels[7])]
    other = next(str(value) for value in sorted(set(labels.tolist())) if value != labels[7])
    Path("d.csv").write_text(f"id,decision,given_label,suggested_label\n7,accept,{labels[7]},{other}\n")
    said = works("audit", "apply", "run", "--decisions", "d.csv", "--out", "f.npy")
    assert "f.npy: 1 of 240 labels changed." in said
    found = np.load("f.npy", allow_pickle=False)
    assert found.dtype == labels.dtype
    assert str(found[7]) == other
    assert np.array_equal(np.delete(found, 7), np.delete(labels, 7))
    works("train", "a.npz", "--labels", "f.npy", "--epochs", "1", "--set", "hidden=8", "--out", "again")


def some_arrays(labels, seed=0):
    draw = np.random.default_rng(seed)
    np.savez("a.npz", X=draw.normal(size=(len(labels), 4)) + 3 * labels[:, None], y=labels)


def test_arrays_that_changed_are_refused():
    labels = np.arange(120) % 3
    some_arrays(labels)
    works("train", "a.npz", "--epochs", "2", "--set", "hidden=8", "--out", "run")
    works("audit", "run")
    apply = ["audit", "apply", "run", "--out", "f.npy"]
    some_arrays(labels, seed=1)
    fails(1, "a.npz` has changed since it was audited. Train and audit again.", *apply)
    for changed in (labels[::-1], labels % 2, labels[:90]):
        some_arrays(changed)
        fails(1, "a.npz` have changed. Train and audit again.", *apply)
    some_arrays(labels)
    works(*apply)


@pytest.mark.parametrize("name", ["t.csv", "a.npz"])
def test_noise_that_was_added_is_not_in_the_data(name):
    a_table()
    some_arrays(np.arange(120) % 3)
    options = TABLE if name == "t.csv" else ["--epochs", "2", "--set", "hidden=8"]
    works("train", name, *options, "--noise", "symmetric:0.2", "--out", "run")
    said = works("audit", "run")
    assert "ogc audit apply" not in said
    assert "Compared with the true labels" in said
    said = "symmetric:0.2 was added to the labels of run for training. Its data do not contain these labels"
    fails(2, said, "audit", "apply", "run", "--out", "f.npy")
