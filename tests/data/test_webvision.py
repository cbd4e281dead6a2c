"""A tiny WebVision with four classes, two of which are loaded in most tests."""

import shutil

import pytest
import torch
from PIL import Image

from ogc.data import load_webvision

SYNSETS = ["n01 tench, Tinca tinca", "n02 crane", "n03 crane", "n04 shark"]
QUERIES = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4}  # query to class, both counted from 1


def image(path, grey):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (6, 5), grey).save(path)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "webvision"
    (root / "info").mkdir(parents=True)
    lines = []
    for query, label in QUERIES.items():
        for i in range(2):
            name = f"google/q{query:04}/image {i}.jpg"
            lines.append(f"{name} {label - 1}")
            image(root / name, 10 * label)
    (root / "info" / "train_filelist_google.txt").write_text("\n".join(lines) + "\n")
    (root / "info" / "queries_synsets_map.txt").write_text("".join(f"{q} {c}\n" for q, c in QUERIES.items()))
    (root / "info" / "synsets.txt").write_text("\n".join(SYNSETS) + "\n")
    (root / "info" / "val_filelist.txt").write_text("".join(f"val{i:06}.jpg {i % 4}\n" for i in range(8)))
    for i in range(8):
        image(root / "val_images_256" / f"val{i:06}.jpg", 100 + i)
    return root


def test_reads_the_file_lists(root):
    train, others = load_webvision(root, classes=2, size=4)
    val = others["val"]
    assert train.class_names == ("tench", "crane (n02)")
    assert train.given.tolist() == [0, 0, 0, 0, 1, 1]
    assert train.true is None
    assert train.ids[0] == "google/q0001/image 0.jpg"
    assert train.inputs[torch.tensor([0, 5])].flatten(1)[:, 0].tolist() == [10, 20]
    assert train.inputs[torch.tensor([0])].shape == (1, 3, 4, 4)
    assert val.ids == [f"val_images_256/val{i:06}.jpg" for i in (0, 1, 4, 5)]
    assert val.given.tolist() == [0, 1, 0, 1]
    assert not val.wrong.any()
    assert list(others) == ["val"]


def test_extracted_tree_gives_the_same_data_as_the_lists(root):
    listed, _ = load_webvision(root, classes=3)
    (root / "info" / "train_filelist_google.txt").unlink()
    tree, _ = load_webvision(root, classes=3)
    assert tree.ids == listed.ids
    assert torch.equal(tree.given, listed.given)


@pytest.mark.parametrize("form", ["folders", "val.txt by number", "val.txt by id", "LOC_val_solution.csv"])
def test_ilsvrc_is_restricted_to_the_same_classes(root, tmp_path, form):
    folder = tmp_path / "ilsvrc"
    names = [f"ILSVRC2012_val_{i:08}.JPEG" for i in range(8)]
    for i, name in enumerate(names):
        image(folder / (f"n0{i % 4 + 1}/{name}" if form == "folders" else name), i)
    if form == "LOC_val_solution.csv":
        rows = [f"{name.removesuffix('.JPEG')},n0{i % 4 + 1} 1 2 3 4 " for i, name in enumerate(names)]
        (folder / form).write_text("\n".join(["ImageId,PredictionString", *rows]))
    elif form != "folders":
        classes = [str(i % 4) if form.endswith("number") else f"n0{i % 4 + 1}" for i in range(8)]
        separator = " " if form.endswith("number") else "\t"
        (folder / "val.txt").write_text("".join(f"{n}{separator}{c}\n" for n, c in zip(names, classes, strict=True)))
    found = load_webvision(root, classes=2, ilsvrc=folder)[1]["ilsvrc"]
    assert {(id.split("/")[-1], label) for id, label in zip(found.ids, found.given.tolist(), strict=True)} == {
        (names[0], 0),
        (names[1], 1),
        (names[4], 0),
        (names[5], 1),
    }


def test_missing_files_are_named(root, tmp_path):
    with pytest.raises(FileNotFoundError, match="`n01`"):
        load_webvision(root, classes=2, ilsvrc=tmp_path)
    shutil.rmtree(root / "google" / "q0001")
    with pytest.raises(FileNotFoundError, match=r"2 of 6 images .*`google/q0001/image 0.jpg`"):
        load_webvision(root, classes=2)
    (root / "info" / "train_filelist_google.txt").unlink()
    with pytest.raises(FileNotFoundError, match="google/q0001`"):
        load_webvision(root, classes=2)
    for name in ("queries_synsets_map.txt", "val_filelist.txt", "synsets.txt"):
        (root / "info" / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            load_webvision(root, classes=2)


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        ("train_filelist_google.txt", "google/x.jpg", "`google/x.jpg`"),
        ("train_filelist_google.txt", "../../etc/passwd 0", "`../../etc/passwd`"),
        ("train_filelist_google.txt", "/etc/passwd 0", "`/etc/passwd`"),
        ("train_filelist_google.txt", "google/x.jpg 7", "no images of these classes"),
        ("train_filelist_google.txt", "google/x.jpg n99", "`n99`"),
        ("synsets.txt", "n01 tench", "Found 1"),
    ],
)
def test_invalid_lists_raise_a_clear_error(root, name, line, found):
    (root / "info" / name).write_text(line + "\n")
    with pytest.raises(ValueError, match=found):
        load_webvision(root, classes=2)
