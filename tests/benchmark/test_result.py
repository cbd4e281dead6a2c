import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from made_up_results import made_up
from ogc._files import with_checksum
from ogc.benchmark.key import key_of
from ogc.benchmark.paper import LABELS
from ogc.benchmark.plan import TABLES, Cell, find
from ogc.benchmark.result import OTHER_DRAWS, disagreements, from_training, path_of, read, read_all, write
from ogc.data import load_digits
from ogc.training import Job, Recipe, Source, allow_loss, load, train
from ogc.training.history import summary

ROOT = Path(__file__).parent.parent.parent
RUNS = ROOT / "benchmarks" / "results" / "runs"
SESSION = {"seconds": 12.5, "earlier": 0, "side_by_side": 3, "memory_gib": None}
FOCAL = find("cifar10", ["fl+ogc"], ["symmetric:0.5"])[0]


def test_a_run_is_written_and_read_back(tmp_path):
    cell = Cell("digits", "ce+ogc", "symmetric:0.5", {"epochs": 3, "hidden": (8,)})
    source = Source.parse("digits")
    data, info = load(source, cell.recipe(4))
    [trained] = train([Job(cell.recipe(4), source, data, info)], device="cpu")
    result = from_training(cell, trained, SESSION)
    path = write(tmp_path / "new", result)
    assert path == path_of(tmp_path / "new", cell.key, 4)
    assert path.name == "digits-ce_ogc-symmetric-0.5-epochs-3-hidden-8-4.json"
    again = read(path)
    assert again == result
    assert [vars(epoch) for epoch in again.epochs] == trained["epochs"]
    assert again.summary == trained["summary"]
    assert again.recipe.model_dump(mode="json") == trained["recipe"]
    assert again.noise_sha256 == info.sha256
    assert again.noise_rate == info.rate_got
    assert (again.seconds, again.images_per_second) == (trained["seconds"], trained["images_per_second"])
    assert (again.wall_seconds, again.side_by_side, again.seed) == (12.5, 3, 4)
    assert again.provenance.commit == trained["facts"]["commit"]
    assert again.measured("test") == pytest.approx(100 * trained["summary"]["last"])
    assert len(re.findall(r'^  \{"epoch": ', path.read_text(), re.M)) == 3, "one line per epoch"


def test_result_without_noise():
    cell = Cell("digits", "ce", None, {"epochs": 1, "hidden": (8,)})
    [trained] = train([Job(cell.recipe(0), None, load_digits())], device="cpu")
    result = from_training(cell, trained, SESSION)
    assert (result.noise, result.noise_sha256, result.noise_rate) == (None, None, None)


def test_measured():
    result = made_up(FOCAL, percent=80.0)
    assert result.measured("test") == pytest.approx(80)
    assert result.measured("test", averaged=True) == pytest.approx(82)
    assert result.measured("val") is None
    assert result.measured("minutes") == pytest.approx(3)
    assert result.measured("tau_variance") == pytest.approx(1e-4 * (150**2 - 1) / 12)
    assert made_up(find("cifar10", ["ce"])[0]).measured("tau_variance") is None
    web = made_up(find("webvision", ["ce"])[0], percent=70.0)
    assert (web.measured("val"), web.measured("ilsvrc")) == pytest.approx((70, 67))


def test_measured_uses_only_the_last_epochs():
    result = made_up(FOCAL)
    epochs = tuple(replace(e, accuracy={"test": 0.5 if e.epoch <= 140 else 0.9}) for e in result.epochs)
    summarised = summary(list(epochs), 10)
    changed = made_up(FOCAL, epochs=epochs, summary=summarised)
    assert changed.measured("test") == pytest.approx(90)
    assert summarised["last"] == pytest.approx(0.9)


def broken(change):
    """Return a function that writes a result changed by ``change``, under its right name."""

    def make(folder):
        path = write(folder, made_up(FOCAL))
        values = json.loads(path.read_text())
        del values["checksum"]
        change(values)
        path.write_text(json.dumps(with_checksum(values)))
        return path

    return make


def truncated(folder):
    path = write(folder, made_up(FOCAL))
    path.write_bytes(path.read_bytes()[:-100])
    return path


def json_list(folder):
    path = folder / "x.json"
    path.write_text("[]")
    return path


def deeply_nested(folder):
    path = folder / "x.json"
    path.write_text("[" * 100_000)
    return path


def custom_loss(method, parameters=None):
    """Write a result of a custom loss whose file is missing."""

    def change(values):
        values["method"] = method
        values["recipe"] |= {"method": method, "method_sha256": "5a" * 32, "parameters": parameters or {}}
        values["key"] = key_of(Recipe(**values["recipe"]))

    return broken(change)


