"""``ogc compare``: which method predicts held-out samples best, and whether that may be chance."""

import csv
import json
import math
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from children import held, wait_for
from children import ogc as start
from commands import ogc, works
from ogc._files import read_json
from ogc.benchmark import cluster
from ogc.benchmark.batch import Outcome
from ogc.compare import GIVEN, TRUE, Comparison, Method, _label, compare, jobs_of
from ogc.predict import Predictor
from ogc.training import RECIPES, Interrupted, override
from ogc.training.run_folder import RESULT
from small_runs import StopAt, features, job, python_path
from tickets import write_tickets

pytestmark = pytest.mark.pictures  # each comparison draws a small picture

TABLE = ("tickets.csv", "--label", "kind", "--id", "ticket")
SMALL = ("--epochs", "6", "--set", "hidden=16", "--set", "batch_size=16", "--device", "cpu")


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tickets("tickets.csv", 200, seed=0)


def make_comparison(right, **more):
    """Make a comparison from correct predictions: (M, S, N), or a dictionary of such tensors by column."""
    right = right if isinstance(right, dict) else {GIVEN: right}
    methods, seeds, samples = next(iter(right.values())).shape
    names = ["ce", "gce", "ce+ogc"][:methods]
    values = {
        "methods": names,
        "seeds": list(range(seeds)),
        "labels": dict.fromkeys(right, torch.arange(samples) % 2),
        "classes": ("no", "yes"),
        "results": [
            [
                {
                    "recipe": override(RECIPES["table"], {"method": name}).model_dump(mode="json"),
                    "facts": {"samples": samples, "batch": 32, "steps": 10},
                    "epochs": [{"memorised": 0.1, "accuracy": {"val": 0.5}, "averaged": {}}],
                    "seconds": 1.0,
                }
            ]
            * seeds
            for name in names
        ],
        "folders": [[]] * methods,
    }
    return Comparison(right=right, **{**values, **more})


def draw_correct(*rates, seeds=3, samples=400):
    """Draw correct predictions of independent methods with these accuracies: (M, S, N)."""
    draw = torch.Generator().manual_seed(0)
    return torch.stack([torch.rand(seeds, samples, generator=draw) < rate for rate in rates])


# --- the recommendation ----------------------------------------------------------------------------------------------


def test_lead_matches_loop_reference():
    right = draw_correct(0.6, 0.7, seeds=3, samples=50)
    lead = make_comparison(right).lead(1, 0)
    difference = [[float(right[1, s, n]) - float(right[0, s, n]) for n in range(50)] for s in range(3)]
    by_seed = [sum(row) / 50 for row in difference]
    by_sample = [sum(row[n] for row in difference) / 3 for n in range(50)]
    mean = sum(by_seed) / 3
    variances = [sum((x - mean) ** 2 for x in xs) / (len(xs) - 1) / len(xs) for xs in (by_seed, by_sample)]
    assert lead == pytest.approx((mean, 2 * math.sqrt(sum(variances))))


def test_a_clear_winner_and_the_next_best():
    comparison = make_comparison(draw_correct(0.5, 0.9, 0.7))
    assert comparison.ranking == [1, 2, 0]
    sentence = comparison.sentence()
    assert sentence.startswith("Use gce: it predicts ")
    assert "more than the next best, ce+ogc, and the difference exceeds two standard errors over 3 seeds" in sentence


def test_a_lead_that_may_be_chance_is_reported_as_such():
    comparison = make_comparison(draw_correct(0.5, 0.71, 0.7))
    other = {"gce": "ce+ogc", "ce+ogc": "gce"}[comparison.best]
    sentence = comparison.sentence()
    assert sentence.startswith(f"Use {comparison.best}, which predicts ")
    assert f"but {other} may do as well: the difference of " in sentence
    assert "is within two standard errors over 3 seeds and 400 samples (" in sentence
    assert " or " not in sentence  # ce is clearly behind


def test_equal_methods_have_no_clear_winner():
    same = draw_correct(0.8).expand(3, 3, 400)
    comparison = make_comparison(same)
    assert comparison.best == "ce"
    assert "but gce or ce+ogc may do as well: a difference of up to 0.0 points is within" in comparison.sentence()


def test_sentence_warns_about_a_single_seed():
    sentence = make_comparison(draw_correct(0.5, 0.9, seeds=1)).sentence()
    assert "two standard errors over 1 seed and 400 samples" in sentence
    assert sentence.endswith(" One seed does not show the spread: use --seeds 1,2,3.")


