import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from ogc.noise.picture import draw_confusion, title
from typer.testing import CliRunner

from children import ogc
from ogc import data
from ogc.cli.app import build
from ogc.data import Dataset, load_digits
from ogc.noise import (
    CIFAR10_PAIRS,
    CIFAR100_BLOCKS,
    CIFAR100_PAIRS,
    LabelInfo,
    asymmetric,
    human,
    instance_dependent,
    labels_sha256,
    pair_flip,
    read_info,
    read_labels,
    symmetric,
    write_labels,
)

pytestmark = pytest.mark.pictures

DIGITS = load_digits()[0]
TRUE = DIGITS.given.numpy()


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def small_cifar(monkeypatch):
    """Replace the CIFAR loaders with ones that return fewer images."""

    def loader(classes, size):
        def load(root, **_):
            if root.name == "broken":
                raise ValueError("`data_batch_1.bin` should have 30,730,000 bytes. Found 7. Download it again.")
            if root.name == "none":
                raise FileNotFoundError("CIFAR is not in `none`.")
            labels = torch.arange(classes).repeat(size)
            images = torch.randint(0, 256, (len(labels), 3, 4, 4), generator=torch.Generator().manual_seed(0)).byte()
            names = tuple(f"class {i}" for i in range(classes))
            return Dataset(images, labels, names, [str(i) for i in range(len(labels))], true=labels.clone()), {}

        return load

    monkeypatch.setattr(data, "cifar10", loader(10, 100))
    monkeypatch.setattr(data, "cifar100", loader(100, 5))


def noise(*arguments):
    return CliRunner().invoke(build(), ["noise", *map(str, arguments)])


def fails(result, code, *parts):
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr
    return True


CIFAR10, CIFAR100 = np.tile(np.arange(10), 100), np.tile(np.arange(100), 5)
IMAGES = torch.randint(0, 256, (1000, 3, 4, 4), generator=torch.Generator().manual_seed(0)).byte()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("digits symmetric 0.5", lambda: symmetric(TRUE, 0.5, num_classes=10)),
        ("digits symmetric:0.5", lambda: symmetric(TRUE, 0.5, num_classes=10)),
        ("digits pairflip 0.2 --seed 3", lambda: pair_flip(TRUE, 0.2, num_classes=10, seed=3)),
        (
            "digits instance 0.4",
            lambda: instance_dependent((255 * DIGITS.inputs).round().byte(), TRUE, 0.4, num_classes=10),
        ),
        ("cifar10 asymmetric 0.4", lambda: asymmetric(CIFAR10, 0.4, pairs=CIFAR10_PAIRS)),
        ("cifar10 instance 0.4", lambda: instance_dependent(IMAGES, CIFAR10, 0.4, num_classes=10)),
        ("cifar100 asymmetric 0.4", lambda: asymmetric(CIFAR100, 0.4, pairs=CIFAR100_PAIRS)),
        ("cifar100 blocks 0.4", lambda: asymmetric(CIFAR100, 0.4, pairs=CIFAR100_BLOCKS)),
    ],
)
def test_every_kind_equals_its_function(tmp_path, arguments, expected):
    source, kind, rate, *_ = arguments.replace(":", " ").split()
    seed = 3 if "--seed" in arguments else 0
    result = noise(*arguments.split())
    assert result.exit_code == 0, result.output
    path = tmp_path / "runs" / "noise" / f"{source}-{kind}-{rate}-{seed}.npy"
    given = read_labels(path)
    assert (given == expected()).all()
    info = read_info(path)
    assert (info.kind, info.rate_asked, info.seed) == (kind, float(rate), seed)
    assert info.sha256 == labels_sha256(given)


def test_printed_table_and_written_files():
    result = noise("digits", "symmetric", "0.5", "--out", "a.csv", "--plot")
    given = symmetric(TRUE, 0.5, num_classes=10)
    wrong = int((given != TRUE).sum())
    rows = [line.split(None, 1) for line in result.output.splitlines()]
    assert [row[0] for row in rows] == [
        "kind",
        "requested",
        "actual",
        "flips",
        "sha256",
        "The",
        "a.csv",
        "a.csv.json",
        "a.png",
    ]
    assert rows[0][1].strip() == "symmetric, seed 0"
    assert rows[1][1].split() == ["rate", "50", "%"]
    assert rows[2][1].split() == ["rate", f"{100 * wrong / len(TRUE):.2f}", "%"]
    assert rows[3][1].strip() == f"{wrong:,} of {len(TRUE):,} labels"
    assert rows[4][1].strip() == labels_sha256(given)
    assert (read_labels("a.csv") == given).all()