def without_checksum(folder):
    """Write an edited result of version 1, which has no checksum."""
    path = write(folder, made_up(FOCAL))
    values = json.loads(path.read_text()) | {"version": 1, "noise_rate": 1.5}
    del values["checksum"]
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (truncated, "Unterminated string"),
        (json_list, "it should hold a JSON object, not list"),
        (broken(lambda v: v.update(version=4)), "expected version 1, 2 or 3 of a result, found 4"),
        (broken(lambda v: v.update(extra=2)), "There is no parameter 'extra'"),
        (broken(lambda v: v.pop("provenance")), "`provenance` should be given"),
        (broken(lambda v: v["epochs"].pop()), "`len(epochs)` should be 150. Found `len(epochs) = 149`"),
        (broken(lambda v: v["epochs"].insert(0, v["epochs"].pop(1))), "`epochs` should be numbered from 1 on"),
        (broken(lambda v: v["epochs"][3].pop("tau")), "`epochs[3].tau` should be given"),
        (broken(lambda v: v["epochs"][3].update(loss="low")), "`epochs[3].loss` should be a valid number"),
        (broken(lambda v: v["epochs"][3].update(loss=float("nan"))), "NaN is not allowed"),
        (broken(lambda v: v["epochs"][149]["accuracy"].update(test=0.9)), "`summary` should be"),
        (broken(lambda v: v["summary"].update(last=0.9)), "`summary` should be"),
        (broken(lambda v: v.update(method="ce")), "`method` should be as in the recipe"),
        (broken(lambda v: v["recipe"].update(seed=2)), "`seed` should be as in the recipe"),
        (broken(lambda v: v["recipe"].update(lr=0.2)), "`key` should be cifar10-fl_ogc-symmetric-0.5-lr-0.2"),
        (broken(lambda v: v["recipe"]["parameters"].update(epsilon0=5.0)), "`key` should be"),
        (broken(lambda v: v["recipe"].update(lr=-1)), "`lr` should be greater than 0"),
        (broken(lambda v: v.update(key=v["key"] + "-alone", side_by_side=2)), "`side_by_side` should be 1"),
        (
            broken(lambda v: v.update(noise_sha256=None)),
            "`noise_sha256` should be given if and only if there is noise",
        ),
        (broken(lambda v: v.update(wall_seconds=0)), "`wall_seconds` should be greater than 0"),
        (broken(lambda v: v.update(noise_sha256="zzz")), "`noise_sha256` should "),
        (broken(lambda v: v.update(noise_rate=1.5)), "`noise_rate` should be less than or equal to 1"),
        (broken(lambda v: v.update(seconds=1e9)), "`seconds` should be 180"),
        (broken(lambda v: v["epochs"][3]["accuracy"].update(test=7.5)), "`epochs[3].test` should be in [0, 1]"),
        (
            broken(lambda v: v["epochs"][3]["averaged"].update(test=-0.1)),
            "`epochs[3].test` should be in [0, 1]",
        ),
        (broken(lambda v: v["epochs"][3].update(memorised=2)), "`epochs[3].memorised` should be in [0, 1]"),
        (broken(lambda v: v["epochs"][3].update(tau="4.86")), "`epochs` should be in canonical form"),
        (broken(lambda v: v["recipe"].update(lr="0.1")), "`recipe.lr` should be in canonical form"),
        (
            broken(lambda v: v["recipe"].update(parameters={})),
            "`recipe.parameters` should be in canonical form",
        ),
        (without_checksum, "`noise_rate` should be less than or equal to 1"),
        (deeply_nested, "it is nested too deeply"),
        (custom_loss("x.py:<img src=x>"), "`method` should be FILE.py:CLASS. Found `method = 'x.py:<img src=x>'`"),
        (custom_loss("x.py:Mine+<b>"), "`method` should be clipped by one of ogc, linear, ema"),
        (custom_loss("x.py:Mine", {"<b>": 1.0}), "`parameters` should be numbers by name"),
    ],
)
def test_invalid_result_is_reported_and_skipped(tmp_path, make, words):
    good = write(tmp_path, made_up(find("cifar10", ["gce"], ["symmetric:0.5"])[0]))
    path = make(tmp_path)
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        read(path)
    assert str(error.value).startswith(f"{path} cannot be used: ")
    assert str(error.value).endswith(" use the version of ogc that wrote it, or move it away to repeat the run.")
    results, complaints = read_all(tmp_path)
    assert results == [read(good)]
    assert complaints == [str(error.value)]


def test_result_with_wrong_file_name(tmp_path):
    path = write(tmp_path, made_up(FOCAL))
    other = path.rename(path.with_name("cifar10-ce-symmetric-0.5-1.json"))
    with pytest.raises(ValueError) as error:  # noqa: PT011, the whole message is compared
        read(other)
    assert str(error.value) == f"{other} has the name of another run. Rename it to {path.name}."
    assert read(other.rename(path)) == made_up(FOCAL)