def test_methods_are_judged_by_the_most_reliable_labels():
    given, true, test = draw_correct(0.9, 0.5), draw_correct(0.5, 0.9), draw_correct(0.9, 0.5)
    assert make_comparison({GIVEN: given}).best == "ce"
    assert make_comparison({GIVEN: given, TRUE: true}).best == "gce"
    assert make_comparison({GIVEN: given, TRUE: true, "test": test}).judged_by == "test"
    assert "of the true held-out labels" in make_comparison({GIVEN: given, TRUE: true}).sentence()
    assert "of the test labels" in make_comparison({GIVEN: given, "test": test}).sentence()


def test_methods_that_miss_a_rare_class_are_named():
    """gce has the highest accuracy because it always predicts the frequent class."""
    labels = (torch.arange(400) % 20 == 0).long()  # 20 of 400
    right = draw_correct(0.9, 0.9, 0.9)
    right[1] = labels == 0
    right[2, 1:, labels == 1] = False  # missed with all seeds but one
    comparison = make_comparison(right, labels={GIVEN: labels})
    assert comparison.best == "gce"
    note, balanced = comparison.notes()
    assert note.startswith("gce misses almost all labels of the class yes (20). Accuracy is a poor guide here: ")
    assert balanced.startswith("By balanced accuracy ce is best, ")
    behind = make_comparison(torch.stack([torch.ones_like(right[1]), right[1]]), labels={GIVEN: labels})
    assert behind.notes() == ["gce misses almost all labels of the class yes (20)."]
    assert comparison.balanced(GIVEN)[1].tolist() == pytest.approx([0.5] * 3)
    for method, seed in ((0, 2), (2, 0)):
        recall = [right[method, seed][labels == c].double().mean() for c in (0, 1)]
        assert comparison.balanced(GIVEN)[method, seed] == pytest.approx(float(sum(recall)) / 2)
    assert comparison.to_json()["notes"] == [note, balanced]


def test_another_method_may_be_best_by_balanced_accuracy():
    labels = (torch.arange(400) % 4 == 0).long()
    right = (torch.arange(400) % 50 != 1).expand(2, 3, 400).clone()
    right[0, :, labels == 1] = torch.arange(100) % 10 < 8  # 80 % of the rare class
    right[1, :, labels == 0] = torch.arange(300) % 10 < 9
    comparison = make_comparison(right, labels={GIVEN: labels})
    means = [accuracy.mean(1).tolist() for accuracy in (comparison.accuracy(GIVEN), comparison.balanced(GIVEN))]
    assert comparison.best == "ce"
    assert (means[0][0] > means[0][1], means[1][0] < means[1][1]) == (True, True)
    lead = comparison.lead(1, 0, balanced=True)
    assert lead.mean == pytest.approx(means[1][1] - means[1][0])
    by_class = [(right[1, 0].double() - right[0, 0].double())[labels == c] for c in (0, 1)]
    assert lead.spread == pytest.approx(2 * math.sqrt(sum(float(each.var()) / len(each) for each in by_class) / 4))
    [note] = comparison.notes()
    assert note == f"By balanced accuracy gce is best, {100 * lead.mean:.1f} points ahead of ce."
    few = make_comparison(right[:, :, :40], labels={GIVEN: labels[:40]})
    [note], lead = few.notes(), few.lead(1, 0, balanced=True)
    assert not lead.is_clear
    assert note.endswith(f" ahead of ce, which is within two standard errors ({100 * lead.spread:.1f} points).")
    equal = torch.cat((torch.arange(300)[labels[:300] == 0][:150], torch.arange(400)[labels == 1]))
    similar = make_comparison(right[:, :, equal], labels={GIVEN: labels[equal]})
    assert similar.notes() == []  # accuracy is no poor guide here


def test_method_that_clips_nothing_is_named():
    comparison = make_comparison(draw_correct(0.6, 0.7, 0.65))
    assert comparison.notes() == []
    for run in comparison.results[2]:
        run["recipe"]["epochs"] = 1
        run["facts"]["steps"] = 1
    [note] = comparison.notes()
    assert note.startswith("ce+ogc clips nothing in 1 step of 32 samples: ")
    assert "To fix this, add --set queue_size=" in note


