import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from children import ogc
from ogc import data
from ogc.cli.app import build
from ogc.data import Dataset, load_digits
from ogc.noise import (
    CIFAR10_PAIRS,
    CIFAR100_BLOCKS,
    CIFAR100_PAIRS,
    asymmetric,
    instance_dependent,
    labels_sha256,
    pair_flip,
    read_info,
    read_labels,
    symmetric,
)

DIGITS = load_digits()[0]
TRUE = DIGITS.given.numpy()
CIFAR10, CIFAR100 = np.tile(np.arange(10), 100), np.tile(np.arange(100), 5)
IMAGES = torch.randint(0, 256, (1000, 3, 4, 4), generator=torch.Generator().manual_seed(0)).byte()


@pytest.fixture(autouse=True)
def small_cifar(tmp_path, monkeypatch):
    """Replace the CIFAR loaders by ones that return fewer images. Return their calls."""
    monkeypatch.chdir(tmp_path)
    calls = []

    def loader(labels):
        def load(root, *, download, progress):
            calls.append((root, download))
            if root.name == "broken":
                raise ValueError("`data_batch_1.bin` should have 30,730,000 bytes. Found 7.")
            names, ids = tuple(f"class {i}" for i in range(labels.max() + 1)), [str(i) for i in range(len(labels))]
            return Dataset(IMAGES[: len(labels)], torch.from_numpy(labels), names, ids, torch.from_numpy(labels)), {}

        return load

    monkeypatch.setattr(data, "load_cifar10", loader(CIFAR10))
    monkeypatch.setattr(data, "load_cifar100", loader(CIFAR100))
    return calls


def noise(*arguments):
    return CliRunner().invoke(build(), ["noise", *map(str, arguments)])


def fails(result, code, *parts):
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1
    assert all(part in result.stderr for part in parts), result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("digits symmetric:0.5", lambda: symmetric(TRUE, 0.5, num_classes=10)),
        ("digits pairflip:0.2 --seed 3", lambda: pair_flip(TRUE, 0.2, num_classes=10, seed=3)),
        (
            "digits instance:0.4",
            lambda: instance_dependent((255 * DIGITS.inputs).round().byte(), TRUE, 0.4, num_classes=10),
        ),
        ("cifar10 asymmetric:0.4", lambda: asymmetric(CIFAR10, 0.4, pairs=CIFAR10_PAIRS)),
        ("cifar10 instance:0.4", lambda: instance_dependent(IMAGES, CIFAR10, 0.4, num_classes=10)),
        ("cifar100 asymmetric:0.4", lambda: asymmetric(CIFAR100, 0.4, pairs=CIFAR100_PAIRS)),
        ("cifar100 blocks:0.4", lambda: asymmetric(CIFAR100, 0.4, pairs=CIFAR100_BLOCKS)),
    ],
)
def test_every_kind_equals_its_function(tmp_path, arguments, expected):
    source, kind, *_ = arguments.split()
    result = noise(*arguments.split())
    assert result.exit_code == 0, result.output
    seed = 3 if "--seed" in arguments else 0
    path = tmp_path / "runs" / "noise" / f"{source}-{kind.replace(':', '-')}-{seed}.npy"
    given, info = read_labels(path), read_info(path)
    assert (given == expected()).all()
    assert (info.kind, info.rate_asked, info.seed) == (*(kind.split(":")[0], float(kind.split(":")[1])), seed)
    assert info.sha256 == labels_sha256(given)


def test_the_summary_has_rate_file_and_confusion_matrix():
    result = noise("digits", "symmetric:0.5", "--out", "a.csv")
    first, _, *matrix = result.output.splitlines()
    info = read_info("a.csv")
    assert f"{100 * info.rate_got:.2f} %" in first
    assert "a.csv" in first
    assert [list(map(int, row.split())) for row in matrix] == info.confusion
    assert (read_labels("a.csv") == symmetric(TRUE, 0.5, num_classes=10)).all()
    assert noise("cifar100", "blocks:0.4").output.count("\n") == 1, "too many classes for the screen"


def test_same_seed_writes_the_same_files_in_another_process(tmp_path):
    assert noise("digits", "symmetric:0.3", "--seed", "4", "--out", "here.npy").exit_code == 0
    process = ogc("noise", "digits", "symmetric:0.3", "--seed", "4", "--out", "there.npy")
    assert process.wait() == 0, process.communicate()
    for end in ("", ".json"):
        assert (tmp_path / f"here.npy{end}").read_bytes() == (tmp_path / f"there.npy{end}").read_bytes()


def test_noise_on_a_label_file(tmp_path):
    true = np.arange(90) % 3
    (tmp_path / "mine.csv").write_text("label\n" + "".join(f"{label}\n" for label in true))
    before = (tmp_path / "mine.csv").read_bytes()
    assert noise("mine.csv", "symmetric:0.5").exit_code == 0
    assert (read_labels("runs/noise/mine-symmetric-0.5-0.npy") == symmetric(true, 0.5, num_classes=3)).all()
    assert (tmp_path / "mine.csv").read_bytes() == before
    fails(noise("mine.csv", "symmetric:0.5", "--out", "mine.csv"), 2, "--out", "mine.csv")
    np.save("bad.npy", np.array([-1, 0]))
    fails(noise("bad.npy", "symmetric:0.5"), 2, "labels", "-1")
    fails(noise("none.npy", "symmetric:0.5"), 1, "none.npy")


def test_download_is_passed_to_the_loader(tmp_path, small_cifar):
    assert noise("cifar10", "symmetric:0.5", "--data", tmp_path, "--download").exit_code == 0
    assert small_cifar == [(tmp_path, True)]


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        ("digits symmetric", 2, "symmetric"),
        ("digits symmetric:1.5", 2, "symmetric:1.5"),
        ("digits symmetric:half", 2, "symmetric:half"),
        ("digits symmetry:0.5", 2, "Did you mean symmetric"),
        ("cifar10 worse", 2, "Did you mean human:worse?"),
        ("digits symmetric:0.5 --seed -1", 2, "seed"),
        ("mnist symmetric:0.5", 2, "mnist"),
        ("digits asymmetric:0.5", 2, "cifar10 or cifar100"),
        ("cifar10 blocks:0.5", 2, "cifar100"),
        ("a.npy instance:0.5", 2, "a.npy"),
        ("digits human:worse", 2, "cifar10 or cifar100"),
        ("cifar10 human:worse", 1, "CIFAR-10_human.pt"),
        ("digits symmetric:0.5 --out a.txt", 2, "a.txt"),
        ("cifar10 symmetric:0.5 --data broken", 1, "Found 7"),
    ],
)
def test_invalid_value_gives_a_one_line_error(tmp_path, arguments, code, found):
    fails(noise(*arguments.split()), code, found)
    assert not list(tmp_path.iterdir())


def test_importing_ogc_does_not_import_noise():
    subprocess.run([sys.executable, "-c", "import sys, ogc; sys.exit('ogc.noise' in sys.modules)"], check=True)
