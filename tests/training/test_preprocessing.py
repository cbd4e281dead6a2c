"""How a run's inputs were prepared is stored with it, printed, and the same when it is resumed."""

import pytest

from ogc.training import RECIPES, CheckpointError, Interrupted, Job, Source, load, override, train
from ogc.training.history import SilentWatch
from ogc.training.preprocessing import Preprocessing
from ogc.training.run import Run
from ogc.training.session import pick_device
from small_runs import StopAt, assert_equal_runs, images, job, network, train_in_pieces
from tickets import write_tickets


@pytest.fixture(scope="module")
def tickets(tmp_path_factory):
    path = tmp_path_factory.mktemp("tickets") / "train.csv"
    write_tickets(path, 120, seed=0)
    return Source.parse(str(path), label="kind", true="true")


def table_job(source, out, **changes):
    recipe = override(RECIPES["table"], {"epochs": 4, "batch_size": 16, "hidden": "16"} | changes)
    return Job(recipe, source, *load(source, recipe), out)


class Listener(SilentWatch):
    def __init__(self):
        self.heard = []

    def said(self, sentence):
        self.heard.append(sentence)


def test_a_table_with_text_resumes_bit_for_bit(tickets, tmp_path):
    train([table_job(tickets, tmp_path / "whole")])
    _, stood = train_in_pieces(lambda: table_job(tickets, tmp_path / "pieces"), [(2, 3), (3, None)])
    assert len(stood) == 2
    assert_equal_runs(tmp_path / "whole", tmp_path / "pieces")
    assert Preprocessing.read(tmp_path / "whole") == Preprocessing.read(tmp_path / "pieces")


def test_what_is_read_is_what_was_fitted(tickets, tmp_path):
    for number, made in enumerate([table_job(tickets, None), job(), job(net=network())]):
        fitted = Preprocessing.of(Run(made, device=pick_device("cpu")))
        folder = tmp_path / str(number)
        train([made._replace(out=folder)])
        assert Preprocessing.read(folder) == fitted
    assert fitted.kind == "images"
    assert fitted.shape == (3, 8, 8)
    assert fitted.class_names == images().class_names


def test_a_run_whose_inputs_would_be_others_is_not_resumed(tickets, tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        train([table_job(tickets, tmp_path / "run")], watch=StopAt(2, 3))
    monkeypatch.setattr("ogc.data.columns.MOST_WORDS", 30)
    with pytest.raises(CheckpointError, match=r"preprocessing\.json does not match the data"):
        train([table_job(tickets, tmp_path / "run")], resume=True)


def test_the_use_of_the_columns_is_printed_once(tickets, tmp_path):
    listener = Listener()
    train([table_job(tickets, tmp_path / str(seed), seed=seed) for seed in (0, 1)], watch=listener)
    [line] = [sentence for sentence in listener.heard if sentence.startswith("Columns:")]
    assert line == (
        "Columns: opened: date (year, month, weekday); city: 4 categories; age: number; comment: text, 84 words; "
        "ticket: dropped, unique; customer: dropped, unique."
    )
