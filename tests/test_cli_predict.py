"""``ogc predict`` and ``ogc export``, on a run that ``ogc train`` has trained."""

import csv
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import ogc, works
from ogc.predict import Predictor
from tickets import write_tickets

EXISTS = "exists, and is not overwritten. Choose another file with"
SMALL = ("--epochs", "6", "--set", "hidden=16", "--set", "batch_size=16", "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with runs on a table and on arrays, and with new data."""
    folder = tmp_path_factory.mktemp("trained")
    write_tickets(folder / "tickets.csv", 200, seed=0, delimiter=";", decimal=",")
    write_tickets(folder / "new.csv", 40, seed=1)
    labels = np.arange(60) % 2
    X = np.random.default_rng(0).normal(size=(60, 3)).astype("float32") + labels[:, None]
    np.savez(folder / "x.npz", X=X, y=labels)
    output = works(
        "train",
        folder / "tickets.csv",
        "--label",
        "kind",
        "--id",
        "ticket",
        "--true",
        "true",
        *SMALL,
        "--out",
        folder / "run",
    )
    works("train", folder / "x.npz", *SMALL, "--out", folder / "arrays")
    return folder, output


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch, trained):
    """Work in an empty folder with links to the runs and the data."""
    for path in trained[0].iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)


def test_training_reports_how_each_column_is_used(trained):
    output = trained[1]
    assert "Columns: opened: date (year, month, weekday); city: 4 categories; age: number; comment: text, " in output
    assert "customer: dropped, unique." in output


