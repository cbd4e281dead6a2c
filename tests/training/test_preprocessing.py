"""Preprocessing is stored with the run, printed, and unchanged when the run is resumed."""

import pytest

from ogc.predict import Predictor
from ogc.training import RECIPES, CheckpointError, Interrupted, Job, Source, jobs_of, load, override, train
from ogc.training.history import SilentWatch
from ogc.training.preprocessing import Preprocessing
from ogc.training.run import Run
from ogc.training.session import pick_device
from small_runs import StopAt, assert_equal_runs, images, job, network, train_with_stops
from tickets import write_tickets


@pytest.fixture(scope="module")
def tickets(tmp_path_factory):
    path = tmp_path_factory.mktemp("tickets") / "train.csv"
    write_tickets(path, 120, seed=0)
    return Source.parse(str(path), label="kind", true="true")


def table_job(source, out, **changes):
    recipe = override(RECIPES["table"], {"epochs": 4, "batch_size": 16, "hidden": "16"} | changes)
    return Job(recipe, source, *load(source, recipe), out)


class MessageRecorder(SilentWatch):
    def __init__(self):
        self.messages = []

    def said(self, sentence):
        self.messages.append(sentence)


def test_table_with_text_resumes_bit_for_bit(tickets, tmp_path):
    train([table_job(tickets, tmp_path / "uninterrupted")])
    _, positions = train_with_stops(lambda: table_job(tickets, tmp_path / "resumed"), [(2, 3), (3, None)])
    assert len(positions) == 2
    assert_equal_runs(tmp_path / "uninterrupted", tmp_path / "resumed")
    assert Preprocessing.read(tmp_path / "uninterrupted") == Preprocessing.read(tmp_path / "resumed")


def test_stored_preprocessing_equals_the_fitted_one(tickets, tmp_path):
    for number, one in enumerate([table_job(tickets, None), job(), job(net=network())]):
        fitted = Preprocessing.of(Run(one, device=pick_device("cpu")))
        folder = tmp_path / str(number)
        train([one._replace(out=folder)])
        assert Preprocessing.read(folder) == fitted
    assert fitted.kind == "images"
    assert fitted.shape == (3, 8, 8)
    assert fitted.class_names == images().class_names


def test_run_does_not_resume_with_other_preprocessing(tickets, tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        train([table_job(tickets, tmp_path / "run")], watch=StopAt(2, 3))
    monkeypatch.setattr("ogc.data.text.MOST_WORDS", 30)
    with pytest.raises(CheckpointError, match=r"preprocessing\.json encodes the columns in another way"):
        train([table_job(tickets, tmp_path / "run")], resume=True)


@pytest.mark.filterwarnings("ignore:Column `x` of .* are not numbers")
def test_run_of_a_version_with_other_rules_for_columns_resumes(tmp_path, monkeypatch):
    path = tmp_path / "x.csv"
    rows = [f"{'unknown' if i in (7, 8) else i % 17},{i % 5},{'ab'[i % 2]}" for i in range(90)]
    path.write_text("\n".join(["x,z,y", *rows]))
    source = Source.parse(str(path), label="y")
    monkeypatch.setattr("ogc.data.encoder.LEAST_NUMBERS", 1.0)
    with pytest.raises(Interrupted):
        train([table_job(source, tmp_path / "run")], watch=StopAt(2, 2))
    monkeypatch.undo()
    before = Preprocessing.read(tmp_path / "run")
    assert before.encoder.columns["x"].kind == "category"
    now = table_job(source, tmp_path / "run")
    assert now.data[0].encoder.columns["x"].kind == "number"
    with pytest.raises(CheckpointError, match=r"encodes the columns in another way"):
        train([now], resume=True)
    train(jobs_of([tmp_path / "run"]), resume=True)
    assert Preprocessing.read(tmp_path / "run") == before
    assert len(Predictor.load(tmp_path / "run").predict(path)) == 90
    train([table_job(source, tmp_path / "new")])
    kinds = [job.data[0].encoder.columns["x"].kind for job in jobs_of([tmp_path / "run", tmp_path / "new"])]
    assert kinds == ["category", "number"], "each run keeps its own encoding"
    path.write_text(path.read_text().replace("x,z", "x,w"))
    with pytest.raises(ValueError, match=r"x\.csv` has no column `z`, which the run was trained on\."):
        jobs_of([tmp_path / "run"])


def test_use_of_columns_is_printed_once(tickets, tmp_path):
    recorder = MessageRecorder()
    train([table_job(tickets, tmp_path / str(seed), seed=seed) for seed in (0, 1)], watch=recorder)
    [line] = [sentence for sentence in recorder.messages if sentence.startswith("Columns:")]
    assert line == (
        "Columns: opened: date (year, month, weekday); city: 4 categories; age: number; comment: text, 84 words; "
        "ticket: dropped, unique; customer: dropped, unique."
    )
