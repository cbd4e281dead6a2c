import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ogc.predict import Predictor
from ogc.training import RECIPES, Interrupted, Job, Source, load, override, train
from ogc.training.run_folder import (
    BEST,
    LAST,
    PREPROCESSING,
    RESULT,
    CheckpointError,
    read_description,
    read_part,
    write_part,
)
from ogc.training.session import load_network
from small_runs import StopAt, images, job, network, recipe
from tickets import write_tickets


def train_run(folder, source, name, **changes):
    changes = {"epochs": 5, "batch_size": 16, "hidden": "16", "surveys": 0} | changes
    settings = override(RECIPES[name], changes)
    train([Job(settings, source, *load(source, settings), folder)], device="cpu")
    return folder


@pytest.fixture(scope="module")
def tickets(tmp_path_factory):
    """A run on a table with every kind of column, and the folder of its files."""
    folder = tmp_path_factory.mktemp("tickets")
    write_tickets(folder / "train.csv", 300, seed=0)
    write_tickets(folder / "new.csv", 50, seed=1)
    source = Source.parse(str(folder / "train.csv"), label="kind", true="true", id="ticket")
    return train_run(folder / "run", source, "table", epochs=12), folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A run on a folder of images whose colour is the class, and that folder."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for channel, label in enumerate(("red", "green")):
        (folder / "train" / label).mkdir(parents=True)
        for i in range(20):
            pixels = rng.integers(0, 90, (12, 9, 3), dtype=np.uint8)
            pixels[:, :, channel] += 120
            Image.fromarray(pixels).save(folder / "train" / label / f"{i}.png")
    source = Source.parse(str(folder / "train"))
    return train_run(folder / "run", source, "folder", network="mlp", augment="none", size=8, epochs=8), folder


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("numbers"), np.random.default_rng(0)
    labels = np.arange(90) % 3
    X = rng.normal(size=(90, 4)).astype("float32") + 3 * np.eye(3, 4, dtype="float32")[labels]
    np.savez(folder / "train.npz", X=X, y=labels)
    return train_run(folder / "run", Source.parse(str(folder / "train.npz")), "arrays"), folder


def copy_csv(path, out, change):
    """Copy a CSV file and apply a function to each row, a dictionary."""
    with path.open(newline="") as file:
        rows = [change(row) for row in csv.DictReader(file)]
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return out


# --- predictions ------------------------------------------------------------------------------------------------------


def test_predictions_of_training_rows_match_the_network(tickets):
    """With the averaged weights, on the same inputs as in training."""
    run, folder = tickets
    source = Source.parse(str(folder / "train.csv"), label="kind", true="true", id="ticket")
    (data, sets), _ = load(source, RECIPES["table"])
    predictions = Predictor.load(run).predict(folder / "train.csv")
    assert len(predictions) == 300
    by_id = dict(zip(predictions.ids, predictions.probabilities, strict=True))
    averaged = load_network(run, "averaged")
    with torch.no_grad():
        for part in (data, sets["val"]):
            expected = averaged(part.inputs).softmax(1)
            torch.testing.assert_close(torch.stack([by_id[name] for name in part.ids]), expected, rtol=0, atol=1e-6)
        raw = Predictor.load(run, which="last").predict(folder / "train.csv").probabilities
        assert not torch.equal(raw, predictions.probabilities)