def test_summary_of_an_existing_file():
    first = noise("digits", "pairflip", "0.2", "--out", "a.npy")
    again = noise("a.npy")
    assert again.exit_code == 0
    assert again.output == first.output
    np.save("a.npy", TRUE)
    assert fails(noise("a.npy"), 1, "a.npy has changed", labels_sha256(TRUE))
    np.save("b.npy", TRUE)
    assert fails(noise("b.npy"), 1, "Cannot use b.npy.json: No such file")


def test_same_seed_writes_the_same_files_in_another_process(tmp_path):
    result = noise("digits", "symmetric", "0.3", "--seed", "4", "--out", "here.npy")
    assert result.exit_code == 0
    process = ogc("noise", "digits", "symmetric", "0.3", "--seed", "4", "--out", "there.npy")
    assert process.wait() == 0, process.communicate()
    for end in ("", ".json"):
        assert (tmp_path / f"here.npy{end}").read_bytes() == (tmp_path / f"there.npy{end}").read_bytes()


def test_noise_on_a_label_file(tmp_path):
    true = np.arange(90) % 3
    (tmp_path / "mine.csv").write_text("label,truth\n" + "".join(f"{i % 2},{t}\n" for i, t in enumerate(true)))
    before = (tmp_path / "mine.csv").read_bytes()
    assert noise("mine.csv", "symmetric", "0.5", "--import", "truth").exit_code == 0
    path = "runs/noise/mine-symmetric-0.5-0.npy"
    assert (read_labels(path) == symmetric(true, 0.5, num_classes=3)).all()
    assert (tmp_path / "mine.csv").read_bytes() == before
    assert noise(path, "pairflip", "0.1", "--out", "twice.npy").exit_code == 0
    assert read_info("twice.npy").num_classes == 3
    assert fails(
        noise("mine.csv", "symmetric", "0.5", "--import", "x"),
        1,
        "mine.csv should have one column x. Found label, truth",
    )


def test_number_of_classes_is_kept_if_the_last_class_is_empty():
    labels = np.zeros(30, np.int64)
    write_labels("a.npy", labels, LabelInfo.measure(labels, labels, kind="none", num_classes=4))
    assert noise("a.npy", "symmetric", "0.3", "--out", "b.npy").exit_code == 0
    assert sorted(np.unique(read_labels("b.npy"))) == [0, 1, 2, 3]


def test_importing_a_column(tmp_path):
    given = (TRUE + (np.arange(len(TRUE)) < 100)) % 10
    (tmp_path / "workers.csv").write_text("id,worker 7\n" + "".join(f"{i},{g}\n" for i, g in enumerate(given)))
    result = noise("digits", "file", "--labels", "workers.csv", "--import", "worker 7")
    assert result.exit_code == 0, result.output
    assert (read_labels("runs/noise/digits-file.npy") == given).all()
    info = read_info("runs/noise/digits-file.npy")
    assert (info.kind, info.rate_asked, info.seed, info.flips) == ("file", None, None, 100)
    np.save("short.npy", given[:-1])
    assert fails(
        noise("digits", "file", "--labels", "short.npy"), 1, f"short.npy has {len(TRUE) - 1} labels, but digits"
    )
    np.save("eleven.npy", np.full(len(TRUE), 10))
    assert fails(noise("digits", "file", "--labels", "eleven.npy"), 1, "has the label 10, but digits has 10 classes")


