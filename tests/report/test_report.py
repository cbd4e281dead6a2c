import io
import itertools
import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from rich.console import Console

from commands import works
from edited import edited
from ogc.data import load_digits
from ogc.report import report
from ogc.report.drawing import figure_of, spread, svg
from ogc.report.pictures import lr_drops, pictures
from ogc.report.report import (
    balanced_sentences,
    class_rows,
    headline,
    sentences,
    training_notes,
    whole_options,
    write_report,
)
from ogc.report.table import table
from ogc.training import RECIPES, Epoch, Job, override, train
from ogc.training.history import summaries, summary
from ogc.training.run_folder import read, write_part, write_run, write_tensors

pytestmark = pytest.mark.pictures

MIXTURE = {"clean_mean": 0.4, "clean_var": 0.2, "noisy_mean": 4.0, "noisy_var": 2.0, "noisy_weight": 0.46}
FILES = ["accuracy.png", "labels.png", "noise.png", "tau.png", "ratio.png", "histogram.png", "report.html"]
NAMES = ("<script>alert(1)</script>", '"quoted" & co', "x" * 300, "plain")


def epoch(number, *, clips=True, true=True, sets=("test",), average=True, lr=0.1):
    accuracy = dict.fromkeys(sets, 0.5 + 0.004 * number)
    fitted = clips and number > 2
    return Epoch(
        epoch=number,
        lr=lr,
        loss=2 - 0.01 * number,
        accuracy=accuracy,
        averaged={name: share + 0.02 for name, share in accuracy.items()} if average else {},
        agreement=0.4,
        clean=0.8 if true else None,
        memorised=0.081 if true else None,
        recovered=0.7 if true else None,
        tau=10 / number if fitted else None,
        p0=number / 10 if fitted else None,
        mixture=MIXTURE if fitted else None,
        ratio=3.0 if fitted else None,
        true_ratio=3.3 if clips and true else None,
        seconds=1.5,
        images_per_second=50_000.0,
    )