def test_spread_of_the_balanced_lead_is_that_of_repeated_draws():
    """With 40 of 400 samples in the rare class, the spread estimated from one draw is that over many."""
    labels = (torch.arange(400) % 10 == 0).long()
    recall = torch.tensor([[0.97, 0.2], [0.95, 0.8]])[:, labels]  # (M, N)
    generator = torch.Generator().manual_seed(0)
    leads = []
    for _draw in range(300):
        right = torch.rand(2, 1, 400, generator=generator) < recall[:, None]
        leads.append(make_comparison(right, labels={GIVEN: labels}).lead(1, 0, balanced=True))
    deviation = float(torch.tensor([lead.mean for lead in leads]).std())
    assert sum(lead.spread for lead in leads) / len(leads) == pytest.approx(2 * deviation, rel=0.15)


def test_balanced_accuracy_is_shown_only_if_classes_differ_in_size():
    right = draw_correct(0.6, 0.7)
    equal, third = make_comparison(right), make_comparison(right, labels={GIVEN: torch.arange(400) % 4 // 3})
    assert [len(comparison.table().columns) for comparison in (equal, third)] == [4, 5]
    assert third.table().columns[2].header == "held-out\ngiven labels\nbalanced"
    assert [("Balanced: the mean over the classes." in each.caption) for each in (equal, third)] == [False, True]
    assert equal.notes() == third.notes() == []
    assert len(equal.picture().axes) == 2
    strips = third.picture().axes[:2]
    for axes, accuracy in zip(strips, (third.accuracy(GIVEN), third.balanced(GIVEN)), strict=True):
        assert [text.get_text() for text in axes.texts] == [f"{100 * float(accuracy[m].mean()):.1f}" for m in (0, 1)]
    assert strips[1].get_xlabel() == "correct predictions, mean over the classes, %; one dot per seed"


@pytest.mark.parametrize(
    ("text", "method", "label"),
    [
        ("ce", Method("ce", {}), "ce"),
        (" gce:q=0.9 ", Method("gce", {"q": "0.9"}), "gce-q-0.9"),
        ("ce+ogc:epsilon=1:every=8", Method("ce+ogc", {"epsilon": "1", "every": "8"}), "ce+ogc-epsilon-1-every-8"),
        ("a/my.py:Mine+ogc", Method("a/my.py:Mine+ogc", {}), "my.py:Mine+ogc"),
        ("my.py:Mine:q=1", Method("my.py:Mine", {"q": "1"}), "my.py:Mine-q-1"),
    ],
)
def test_parse_method_with_settings(text, method, label):
    assert Method.parse(text) == method
    assert method.label == label


def test_methods_are_shown_as_they_are_typed(tmp_path):
    methods = ["ce", "ce+ogc:epsilon=1e-3:every=8", "gce:q=0.9:network=mlp:optimizer=adamw"]
    jobs = small_jobs(tmp_path, methods=methods)
    assert [_label(job) for job in jobs] == 2 * methods
    assert not any(":" in job.out.name for job in jobs)


# --- from Python -----------------------------------------------------------------------------------------------------


def small_jobs(out, **options):
    recipe = override(RECIPES["table"], {"epochs": 4, "hidden": "8", "batch_size": 16})
    return jobs_of(recipe, (features(80), {"val": features(60, seed=1)}), out, **{"seeds": (1, 2)} | options)


def test_accuracies_match_predictions_of_the_runs(tmp_path):
    jobs = small_jobs(tmp_path / "c", methods=("ce", "ce+ogc"))
    comparison = compare(jobs, device="cpu")
    val = jobs[0].data[1]["val"]
    for m, method in enumerate(("ce", "ce+ogc")):
        for s, seed in enumerate((1, 2)):
            folder = tmp_path / "c" / f"{method}-{seed}"
            assert comparison.folders[m][s] == folder
            result = read_json(folder / RESULT, error=ValueError, again="")
            assert (result["recipe"]["method"], result["recipe"]["seed"]) == (method, seed)
            predicted = Predictor.load(folder).probabilities(val.inputs).argmax(1)
            for column, labels in ((GIVEN, val.given), (TRUE, val.true)):
                share = (predicted == labels).double().mean()
                assert comparison.accuracy(column)[m, s] == share
            assert comparison.accuracy(TRUE)[m, s] == pytest.approx(result["epochs"][-1]["averaged"]["val"], abs=1e-9)
            assert comparison.results[m][s]["summary"] == result["summary"]


def test_same_call_resumes_after_interrupt_with_same_result(tmp_path):
    uninterrupted = compare(small_jobs(tmp_path / "uninterrupted"), device="cpu")

    def interrupting_progress(group):
        class Stopping(StopAt):
            def __enter__(self):
                return self

            def __exit__(self, *_):
                return None

        return Stopping(3, 2, signal.SIGINT)

    with pytest.raises(Interrupted):
        compare(small_jobs(tmp_path / "resumed"), device="cpu", progress=interrupting_progress)
    assert not (tmp_path / "resumed" / "ce-1" / RESULT).exists()
    resumed = compare(small_jobs(tmp_path / "resumed"), device="cpu")
    for column, right in uninterrupted.right.items():
        assert resumed.right[column].equal(right)

    # Finished runs are not trained again when seeds and methods are added.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "resumed").glob("*/last.safetensors")}
    more = compare(small_jobs(tmp_path / "resumed", seeds=(1, 2, 3), methods=("ce", "gce", "ce+ogc", "mae")))
    assert more.right[TRUE][:3, :2].equal(uninterrupted.right[TRUE])
    assert len(before) == 6
    assert {path: path.stat().st_mtime_ns for path in before} == before


def mock_cluster(train, monkeypatch):
    """Replace training on the cluster with ``train``, without Ray."""
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 1.0})
    monkeypatch.setattr(cluster, "connected", lambda address: nullcontext(ray))
    monkeypatch.setattr(cluster, "train", train)


