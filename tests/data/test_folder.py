"""Folders of images: layouts, splits, links, broken images, true labels."""

import os

import pytest
import torch
from PIL import Image

from ogc.data import read_folder

COLOURS = {"cat": 50, "dog": 150, "eel": 250}


def write(root, **counts):
    """Grey images: ``write(root, cat=3)`` writes root/cat/0.png and so on."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.new("L", (8, 6), COLOURS.get(name, 0)).save(root / name / f"{i}.png")


def test_split_is_stratified_and_keeps_pixels_with_their_labels(tmp_path):
    write(tmp_path, cat=10, dog=5)
    train, sets = read_folder(tmp_path, size=4)
    assert train.class_names == sets["val"].class_names == ("cat", "dog")
    assert train.given.bincount().tolist() == [8, 4]
    assert len({*train.ids, *sets["val"].ids}) == 15
    for part in (train, sets["val"]):
        assert part.true is None
        assert part.inputs[torch.arange(len(part))].shape == (len(part), 3, 4, 4)
        for i, (path, label) in enumerate(zip(part.ids, part.given.tolist(), strict=True)):
            assert path.split("/")[0] == part.class_names[label]
            assert part.inputs[torch.tensor([i])].unique().tolist() == [COLOURS[part.class_names[label]]]
    assert read_folder(tmp_path)[0].ids == train.ids != read_folder(tmp_path, seed=1)[0].ids
    assert read_folder(tmp_path, val=0)[1] == {}


def test_train_val_and_test_folders_are_used_as_given(tmp_path):
    write(tmp_path / "train", cat=3, dog=2, eel=1)
    write(tmp_path / "val", cat=1, dog=1)
    write(tmp_path / "test", eel=1)
    train, sets = read_folder(tmp_path)
    assert len(train) == 6
    assert train.class_names == sets["test"].class_names == ("cat", "dog", "eel")
    assert sets["val"].ids == ["val/cat/0.png", "val/dog/0.png"]
    assert sets["test"].given.tolist() == [2]
    write(tmp_path / "val", fox=1)
    with pytest.raises(ValueError, match=r"`fox` of .*val` .*train`"):
        read_folder(tmp_path)


def test_train_folder_alone_is_split(tmp_path):
    write(tmp_path / "train", cat=5, dog=5)
    train, sets = read_folder(tmp_path)
    assert (len(train), len(sets["val"])) == (8, 2)
    assert train.ids[0].startswith("train/cat/")


def test_a_class_may_be_named_train(tmp_path):
    write(tmp_path, train=5, plane=5)
    (tmp_path / "train" / ".thumbnails").mkdir()
    assert read_folder(tmp_path)[0].class_names == ("plane", "train")


def test_another_folder_is_the_test_set(tmp_path):
    root, checked, labels = tmp_path / "photos", tmp_path / "checked", tmp_path / "true.csv"
    write(root, cat=5, dog=5, eel=5)
    write(checked, eel=2, cat=1)
    (checked / "eel" / "0.png").write_bytes(b"broken")
    labels.write_text("path,label\n" + "".join(f"{name}/{i}.png,cat\n" for name in COLOURS for i in range(5)))
    with pytest.raises(ValueError, match=r"1 of 3 .*`eel/0.png`"):
        read_folder(root, test=checked)
    with pytest.warns(UserWarning, match="1 image "):
        train, sets = read_folder(root, test=checked, skip_bad=True, true_labels=labels)
    assert (len(train), len(sets["val"])) == (12, 3)
    assert sets["test"].ids == ["cat/0.png", "eel/1.png"]
    assert sets["test"].class_names == train.class_names
    assert sets["test"].inputs[torch.arange(2)].flatten(1).float().mean(1).tolist() == [50, 250]
    assert train.true is not None
    assert sets["test"].true is None, "the true labels are of the folder"


def test_test_folders_that_cannot_be_used_are_refused(tmp_path):
    photos, split, other = tmp_path / "photos", tmp_path / "split", tmp_path / "other"
    write(photos, cat=3, dog=3)
    write(split / "train", cat=3, dog=3)
    write(split / "test", cat=1)
    write(other, fox=1)
    (photos / "dog" / "0.png").write_bytes(b"broken")  # reported only after the test folder
    for root, test, found in (
        (photos, other, "`fox` of `.*other`"),
        (photos, photos, "`test` should be outside"),
        (photos, tmp_path, "`test` should be outside"),
        (photos, photos / "cat", "`test` should be outside"),
        (split, other, "`test` should be omitted"),
        (photos, photos / "cat" / "0.png", "`test` should be a folder"),
    ):
        with pytest.raises(ValueError, match=found):
            read_folder(root, test=test)


def test_classes_with_one_image_or_similar_names_cause_a_warning(tmp_path):
    write(tmp_path / "one", cat=5, dog=1)
    with pytest.warns(UserWarning, match="`dog`"):
        train, _ = read_folder(tmp_path / "one")
    assert train.given.bincount().tolist() == [4, 1]
    write(tmp_path / "two", Cat=3, cat=3, dog=3)
    if len(os.listdir(tmp_path / "two")) == 3:  # the file system knows upper case
        with pytest.warns(UserWarning, match="`Cat`, `cat`"):
            assert read_folder(tmp_path / "two", val=0)[0].class_names == ("Cat", "cat", "dog")


def test_nested_folders_hidden_files_and_other_files(tmp_path):
    write(tmp_path, cat=2, dog=2, **{".git": 1})
    write(tmp_path / "cat", deeper=1)
    for name in ("Thumbs.db", "._0.png"):
        (tmp_path / "cat" / name).write_bytes(b"x")
    train, _ = read_folder(tmp_path, val=0)
    assert train.ids == ["cat/0.png", "cat/1.png", "cat/deeper/0.png", "dog/0.png", "dog/1.png"]


def test_folders_without_classes_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no image in any"):
        read_folder(tmp_path)
    write(tmp_path, cat=2)
    with pytest.raises(ValueError, match="only `cat`"):
        read_folder(tmp_path)
    with pytest.raises(ValueError, match="directly in it"):
        read_folder(tmp_path / "cat")


def test_unreadable_images_raise_unless_skip_bad(tmp_path):
    write(tmp_path, cat=8, dog=10)
    for i in range(7):
        (tmp_path / "cat" / f"{i}.png").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"7 of 18 .*: `cat/0.png`, .*`cat/4.png` and 2 more"):
        read_folder(tmp_path)
    with pytest.warns(UserWarning, match="7 images .*: `cat/0.png`"):
        assert read_folder(tmp_path, skip_bad=True, val=0)[0].given.bincount().tolist() == [1, 10]
    (tmp_path / "cat" / "7.png").write_bytes(b"broken")
    with pytest.raises(ValueError, match="no training images of `cat`"), pytest.warns(match="8 images"):
        read_folder(tmp_path, skip_bad=True)


def test_links_outside_the_folder_are_rejected(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    write(root, cat=2, dog=2)
    write(outside, eel=2)
    os.symlink(outside / "eel" / "0.png", root / "cat" / "linked.png")
    os.symlink(root / "dog" / "0.png", root / "cat" / "within.png")
    os.symlink(outside / "eel", root / "cat" / "linked-folder")
    with pytest.raises(ValueError, match=r"1 of 6 images .*`cat/linked.png`"):
        read_folder(root)
    with pytest.warns(UserWarning, match=r"`cat/linked.png`"):
        assert "cat/within.png" in read_folder(root, skip_bad=True, val=0)[0].ids
    os.symlink(outside / "eel", root / "eel")
    with pytest.raises(ValueError, match=r"`.*eel` is a link"):
        read_folder(root, skip_bad=True)


def test_true_labels_are_read_from_csv(tmp_path):
    write(tmp_path, cat=2, dog=2)
    rows, labels = (
        ["path,label", "cat/0.png,cat", "cat/1.png,dog", "dog/0.png,dog", "dog/1.png,dog"],
        tmp_path / "t.csv",
    )
    labels.write_text("\n".join(rows))
    train, _ = read_folder(tmp_path, val=0, true_labels=labels)
    assert train.wrong.tolist() == [False, True, False, False]
    for text, found in (
        ("\n".join(rows[:-1]), r"`dog/1\.png`"),
        ("path,label\ncat/0.png,eel", "`eel` in row 1"),
        ("file,label\n", "path and label"),
    ):
        labels.write_text(text)
        with pytest.raises(ValueError, match=found):
            read_folder(tmp_path, true_labels=labels)
