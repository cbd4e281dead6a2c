import os

import pytest
import torch
from PIL import Image

from ogc.data import folder

COLOURS = {"cat": 50, "dog": 150, "eel": 250}


def write(root, **counts):
    """Grey images: ``write(root, cat=3)`` writes root/cat/0.png and so on."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.new("L", (8, 6), COLOURS.get(name, 0)).save(root / name / f"{i}.png")


def test_split_is_stratified_and_keeps_pixels_with_their_labels(tmp_path):
    write(tmp_path, cat=10, dog=5)
    train, others = folder(tmp_path, size=4)
    val = others["val"]
    assert train.class_names == val.class_names == ("cat", "dog")
    assert train.given.bincount().tolist() == [8, 4]
    assert val.given.bincount().tolist() == [2, 1]
    assert len({*train.ids, *val.ids}) == 15
    for part in (train, val):
        assert part.true is None
        assert part.inputs[torch.arange(len(part))].shape == (len(part), 3, 4, 4)
        for i, (path, label) in enumerate(zip(part.ids, part.given.tolist(), strict=True)):
            assert path.split("/")[0] == part.class_names[label]
            assert part.inputs[torch.tensor([i])].unique().tolist() == [COLOURS[part.class_names[label]]]


def test_split_depends_on_seed(tmp_path):
    write(tmp_path, cat=20, dog=20)
    assert folder(tmp_path)[0].ids == folder(tmp_path)[0].ids
    assert folder(tmp_path)[0].ids != folder(tmp_path, seed=1)[0].ids
    assert folder(tmp_path, val=0)[1] == {}


def test_train_val_and_test_folders_are_used_as_given(tmp_path):
    write(tmp_path / "train", cat=3, dog=2, eel=1)
    write(tmp_path / "val", cat=1, dog=1)
    write(tmp_path / "test", eel=1)
    train, others = folder(tmp_path)
    assert len(train) == 6
    assert train.class_names == others["test"].class_names == ("cat", "dog", "eel")
    assert others["val"].ids == ["val/cat/0.png", "val/dog/0.png"]
    assert others["test"].given.tolist() == [2]


def test_another_folder_is_the_test_set(tmp_path):
    root, checked, labels = tmp_path / "photos", tmp_path / "checked", tmp_path / "true.csv"
    write(root, cat=5, dog=5, eel=5)
    write(checked, eel=2, cat=1)
    (checked / "eel" / "0.png").write_bytes(b"broken")
    labels.write_text("path,label\n" + "".join(f"{name}/{i}.png,cat\n" for name in COLOURS for i in range(5)))
    with pytest.raises(ValueError, match=r"1 of 3 images cannot be read: `eel/0.png`"):
        folder(root, test=checked)
    with pytest.warns(UserWarning, match="Skipped 1 image "):
        train, others = folder(root, test=checked, skip_bad=True, true_labels=labels)
    assert (len(train), len(others["val"])) == (12, 3)
    assert others["test"].ids == ["cat/0.png", "eel/1.png"]
    assert others["test"].class_names == train.class_names
    assert others["test"].inputs[torch.arange(2)].flatten(1).float().mean(1).tolist() == [50, 250]
    assert train.true is not None
    assert others["test"].true is None, "the true labels are of the folder"


def test_test_folders_that_cannot_be_used_are_refused(tmp_path):
    write(tmp_path / "photos", cat=3, dog=3)
    write(tmp_path / "split" / "train", cat=3, dog=3)
    write(tmp_path / "split" / "test", cat=1)
    write(tmp_path / "other", fox=1)
    write(tmp_path / "photos" / "cat", dog=1)
    photos = tmp_path / "photos"
    (photos / "dog" / "0.png").write_bytes(b"broken")  # reported only after the test folder
    for root, test, message in (
        (photos, tmp_path / "other", r"The class `fox` of `.*other` has no folder in `.*photos`"),
        (photos, photos, r"`test` should be outside of the training images in `.*photos`"),
        (photos, tmp_path, r"`test` should be outside of the training images in `.*photos`"),
        (photos, photos / "cat", r"`test` should be outside of the training images in `.*photos`"),
        (tmp_path / "split", tmp_path / "other", r"omitted, because `.*split` has a folder named test"),
        (photos, photos / "cat" / "0.png", r"`test` should be a folder with one sub-folder of images for each class"),
    ):
        with pytest.raises(ValueError, match=message):
            folder(root, test=test)


def test_train_folder_alone_is_split(tmp_path):
    write(tmp_path / "train", cat=5, dog=5)
    train, others = folder(tmp_path)
    assert (len(train), len(others["val"])) == (8, 2)
    assert train.ids[0].startswith("train/cat/")


def test_class_may_be_named_train(tmp_path):
    write(tmp_path, train=5, plane=5)
    assert folder(tmp_path)[0].class_names == ("plane", "train")


def test_class_named_train_may_contain_a_hidden_folder(tmp_path):
    write(tmp_path, train=2, plane=3)
    (tmp_path / "train" / ".thumbnails").mkdir()
    assert folder(tmp_path, val=0)[0].class_names == ("plane", "train")


def test_class_without_training_folder_is_named(tmp_path):
    write(tmp_path / "train", cat=2, dog=2)
    write(tmp_path / "val", cat=1, eel=1)
    with pytest.raises(ValueError, match=r"The class `eel` of .*val` has no folder in .*train`"):
        folder(tmp_path)


def test_class_with_one_image_stays_in_training_with_warning(tmp_path):
    write(tmp_path, cat=5, dog=1)
    with pytest.warns(UserWarning, match="`dog`"):
        train, others = folder(tmp_path)
    assert train.given.bincount().tolist() == [4, 1]
    assert others["val"].given.tolist() == [0]


def test_warns_if_classes_differ_only_in_case(tmp_path):
    write(tmp_path, Cat=3, cat=3, dog=3)
    if len(os.listdir(tmp_path)) < 3:
        pytest.skip("The file system ignores case.")
    with pytest.warns(UserWarning, match=r"The classes `Cat` and `cat` in `.*` differ only in case\. .* one folder\."):
        train, _ = folder(tmp_path, val=0)
    assert train.class_names == ("Cat", "cat", "dog")


def test_nested_folders_hidden_files_and_other_files(tmp_path):
    write(tmp_path, cat=2, dog=2)
    write(tmp_path / "cat", deeper=1)
    write(tmp_path, **{".git": 1})
    (tmp_path / "cat" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "cat" / "._0.png").write_bytes(b"x")
    train, _ = folder(tmp_path, val=0)
    assert train.ids == ["cat/0.png", "cat/1.png", "cat/deeper/0.png", "dog/0.png", "dog/1.png"]


def test_images_without_sub_folders_are_reported(tmp_path):
    write(tmp_path, flat=2)
    with pytest.raises(
        ValueError, match=r"Found the images directly in it\. Move each into the sub-folder of its class"
    ):
        folder(tmp_path / "flat")
    (tmp_path / "flat" / "0.png").rename(tmp_path / "flat" / ".0.png")
    (tmp_path / "flat" / "1.png").unlink()
    with pytest.raises(ValueError, match=r"Found no image in any\."):
        folder(tmp_path / "flat")


def test_unreadable_images_raise_unless_skip_bad(tmp_path):
    write(tmp_path, cat=10, dog=10)
    for i in range(7):
        (tmp_path / "cat" / f"{i}.png").write_bytes(b"broken")
    with pytest.raises(
        ValueError, match=r"7 of 20 .*: `cat/0.png`, .*`cat/4.png` and 2 more\. Remove them, or"
    ) as error:
        folder(tmp_path)
    assert "cat/5.png" not in str(error.value)
    with pytest.warns(UserWarning, match="Skipped 7 images .*: `cat/0.png`"):
        train, _ = folder(tmp_path, skip_bad=True, val=0)
    assert train.given.bincount().tolist() == [3, 10]


def test_class_without_readable_images_is_named(tmp_path):
    write(tmp_path, cat=1, dog=1)
    (tmp_path / "cat" / "0.png").write_bytes(b"broken")
    with pytest.raises(ValueError, match="no training images of `cat`"), pytest.warns(match="Skipped 1 image that"):
        folder(tmp_path, skip_bad=True)


@pytest.mark.parametrize("inner", [True, False])
def test_links_outside_the_folder_are_rejected(tmp_path, inner):
    root, outside = tmp_path / "root", tmp_path / "outside"
    write(root, cat=2, dog=2)
    write(outside, eel=2)
    os.symlink(outside / "eel" / "0.png", root / "cat" / "linked.png")
    os.symlink(root / "dog" / "0.png", root / "cat" / "within.png")
    os.symlink(outside / "eel", root / "cat" / "linked-folder")
    if inner:
        with pytest.raises(ValueError, match=r"1 of 6 images .*`cat/linked.png`\. Remove it, or skip it"):
            folder(root)
        with pytest.warns(UserWarning, match=r"Skipped 1 image .*: `cat/linked.png`"):
            assert "cat/within.png" in folder(root, skip_bad=True, val=0)[0].ids
    else:
        os.symlink(outside / "eel", root / "eel")
        with pytest.raises(ValueError, match=r"`.*eel` is a link that points outside"):
            folder(root, skip_bad=True)


def test_true_labels_are_read_from_csv(tmp_path):
    write(tmp_path, cat=2, dog=2)
    rows = ["path,label", "cat/0.png,cat", "cat/1.png,dog", "dog/0.png,dog", "dog/1.png,dog"]
    labels = tmp_path / "true.csv"
    labels.write_text("\n".join(rows))
    train, _ = folder(tmp_path, val=0, true_labels=labels)
    assert train.given.tolist() == [0, 0, 1, 1]
    assert train.wrong.tolist() == [False, True, False, False]
    labels.write_text("\n".join(rows[:-1]))
    with pytest.raises(ValueError, match=r"no row for `dog/1\.png`"):
        folder(tmp_path, true_labels=labels)
    labels.write_text("path,label\ncat/0.png,eel")
    with pytest.raises(ValueError, match="`eel` in row 1"):
        folder(tmp_path, true_labels=labels)
    labels.write_text("file,label\n")
    with pytest.raises(ValueError, match="columns path and label"):
        folder(tmp_path, true_labels=labels)


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="one sub-folder of images for each class"):
        folder(tmp_path)
    write(tmp_path, cat=2)
    with pytest.raises(ValueError, match=r"one sub-folder of images for each class\. Found only `cat`\."):
        folder(tmp_path)