def test_cluster_interrupt_with_python_data_names_python_call(tmp_path, monkeypatch):
    def interrupted(ray, jobs, device, most, stop, console):
        stop.signal = signal.SIGINT
        return []

    mock_cluster(interrupted, monkeypatch)
    with pytest.raises(Interrupted, match=r"Resume with: ogc\.training\.train\(jobs, resume=True\)$"):
        cluster.train_jobs([job(tmp_path / "run")], device="cpu", side_by_side=1, address=None, console=None)


def test_folder_with_other_settings_is_rejected(tmp_path):
    jobs = small_jobs(tmp_path / "c", methods=("ce", "gce"), seeds=(1,))
    compare(jobs, device="cpu")
    other = [job._replace(recipe=override(job.recipe, {"epochs": 5})) for job in jobs]
    with pytest.raises(ValueError, match=r"c/ce-1 has a run with epochs = 4, but 5 was requested\. To fix this, "):
        compare(other, device="cpu")
    reported = [job._replace(recipe=override(job.recipe, {"report_epochs": 4})) for job in jobs]
    compare(reported, device="cpu")  # the default of earlier versions was another one, and no number depends on it


def test_folder_with_other_precision_is_rejected(tmp_path):
    """A run in bf16, as on a GPU, cannot be resumed on a CPU. This is detected before training."""
    jobs = small_jobs(tmp_path / "c", methods=("ce", "gce"), seeds=(1,))
    compare([job._replace(recipe=override(job.recipe, {"precision": "bf16"})) for job in jobs], device="cpu")
    shutil.rmtree(tmp_path / "c" / "ce-1")
    with pytest.raises(
        ValueError, match=r"c/gce-1 has a run with precision = 'bf16', but 'float32' was .*another --out"
    ):
        compare(jobs, device="cpu")
    assert not (tmp_path / "c" / "ce-1").exists()


# --- the command -----------------------------------------------------------------------------------------------------


def test_compare_table_with_true_labels():
    output = works("compare", *TABLE, "--true", "true", *SMALL, "--seeds", "1,2", "--method", "gce:q=0.9")
    folder = Path("compare/tickets")
    found = json.loads((folder / "compare.json").read_text())
    assert found["methods"] == ["ce", "gce", "ce+ogc", "gce:q=0.9"]
    assert found["samples"] == {GIVEN: 40, TRUE: 40}
    assert found["judged_by"] == TRUE
    assert found["sentence"] in output.replace("\n", " ")
    with Image.open(folder / "compare.png") as picture:
        assert picture.size == (1600, 440)
    for method in found["methods"]:
        assert f"\n {method} " in output
    best = found["best"].replace(":q=", "-q-")
    assert f"To find wrong labels with it: ogc audit {folder}/{best}-1" in output
    recorded = json.loads((folder / "gce-q-0.9-1" / "run.json").read_text())["recipe"]
    assert recorded["parameters"] == {"q": 0.9}
    again = works("compare", *TABLE, "--true", "true", *SMALL, "--seeds", "1,2", "--method", "gce:q=0.9")
    assert json.loads((folder / "compare.json").read_text()) == found
    assert "6 epochs of 10 steps, 6 of them done" in again


