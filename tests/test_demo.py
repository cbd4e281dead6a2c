import io
import json
import statistics

import pytest
import torch
from rich.console import Console

from ogc import demo
from ogc._files import write_whole
from ogc.demo import recipes_of, train_all
from ogc.training import history

pytestmark = pytest.mark.pictures

FILES = ["demo.png", "result.json"]


def quiet():
    return Console(file=io.StringIO(), width=80)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    console = quiet()
    results = demo.demo(out, console, epochs=7, seeds=(0, 1))
    return out, console.file.getvalue(), results


def test_every_file_is_written_and_nothing_else(finished):
    out, _, _ = finished
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)


def test_pictures_are_png_files(finished):
    out, _, _ = finished
    for path in out.glob("*.png"):
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert 10_000 < len(content) < 150_000, path.name


def test_result_holds_the_history(finished):
    out, _, results = finished
    stored = json.loads((out / "result.json").read_text(), parse_constant=pytest.fail)  # NaN is not valid JSON
    assert stored["runs"] == results
    runs = [(run["recipe"]["method"], run["recipe"]["seed"]) for run in stored["runs"]]
    assert runs == [("ce", 0), ("ce", 1), ("ce+ogc", 0), ("ce+ogc", 1)]
    assert all(run["recipe"]["milestones"] == [2, 5] for run in stored["runs"])
    assert all(len(run["epochs"]) == 7 for run in stored["runs"])


def test_half_of_the_labels_are_wrong_and_the_seed_decides_which(finished):
    _, _, results = finished
    noise = [run["facts"]["noise"] for run in results]
    assert all(0.47 < each["rate_got"] < 0.53 for each in noise)
    assert noise[0]["sha256"] == noise[2]["sha256"] != noise[1]["sha256"] == noise[3]["sha256"]


def test_piped_output_is_plain_and_complete(finished):
    out, text, _ = finished
    assert "\x1b" not in text
    assert "\r" not in text
    assert str(out) in text.replace("\n", "")
    assert text.count("n=2") == 2
    assert 'criterion = OGC("ce", optimizer)' in text
    assert text.count("epoch 7/7") == 4
    assert max(map(len, demo.PASTE.splitlines())) <= 80


@pytest.mark.usefixtures("no_pictures")
def test_terminal_output_has_a_row_per_run(tmp_path):
    text = io.StringIO()
    demo.demo(tmp_path, Console(file=text, width=100, force_terminal=True), epochs=2)
    assert "\x1b" in text.getvalue()
    assert "ce+ogc" in text.getvalue()


def test_runs_are_reproducible_and_leave_no_files_or_state():
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    recipes = recipes_of(seeds=(0,), epochs=2)
    (_, first), (_, again) = (train_all(recipes, quiet())[1] for _ in range(2))
    assert torch.equal(first.samples["H"].nan_to_num(), again.samples["H"].nan_to_num())  # NaN: never in a batch
    assert not first.folder.exists()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_stopping_while_training_writes_nothing(tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(history.Epoch, "to_json", stop)
    with pytest.raises(KeyboardInterrupt, match="nothing was written"):
        demo.demo(tmp_path, quiet(), epochs=2)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "result.json"
    path.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "seeds",
    [pytest.param((0,), marks=pytest.mark.slow), pytest.param((0, 1, 2), marks=pytest.mark.kill)],
    ids=["one seed", "three seeds"],
)
def test_ogc_is_ten_points_ahead(seeds):
    results, _ = train_all(recipes_of(seeds, epochs=120), quiet())
    ce, ogc = ([run["epochs"][-1] for run in half] for half in (results[: len(seeds)], results[len(seeds) :]))
    gain = statistics.fmean(b["accuracy"]["test"] - a["accuracy"]["test"] for a, b in zip(ce, ogc, strict=True))
    assert gain >= 0.10
    assert all(b["memorised"] < a["memorised"] / 2 for a, b in zip(ce, ogc, strict=True))
    assert all(abs(run["noise_rate"] - run["facts"]["noise"]["rate_got"]) < 0.1 for run in results[len(seeds) :])