def test_new_rows_are_predicted_well(tickets):
    run, folder = tickets
    predictions = Predictor.load(run).predict(folder / "new.csv")
    with (folder / "new.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert predictions.id_name == "ticket"
    assert predictions.ids == [row["ticket"] for row in rows]
    hits = sum(name == row["true"] for name, row in zip(predictions.predicted, rows, strict=True))
    assert hits >= 40


def test_written_file(tickets, tmp_path):
    run, folder = tickets
    predictions = Predictor.load(run).predict(folder / "new.csv")
    predictions.write(tmp_path / "predictions.csv")
    with (tmp_path / "predictions.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["ticket", "predicted", "probability", "p(billing)", "p(delivery)", "p(quality)"]
    assert [row[0] for row in rows] == predictions.ids
    for row in rows:
        probabilities = [float(cell) for cell in row[3:]]
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        assert float(row[2]) == max(probabilities)
        assert row[1] == ("billing", "delivery", "quality")[probabilities.index(max(probabilities))]
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.csv"]


def test_failed_write_keeps_the_old_file(tickets, tmp_path, monkeypatch):
    run, folder = tickets
    predictions = Predictor.load(run).predict(folder / "new.csv")
    old = tmp_path / "predictions.csv"
    old.write_text("old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match=r"No space left on device: .*predictions\.csv"):
        predictions.write(old)
    assert old.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.csv"]


def test_progress_reports_every_batch(numbers, monkeypatch):
    monkeypatch.setattr("ogc.training.evaluate.EVALUATION_BATCH", 40)
    run, folder = numbers
    seen = []
    predictions = Predictor.load(run).predict(folder / "train.npz", progress=lambda *done: seen.append(done))
    assert seen == [(40, 90), (80, 90), (90, 90)]
    assert len(predictions) == 90


# --- tables ----------------------------------------------------------------------------------------------------------


def test_other_column_order_extra_columns_and_no_labels(tickets, tmp_path):
    run, folder = tickets
    predictor = Predictor.load(run)
    expected = predictor.predict(folder / "new.csv").probabilities

    def other(row):
        kept = {name: row[name] for name in reversed(row) if name not in ("kind", "true", "ticket", "customer")}
        return {"weather": "sunny", **kept}

    with pytest.warns(UserWarning, match=r"Ignored columns that the run was not trained on: `weather`\."):
        found = predictor.predict(copy_csv(folder / "new.csv", tmp_path / "other.csv", other))
    assert torch.equal(found.probabilities, expected)
    assert (found.id_name, found.ids[:2]) == ("row", ["1", "2"])


def test_semicolons_decimal_commas_and_columns_from_python(tickets, tmp_path):
    run, folder = tickets
    predictor = Predictor.load(run)
    expected = predictor.predict(folder / "new.csv").probabilities
    write_tickets(tmp_path / "new.csv", 50, seed=1, delimiter=";", decimal=",")
    assert torch.equal(predictor.predict(tmp_path / "new.csv").probabilities, expected)
    with (folder / "new.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["age"] = [float(cell) if cell else float("nan") for cell in columns["age"]]
    assert torch.equal(predictor.predict(columns).probabilities, expected)


def test_unseen_categories_and_missing_cells_are_handled(tickets, tmp_path):
    run, folder = tickets
    predictor = Predictor.load(run)
    unseen = copy_csv(folder / "new.csv", tmp_path / "unseen.csv", lambda row: {**row, "city": "Atlantis"})
    empty = copy_csv(folder / "new.csv", tmp_path / "empty.csv", lambda row: {**row, "city": ""})
    with pytest.warns(
        UserWarning,
        match=r"`city` of `.*unseen\.csv`: 50 of 50 values are not among the training categories, for example `Atla",
    ):
        found = predictor.predict(unseen)
    assert torch.equal(found.probabilities, predictor.predict(empty).probabilities)
    blank = copy_csv(
        folder / "new.csv", tmp_path / "blank.csv", lambda row: {**dict.fromkeys(row, ""), "ticket": row["ticket"]}
    )
    assert bool(predictor.predict(blank).probabilities.isfinite().all())


def test_a_word_among_numbers_counts_as_missing_and_is_reported(tickets, tmp_path):
    run, folder = tickets
    predictor = Predictor.load(run)

    def with_age(age):
        return lambda row: {**row, "age": age if row["ticket"].endswith("7") else row["age"]}

    word = copy_csv(folder / "new.csv", tmp_path / "word.csv", with_age("old"))
    empty = copy_csv(folder / "new.csv", tmp_path / "empty.csv", with_age(""))
    with pytest.warns(
        UserWarning, match=r"Column `age` of `.*word\.csv`: 5 of 50 values are not numbers, for example `old` in row 8"
    ):
        found = predictor.predict(word)
    assert torch.equal(found.probabilities, predictor.predict(empty).probabilities)


@pytest.mark.parametrize(
    ("column", "expected"), [("age", "a number"), ("opened", "a date"), ("city", "among the training categories")]
)
def test_a_single_unexpected_value_is_reported(tickets, tmp_path, column, expected):
    run, folder = tickets
    odd = copy_csv(
        folder / "new.csv", tmp_path / "odd.csv", lambda row: {**row, column: "?!"} if row["ticket"] == "T7" else row
    )
    message = f"Column `{column}` of `{odd}`: 1 of 50 values is not {expected}: `?!` in row 8. It counts as missing."
    with pytest.warns(UserWarning, match=re.escape(message)):
        Predictor.load(run).predict(odd)


def test_custom_id_column(tickets):
    run, folder = tickets
    found = Predictor.load(run).predict(folder / "new.csv", id="customer")
    assert found.header[0] == "customer"
    assert found.ids[0].startswith("cust-")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda row: {name: row[name] for name in row if name not in ("age", "comment")},
            r"has no columns `age`, `comment`, which the run was trained on\. Found `ticket`, `customer`",
        ),
        (
            lambda row: {{"age": "Age"}.get(name, name): cell for name, cell in row.items()},
            r"has no column `age`, which the run was trained on\. Found .* Did you mean Age\?",
        ),
        (
            lambda row: {**row, "age": "old"},
            r"Column `age` of .* should have numbers, as in training. Found `old` in row 1",
        ),
        (
            lambda row: {**row, "opened": "soon"},
            r"Column `opened` of .* should have dates, as in training. Found `soon`",
        ),
    ],
)
def test_invalid_columns_are_rejected(tickets, tmp_path, change, message):
    run, folder = tickets
    with pytest.raises(ValueError, match=message) as info:
        Predictor.load(run).predict(copy_csv(folder / "new.csv", tmp_path / "odd.csv", change))
    assert "\n" not in str(info.value)


# --- images and arrays -----------------------------------------------------------------------------------------------


def test_images_in_a_folder_and_one_image(photos, tmp_path):
    run, folder = photos
    predictor = Predictor.load(run)
    found = predictor.predict(folder / "train")
    assert found.id_name == "path"
    hits = [name == path.split("/")[0] for name, path in zip(found.predicted, found.ids, strict=True)]
    assert sum(hits) >= 38
    one = predictor.predict(folder / "train" / "red" / "3.png")
    assert one.ids == ["3.png"]
    torch.testing.assert_close(one.probabilities[0], found.probabilities[found.ids.index("red/3.png")])


def test_images_are_normalised_as_in_training(photos):
    """With the mean of the training set, not of the new images."""
    run, folder = photos
    source = Source.parse(str(folder / "train"))
    settings = override(RECIPES["folder"], {"size": 8})
    (data, _), _ = load(source, settings)
    predictor = Predictor.load(run)
    assert predictor.preprocessing.statistics is not None
    together = predictor.predict(data.inputs.numpy())
    alone = predictor.predict(data.inputs[:1])
    torch.testing.assert_close(alone.probabilities[0], together.probabilities[0])
    torch.testing.assert_close(predictor.predict(data.inputs.permute(0, 2, 3, 1)).probabilities, together.probabilities)


def test_unreadable_image_is_reported_or_skipped(photos, tmp_path):
    run, folder = photos
    predictor = Predictor.load(run)
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes((folder / "train/red/0.png").read_bytes())
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(
        ValueError, match=r"1 of 3 images cannot be read: `.*broken\.png`. Remove it, or skip it with --skip-bad"
    ):
        predictor.predict(tmp_path)
    with pytest.warns(UserWarning, match="Skipped 1 image that"):
        assert predictor.predict(tmp_path, skip_bad=True).ids == ["a.png", "b.png"]


def test_arrays(numbers, tmp_path):
    run, folder = numbers
    predictor = Predictor.load(run)
    with np.load(folder / "train.npz") as found:
        X, y = found["X"], found["y"]
    predictions = predictor.predict(folder / "train.npz")
    assert sum(int(name) == label for name, label in zip(predictions.predicted, y, strict=True)) >= 70
    assert (predictions.id_name, predictions.ids[:2]) == ("sample", ["0", "1"])
    np.save(tmp_path / "x.npy", X)
    assert torch.equal(predictor.predict(tmp_path / "x.npy").probabilities, predictions.probabilities)
    assert predictor.predict(X[:0]).rows() == []


# --- invalid data and runs --------------------------------------------------------------------------------------------


def test_data_of_the_wrong_kind_are_rejected(tickets, photos, numbers, tmp_path):
    table, pictures, features = (Predictor.load(each[0]) for each in (tickets, photos, numbers))
    np.save(tmp_path / "wide.npy", np.zeros((5, 7), "float32"))
    np.save(tmp_path / "nan.npy", np.full((5, 4), np.nan, "float32"))
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.csv").write_text("a,b\n")
    for predictor, data, error, message in (
        (table, photos[1] / "train", ValueError, r"cannot be predicted by this run\. Expected a table \(\.csv, "),
        (table, numbers[1] / "train.npz", ValueError, r"`data` should be a table"),
        (pictures, tickets[1] / "new.csv", ValueError, "Expected a folder of images, an image"),
        (features, tickets[1] / "new.csv", ValueError, r"Expected a file of features \(\.npz, \.npy\)"),
        (features, tmp_path / "wide.npy", ValueError, r"should have numbers, \(N, 4\), .* Found numbers, \(5, 7\)"),
        (pictures, tmp_path / "wide.npy", ValueError, r"should have uint8 images, \(N, 3, 8, 8\)"),
        (features, tmp_path / "nan.npy", ValueError, "should be finite"),
        (pictures, tmp_path / "empty", ValueError, "has no images"),
        (table, tmp_path / "notes.txt", ValueError, r"`.*notes\.txt` cannot be read\. Expected a table"),
        (table, tmp_path / "nowhere.csv", FileNotFoundError, r"There is no `.*nowhere\.csv`\. Expected a table"),
        (table, tmp_path / "rows.csv", ValueError, "has no rows"),
    ):
        with pytest.raises(error, match=message) as info:
            predictor.predict(data)
        assert "\n" not in str(info.value)
    with pytest.raises(ValueError, match=r"`id` should be left out: the run was not trained on a table"):
        features.predict(numbers[1] / "train.npz", id="x")
    with pytest.raises(ValueError, match=r"has no column `tickets`. Found .* Did you mean ticket\?"):
        table.predict(tickets[1] / "new.csv", id="tickets")


def test_incomplete_or_corrupt_run_folders_are_rejected(tickets, numbers, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        Predictor.load(tmp_path)
    for name in ("run.json", LAST, PREPROCESSING, RESULT):
        (tmp_path / name).write_bytes((tickets[0] / name).read_bytes())
    assert Predictor.load(tmp_path).class_names == ("billing", "delivery", "quality")
    path, id = tmp_path / PREPROCESSING, read_description(tmp_path).id
    stored = read_part(path)
    other = path.read_bytes().replace(b"billing", b"milling")
    for broken, reason in (
        *((content, "cannot be used: .* Restore it from a backup") for content in (b"{", b"[]", other)),
        (b"{}", "cannot be used: it has no checksum. Restore it"),
    ):
        path.write_bytes(broken)
        with pytest.raises(CheckpointError, match=rf"preprocessing\.json {reason}.* train again\."):
            Predictor.load(tmp_path)
    for wrong in ({}, {**stored, "encoder": {"columns": {"a": {"kind": "colour"}}}}):
        write_part(path, id, wrong)
        with pytest.raises(CheckpointError, match=r"preprocessing\.json cannot be used: .* train again\."):
            Predictor.load(tmp_path)
    path.write_bytes((numbers[0] / PREPROCESSING).read_bytes())
    with pytest.raises(CheckpointError, match=r"preprocessing\.json belongs to a different run"):
        Predictor.load(tmp_path)
    (tmp_path / PREPROCESSING).unlink()
    with pytest.raises(FileNotFoundError, match=r"has no preprocessing\.json.* Restore it from a backup"):
        Predictor.load(tmp_path)
    with pytest.raises(ValueError, match="`which` should be one of last, averaged, best"):
        Predictor.load(tickets[0], which="worst")


def test_unfinished_run_predicts_with_a_warning(tmp_path):
    with pytest.raises(Interrupted):
        train([job(tmp_path)], watch=StopAt(2, 2), device="cpu")
    with pytest.warns(UserWarning, match=r"is not finished: using its last checkpoint, after 1 epoch\.$"):
        predictor = Predictor.load(tmp_path)
    assert len(predictor.predict(job().data[0].inputs)) == 80
    (tmp_path / LAST).rename(tmp_path / BEST)  # a folder with the best weights alone
    with pytest.warns(UserWarning, match=r"is not finished: using its best epoch so far\.$"):
        Predictor.load(tmp_path, which="best")
    with pytest.raises(Interrupted):
        train([job(tmp_path / "early")], watch=StopAt(1, 2), device="cpu")
    with pytest.raises(ValueError, match=r"early has not finished an epoch\. Resume it first: "):
        Predictor.load(tmp_path / "early")


def test_a_network_from_python(tmp_path):
    net = network()
    train([job(tmp_path, net=net)], device="cpu")
    predictor = Predictor.load(tmp_path, network=network())
    found = predictor.predict(images(30, seed=1).inputs.numpy())
    assert found.probabilities.shape == (30, 3)
    with pytest.raises(ValueError, match="`network` should be given"):
        Predictor.load(tmp_path)


def test_averaged_weights_default_to_the_last_ones(tmp_path):
    unaveraged = job(tmp_path)._replace(recipe=recipe(average=None))
    train([unaveraged], device="cpu")
    inputs = unaveraged.data[0].inputs
    found = [Predictor.load(tmp_path, which=which).predict(inputs).probabilities for which in ("averaged", "last")]
    assert torch.equal(*found)


# --- ONNX ------------------------------------------------------------------------------------------------------------


def onnx_session(path):
    runtime = pytest.importorskip("onnxruntime", reason='needs pip install "torch-ogc[onnx]"')
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.slow
def test_onnx_predictions_match(tickets, photos, numbers, tmp_path):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason='needs pip install "torch-ogc[onnx]"')
    from ogc.export import to_onnx

    for number, (run, data) in enumerate(
        [(tickets[0], tickets[1] / "new.csv"), (photos[0], photos[1] / "train"), (numbers[0], numbers[1] / "train.npz")]
    ):
        predictor, path = Predictor.load(run), tmp_path / f"{number}.onnx"
        to_onnx(predictor, path)
        samples = predictor.samples(data)
        inputs = samples.inputs[torch.arange(len(samples.ids))].numpy()
        session = onnx_session(path)
        [found] = session.run(["probabilities"], {"inputs": inputs})
        np.testing.assert_allclose(found, predictor.predict(data).probabilities.numpy(), rtol=0, atol=1e-5)
        stored = json.loads(session.get_modelmeta().custom_metadata_map["ogc"])
        assert tuple(stored["class_names"]) == predictor.class_names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.onnx", "1.onnx", "2.onnx"]


def test_export_error_names_missing_extra(numbers, tmp_path, monkeypatch):
    from ogc import export

    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'needs onnx and onnxscript: pip install "torch-ogc\[onnx\]"'):
        export.to_onnx(Predictor.load(numbers[0]), tmp_path / "x.onnx")
    assert not list(Path(tmp_path).iterdir())