def test_compare_table_without_true_labels_and_with_test_table():
    write_tickets("checked.csv", 50, seed=1, wrong=0)
    works("compare", *TABLE, *SMALL, "--seeds", "1", "--methods", "ce,ce+ogc")
    assert json.loads(Path("compare/tickets/compare.json").read_text())["judged_by"] == GIVEN
    works("compare", *TABLE, *SMALL, "--seeds", "1", "--methods", "ce,ce+ogc", "--test", "checked.csv")
    found = json.loads(Path("compare/tickets-checked/compare.json").read_text())
    assert (found["judged_by"], found["samples"]["test"]) == ("test", 50)


def test_noise_is_added_to_training_labels_only():
    works("compare", *TABLE, *SMALL, "--seeds", "1", "--methods", "ce,gce", "--noise", "symmetric:0.4")
    facts = json.loads(Path("compare/tickets-symmetric-0.4/ce-1/run.json").read_text())["facts"]
    assert facts["noise"]["rate_got"] == pytest.approx(0.4, abs=0.02)
    found = json.loads(Path("compare/tickets-symmetric-0.4/compare.json").read_text())
    with open("tickets.csv", newline="") as file:
        rows = {row["ticket"]: row["kind"] for row in csv.DictReader(file)}
    predicted = Predictor.load("compare/tickets-symmetric-0.4/ce-1").predict("tickets.csv", id="ticket")
    agree = sum(rows[id] == name for id, name in zip(predicted.ids, predicted.predicted, strict=True))
    assert found["samples"] == {GIVEN: 40}
    assert 0 < found["accuracy"][GIVEN][0][0] * 40 <= agree


