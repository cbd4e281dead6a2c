from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ogc import data, noise
from ogc.data import Dataset
from ogc.data.images import ImageFiles
from ogc.noise import human
from ogc.training import source as module
from ogc.training.recipe import RECIPES, override
from ogc.training.source import Source, check, load


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rows():
    lines = [f"{i % 13},{i % 7},row{i},{'xyz'[i % 3]},{'xyz'[i % 3 if i % 5 else 0]}" for i in range(120)]
    Path("rows.csv").write_text("a,b,key,right,found\n" + "\n".join(lines) + "\n")


@pytest.fixture
def photos():
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        Path("photos", label).mkdir(parents=True)
        for i in range(20):
            Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(f"photos/{label}/{i}.png")


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    np.savez("x.npz", X=rng.normal(size=(60, 4)).astype("float32"), y=labels, truth=labels[::-1])
    np.save("x.npy", rng.integers(0, 256, (60, 3, 6, 6), dtype=np.uint8))
    np.save("y.npy", labels)


@pytest.fixture
def cifar(monkeypatch):
    """Replace the loader of CIFAR-10 by one with fewer images. Return its calls."""
    labels = torch.arange(10).repeat(30)
    images = torch.randint(0, 256, (300, 3, 4, 4), generator=torch.Generator().manual_seed(0)).byte()
    names, ids = tuple("abcdefghij"), [str(i) for i in range(300)]
    calls = []

    def loader(root, *, download, progress):
        calls.append((root, download))
        return Dataset(images, labels, names, ids, true=labels.clone()), {"test": Dataset(images, labels, names, ids)}

    monkeypatch.setattr(data, "load_cifar10", loader)
    return calls


def recipe(name, **changes):
    return override(RECIPES[name], changes)


@pytest.mark.usefixtures("rows", "photos", "arrays")
def test_parse_valid_sources():
    here = Path.cwd()
    assert Source.parse("digits") == Source(kind="digits")
    assert Source.parse("cifar10") == Source(kind="cifar10", path=here / "data")
    assert Source.parse("cifar100", data=Path("there")) == Source(kind="cifar100", path=here / "there")
    assert Source.parse("webvision", data=Path("w"), ilsvrc=Path("photos")).ilsvrc == here / "photos"
    assert Source.parse("photos", skip_bad=True) == Source(kind="folder", path=here / "photos", skip_bad=True)
    assert Source.parse("photos/", val=0.5, true="t.csv").true == str(here / "t.csv")
    table = Source.parse("rows.csv", label="found", true="right", id="key", test=Path("rows.csv"))
    assert (table.kind, table.label, table.true, table.id, table.test) == (
        "table",
        "found",
        "right",
        "key",
        here / "rows.csv",
    )
    assert Source.parse("x.npz", label="y").kind == "arrays"
    assert Source.parse("./x.npy", labels=Path("y.npy")).labels == here / "y.npy"


@pytest.mark.usefixtures("rows", "arrays")
@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        ("digit", {}, ValueError, r"There is no `digit`\. Did you mean digits\? Supported: digits, cifar10, "),
        ("cifar-10", {}, ValueError, "Did you mean cifar10"),
        ("rows.cvs", {}, ValueError, r"Did you mean rows\.csv\?"),
        ("row.csv", {}, FileNotFoundError, r"There is no `row\.csv`\. Did you mean rows\.csv"),
        ("no.csv", {}, FileNotFoundError, r"There is no `no\.csv`\. Supported: "),
        ("no/such/folder", {}, FileNotFoundError, "There is no `no/such/folder`"),
        (__file__, {}, ValueError, "is not a supported data source"),
        ("rows.csv", {}, ValueError, r"Give it with --label \(label=\.\.\. in Python\)\. `rows\.csv` has `a`, `b`, "),
        ("x.npy", {}, ValueError, r"The labels of `x\.npy` are missing\. Give their file with --labels"),
        (
            "digits",
            {"val": 0.1},
            ValueError,
            "`val` cannot be used with digits. It is only for a folder of images, a table ",
        ),
        (
            ".",
            {"labels": Path("y.npy")},
            ValueError,
            "with a folder of images. It is only for digits, cifar10, cifar100 or arr",
        ),
        (
            "digits",
            {"data": Path()},
            ValueError,
            "`data` cannot be used with digits. It is only for cifar10, cifar100 or",
        ),
        ("rows.csv", {"data": Path(), "label": "a"}, ValueError, "`data` cannot be used with a table"),
        ("digits", {"skip_bad": True}, ValueError, "It is only for a folder of images or a table"),
        (
            "cifar10",
            {"label": "a"},
            ValueError,
            "`label` cannot be used with cifar10. It is only for a table or arrays",
        ),
        ("rows.csv", {"label": "a", "val": 1.0}, ValueError, "`val` should be less than 1. Found `val = 1.0`"),
        ("digits", {"labels": Path("no.npy")}, FileNotFoundError, r"There is no `no\.npy`, given as labels"),
    ],
)
def test_parse_errors(text, options, error, message):
    with pytest.raises(error, match=message):
        Source.parse(text, **options)