def test_predict_writes_predictions():
    output = works("predict", "run", "new.csv")
    expected = Predictor.load("run").predict("new.csv")
    with open("predictions.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["ticket", "predicted", "probability", "p(billing)", "p(delivery)", "p(quality)"]
    assert rows == expected.rows()
    assert output.startswith("40 rows: ")
    assert output.endswith("\nPredictions: predictions.csv\n")
    counts = dict.fromkeys(expected.predicted, 0)
    for name in expected.predicted:
        counts[name] += 1
    assert all(f"{name} ({count})" in output for name, count in counts.items())
    assert ogc("predict", "run", "new.csv").stderr == f"predictions.csv {EXISTS} --out FILE.csv.\n"


def test_predict_options():
    out = "new/folder/mine.csv"
    output = works(
        "predict", "run", "new.csv", "--id", "customer", "--weights", "last", "--out", out, "--device", "cpu"
    )
    assert output.endswith(f"\nPredictions: {out} (in a new folder)\n")
    expected = Predictor.load("run", which="last").predict("new.csv", id="customer")
    with open(out, newline="") as file:
        assert list(csv.reader(file)) == [expected.header, *expected.rows()]
    assert works("predict", "arrays", "x.npz").startswith("60 samples: ")
    np.save("none.npy", np.zeros((0, 3)))
    assert works("predict", "arrays", "none.npy", "--out", "none.csv").startswith("0 samples.\n")


@pytest.mark.filterwarnings("default")
def test_extra_column_is_noted():
    lines = Path("new.csv").read_text().splitlines()
    Path("odd.csv").write_text("\n".join([lines[0] + ",weather", *(line + ",sun" for line in lines[1:])]))
    output = works("predict", "run", "odd.csv")
    assert "Note: Ignored columns that the run was not trained on: `weather`.\n" in output


def write_without(column):
    with open("new.csv", newline="") as file:
        rows = [{name: row[name] for name in row if name != column} for row in csv.DictReader(file)]
    with open("less.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere", "new.csv"], 1, "There is no folder nowhere. Create a run with ogc train."),
        (["new.csv", "new.csv"], 1, "new.csv is not a run folder: it has no run.json."),
        (["run", "nowhere.csv"], 1, "There is no `nowhere.csv`. Expected a table (.csv, .tsv, .parquet, .pq)"),
        (["run", "x.npz"], 1, "Parameter `data` should be a table"),
        # run and data are checked before --out
        (["nowhere", "new.csv", "--out", "new.csv"], 1, "There is no folder nowhere."),
        (["run", "nowhere.csv", "--out", "new.csv"], 1, "There is no `nowhere.csv`."),
        (["run", "x.npz", "--out", "new.csv"], 1, "Parameter `data` should be a table"),
        (["run", "photos"], 1, "`photos` cannot be predicted by this run. Expected a table"),
        (["arrays", "new.csv"], 1, "`new.csv` cannot be predicted by this run. Expected a file of features"),
        (["run", "less.csv"], 1, "`less.csv` has no column `city`, which the run was trained on. Found `ticket`"),
        (["run", "empty.csv"], 1, "The table `empty.csv` has no rows."),
        (["run", "latin.csv"], 1, "`latin.csv` cannot be read as CSV in UTF-8"),
        (["arrays", "wide.npy"], 1, "`wide.npy` should have numbers, (N, 3), like the run's training data. Found"),
        (["arrays", "broken.npz"], 1, "`broken.npz` is not a .npy or .npz file of plain arrays"),
        (["run", "new.csv", "--out", "new.csv"], 2, f"new.csv {EXISTS} --out FILE.csv."),
        (
            ["run", "new.csv", "--out", "new.xlsx"],
            2,
            "Parameter `--out` should be a .csv file. Found `--out 'new.xlsx'`.",
        ),
        (["run", "new.csv", "--out", "x.npz/p.csv"], 1, "Cannot use x.npz: File exists. A folder is needed there."),
        (["run", "new.csv", "--weights", "worst"], 2, "Parameter `--weights` should be one of averaged, last, best."),
        (["run", "new.csv", "--id", "tickets"], 1, "`new.csv` has no column `tickets`. Found `ticket`, "),
        (
            ["arrays", "x.npz", "--id", "x"],
            1,
            "Parameter `--id` should be left out: the run was not trained on a table.",
        ),
        (["run", "new.csv", "--device", "tpu"], 2, "Parameter `--device` should be auto, cpu, cuda or cuda:N."),
    ],
)
def test_invalid_input_gives_one_line_error_and_writes_nothing(arguments, code, message):
    write_without("city")
    Path("empty.csv").write_text("city,age\n")
    Path("latin.csv").write_bytes(b"city\nZ\xfcrich\n")
    np.save("wide.npy", np.zeros((4, 9), "float32"))
    Path("broken.npz").write_bytes(b"PK\x03\x04")
    Path("photos").mkdir()
    Image.new("RGB", (8, 8)).save("photos/1.png")
    before = {path.name for path in Path().iterdir()}
    result = ogc("predict", *arguments)
    assert result.exit_code == code, result.output
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    assert {path.name for path in Path().iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere", "--onnx", "x.onnx"], 1, "There is no folder nowhere."),
        (["run"], 2, "The option `--onnx` is missing. Give the file to write, as in --onnx classifier.onnx."),
        (["run", "--onnx", "x.pt"], 2, "Parameter `--onnx` should be a .onnx file."),
        (["run", "--onnx", "existing.onnx"], 2, f"existing.onnx {EXISTS} --onnx FILE.onnx."),
        (["run", "--onnx", "x.onnx", "--weights", "first"], 2, "Parameter `--weights` should be one of"),
        (["new.csv", "--onnx", "x.onnx"], 1, "new.csv is not a run folder"),
        (["run", "--onnx", "x.npz/x.onnx"], 1, "Cannot use x.npz: File exists. A folder is needed there."),
        (["run", "--onnx", "run"], 2, "Parameter `--onnx` should be a .onnx file."),
        (["damaged", "--onnx", "x.onnx"], 1, "damaged/preprocessing.json cannot be used"),
        (["older", "--onnx", "x.onnx"], 1, "older has no preprocessing.json"),
        (["cut", "--onnx", "x.onnx"], 1, "cut/last.safetensors cannot be used"),
    ],
)
def test_invalid_export_gives_one_line_error_and_writes_nothing(arguments, code, message):
    Path("existing.onnx").touch()
    if arguments[0] in ("damaged", "older", "cut"):
        copy = shutil.copytree("run", arguments[0])
        if arguments[0] == "older":
            Path(copy, "preprocessing.json").unlink()
        if arguments[0] == "damaged":
            Path(copy, "preprocessing.json").write_text("{")
        if arguments[0] == "cut":
            weights = Path(copy, "last.safetensors").read_bytes()
            Path(copy, "last.safetensors").write_bytes(weights[:1000])
    result = ogc("export", *arguments)
    assert result.exit_code == code, result.output
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    assert not Path("x.onnx").exists()


def test_export_reports_missing_packages_before_it_starts(monkeypatch):
    monkeypatch.setattr("ogc.export.find_spec", lambda name: None)
    result = ogc("export", "arrays", "--onnx", "arrays.onnx")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == 'Exporting to ONNX needs onnx and onnxscript: pip install "torch-ogc[onnx]"\n'


@pytest.mark.slow
@pytest.mark.skipif(find_spec("onnxscript") is None, reason='needs pip install "torch-ogc[onnx]"')
def test_export_writes_onnx():
    output = works("export", "arrays", "--onnx", "new/arrays.onnx")
    assert "new/arrays.onnx: inputs float32 (N, 3) -> probabilities float32 (N, 2)\n" in output
    assert Path("new/arrays.onnx").stat().st_size > 100


@pytest.mark.parametrize("command", ["predict", "export"])
def test_help_has_examples(command):
    output = works(command, "--help")
    assert f"ogc {command} runs/photos-ce+ogc-0" in output


def test_ctrl_c_prints_one_line_and_writes_nothing(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ogc.predict.normalised", stop)
    result = ogc("predict", "run", "new.csv")
    assert result.exit_code == 130
    assert result.stderr == "Stopped. Nothing was written.\n"
    assert not Path("predictions.csv").exists()