def test_compare_arrays_and_folder():
    rng, labels = np.random.default_rng(0), np.arange(120) % 2
    np.savez("x.npz", X=rng.normal(size=(120, 3)).astype("float32") + labels[:, None], y=labels)
    works("compare", "x.npz", *SMALL, "--seeds", "1", "--methods", "ce,gce")
    for i in range(40):
        pixels = rng.integers(0, 90, (12, 9, 3), dtype=np.uint8)
        pixels[:, :, i % 2] += 120
        Path("photos", ("red", "green")[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(Path("photos", ("red", "green")[i % 2], f"{i}.png"))
    network = ("--set", "network=mlp", "--set", "augment=none", "--set", "size=8")
    works("compare", "photos", *SMALL, *network, "--seeds", "1", "--methods", "ce,ce+ogc")
    for name in ("x", "photos"):
        accuracy = json.loads(Path(f"compare/{name}/compare.json").read_text())["accuracy"][GIVEN]
        assert max(map(max, accuracy)) > 0.7


INVALID = [
    ((), 2, "Missing argument"),
    (("nowhere.csv", "--label", "kind"), 1, "There is no `nowhere.csv`."),
    (
        ("tickets.csv",),
        2,
        "The column with the labels is missing. Give it with --label (label=... in Python). `tickets.csv`",
    ),
    (("tickets.csv", "--label", "kinds"), 1, "tickets.csv` has no column `kinds`. Found `ticket`, "),
    ((*TABLE, "--methods", "ce,ogc"), 2, "There is no method named 'ogc'. Did you mean ce+ogc?"),
    ((*TABLE, "--methods", "ce"), 2, "Parameter `--methods` should be two methods or more. Found"),
    (
        (*TABLE, "--methods", "ce,,gce"),
        2,
        "Parameter `--methods` should be a comma-separated list, as in ce,gce,ce+ogc.",
    ),
    (
        (*TABLE, "--method", "ce"),
        2,
        "The method ce is compared already. --method adds to --methods, by default ce,gce,ce+ogc.",
    ),
    ((*TABLE, "--method", "gce:q"), 2, "There is no method named 'gce:q'."),
    ((*TABLE, "--method", "gce:q=2"), 2, "Parameter `q` should be in (0, 1]. Found `q = 2"),
    ((*TABLE, "--method", "gce:p=0.5"), 2, "There is no parameter 'p'."),
    ((*TABLE, "--method", "mine.py:Mine"), 2, "There is no loss file `mine.py`."),
    ((*TABLE, "--seeds", "1,1"), 2, "Parameter `--seeds` should be distinct integers, as in 1,2,3."),
    ((*TABLE, "--seeds", "1,01"), 2, "Parameter `--seeds` should be distinct integers, as in 1,2,3."),
    ((*TABLE, "--seeds", "one"), 2, "Parameter `--seeds` should be distinct integers, as in 1,2,3."),
    (
        (*TABLE, "--val", "0"),
        2,
        "Parameter `--val` should be above 0, because methods are compared on held-out samples",
    ),
    ((*TABLE, "--test", "no.csv"), 1, "There is no `no.csv`, given as test."),
    ((*TABLE, "--noise", "symmetric"), 2, "Parameter `--noise` should be KIND:RATE"),
    ((*TABLE, "--side-by-side", "0"), 2, "Parameter `--side-by-side` should be at least 1."),
    ((*TABLE, "--engine", "spark"), 2, "Parameter `--engine` should be one of auto, loop, graph, ray."),
    ((*TABLE, "--address", "here:1"), 2, "Parameter `--address` should be omitted without --engine ray."),
    ((*TABLE, "--engine", "ray", "--device", "cuda:1"), 2, "Parameter `--device` should be auto, cuda or cpu with"),
    ((*TABLE, "--device", "tpu"), 2, "Parameter `--device` should be auto, cpu, cuda or cuda:N."),
    ((*TABLE, "--set", "learning_rate=1"), 2, "There is no parameter 'learning_rate'. Did you mean lr?"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), INVALID, ids=range(len(INVALID)))
def test_invalid_input_gives_one_line_error_and_writes_nothing(arguments, code, message):
    before = sorted(Path().rglob("*"))
    result = ogc("compare", *arguments)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert not arguments or result.stderr.count("\n") == 1  # typer's own message has a frame
    assert sorted(Path().rglob("*")) == before


def test_failed_run_on_cluster_exits_with_code_1(monkeypatch):
    outcome = Outcome(error="The loss is nan at step 1 of epoch 1.")
    mock_cluster(lambda ray, jobs, *_: [(jobs[0], outcome)], monkeypatch)
    result = ogc("compare", *TABLE, *SMALL, "--engine", "ray")
    assert (result.exit_code, result.stderr) == (1, "The loss is nan at step 1 of epoch 1.\n")


def test_reports_node_that_does_not_share_the_folder(monkeypatch):
    mock_cluster(lambda ray, jobs, *_: [(jobs[0], Outcome(result={}, session={}))], monkeypatch)
    result = ogc("compare", *TABLE, *SMALL, "--engine", "ray")
    assert result.exit_code == 1
    assert "ce-1 was trained on a node that does not share" in result.stderr


def test_help_has_examples():
    output = works("compare", "--help")
    assert "ogc compare customers.csv --label churned --test checked.csv" in output


@pytest.mark.slow
def test_same_command_resumes_after_signal():
    command = ["compare", *TABLE, *SMALL, "--methods", "ce,ce+ogc", "--seeds", "1", "--out", "a"]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        hold = Path(f"hold {code}")
        process = start(*command, env=held(hold, after=15))  # 10 steps per epoch
        wait_for(hold.exists, "step 15", process)
        process.send_signal(number)
        output, stderr = process.communicate()
        assert process.returncode == code, stderr
        name = signal.Signals(number).name
        assert stderr == f"Stopped by {name}. To continue from the last checkpoints, run the same command again.\n"
        assert ("6 epochs of 10 steps, 1 of them done" in output) == (number == signal.SIGTERM), output
        assert Path("a/ce-1/last.safetensors").exists()
        assert not Path("a/compare.json").exists()
    assert "6 epochs of 10 steps, 3 of them done" in works(*command)
    assert Path("a/compare.json").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own warnings
def test_local_ray_trains_missing_runs_with_same_result():
    pytest.importorskip("ray", reason="Ray cannot be imported: pip install 'torch-ogc[ray]'", exc_type=ImportError)
    command = ("compare", *TABLE, *SMALL, "--methods", "ce,ce+ogc", "--seeds", "1")
    works(*command, "--out", "local")
    works(*command, "--methods", "ce,gce", "--out", "on-ray")  # its run of ce is not trained again
    before = Path("on-ray/ce-1/last.safetensors").stat().st_mtime_ns
    process = start(*command, "--out", "on-ray", "--engine", "ray", env={"PYTHONPATH": python_path()})
    output, stderr = process.communicate()  # not in this process, where Ray would replace print
    assert process.returncode == 0, stderr
    assert "ce+ogc-1 is finished." in output
    assert "ce-1 is finished." not in output
    assert Path("on-ray/ce-1/last.safetensors").stat().st_mtime_ns == before
    names = {path.name for path in Path("on-ray").iterdir()}
    assert names == {"ce-1", "gce-1", "ce+ogc-1", "compare.json", "compare.png"}
    found, expected = (json.loads(Path(name, "compare.json").read_text()) for name in ("on-ray", "local"))
    assert found == expected
