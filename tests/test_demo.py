import io
import json
import statistics

import pytest
import torch
from rich.console import Console

from ogc import demo
from ogc._files import write_whole
from ogc.demo import METHODS, Settings, run, training

pytestmark = pytest.mark.pictures

FILES = ["demo.png", "accuracy.png", "tau.png", "histogram.png", "result.json"]
SHORT = Settings(epochs=7, hidden=(32,))  # the first fit comes in epoch 6


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    text = io.StringIO()
    histories = demo.demo(out, Settings(epochs=7, seeds=(0, 1), hidden=(32,)), Console(file=text, width=80))
    return out, text.getvalue(), histories


def test_every_file_is_written_and_nothing_else(finished):
    out, _, _ = finished
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)


def test_pictures_are_pictures(finished):
    out, _, _ = finished
    for path in out.glob("*.png"):
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert 10_000 < len(content) < 150_000, path.name


def test_result_holds_the_history(finished):
    out, _, histories = finished
    result = json.loads((out / "result.json").read_text(), parse_constant=pytest.fail)  # NaN is no JSON
    assert result["settings"]["milestones"] == [2, 5]
    assert set(result["versions"]) >= {"ogc", "torch", "numpy", "scikit-learn"}
    assert [(r["method"], r["seed"]) for r in result["runs"]] == [("CE", 0), ("CE", 1), ("CE+OGC", 0), ("CE+OGC", 1)]
    for stored, history in zip(result["runs"], histories, strict=True):
        assert [e["test_accuracy"] for e in stored["epochs"]] == [e.test_accuracy for e in history.epochs]
        assert len(stored["epochs"]) == 7


def test_piped_output_is_plain_and_says_what_matters(finished):
    out, text, _ = finished
    assert "\x1b" not in text
    assert "\r" not in text
    assert str(out) in text.replace("\n", "")
    assert "n = 2 seeds" in text
    assert 'criterion = OGC("ce", optimizer)' in text
    assert text.count("epoch   7/7") == 4
    assert "in noisy normal /" in text
    assert "noise rate" not in text, "what surveys estimate, and the demo makes none"
    assert max(map(len, demo.PASTE.splitlines())) <= 80


def test_terminal_output_has_a_bar_per_method(tmp_path):
    text = io.StringIO()
    demo.demo(tmp_path, Settings(epochs=2, hidden=(8,)), Console(file=text, width=100, force_terminal=True))
    assert "\x1b" in text.getvalue()
    assert "CE+OGC" in text.getvalue()
    assert "waiting" in text.getvalue()


def test_both_methods_are_one_until_something_is_clipped():
    """Same weights, same batches, same noise: they part when the first sample is clipped."""
    ce, ogc = (run(method, 0, SHORT) for method in METHODS)
    assert ce.labels_sha256 == ogc.labels_sha256
    clipped = [e.tau is not None for e in ogc.epochs].index(True)
    assert 1 <= clipped <= 5
    assert [e.test_accuracy for e in ce.epochs[:clipped]] == [e.test_accuracy for e in ogc.epochs[:clipped]]
    assert not torch.equal(ce.H, ogc.H)
    assert all(e.tau is None and e.noisy_weight is None for e in ce.epochs)
    assert ce.mixture is None
    assert ogc.last.tau == pytest.approx(1 / ogc.last.p0)


def test_a_run_repeats_itself_and_leaves_no_trace():
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    first, again, other = (run("CE+OGC", seed, Settings(epochs=2, hidden=(32,))) for seed in (0, 0, 1))
    assert torch.equal(first.H, again.H)
    assert not torch.equal(first.H, other.H)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_half_of_the_labels_are_wrong():
    task = training.noisy_digits(0.5, 0)
    assert 0.47 < task.wrong.float().mean() < 0.53


def test_memorised_is_measured_on_wrong_labels_alone():
    task = training.noisy_digits(0.5, 0)
    parrot = torch.nn.Linear(64, 10)
    one_hot = torch.nn.functional.one_hot(task.given, 10).float()
    parrot.forward = lambda inputs: one_hot if inputs is task.inputs else torch.zeros(len(inputs), 10)
    assert training.look(parrot, torch.nn.CrossEntropyLoss(), task).memorised == 1
    one_hot[task.wrong] = one_hot[task.wrong].roll(1, dims=1)
    assert training.look(parrot, torch.nn.CrossEntropyLoss(), task).memorised == 0


def test_stopping_while_training_writes_nothing(tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "look", stop)
    with pytest.raises(demo.Stopped, match="nothing was written"):
        demo.demo(tmp_path, SHORT, Console(file=io.StringIO()))
    assert list(tmp_path.iterdir()) == []


def test_stopping_while_drawing_names_what_is_kept(tmp_path, monkeypatch):
    drawn = iter([b"picture", b"picture"])

    def draw_two_then_stop(figure):
        try:
            return next(drawn)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(demo, "png", draw_two_then_stop)
    with pytest.raises(demo.Stopped, match=r"kept demo\.png, accuracy\.png in"):
        demo.demo(tmp_path, Settings(epochs=1, hidden=(8,)), Console(file=io.StringIO()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["accuracy.png", "demo.png"]


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


@pytest.mark.parametrize("value", [{"seeds": ()}, {"epochs": 0}, {"seeds": (-1,)}])
def test_settings_name_a_bad_value(value):
    (name,) = value
    with pytest.raises(ValueError, match=f"`{name}` should be"):
        Settings(**value)


def test_an_unknown_method_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"CE, CE\+OGC"):
        run("FL")


@pytest.mark.slow
def test_ogc_is_ten_points_ahead_over_three_seeds():
    ce, ogc = ([run(method, seed) for seed in range(3)] for method in METHODS)
    gain = statistics.fmean(b.last.test_accuracy - a.last.test_accuracy for a, b in zip(ce, ogc, strict=True))
    assert gain >= 0.10
    assert all(b.last.memorised < a.last.memorised / 2 for a, b in zip(ce, ogc, strict=True))
    assert all(abs(h.last.noisy_weight - h.true_noise) < 0.1 for h in ogc)