def survey_history(epochs, memorised):
    """Surveys after a tenth, a half and all of the epochs; the last one does not count if labels are memorised."""
    history = torch.full((epochs, 3), torch.nan, dtype=torch.float64)
    for epoch, row in {
        max(1, epochs // 10): [0.6, 0.6, 1],
        max(1, epochs // 2): [0.5, 0.47, 1],
        epochs: [0.12 if memorised else 0.45, 0.46, not memorised],
    }.items():
        history[epoch - 1] = torch.tensor(row)
    return history


def write_run_folder(
    folder,
    *,
    epochs=30,
    done=None,
    classes=NAMES,
    samples=400,
    nan=0,
    noise="symmetric:0.5",
    method="ce+ogc",
    memorised=False,
    **options,
):
    """Write the folder of a run without training. ``options`` are those of ``epoch``."""
    done = epochs if done is None else done
    changes = {
        "epochs": epochs,
        "noise": noise,
        "method": method,
        "average": 0.999 if options.get("average", 1) else None,
    }
    recipe = override(RECIPES["digits"], changes)
    history = [epoch(i, clips="+" in method, lr=recipe.lr_at(i - 1), **options) for i in range(1, done + 1)]
    info = {"kind": noise, "rate_asked": 0.5, "rate_got": 0.4498, "seed": 0, "num_classes": 4, "sha256": "5ha" * 21}
    facts = {"samples": samples, "classes": list(classes), "noise": info if noise else None, "device": "cpu"}
    facts |= {
        "inputs": [1],
        "from_python": [],
        "network": "mlp, 1,234 parameters",
        "versions": {"torch": "2.9"},
        "commit": None,
        "started": "today",
    }
    description = {"recipe": recipe.model_dump(mode="json"), "source": {"kind": "digits"}}
    folder.mkdir(parents=True)
    write_run(folder, "id", description, facts)
    if done < epochs:
        write_tensors(folder / "last.safetensors", "id", {}, {"history": [asdict(each) for each in history]})
        return folder
    content = {
        "summary": summary(history, 10),
        "summaries": summaries(history, 10),
        "epochs": [asdict(each) for each in history],
        "seconds": 75.0,
        "noise_rate": 0.46,
        "true_noise_rate": 0.4498 if noise else None,
    }
    write_part(folder / "result.json", "id", {**description, "facts": facts, **content})
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(len(classes), (4, samples), generator=generator)
    wrong = torch.rand(samples, generator=generator) < 0.45
    given = torch.where(wrong, label[1], label[0])
    H = torch.where(given != label[0], 4.0, 0.3) + torch.rand(samples, generator=generator)
    predicted = torch.where(torch.rand(samples, generator=generator) < 0.8, label[0], label[2])
    H[:nan], predicted[:nan] = torch.nan, -1
    tensors = {"H": H, "predicted": predicted, "given": given}
    tensors |= {"true": label[0]} if options.get("true", 1) else {}
    tensors |= {"survey.history": survey_history(epochs, memorised)}
    write_tensors(folder / "samples.safetensors", "id", tensors, {})
    return folder


class Page(HTMLParser):
    """Tags of a page with their attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open = [], "", []
        self.feed(text)
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = write_run_folder(tmp_path_factory.mktemp("runs") / "run")
    return folder, write_report(folder)


def test_writes_pictures_and_page(finished):
    folder, written = finished
    assert written == [folder / name for name in FILES]
    for path in written[:-1]:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert 10_000 < len(content) < 200_000, path.name


def test_page_is_self_contained_and_has_no_scripts(finished):
    text = finished[1][-1].read_text()
    page = Page(text)
    assert "http" not in text
    assert "@import" not in text
    assert page.all("script") == []
    assert not any("src" in attributes for _, attributes in page.tags)
    links = [a[key] for _, a in page.tags for key in ("href", "xlink:href") if key in a]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"url\((?!#)", text)


def test_page_is_accessible(finished):
    page = Page(finished[1][-1].read_text())
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == len(page.all("title")) == 1
    images = [a["aria-label"] for _, a in page.tags if a.get("role") == "img"]
    assert len(images) == len(page.all("svg")) == 6
    assert all(len(label) > 40 for label in images)
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(a.get("scope") in ("row", "col") for a in page.all("th"))


def test_ids_in_drawings_are_unique(finished):
    page = Page(finished[1][-1].read_text())
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids)) > 50
    links = {a["xlink:href"][1:] for a in page.all("use")}
    clips = set(re.findall(r"url\(#([^)]+)\)", finished[1][-1].read_text()))
    assert links | clips <= set(ids)


def test_drawings_use_the_colours_of_the_page(finished):
    text = finished[1][-1].read_text()
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert re.findall(r"#[0-9a-f]{6}\b", drawings) == []
    used, known = set(re.findall(r"var\(--(\w+)\)", text)), set(re.findall(r"--(\w+): #", text))
    assert used <= known
    assert len(re.findall(r"--ink: #", text)) == 2  # light and dark


def test_class_names_are_escaped(finished):
    text = finished[1][-1].read_text()
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "&#34;quoted&#34; &amp; co" in text
    assert "x" * 41 not in text


@pytest.mark.usefixtures("no_pictures")
def test_class_name_that_is_not_utf8(tmp_path):
    folder = write_run_folder(tmp_path / "run", classes=["caf\udce9", "tea", "c", "d"])  # the bytes b"caf\xe9"
    assert "caf\N{REPLACEMENT CHARACTER}" in write_report(folder)[-1].read_text()


def test_sentences_summarise_the_result(finished):
    text = " ".join(sentences(read(finished[0])))
    assert "for 30 of 30 epochs in 0:45" in text
    assert "Accuracy on test over the last 10 epochs: 60.2 % (standard deviation 1.1)" in text
    assert "with the averaged weights 62.2 %" in text
    assert "The best epoch, 30, had 64.0 % (averaged), but it was chosen on the same set." in text
    assert (
        "For 8.1 % of the wrongly labelled samples the network predicts the wrong label, for 70.0 % the true one."
        in text
    )
    assert re.search(r"An estimated 46.0 % of the labels are wrong \(true rate: 45\.0 %\)\.", text)
    assert "memorised" not in text
    assert text in Page(finished[1][-1].read_text()).text.replace("\u00a0", " ").replace("\n", " ")


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("method", "remedy"),
    [("ce", "with a method that ends in +ogc"), ("ce+ogc", "with a smaller network")],
)
def test_memorisation_is_reported_once_with_a_remedy(tmp_path, method, remedy):
    folder = write_run_folder(tmp_path / "run", method=method, memorised=True)
    written = {path.name for path in write_report(folder)}
    text = Page((folder / "report.html").read_text()).text.replace("\u00a0", " ")
    assert text.count("The network probably memorised wrong labels after epoch 15. At that point it contradicted") == 1
    assert "and at the end 12.0 %. The estimated noise rate uses only the surveys of the first 15 epochs." in text
    assert f"train for fewer epochs or {remedy}." in text
    assert "An estimated 46.0 % of the labels are wrong" in text, "not the 12 % that are left"
    assert "noise.png" in written
    assert "surveys do not count" in text


def test_a_network_that_learned_late_is_not_reported_as_memorising(tmp_path):
    run = read(write_run_folder(tmp_path / "run", memorised=True))
    given, C = run.samples["given"], len(NAMES)
    run.samples["survey.train.probabilities"] = torch.nn.functional.one_hot((given + 1) % C, C).float()
    rejected, why = training_notes(run)
    assert rejected.startswith("The network rejects almost all labels of 4 classes: ")
    assert "the network had hardly learned anything after 15 epochs. Use a smaller batch_size" in why


def test_hard_samples_learned_late_are_not_reported_as_memorised(tmp_path):
    run = read(write_run_folder(tmp_path / "run", memorised=True))
    assert training_notes(run)
    run.samples["survey.history"][:, 0] /= 20
    assert training_notes(run) == []


def test_suspected_labels_per_class_come_from_surveys(tmp_path):
    run = read(write_run_folder(tmp_path / "run"))
    given, C = run.samples["given"], len(NAMES)
    other = torch.nn.functional.one_hot((given + 1) % C, C).float()
    right = torch.nn.functional.one_hot(given, C).float()
    first = (torch.arange(len(given)) < 100)[:, None]
    run.samples["survey.train.probabilities"] = torch.where(first, other, right)
    assert sum(row.suspected for row in class_rows(run)) == 100


@pytest.mark.parametrize(
    ("options", "missing", "expected"),
    [
        ({"true": False, "noise": None}, ["ratio.png"], "none added; the true labels are unknown"),
        ({"method": "ce"}, ["tau.png", "ratio.png"], "Classes by share of different predictions"),
        ({"sets": ()}, ["accuracy.png"], "There was no held-out set"),
        ({"sets": ("val", "test"), "average": False}, [], "Accuracy on val over"),
        ({"epochs": 1}, ["tau.png", "ratio.png"], "after the last epoch"),
        ({"epochs": 1, "sets": (), "true": False}, ["accuracy.png", "tau.png", "ratio.png"], "1 of 1 epochs"),
        ({"nan": 30}, [], "30 samples were never in a batch"),
        ({"nan": 400}, ["histogram.png"], "400 samples were never in a batch"),
        ({"done": 12}, ["noise.png", "histogram.png"], "12 of 30 epochs are done"),
        ({"done": 0}, FILES[:-1], "no epoch is finished yet"),
        ({"classes": [f"c{i}" for i in range(1000)], "samples": 3000}, [], "The other 980 classes"),
        ({"method": "ce+linear", "done": 2}, ["noise.png", "tau.png", "ratio.png", "histogram.png"], "--resume"),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, dict) else None,
)
def test_report_of_every_kind_of_run(tmp_path, monkeypatch, options, missing, expected):
    monkeypatch.setattr(report, "png", lambda figure: b"a picture")  # slow, and the page contains all drawings
    folder = write_run_folder(tmp_path / "a run", **options)
    written = write_report(folder)
    assert [path.name for path in written] == [name for name in FILES if name not in missing]
    page = Page(written[-1].read_text())
    assert expected in page.text.replace("\u00a0", " ")
    assert "nan" not in page.text.lower().split()


def test_reports_run_that_clips_nothing(tmp_path):
    folder = write_run_folder(tmp_path / "run", epochs=5)
    edited(folder / "run.json", lambda run: run["facts"].update(samples=50, batch=16, steps=3))
    assert "ce+ogc clips nothing in 15 steps of 16 samples" in " ".join(sentences(read(folder)))
    assert ("epoch", "3 steps of 16 samples") in report.provenance_rows(read(folder))
    edited(folder / "run.json", lambda run: run["facts"].update(steps=30))
    assert "clips nothing" not in " ".join(sentences(read(folder)))


def test_reports_where_training_failed(tmp_path):
    folder = write_run_folder(tmp_path / "run", done=3)
    assert "Training failed" not in " ".join(sentences(read(folder)))
    write_part(folder / "nonfinite.json", "id", {"epoch": 4, "step": 2, "samples": ["7"], "epochs": [asdict(epoch(1))]})
    assert "Training failed at step 2 of epoch 4" in " ".join(sentences(read(folder)))


def test_class_rows_match_manual_counts(tmp_path):
    run = read(write_run_folder(tmp_path / "run", classes="abcd", nan=20))
    H, predicted, given, true = (run.samples[name].tolist() for name in ("H", "predicted", "given", "true"))
    rows = {row.name: row for row in class_rows(run)}
    assert set(rows) == set("abcd")
    for label, name in enumerate("abcd"):
        own = [i for i in range(400) if given[i] == label]
        others = [predicted[i] for i in own if predicted[i] not in (label, -1)]
        assert rows[name].samples == len(own)
        assert rows[name].suspected == sum(H[i] > 2 for i in own)  # all losses are below 1.3 or above 4
        assert rows[name].wrong == sum(true[i] != label for i in own)
        assert rows[name].otherwise == len(others)
        assert rows[name].instead in [f"{'abcd'[other]} ({others.count(other)})" for other in set(others)]
        assert max(others.count(other) for other in range(4)) == int(re.findall(r"\d+", rows[name].instead)[0])
    shares = [row.suspected / row.samples for row in class_rows(run)]
    assert shares == sorted(shares, reverse=True)


def test_report_of_real_run_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = override(RECIPES["digits"], {"epochs": 1, "hidden": "8", "average": None})
    train([Job(recipe, None, load_digits(), None, tmp_path)], device="cpu")
    assert [path.name for path in write_report(tmp_path)] == [
        "accuracy.png",
        "labels.png",
        "noise.png",
        "tau.png",
        "histogram.png",
        "report.html",
    ]
    page = Page((tmp_path / "report.html").read_text())
    assert "1,437 samples of 10 classes" in page.text
    assert "ogc train" not in page.text  # there is no command for data from Python
    [code] = re.findall(r"from ogc.predict.*predictor\.network", page.text, re.DOTALL)
    names = {}
    np.savez("new.npz", X=np.zeros((2, 64)))
    exec(code, names)
    assert names["predictions"].probabilities.shape == (2, 10)
    assert names["network"](torch.zeros(2, 64)).shape == (2, 10)
    assert works("predict", tmp_path, "new.npz").startswith("2 samples: ")
    assert f"ogc predict {tmp_path} new.npz" in page.text


def test_report_of_run_that_never_started(tmp_path):
    folder = write_run_folder(tmp_path / "run", done=0)
    edited(folder / "run.json", facts=None)
    (folder / "last.safetensors").unlink()
    assert f"ogc train --resume {folder}" in Page(write_report(folder)[-1].read_text()).text


def test_warns_if_accuracy_is_measured_on_unverified_labels(tmp_path):
    folder = write_run_folder(tmp_path / "run", noise=None, true=False)
    doubt = "If one is wrong, a correct prediction counts as an error"
    for source, doubtful in (
        ({"kind": "digits"}, False),
        ({"kind": "table", "path": "a.csv", "label": "y"}, True),
        ({"kind": "table", "path": "a.csv", "label": "y", "true": "z"}, False),
    ):
        edited(folder / "run.json", source=source)
        assert (doubt in " ".join(sentences(read(folder)))) == doubtful


# --- the table -------------------------------------------------------------------------------------------------------


def rendered(results, width=80):
    text = io.StringIO()
    Console(file=text, width=width).print(table(results))
    return text.getvalue()


def make_results(tmp_path, *runs):
    folders = [
        write_run_folder(tmp_path / str(i), **{k: v for k, v in options.items() if k != "seed"})
        for i, options in enumerate(runs)
    ]
    found = [json.loads((folder / "result.json").read_text()) for folder in folders]
    for result, options in zip(found, runs, strict=True):
        result["recipe"]["seed"] = options.get("seed", 0)
    return found


def test_table_has_one_row_per_run_and_per_group_of_seeds(tmp_path):
    several = make_results(tmp_path, {"seed": 0}, {"seed": 1}, {"method": "ce"})
    several[1]["summaries"][0] |= {"last": 0.622, "best": 0.66}  # above that of the averaged weights, 0.64
    text = rendered(several)
    lines = [line.split() for line in text.splitlines()]
    assert ["ce+ogc", "0", "60.2", "62.2", "64.0", "8.1", "46.0/45.0", "1:15"] in lines
    assert ["ce+ogc", "n=2", "61.2+-1.4", "62.2+-0.0", "65.0+-1.4", "8.1+-0.0", "46.0/45.0", "1:15"] in lines
    assert ["ce", "0", "60.2", "62.2", "64.0", "8.1", "46.0/45.0", "1:15"] in lines
    assert "digits, mlp, symmetric:0.5" in text
    assert "its accuracy is too optimistic" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_table_has_one_row_per_evaluation_set(tmp_path):
    """Someone who passes --test wants to see the accuracy on it, not only the one on the validation set."""
    two = make_results(tmp_path, {"sets": ("val", "test"), "seed": 0}, {"sets": ("val", "test"), "seed": 1})
    for result in two:
        result["summaries"][1] = {"set": "test", "last": 0.702, "best": 0.72}
    lines = [line.split() for line in rendered(two).splitlines()]
    first = lines.index(["ce+ogc", "0", "val", "60.2", "62.2", "64.0", "8.1", "46.0/45.0", "1:15"])
    assert lines[first + 1] == ["test", "70.2", "-", "72.0"]
    group = lines.index(
        ["ce+ogc", "n=2", "val", *["60.2+-0.0", "62.2+-0.0", "64.0+-0.0", "8.1+-0.0"], "46.0/45.0", "1:15"]
    )
    assert lines[group + 1] == ["test", "70.2+-0.0", "-", "72.0+-0.0"]
    [other] = make_results(tmp_path / "other", {"sets": ("test", "more"), "method": "ce"})
    lines = [line.split() for line in rendered([two[0], other]).splitlines()]
    assert [line[:4] for line in lines if line and line[0] in ("ce+ogc", "ce", "test", "more")] == [
        ["ce+ogc", "0", "val", "60.2"],
        ["test", "70.2", "-", "72.0"],
        ["ce", "0", "test", "60.2"],
        ["more", "60.2", "62.2", "64.0"],
    ]


def test_report_has_the_accuracy_on_every_evaluation_set(tmp_path):
    run = read(write_run_folder(tmp_path / "run", sets=("val", "test")))
    for name in ("val", "test"):
        assert f"Accuracy on {name} over the last 10 epochs: 60.2 %" in " ".join(sentences(run))
        assert ("60.2 %", f"{name} accuracy") in headline(run)
        assert ("62.2 %", f"{name} accuracy, averaged weights") in headline(run)


def test_balanced_accuracy_and_the_worst_class(tmp_path):
    run = read(write_run_folder(tmp_path / "run"))
    assert "Balanced" not in " ".join(sentences(run))
    run = replace(run, recall={"val": {"a": 0.9, "b" * 50: 0.2}, "test": {"a": 0.4, "b": 0.5, "c": 0.4}})
    assert [sentence.partition(", with the averaged weights: ")[::2] for sentence in balanced_sentences(run)] == [
        (f"Balanced accuracy (the mean over the classes) on {name} after the last epoch", numbers)
        for name, numbers in (
            ("val", f"55.0 %. Worst class (20.0 %): `{19 * 'b'}...{18 * 'b'}`."),
            ("test", "43.3 %. Worst classes (40.0 %): `a`, `c`."),
        )
    ]
    assert set(balanced_sentences(run)) <= set(sentences(run))


def test_accuracy_of_a_set_added_on_resuming_is_over_its_epochs(tmp_path):
    run = read(write_run_folder(tmp_path / "run"))
    for late in run.epochs[-2:]:
        late.accuracy["more"] = 0.7
    run = replace(run, summaries=summaries(run.epochs, 10))
    assert "Accuracy on test over the last 10 epochs: 60.2 %" in " ".join(sentences(run))
    assert "Accuracy on more over the last 2 epochs: 70.0 %" in " ".join(sentences(run))


def test_noise_rate_of_training_and_validation_labels(tmp_path):
    run = read(write_run_folder(tmp_path / "run"))
    for added, which in (({}, "labels"), ({"survey.val.margin": torch.zeros(9)}, "training and validation labels")):
        both = replace(run, samples=run.samples | added, true_noise_rate=0.123)
        assert f"An estimated 46.0 % of the {which} are wrong (true rate: 12.3 %)." in " ".join(sentences(both))
        [noise] = [each for each in pictures(both.epochs, both.samples, both.true_noise_rate) if each.name == "noise"]
        assert noise.title == "Estimated noise rate: 46.0 %, true 12.3 %"
        assert ("training and validation" in noise.words) == bool(added)


def test_best_epoch_is_reported_if_the_accuracy_is_that_of_the_last_epoch(tmp_path):
    run = read(write_run_folder(tmp_path / "run"))
    run = replace(run, recipe=override(run.recipe, {"report_epochs": 1}))
    assert "Accuracy on test after the last epoch: 60.2 %" in " ".join(sentences(run))
    assert " The best epoch, " in " ".join(sentences(run))
    one = " ".join(sentences(read(write_run_folder(tmp_path / "one", epochs=1))))
    assert "The best epoch" not in one


@pytest.mark.parametrize(
    ("sets", "title"),
    [
        (("test",), "Accuracy at the end: test 62.0 %, averaged 64.0 %"),
        (("val", "test"), "Accuracy at the end: val 62.0 %, test 62.0 %"),
    ],
)
def test_title_of_the_accuracy_names_every_set(tmp_path, sets, title):
    run = read(write_run_folder(tmp_path / "run", sets=sets))
    assert pictures(run.epochs, run.samples)[0].title == title


def test_titles_of_an_unfinished_run_name_the_epoch(tmp_path):
    run = write_run_folder(tmp_path / "run", done=12)
    text = Page(write_report(run)[-1].read_text()).text
    assert "Accuracy after epoch 12: test" in text
    assert re.search(r"tau = [\d.]+ after epoch 12", text)
    assert "r(tau) after epoch 12: modelled" in text
    assert "at the end" not in text
    for picture in pictures(read(run).epochs, {}, when="after epoch 1000"):
        picture.figure.draw_without_rendering()
        box, width = picture.figure.get_tightbbox(), picture.figure.get_size_inches()[0]
        assert 0 <= box.x0 <= box.x1 <= width, picture.title


def test_options_are_not_broken_at_their_hyphens():
    found = whole_options("<b> add --set queue_size=128 or --accept-above 0.5 -- not more")
    first, second = ('<span class="whole">--set</span>', '<span class="whole">--accept-above</span>')
    assert found == f"&lt;b&gt; add {first} queue_size=128 or {second} 0.5 -- not more"


def test_table_names_the_file_of_the_labels(tmp_path):
    one, two = make_results(tmp_path, {"noise": None}, {"noise": None})
    assert "digits, mlp, no noise added" in rendered([one])
    one["source"]["labels"] = "/data/noisy.npy"
    assert "no noise added" in rendered([one])  # as for arrays, whose only labels are in a file
    one["facts"]["noise"] = {"kind": "file"}
    assert "digits, mlp, labels from noisy.npy" in rendered([one])
    assert "ce+ogc labels from noisy.npy" in " ".join(rendered([one, two], width=120).split())


def test_table_omits_columns_that_no_run_has(tmp_path):
    text = rendered(make_results(tmp_path, {"average": False, "true": False, "noise": None, "method": "ce"}))
    head = text.split("───")[0]
    assert "memorised" not in head
    assert "averaged" not in head
    assert "noise" not in head.split("seed")[1]
    assert rendered(make_results(tmp_path / "new", {"sets": (), "average": False})).count("46.0/45.0") == 1


def test_table_caption_explains_the_numbers(tmp_path):
    def caption(name, **options):
        return " ".join(rendered(make_results(tmp_path / name, options)).split())

    assert "averaged weights: mean over the last 10 epochs. The best epoch of either is chosen" in caption("many")
    assert "averaged weights: after the last epoch. The best epoch of either is chosen" in caption("one", epochs=1)
    assert "Accuracy: after the last epoch. The best epoch is chosen" in caption("raw", epochs=1, average=False)
    without = caption("none", sets=(), average=False)
    assert without.endswith("No held-out data: the performance on new data is unknown.")
    assert "ccuracy" not in without


def test_table_shows_other_settings_that_differ(tmp_path):
    two = make_results(tmp_path, {}, {})
    two[1]["recipe"]["lr"] = 0.02
    text = rendered(two)
    assert "ce+ogc lr 0.1" in text
    assert "ce+ogc lr 0.02" in text
    assert "n=2" not in text


def test_table_is_ascii_for_ascii_output(tmp_path):
    text = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=text, width=80).print(table(make_results(tmp_path, {"seed": 0}, {"seed": 1})))
    text.flush()
    assert b"60.2+-0.0" in text.buffer.getvalue()


# --- drawing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heights", [[], [3.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.5, 9.0, 9.1], [-5.0, 5.0]])
def test_spread_separates_labels_and_keeps_their_mean(heights):
    moved = spread(heights, 2.0)
    assert all(b - a >= 2 - 1e-9 for a, b in itertools.pairwise(moved))
    assert sum(moved) == pytest.approx(sum(heights))
    assert all(abs(a - b) <= 2 * len(heights) for a, b in zip(moved, heights, strict=True))


def test_lr_drops_are_marked_but_not_a_smooth_schedule():
    steps = [epoch(i, lr=0.1 if i <= 4 else 0.01) for i in range(1, 9)]
    assert lr_drops(steps) == {4: "lr 0.01"}
    assert lr_drops([epoch(i, lr=1 / i) for i in range(1, 40)]) == {}


def test_svg_is_deterministic():
    def draw(axes):
        axes.plot([1, 2])
        return "A title for the PNG"

    assert svg(figure_of(draw), "a") == svg(figure_of(draw), "a")
    assert "A title" not in svg(figure_of(draw), "a")


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"done": 12, "true": False}], ids=["finished", "unfinished"])
def test_page_in_browser(tmp_path, chromium, options):
    """Nothing is fetched or logged; the page fits a phone, and follows the colour scheme."""
    page = write_report(write_run_folder(tmp_path / "run", **options))[-1].as_uri()
    backgrounds = {}
    for width in (375, 1280):
        for scheme in ("light", "dark"):
            context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
            tab, logged, fetched = context.new_page(), [], []
            tab.on("console", lambda message, logged=logged: logged.append(message.text))
            tab.on("pageerror", lambda error, logged=logged: logged.append(str(error)))
            tab.on("request", lambda request, fetched=fetched: fetched.append(request.url))
            tab.goto(page)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.evaluate("Math.min(...[...document.querySelectorAll('svg')].map(s => s.clientHeight))") > 150
            backgrounds[scheme] = tab.evaluate("getComputedStyle(document.body).backgroundColor")
            ink = tab.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
            assert ink == tab.evaluate("getComputedStyle(document.body).color")
            context.close()
            assert logged == []
            assert fetched == [page]
    assert backgrounds == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 22, 26)"}