@pytest.mark.usefixtures("rows")
def test_json_round_trip():
    for source in (Source.parse("digits"), Source.parse("rows.csv", label="a", val=0.25)):
        assert Source(**source.model_dump(mode="json")) == source


def test_noise_matches_its_function_and_true_labels_are_kept():
    (clean, clean_sets), no_noise = load(Source.parse("digits"), RECIPES["digits"])
    assert no_noise is None
    (train, sets), info = load(Source.parse("digits"), recipe("digits", noise="symmetric:0.5", noise_seed=3))
    expected = noise.symmetric(clean.given.numpy(), 0.5, num_classes=10, seed=3)
    assert (train.given.numpy() == expected).all()
    assert train.true.equal(clean.given)
    assert info.rate_got == pytest.approx(float(train.wrong.double().mean()))
    assert (info.kind, info.rate_asked, info.seed) == ("symmetric", 0.5, 3)
    assert sets["test"].given.equal(clean_sets["test"].given)


def test_noise_does_not_depend_on_the_seed_of_the_run():
    given = [load(Source.parse("digits"), recipe("digits", noise="pairflip:0.3", seed=s))[0][0].given for s in (0, 1)]
    assert given[0].equal(given[1])


@pytest.mark.usefixtures("rows")
def test_given_labels_become_true_ones_only_if_noise_is_added():
    source = Source.parse("rows.csv", label="found", id="key")
    (found, _), info = load(source, RECIPES["table"])
    assert found.true is None
    assert info is None
    (train, sets), info = load(source, recipe("table", noise="symmetric:0.3"))
    assert train.true.equal(found.given)
    assert train.ids == found.ids
    assert info.rate_got > 0
    assert set(sets) == {"val"}
    assert sets["val"].true is None


@pytest.mark.usefixtures("rows")
def test_noise_is_added_to_the_true_labels_if_known():
    """As in runs of earlier versions. The command line refuses to start new ones."""
    source = Source.parse("rows.csv", label="found", true="right", id="key")
    (before, _), _ = load(source, RECIPES["table"])
    assert bool(before.wrong.any())
    (train, _), _ = load(source, recipe("table", noise="pairflip:0"))
    assert train.given.equal(before.true)
    assert not train.wrong.any()


@pytest.mark.usefixtures("photos")
def test_folder_is_decoded_into_memory_if_it_fits(monkeypatch):
    source = Source.parse("photos", val=0.25)
    (train, sets), _ = load(source, recipe("folder", size=8))
    assert train.inputs.shape == (30, 3, 8, 8)
    assert train.inputs.dtype == torch.uint8
    assert len(sets["val"]) == 10
    (noisy, _), _ = load(source, recipe("folder", size=8, noise="instance:0.5"))
    expected = noise.instance_dependent(train.inputs, train.given.numpy(), 0.5, num_classes=2)
    assert (noisy.given.numpy() == expected).all()
    monkeypatch.setattr(module, "IN_MEMORY", 30 * 3 * 8 * 8 - 1)
    (train, sets), _ = load(source, recipe("folder", size=8))
    assert isinstance(train.inputs, ImageFiles)
    assert isinstance(sets["val"].inputs, torch.Tensor)  # ten images still fit
    with pytest.raises(ValueError, match="Instance noise needs images, as raw pixels in memory"):
        load(source, recipe("folder", size=8, noise="instance:0.5"))


