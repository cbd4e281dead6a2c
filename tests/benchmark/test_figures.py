import io
import json
import math
import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from made_up_results import made_up
from ogc import OGC, losses
from ogc.benchmark import figures, motivation, motivation_picture
from ogc.benchmark.figures import FIGURES, ratio, sweep, tau
from ogc.benchmark.motivation import Settings, moons, numbers, task_of, tau_of, train
from ogc.benchmark.motivation_picture import STEEPEST, density, draw, smoothed
from ogc.benchmark.plan import TABLES, find
from ogc.benchmark.result import write
from ogc.cli import figures as command
from ogc.cli.app import build
from ogc.cli.figures import NAMES
from ogc.report.drawing import rendered
from ogc.training import allow_loss

pytestmark = pytest.mark.pictures

ROOT = Path(__file__).parent.parent.parent
TINY = {"samples": 60, "hidden": (16,), "batch_size": 20, "epochs": (4, 8), "look_every": 2}
SMALL = Settings(**TINY, every=2, queue_size=64)


def ogc_figures(*arguments):
    result = CliRunner().invoke(build(), ["figures", *map(str, arguments)], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def cell_of(table, **changes):
    return next(cell for cell in TABLES[table].cells if cell.changes.items() >= changes.items())


@pytest.fixture(scope="module")
def trained():
    task = task_of(SMALL)
    return [train(threshold, SMALL, task) for threshold in SMALL.thresholds], task


# --- motivation -------------------------------------------------------------------------------------------------------


def test_moons_are_half_circles():
    points, labels = moons(400, 0.0, torch.Generator().manual_seed(0))
    upper, lower = points[labels == 0], points[labels == 1]
    assert len(upper) == len(lower) == 200
    torch.testing.assert_close(upper.norm(dim=1), torch.ones(200))
    torch.testing.assert_close((lower - torch.tensor([1.0, 0.5])).norm(dim=1), torch.ones(200))
    assert upper[:, 1].min() >= -1e-6
    assert lower[:, 1].max() <= 0.5 + 1e-6


def test_the_share_of_wrong_labels_is_exact_in_each_class():
    task = task_of(Settings())
    true = torch.arange(300) % 2
    for label in (0, 1):
        assert int((task.wrong & (true == label)).sum()) == 52
    assert torch.equal(task.given != true, task.wrong)


def test_seed_changes_data_and_noise():
    a, b, again = task_of(Settings()), task_of(Settings(seed=1)), task_of(Settings())
    assert torch.equal(a.inputs, again.inputs)
    assert torch.equal(a.given, again.given)
    assert not torch.equal(a.inputs, b.inputs)
    assert not torch.equal(a.wrong, b.wrong)


def test_training_is_deterministic_and_keeps_global_state(trained):
    histories, task = trained
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    again = train(None, SMALL, task)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert again.moments == histories[-1].moments
    for one, other in zip(again.snapshots, histories[-1].snapshots, strict=True):
        assert torch.equal(one.H, other.H)
        assert torch.equal(one.plane, other.plane)


def test_runs_differ_only_in_their_threshold():
    """If neither clips, both runs are the same."""
    free = replace(SMALL, queue_size=10**6)
    task = task_of(free)
    ogc, fixed = train(None, free, task), train(1e6, free, task)
    assert [moment.tau for moment in ogc.moments] == [None] * 4
    torch.testing.assert_close(ogc.snapshots[-1].H, fixed.snapshots[-1].H, rtol=1e-5, atol=1e-5)


def test_moments_are_reported_and_match_the_gradients(trained):
    histories, task = trained
    reported = []
    history = train(2.0, SMALL, task, reported.append)
    assert reported == history.moments == histories[1].moments
    assert [moment.epoch for moment in reported] == [2, 4, 6, 8]
    last, snapshot = reported[-1], history.snapshots[-1]
    assert snapshot.moment == last
    gradients = snapshot.H.exp().tolist()
    noisy = [gradient for gradient, wrong in zip(gradients, task.wrong.tolist(), strict=True) if wrong]
    clean = [gradient for gradient, wrong in zip(gradients, task.wrong.tolist(), strict=True) if not wrong]
    assert last.noisy_clipped == pytest.approx(sum(g > 2 for g in noisy) / len(noisy))
    assert last.clean_clipped == pytest.approx(sum(g > 2 for g in clean) / len(clean))
    assert last.memorised == pytest.approx(sum(g < 2 for g in noisy) / len(noisy))  # with two classes: p > 1/2
    assert 0.5 < last.test_accuracy <= 1


@pytest.mark.parametrize("axis", [0, 1])
def test_plane_starts_at_the_lower_left(axis):
    """Columns run from left to right, and rows upwards."""

    class LinearInOneInput(torch.nn.Module):
        def forward(self, points):
            return torch.stack([-points[:, axis], points[:, axis]], 1)

    plane = motivation.evaluate(LinearInOneInput(), None, task_of(SMALL), 1, with_plane=True).plane
    along = plane if axis == 0 else plane.T
    low, high = motivation.PLANE[axis]
    middle = round((0 - low) / (high - low) * (motivation.PIXELS - 1))
    assert bool((along[:, : middle - 1] < 0.5).all())
    assert bool((along[:, middle + 2 :] > 0.5).all())


def test_tau_is_read_from_the_loss():
    assert tau_of(losses.PHuberCE(tau=3.0)) == 3.0
    assert tau_of(OGC("ce", follow_lr=False)) is None


@pytest.mark.filterwarnings("ignore:OGC. nothing has been clipped")
def test_epsilon_is_lr_times_epsilon0():
    """With two classes and 35 % of labels swapped, an epsilon of 2 clips nothing, while 0.1 and 0.5 do."""
    quick = replace(SMALL, hidden=(32,), epochs=(40,), lr=0.1)
    task = task_of(quick)
    taus = [train(None, replace(quick, epsilon0=epsilon0), task).moments[-1].tau for epsilon0 in (1.0, 5.0, 20.0)]
    assert taus[-1] is None
    assert 1.1 < taus[0] < 1.5 < taus[1]


def test_numbers_are_json_with_provenance(trained):
    histories, task = trained
    found = json.loads(json.dumps(numbers(histories, SMALL, task), allow_nan=False))
    assert found["settings"] | {"taus": (5.0, 2.0), "hidden": (16,), "epochs": (4, 8)} == vars(SMALL)
    assert set(found["provenance"]) == {"date", "commit", "device", "torch", "python", "ogc"}
    assert [run["method"] for run in found["runs"]] == ["tau = 5", "tau = 2", "CE+OGC"]
    for run, history in zip(found["runs"], histories, strict=True):
        assert run["moments"]["epoch"] == [2, 4, 6, 8]
        accuracies = [moment.test_accuracy for moment in history.moments]
        assert run["moments"]["test_accuracy"] == pytest.approx(accuracies, abs=1e-5)
        assert run["last"]["test_accuracy"] == pytest.approx(sum(accuracies) / 4, abs=1e-5)
        assert run["H"]["8"] == pytest.approx(history.snapshots[-1].H.tolist(), abs=1e-4)
    assert sum(found["wrong"]) == int(task.wrong.sum())
    assert len(found["across"]) == len(found["up"]) == len(found["given"]) == 60


def test_density_integrates_to_one_and_includes_outliers():
    H = torch.tensor([0.0, 0.1, 1.0, 2.0, 1e6])
    at = torch.linspace(0, math.log(STEEPEST), 4001, dtype=torch.float64)
    found = density(H, at)
    assert torch.trapezoid(found, at).item() == pytest.approx(1, abs=1e-4)
    share = torch.trapezoid(found[at > 3], at[at > 3]).item()
    assert share == pytest.approx(0.2, abs=0.01)
    width = motivation_picture.BANDWIDTH
    bell = math.exp(-0.5 * (0.3 / width) ** 2) / (width * math.sqrt(2 * math.pi))
    assert density(torch.tensor([1.7]), torch.tensor([2.0], dtype=torch.float64)).item() == pytest.approx(bell)


def test_figure_shows_the_measured_numbers(trained):
    histories, task = trained
    figure = draw(histories, task)
    captions = [text.get_text() for text in figure.texts]
    names = ("Fixed threshold, tau = 5", "Threshold by OGC")
    for caption, name, history in zip(captions, names, (histories[0], histories[-1]), strict=True):
        moments = history.moments
        memorised, right = (
            100 * sum(getattr(moment, name) for moment in moments) / len(moments)
            for name in ("memorised", "test_accuracy")
        )
        assert caption == (
            f"{name}, epochs {moments[0].epoch} to {moments[-1].epoch}: "
            f"{memorised:.0f} % of wrong labels memorised, test accuracy {right:.0f} %"
        )
    panels = [axes for axes in figure.axes if axes.get_title().startswith("epoch")]
    snapshots = [*histories[0].snapshots, *histories[-1].snapshots]
    assert [axes.get_title() for axes in panels] == ["epoch 4", "epoch 8"] * 2
    for axes, snapshot in zip(panels, snapshots, strict=True):
        moment = snapshot.moment
        texts = [text.get_text() for text in axes.texts]
        assert f"{100 * moment.noisy_clipped:.0f} % of noisy clipped" in texts
        assert f"{100 * moment.clean_clipped:.0f} % of clean clipped" in texts
        assert (f"tau = {moment.tau:.3g}" in texts) if moment.tau else len(texts) == 2
    [accuracy] = [axes for axes in figure.axes if axes.get_title() == "test accuracy, %"]
    assert list(accuracy.lines[0].get_ydata()) == [100 * moment.test_accuracy for moment in histories[0].moments]


def test_smoothing_damps_a_spike_at_the_end():
    steady = [50.0] * 20
    assert smoothed(steady) == steady
    assert smoothed([*steady, 110.0])[-1] == 60.0
    assert smoothed([0.0, *steady])[0] == 0.0


def test_draws_a_run_that_never_clips():
    free = replace(SMALL, queue_size=10**6, taus=(5.0,))
    task = task_of(free)
    figure = draw([train(5.0, free, task), train(None, free, task)], task)
    assert rendered(figure, "png").startswith(b"\x89PNG")


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(motivation, "Settings", partial(Settings, **TINY, every=2, queue_size=64))


def test_command_writes_figure_and_numbers(tmp_path, tiny):
    out = tmp_path / "new" / "folder"
    first = ogc_figures("motivation", "--out", out, "--format", "png, svg")
    assert first.exit_code == 0
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert sorted(files) == ["motivation.json", "motivation.png", "motivation.svg"]
    assert files["motivation.png"].startswith(b"\x89PNG")
    assert b"training data" in files["motivation.svg"], "text stays text"
    assert "\x1b" not in first.output
    assert first.output.count("epoch    8/8") == 3
    for name in files:
        assert str(out / name) in first.output
    assert re.search(
        r'"epoch": \[2, 4, 6, 8\]', re.sub(r"\[ | \]", lambda m: m[0].strip(), files["motivation.json"].decode())
    )

    assert ogc_figures("motivation", "--out", out, "--format", "png,svg").exit_code == 0
    for name, content in files.items():
        if name.endswith(".png"):  # other formats contain a date
            assert (out / name).read_bytes() == content, f"{name} differs on the second run"
    assert ogc_figures("motivation", "--out", out, "--seed", "1").exit_code == 0
    assert json.loads((out / "motivation.json").read_text())["settings"]["seed"] == 1
    assert (out / "motivation.png").read_bytes() != files["motivation.png"]


def test_ctrl_c_leaves_no_partial_file(tmp_path, tiny, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(motivation, "train", stop)
    result = ogc_figures("motivation", "--out", tmp_path)
    assert result.exit_code == 130
    assert result.stderr == "Stopped. Files that were already written are complete.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_pictures")
def test_failed_write_keeps_the_old_figure(tmp_path, tiny, monkeypatch):
    (tmp_path / "motivation.png").write_bytes(b"old")

    def fail(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    result = ogc_figures("motivation", "--out", tmp_path)
    assert result.exit_code == 1
    assert result.stderr == f"Cannot use {tmp_path / 'motivation.png'}: No space left on device.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["motivation.png"]
    assert (tmp_path / "motivation.png").read_bytes() == b"old"


def test_unusable_output_folder_is_reported_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(motivation, "train", lambda *_: pytest.fail("trained"))
    (tmp_path / "file").touch()
    result = ogc_figures("motivation", "--out", tmp_path / "file")
    assert result.exit_code == 1
    fix = "A folder is needed there. Choose another, or move the file away."
    assert result.stderr == f"Cannot use {tmp_path / 'file'}: File exists. {fix}\n"


@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("no_pictures")
def test_warnings_are_printed_as_notes(tmp_path, monkeypatch):
    import warnings

    def warn(threshold, settings, task, report):
        warnings.warn("the fit is poor", UserWarning, stacklevel=1)
        return train(threshold, settings, task, report)

    monkeypatch.setattr(motivation, "train", warn)
    text = io.StringIO()
    command.motivation(SMALL, tmp_path, ["png"], Console(file=text))
    assert "Note: the fit is poor\n" in text.getvalue()


@pytest.mark.kill
def test_new_figure_shows_the_expected_effect():
    settings = Settings()
    task = task_of(settings)
    check_expected_effect(
        numbers([train(threshold, settings, task) for threshold in settings.thresholds], settings, task)
    )


def check_expected_effect(found):
    loose, strict, ogc = found["runs"]
    at = {epoch: i for i, epoch in enumerate(loose["moments"]["epoch"])}
    assert ogc["last"]["test_accuracy"] - 0.05 > strict["last"]["test_accuracy"] > loose["last"]["test_accuracy"]
    fewest = min(strict["last"]["memorised"], loose["last"]["memorised"])  # which one depends on the processor
    assert ogc["last"]["memorised"] < fewest / 2
    assert loose["moments"]["test_accuracy"][at[50]] > loose["last"]["test_accuracy"] + 0.05, "good at first"
    assert loose["last"]["noisy_clipped"] < 0.1, "noisy gradients shrink below a threshold of 5"
    assert strict["moments"]["noisy_clipped"][at[50]] > strict["last"]["noisy_clipped"] + 0.05, (
        "tau = 2 clips more noisy samples at first"
    )
    assert ogc["last"]["noisy_clipped"] > 0.85
    taus = ogc["moments"]["tau"]
    assert taus[at[20]] > taus[at[50]] > taus[at[500]] + 0.1, "tau falls as the densities separate"


def test_recorded_figure_shows_the_expected_effect():
    found = json.loads((ROOT / "benchmarks" / "results" / "motivation.json").read_text())
    assert found["settings"] | {k: tuple(found["settings"][k]) for k in ("taus", "hidden", "epochs")} == vars(
        Settings()
    )
    check_expected_effect(found)


def test_the_recorded_seeds_agree():
    found = json.loads((ROOT / "benchmarks" / "results" / "motivation-seeds.json").read_text())
    assert [each["seed"] for each in found["seeds"]] == [0, 1, 2, 3, 4]
    figure = json.loads((ROOT / "benchmarks" / "results" / "motivation.json").read_text())
    assert found["settings"] | {"seed": 0} == figure["settings"]
    for each in found["seeds"]:
        loose, strict, ogc = (each["runs"][name]["last"] for name in ("tau = 5", "tau = 2", "CE+OGC"))
        assert ogc["test_accuracy"] > loose["test_accuracy"] + 0.05
        assert ogc["test_accuracy"] > strict["test_accuracy"] - 0.01, "never behind by more than a point"
        assert ogc["memorised"] < strict["memorised"] < loose["memorised"]
    first = {run["method"]: run["last"] for run in figure["runs"]}
    assert {name: run["last"] for name, run in found["seeds"][0]["runs"].items()} == first


# --- from recorded runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIGURES)
def test_error_without_results_names_the_command_to_run(name, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    result = ogc_figures(name, "--results", results, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert not (tmp_path / "out").exists()
    assert result.stderr.count("\n") == 1
    sentence, command = result.stderr.strip().split(". To run them: ")
    assert sentence == f"{name}: {results} has no runs for it"
    assert command.endswith(f" --out {results}")

    ran = CliRunner().invoke(
        build(), [*shlex.split(command)[1:], "--noises", "symmetric:0.8", "--dry-run"], env={"COLUMNS": "200"}
    )
    assert ran.exit_code == 0, f"{command}: {ran.output}"


def test_missing_results_folder(tmp_path):
    result = ogc_figures("tau", "--results", tmp_path / "none")
    assert result.exit_code == 1
    none = tmp_path / "none"
    assert result.stderr == f"There is no folder {none}. Create results with ogc bench run TABLE --out {none}.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("motivaton",), "There is no figure 'motivaton'. Did you mean motivation?"),
        (("tau", "--format", "jpg"), "There is no format 'jpg'. Did you mean png? Choose from png, svg, pdf."),
        (("motivation", "--seed", "-1"), "Parameter `--seed` should be in [0, 2**32). Found `--seed -1`."),
    ],
)
def test_error_is_one_line(arguments, sentence):
    result = ogc_figures(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(sentence)
    assert result.stderr.count("\n") == 1


def test_help_has_examples_and_every_name():
    text = ogc_figures("--help").output
    assert "ogc figures tau ratio --results runs/bench --format pdf" in text
    for name in NAMES:
        assert re.search(rf"^ {name} +\w", text, re.M), name


def test_epsilon_sweep_is_drawn_with_the_papers_rule():
    runs = [
        made_up(cell_of("epsilon", epsilon=value), seed, percent)
        for seed in (1, 2)
        for value, percent in ((0.01, 70.0 + seed), (0.5, 80.0 + seed))
    ]
    [cell] = find("cifar10", ["ce+ogc"], ["symmetric:0.5"])
    runs += [made_up(cell, 1, 86.0), made_up(cell, 2, 50.0, noise_sha256="9c" * 32)]  # the second on other labels
    [(name, figure)] = sweep("epsilon", runs).items()
    assert name == "epsilon"
    half, heavy = figure.axes
    assert list(half.lines[0].get_xdata()) == [0, 3], "evenly spaced: 0.01 is the first of six, 0.5 the fourth"
    assert list(half.lines[0].get_ydata()) == pytest.approx([71.5, 81.5])
    assert [list(line.get_ydata()) for line in half.lines[1:3]] == [pytest.approx([71, 72]), pytest.approx([81, 82])]
    assert [line.get_ydata()[0] for line in half.lines[3:]] == pytest.approx([85.16, 86.0])
    assert [text.get_text() for text in half.texts] == ["71.5", "81.5", "paper 85.2", "ours 86.0"]
    assert [tick.get_text() for tick in half.get_xticklabels()] == ["0.01", "0.05", "0.1", "0.5", "1", "5"]
    assert "Sym-80%" in heavy.get_title(loc="left")
    assert [line.get_ydata()[0] for line in heavy.lines if len(line.get_ydata())] == pytest.approx([43.77])


@pytest.mark.parametrize(("name", "parameter", "place"), [("queue", "queue_size", 4), ("every", "every", 1)])
def test_sweeps_with_the_variance_of_tau_mark_the_papers_choice(name, parameter, place):
    rows = TABLES[name].rows
    runs = [made_up(cell_of(name, **{parameter: row.changes[parameter]}), 1, 40.0 + i) for i, row in enumerate(rows)]
    [(_, figure)] = sweep(name, runs).items()
    accuracy, variance = figure.axes
    assert list(accuracy.lines[0].get_ydata()) == pytest.approx([40, 41, 42, 43, 44, 45])
    assert list(variance.lines[0].get_ydata()) == pytest.approx([runs[0].measured("tau_variance")] * 6)
    assert variance.get_yscale() == "log"
    assert "paper's choice" in [text.get_text() for text in accuracy.texts]
    assert accuracy.lines[-1].get_xdata()[0] == place
    assert accuracy.get_xticklabels()[place].get_text() == {"queue": "4096", "every": "32"}[name]


def with_epochs(result, change):
    return result.model_copy(update={"epochs": tuple(change(epoch) for epoch in result.epochs)})


def test_tau_has_one_curve_per_noise_averaged_over_seeds():
    def late(epoch):
        return replace(epoch, tau=None if epoch.epoch <= 5 else epoch.tau)

    cells = find("cifar10", ["ce+ogc"], ["symmetric:0.5", "human:worse"])
    runs = [with_epochs(made_up(cell, seed), late) for cell in cells for seed in (1, 2)]
    runs[1] = with_epochs(runs[1], lambda epoch: replace(epoch, tau=epoch.tau and epoch.tau + 1))
    swept = made_up(cell_of("queue", queue_size=256))
    [(name, figure)] = tau([swept, *runs, made_up(find("cifar10", ["ce"])[0])]).items()
    assert name == "tau-cifar10"
    [axes] = figure.axes
    assert axes.get_title(loc="left") == "CE+OGC"
    half, real = axes.lines[:2]
    named = {text.get_text(): text.get_color() for text in axes.texts}
    assert (half.get_color(), real.get_color()) == (named["Sym-50%"], named["Real"])
    assert half.get_color() != real.get_color()
    assert all(math.isnan(found) for found in half.get_ydata()[:5]), "a gap where nothing is clipped"
    assert list(half.get_ydata()[5:]) == pytest.approx([2.5 + epoch / 100 for epoch in range(6, 151)])
    assert list(real.get_ydata()[5:]) == pytest.approx([2 + epoch / 100 for epoch in range(6, 151)])
    assert set(named) == {"lr 0.01", "lr 0.001", "Sym-50%", "Real", "gap: nothing\nis clipped"}
    assert half.get_marker() == "o", "makes an epoch between two gaps visible"
    [(_, without_gaps)] = tau([made_up(cell) for cell in cells]).items()
    assert {text.get_text() for text in without_gaps.axes[0].texts} == {"lr 0.01", "lr 0.001", "Sym-50%", "Real"}


def test_methods_outside_the_tables_are_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loss = "class Brier(Pointwise):\n    def value(self, p):\n        return (1 - p) ** 2 / 2\n"
    Path("mine.py").write_text(f"from ogc.losses import Pointwise\n{loss}")
    allow_loss("mine.py:Brier")
    cells = find("digits", ["gce+ogc", "mine.py:Brier+ogc", "mine.py:Brier"], ["symmetric:0.2", "symmetric:0.5"])
    runs = [with_epochs(made_up(cell), lambda e: replace(e, ratio=1.0, true_ratio=2.0)) for cell in cells]
    [(_, figure)] = tau(runs).items()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Brier+OGC", "GCE+OGC"]
    assert [len([line for line in axes.lines if len(line.get_xdata()) > 2]) for axes in figure.axes] == [2, 2]
    assert list(ratio(runs)) == ["ratio-digits-brier_ogc", "ratio-digits-gce_ogc"]


def test_ratio_has_one_panel_per_noise():
    def known(epoch):
        return replace(epoch, ratio=3.0, true_ratio=3.0 + epoch.epoch / 100)

    cells = find("cifar10", ["fl+ogc"], ["symmetric:0.2", "symmetric:0.8", "asymmetric:0.4", "instance:0.4"])
    [(name, figure)] = ratio([with_epochs(made_up(cell), known) for cell in cells]).items()
    assert name == "ratio-cifar10-fl_ogc"
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in shown] == ["Sym-20%", "Sym-80%", "Asymmetric", "Dependent"]
    modelled, true = shown[2].lines[:2]
    assert set(modelled.get_ydata()) == {3.0}
    assert list(true.get_ydata()) == pytest.approx([3 + epoch / 100 for epoch in range(1, 151)])
    assert ratio([made_up(cell) for cell in cells]) == {}, "nothing without ratios"


def test_draws_valid_results_and_reports_invalid_files(tmp_path):
    write(tmp_path / "results", made_up(cell_of("epsilon", epsilon=0.1)))
    (tmp_path / "results" / "other.json").write_text("{}")
    result = ogc_figures("epsilon", "--results", tmp_path / "results", "--out", tmp_path / "out", "--format", "svg")
    assert result.exit_code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["epsilon.svg"]
    assert "Note: " in result.output
    assert "other.json cannot be used: expected version 1, 2 or 3" in result.output


def test_digits_results_give_a_digits_figure(tmp_path):
    write(tmp_path, made_up(find("digits", ["ce+ogc"], ["symmetric:0.5"])[0]))
    result = ogc_figures("tau", "--results", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert result.output.split() == [str(tmp_path / "out" / "tau-digits.png")]


@pytest.mark.usefixtures("no_pictures")
def test_all_draws_every_figure_with_results(tmp_path, tiny):
    write(tmp_path, made_up(find("cifar10", ["ce+ogc"], ["symmetric:0.5"])[0]))
    result = ogc_figures("all", "--results", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["motivation.json", "motivation.png", "tau-cifar10.png"]
    for name in ("epsilon", "queue", "every", "ratio"):
        assert f"{name}: {tmp_path} has no runs for it" in result.stderr


@pytest.mark.parametrize(("format", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_figure_in_every_format(format, start):
    assert rendered(sweep("every", [made_up(cell_of("every", every=32))])["every"], format).startswith(start)


def test_data_sets_have_names_and_noises_have_colours():
    with_ogc = {table.dataset for table in TABLES.values() for row in table.rows if row.method.endswith("+ogc")}
    assert with_ogc <= set(figures.NAMES)
    noises = {column.noise for table in TABLES.values() for column in table.columns if column.noise}
    assert noises <= set(figures.COLOURS)