def test_human_labels(monkeypatch):
    torch.save({"clean_label": CIFAR10, "worse_label": (CIFAR10 + 1) % 10}, "human.pt")
    assert fails(
        noise("cifar10", "human:worse", "--labels", "human.pt"), 1, "is not the published file: its sha256 is "
    )
    from hashlib import sha256
    from pathlib import Path

    known = replace(human.PUBLISHED[0], sha256=sha256(Path("human.pt").read_bytes()).hexdigest())
    monkeypatch.setattr(human, "PUBLISHED", (known, human.PUBLISHED[1]))
    assert noise("cifar10", "human:worse", "--labels", "human.pt").exit_code == 0
    assert (read_labels("runs/noise/cifar10-human-worse.npy") == (CIFAR10 + 1) % 10).all()
    assert fails(noise("cifar10", "human:noisy", "--labels", "human.pt"), 2, "one of clean, aggregate")
    assert fails(
        noise("cifar100", "human:worse", "--labels", "human.pt"), 1, "has 1000 labels, but there are 500 images"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("digits symmetric 1.5", "`rate` should be in [0, 1]. Found `rate = 1.5`"),
        ("digits symmetric nan", "`rate` should be in [0, 1]. Found `rate = nan`"),
        ("digits symmetric", "`rate` should be given with symmetric"),
        ("digits symmetric: 0.5", "`kind` should be one of symmetric"),
        (
            "digits symmetric:1.5",
            "KIND:RATE with a rate in [0, 1], as in symmetric:0.5. Found `kind = 'symmetric:1.5'`",
        ),
        ("digits symmetric:half", "KIND:RATE with a rate in [0, 1], as in symmetric:0.5. Found"),
        ("cifar10 worse --labels x.pt", "Found `kind = 'worse'`. Did you mean human:worse?"),
        ("digits symmetric:0.3 0.4", "`rate` should be given once: symmetric:0.3 includes it. Found `rate = 0.4`"),
        ("cifar10 file:0.3 --labels x.npy", "`rate` should be omitted with file"),
        ("digits symmetric 0.5 --seed -1", "`--seed` should be in [0, 2**32)"),
        (
            "digits symmetry 0.5",
            "`kind` should be one of symmetric, asymmetric, blocks, pairflip, instance, human:KIND, file. "
            "Found `kind = 'symmetry'`. Did you mean symmetric",
        ),
        ("mnist symmetric 0.5", "`source` should be one of digits, cifar10, cifar100, or a .npy or .csv file"),
        ("digits", "`source` should be a .npy or .csv file if KIND is missing"),
        (
            "digits asymmetric 0.5",
            "asymmetric noise is defined only for cifar10 or cifar100. Found digits. Use another kind",
        ),
        ("cifar10 blocks 0.5", "blocks noise is defined only for cifar100. Found cifar10."),
        ("a.npy instance 0.5", "instance noise is defined only for images: digits, cifar10 or cifar100. Found a.npy."),
        ("digits human:worse --labels x.pt", "human:worse noise is defined only for cifar10 or cifar100"),
        ("cifar10 human:worse", "`--labels` should be the file of labels, with human:worse"),
        ("cifar10 human:worse 0.5 --labels x.pt", "`rate` should be omitted with human:worse"),
        ("digits symmetric 0.5 --labels x.npy", "`--labels` should be omitted"),
        ("digits symmetric 0.5 --out a.txt", "`--out` should be a .npy or .csv file"),
        ("a.npy symmetric 0.5 --out a.npy", "`--out` should be different from the input files"),
    ],
)
def test_invalid_value_gives_a_one_line_error(tmp_path, arguments, message):
    assert fails(noise(*arguments.split()), 2, message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("a.npy symmetric 0.5", "Cannot use a.npy: No such file or directory."),
        ("digits file --labels a.npy", "Cannot use a.npy: No such file or directory."),
        ("cifar10 human:worse --labels a.pt", "Cannot use a.pt: No such file or directory."),
        ("cifar10 symmetric 0.5 --data none", "CIFAR is not in `none`."),
        ("cifar10 symmetric 0.5 --data broken", "Found 7. Download it again."),
    ],
)
def test_unreadable_file_gives_a_one_line_error(tmp_path, arguments, message):
    assert fails(noise(*arguments.split()), 1, message)
    assert not list(tmp_path.iterdir())