@pytest.mark.usefixtures("photos")
def test_unreadable_image_fails_or_is_skipped():
    Path("photos/cat/broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cannot be read: `cat/broken\.png`"):
        load(Source.parse("photos"), RECIPES["folder"])
    with pytest.warns(UserWarning, match="Skipped 1 image that cannot be read"):
        (train, sets), _ = load(Source.parse("photos", skip_bad=True), RECIPES["folder"])
    assert len(train) + len(sets["val"]) == 40


@pytest.mark.usefixtures("arrays")
def test_arrays():
    (train, _), _ = load(Source.parse("x.npz", true="truth", val=0.5), RECIPES["arrays"])
    assert train.inputs.shape == (30, 4)
    assert train.true is not None
    (train, _), _ = load(Source.parse("x.npy", labels=Path("y.npy")), recipe("arrays", noise="instance:0.4"))
    assert train.inputs.shape == (48, 3, 6, 6)
    assert bool(train.wrong.any())
    with pytest.raises(ValueError, match="Instance noise needs images"):
        load(Source.parse("x.npz"), recipe("arrays", noise="instance:0.4"))


def test_labels_from_a_file():
    true = load(Source.parse("digits"), RECIPES["digits"])[0][0].given.numpy()
    given = (true + (np.arange(len(true)) < 100)) % 10
    np.save("given.npy", given)
    source = Source.parse("digits", labels=Path("given.npy"))
    for variant in (RECIPES["digits"], recipe("digits", noise="file")):
        (train, _), info = load(source, variant)
        assert (train.given.numpy() == given).all()
        assert (train.true.numpy() == true).all()
        assert (info.kind, info.rate_got, info.seed) == ("file", 100 / len(true), None)
    np.save("given.npy", given[1:])
    with pytest.raises(ValueError, match="labels, but digits has"):
        load(source, RECIPES["digits"])


def test_human_labels_are_found_by_their_published_name(cifar, monkeypatch):
    source, worse = Source.parse("cifar10", data=Path("here")), recipe("cifar10", noise="human:worse")
    with pytest.raises(
        FileNotFoundError, match=r"human:worse is read from CIFAR-10_human\.pt, which is not in `.*here`"
    ):
        check(source, worse)
    true = np.tile(np.arange(10), 30)
    Path("here").mkdir()
    torch.save({"clean_label": true, "worse_label": (true + 1) % 10}, "here/CIFAR-10_human.pt")
    digest = sha256(Path("here/CIFAR-10_human.pt").read_bytes()).hexdigest()
    monkeypatch.setitem(human.PUBLISHED, "cifar10", human.PUBLISHED["cifar10"]._replace(sha256=digest))
    (train, sets), info = load(source, worse, download=True)
    assert bool(train.wrong.all())
    assert info.kind == "human:worse"
    assert set(sets) == {"test"}
    assert cifar == [(Path.cwd() / "here", True)]


@pytest.mark.parametrize(
    ("text", "name", "changes", "message"),
    [
        (
            "digits",
            "digits",
            {"noise": "asymmetric:0.4"},
            "asymmetric noise is defined only for cifar10 or cifar100. Found digits. Use another kind",
        ),
        ("cifar10", "cifar10", {"noise": "blocks:0.4"}, "blocks noise is defined only for cifar100. Found cifar10."),
        ("digits", "digits", {"noise": "human:worse"}, "human:worse noise is defined only for cifar10 or cifar100"),
        (
            "cifar10",
            "cifar10",
            {"noise": "human:noisy"},
            "`noise` should be human:KIND with cifar10, where KIND is one of clean",
        ),
        ("cifar10", "cifar10", {"noise": "file"}, "`labels` should be the label file"),
        ("webvision", "webvision", {"noise": "instance:0.1"}, "instance noise is defined only for images: digits"),
        ("digits", "digits", {"network": "resnet18"}, "`network` should be mlp with digits, which has features"),
        ("digits", "digits", {"augment": "cifar"}, "`augment` should be none with digits"),
    ],
)
def test_incompatible_options_are_rejected_before_reading(text, name, changes, message):
    with pytest.raises(ValueError, match=message):
        check(Source.parse(text), recipe(name, **changes))


def test_noise_and_label_file_are_mutually_exclusive():
    np.save("given.npy", np.zeros(3, int))
    source = Source.parse("digits", labels=Path("given.npy"))
    with pytest.raises(ValueError, match=r"`labels` should be omitted with symmetric:0\.5, which generates labels"):
        check(source, recipe("digits", noise="symmetric:0.5"))