def test_rounding_differences_between_pythons_are_accepted(tmp_path):
    """Python 3.12 and later compensate sums of floats. Results can be read by any version."""
    path = broken(lambda v: v["summary"].update(last=v["summary"]["last"] + 1e-16))(tmp_path)
    assert read(path).summary["last"] != made_up(FOCAL).summary["last"]
    path = broken(lambda v: v["summary"].update(std=v["summary"]["std"] + 1.4e-17))(tmp_path)
    assert read(path).summary["std"] > 0, "also for equal numbers, whose deviation is almost 0"


def test_reading_runs_no_custom_code(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch.nn as nn\nclass MyLoss(nn.CrossEntropyLoss):\n    def __init__(self): super().__init__()\n"
    )
    allow_loss(f"{file}:MyLoss")
    result = made_up(find("cifar10", [f"{file}:MyLoss"], ["symmetric:0.5"])[0])
    path = write(tmp_path, result)
    file.write_text("raise RuntimeError('run')")
    assert read(path) == result
    file.unlink()
    assert read(path).recipe.method_sha256 == result.recipe.method_sha256


def test_reports_runs_trained_on_different_labels():
    other = "c0ffee" * 10 + "beef"
    cells = find("digits", ["ce", "gce"], ["symmetric:0.5", "symmetric:0.2"])
    results = [made_up(cell) for cell in cells]
    assert disagreements(results) == []
    [sentence] = disagreements([*results, made_up(cells[0], seed=2, noise_sha256=other)])
    assert "digits with symmetric:0.2 (noise seed 0) were given 2 different sets of labels" in sentence
    assert "5a5a5a5a, c0ffeec0" in sentence
    [cell] = find("cifar10", ["ce"], ["symmetric:0.5"])
    [sentence] = disagreements([made_up(cell), made_up(cell, seed=2, noise_sha256=other)])
    assert sentence.startswith("The tables leave out 1 run on cifar10 with symmetric:0.5: trained on other labels")
    assert sentence.endswith("begins with c0ffeec0.")


def test_recorded_results_are_valid():
    results, complaints = read_all(RUNS)
    assert complaints == []
    assert disagreements(results) == []
    assert {result.key for result in results} <= {cell.key for table in TABLES.values() for cell in table.cells}
    assert not any(result.other_draw for result in results)


def test_runs_on_another_draw_are_stored_separately():
    results, complaints = read_all(RUNS.parent / OTHER_DRAWS)
    assert complaints == []
    assert not {result.noise_sha256 for result in results} & set(LABELS.values())
    assert all(result.other_draw for result in results if result.recipe.noise_seed == 0)


def test_labels_of_the_tables_are_the_authors():
    golden = json.loads((ROOT / "tests" / "golden" / "labels.json").read_text())
    ours = {f"{data}-{noise.replace(':', '-')}": sha256 for (data, noise), sha256 in LABELS.items()}
    assert {key: ours.get(key) for key in golden} == golden
    tables = {(cell.recipe(0).data, cell.noise) for table in TABLES.values() for cell in table.cells}
    drawn = {(data, noise) for data, noise in tables if data.startswith("cifar") and noise is not None}
    assert drawn == set(LABELS)


@pytest.mark.parametrize(
    ("noise", "sha256", "other"),
    [
        ("symmetric:0.5", LABELS["cifar10", "symmetric:0.5"], False),
        ("symmetric:0.5", LABELS["cifar10", "symmetric:0.2"], True),
        ("instance:0.4", LABELS["cifar10", "instance:0.4"], False),
        ("instance:0.4", "9c" * 32, True),
    ],
)
def test_labels_are_identified_by_their_checksum(noise, sha256, other):
    [cell] = find("cifar10", ["ce+ogc"], [noise])
    assert made_up(cell, noise_sha256=sha256).other_draw is other
    plus = find("plus", ["ce+ogc"], [noise])[1]
    assert made_up(plus, noise_sha256=sha256).other_draw is other
    with_seed = replace(cell, changes={"noise_seed": 4})
    assert not made_up(with_seed, noise_sha256=sha256).other_draw, "its key has the seed"


def test_first_recorded_run_is_unchanged():
    """Recorded by ``benchmarks/accuracy.py``, before ``ogc bench`` existed. The conversion changed no number."""
    result = read(RUNS.parent / "other-draws" / "cifar10-ce-symmetric-0.5-1.json")
    assert result.summary["last"] == 0.49931000000000003
    assert result.summary["averaged_best"] == 0.8616
    assert (result.wall_seconds, result.seconds) == (263.562237193, 231.78338269042968)
    assert result.epochs[0].loss == 2.460062553943732
    assert result.epochs[149].memorised == 0.8025671881267549