def test_unwritable_or_invalid_file_gives_a_one_line_error(tmp_path):
    (tmp_path / "file").touch()
    assert fails(
        noise("digits", "symmetric", "0.5", "--out", "file/a.npy"),
        1,
        "Cannot use file: File exists. A folder is needed",
    )
    np.save("bad.npy", np.array([-1, 0]))
    assert fails(
        noise("bad.npy", "symmetric", "0.5"), 1, "bad.npy contains the label -1, but labels should be in [0, 20000)."
    )


def test_help_has_examples():
    result = noise("--help")
    assert result.exit_code == 0
    for part in ("ogc noise cifar10 asymmetric 0.4 --data ~/cifar", "--import", "human:KIND", "runs/noise/"):
        assert part in result.output


@pytest.mark.parametrize(("classes", "numbers"), [(2, 4), (10, 100), (100, 0)])
def test_confusion_picture(classes, numbers):
    true = np.arange(classes).repeat(500)
    given = symmetric(true, 0.5, num_classes=classes)
    info = LabelInfo.measure(true, given, kind="symmetric", num_classes=classes, rate=0.5, seed=1)
    figure = draw_confusion(info, "some", [f"class {i}" for i in range(classes)])
    axes = figure.axes[0]
    assert len(axes.texts) == numbers
    assert f"{100 * info.rate_got:.2f} %" in figure.get_suptitle()
    assert "50 % requested" in figure.get_suptitle()
    assert axes.get_xlabel() == "given label"
    assert len(axes.get_xticks()) <= 20
    counted = "numbers: count of labels; " if numbers else ""
    assert figure.axes[1].get_ylabel() == f"{counted}colour: share of the true class (power scale)"


@pytest.mark.parametrize("names", [(), ["class"] * 100, ["a class with a long name"] * 100, ["x" * 300] * 100])
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_no_text_of_the_confusion_picture_is_cut_off(classes, names):
    true = np.arange(classes).repeat(500)
    figure = draw_confusion(LabelInfo.measure(true, true, kind="none", num_classes=classes), "some", names)
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0, width - box.x1, height - box.y1) > 0


def test_confusion_picture_needs_a_matrix():
    info = LabelInfo("file", None, None, None, 3, None, "")
    with pytest.raises(ValueError, match="`info` should be with a confusion matrix"):
        draw_confusion(info, "some")
    assert (
        title(replace(info, confusion=[[3, 1], [0, 4]], rate_got=0.125), "mine")
        == "mine, file: 12.50 % of 8 labels are wrong"
    )


def test_plot_of_an_existing_file(tmp_path):
    noise("digits", "pairflip", "0.2", "--out", "a.npy")
    assert noise("a.npy", "--plot").exit_code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "a.npy.json").read_text())
    (tmp_path / "a.npy.json").write_text(json.dumps({**record, "confusion": None}))
    assert fails(noise("a.npy", "--plot"), 2, "should be with a confusion matrix")


def test_importing_ogc_does_not_import_noise():
    code = "import sys, ogc; sys.exit('ogc.noise' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_download_option_is_passed_to_the_loader(tmp_path, monkeypatch):
    """The loader itself is tested against a server on loopback in tests/data."""
    import torch

    from ogc import data

    calls = []

    def cifar10(root, *, download, progress):
        calls.append((root, download))
        progress(5, 10)
        labels = torch.arange(10).repeat(20)
        names = tuple("abcdefghij")
        images = torch.zeros(200, 3, 32, 32, dtype=torch.uint8)
        return data.Dataset(images, labels, names, [str(i) for i in range(200)]), {}

    monkeypatch.setattr(data, "cifar10", cifar10)
    out = tmp_path / "labels.npy"
    result = noise("cifar10", "symmetric", "0.5", "--data", tmp_path, "--download", "--out", out)
    assert result.exit_code == 0, result.output
    assert calls == [(tmp_path, True)]
    assert out.exists()


def test_ids_are_rejected_as_labels(tmp_path):
    path = tmp_path / "ids.csv"
    path.write_text("label\n0\n1000000\n")
    fails(noise(path, "symmetric", "0.5"), 1, "contains the label 1000000, but labels should be in [0, 20000).")


def test_out_without_kind_is_rejected(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("label\n0\n1\n")
    fails(noise(path, "--out", tmp_path / "y.csv"), 2, "--out")
