"""Features and labels from NumPy files, whole and damaged."""

import numpy as np
import pytest
import torch

from ogc.data import read_arrays

X = np.arange(40, dtype=np.float64).reshape(20, 2)
Y = np.array([3, 7] * 10)


def save(path, **named):
    np.savez(path, **named)
    return path


@pytest.mark.parametrize("names", [("X", "y"), ("features", "labels"), ("embeddings", "y")])
def test_features_and_labels_in_one_file(tmp_path, names):
    train, sets = read_arrays(save(tmp_path / "x.npz", **dict(zip(names, (X, Y), strict=True))))
    assert train.class_names == ("3", "7")
    assert sets["val"].given.bincount().tolist() == [2, 2]
    assert train.inputs.dtype == torch.float32
    assert train.true is None
    for part in (train, sets["val"]):
        index = [int(i) for i in part.ids]
        assert part.inputs.tolist() == X[index].tolist()
        assert [int(part.class_names[label]) for label in part.given] == Y[index].tolist()
    assert len({*train.ids, *sets["val"].ids}) == 20


def test_separate_files_other_names_and_true_labels(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    assert read_arrays(tmp_path / "x.npy", tmp_path / "y.npy", val=0)[0].given.tolist() == [0, 1] * 10
    named = save(tmp_path / "all.npz", X=X, y=Y, true=Y, other=Y[::-1])
    assert not read_arrays(named)[0].wrong.any()
    assert read_arrays(named, true_name="other", val=0)[0].wrong.all()
    assert read_arrays(named, tmp_path / "y.npy", val=0)[0].true.tolist() == [0, 1] * 10
    assert read_arrays(tmp_path / "x.npy", named, labels_name="other", val=0)[0].given.tolist() == [1, 0] * 10
    words, _ = read_arrays(save(tmp_path / "t.npz", X=X, y=np.array(["dog", "cat"] * 10)), val=0)
    assert (words.class_names, words.given[:2].tolist()) == (("cat", "dog"), [1, 0])


def test_another_file_is_the_test_set(tmp_path):
    path = save(tmp_path / "x.npz", X=X, b=Y, other=Y)
    names = {"labels_name": "b", "features_name": "X"}
    train, sets = read_arrays(path, test=save(tmp_path / "t.npz", X=X[:3] + 0.5, b=[7, 7, 3]), **names)
    assert (len(train), len(sets["val"])) == (16, 4)
    assert sets["test"].inputs.tolist() == (X[:3] + 0.5).tolist()
    assert sets["test"].given.tolist() == [1, 1, 0]
    with pytest.warns(UserWarning, match="also the training file"):
        read_arrays(path, test=path, **names)
    with pytest.warns(UserWarning, match=r"2 of 3 rows of `.*u\.npz`"):
        read_arrays(path, test=save(tmp_path / "u.npz", X=[*X[:2], [0.5, 0.5]], b=[7, 7, 3]), **names)
    test = save(tmp_path / "t.npz", X=X + 0.5, b=Y, true=Y[::-1], other=Y)
    assert read_arrays(path, test=test, **names)[1]["test"].wrong.all()
    assert not read_arrays(path, test=test, true_name="other", **names)[1]["test"].wrong.any()
    test = save(tmp_path / "t.npz", X=X + 0.5, b=Y, true=Y[::-1])
    assert read_arrays(path, test=test, true_name="other", **names)[1]["test"].true is None


@pytest.mark.parametrize("shape", [(20, 3, 4, 5), (20, 4, 5, 3)])
def test_images_stay_uint8(tmp_path, shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    train, _ = read_arrays(save(tmp_path / "x.npz", X=images, y=Y), val=0)
    assert train.inputs.dtype == torch.uint8
    assert train.inputs.tolist() == (images if shape[1] == 3 else images.transpose(0, 3, 1, 2)).tolist()


@pytest.mark.parametrize("as_test", [False, True])
@pytest.mark.parametrize(
    ("named", "found"),
    [
        ({"X": X, "y": Y[:-1]}, r"`y` in `.*x\.npz`.* 20 .*\(19,\)"),
        ({"X": X, "y": Y, "true": Y[:-1]}, r"`true` in `.*x\.npz`.* 20 .*\(19,\)"),
        ({"X": X, "y": Y / 2}, "`y` .*float64"),
        ({"X": X, "y": X}, "`y` "),
        ({"X": X[:, 0], "y": Y}, r"\(N, F\).*\(20,\)"),
        ({"X": X.astype(str), "y": Y}, "numbers"),
        ({"X": np.where(X == 6, np.nan, X), "y": Y}, "Sample 3"),
        ({"X": X, "y": Y, "true": Y + 1}, r"`4` in row 0 of the true labels in `.*x\.npz`.*`3`, `7`"),
        ({"X": X}, r"`y`, `labels`\. Found `X`"),
        ({"y": Y}, r"`X`, `features`, `embeddings`\. Found `y`"),
        ({"X": X[:0], "y": Y[:0]}, "no rows"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, named, found, as_test):
    path = save(tmp_path / "x.npz", **named)
    with pytest.raises(ValueError, match=found):
        read_arrays(save(tmp_path / "train.npz", X=X, y=Y), test=path) if as_test else read_arrays(path)


def test_files_that_do_not_fit_are_refused(tmp_path):
    path = save(tmp_path / "x.npz", X=X, y=Y)
    np.save(tmp_path / "x.npy", X)
    for test, found in (
        (save(tmp_path / "t.npz", X=X[:, :1], y=Y), r"shape \(2,\).*\(1,\)"),
        (save(tmp_path / "u.npz", X=X, y=Y + 1), "`4` in row 0"),
        (tmp_path / "x.npy", r"should be an \.npz"),
    ):
        with pytest.raises(ValueError, match=found):
            read_arrays(path, test=test)
    with pytest.raises(ValueError, match="labels"):
        read_arrays(tmp_path / "x.npy")
    with pytest.raises(ValueError, match="`c`"):
        read_arrays(path, labels_name="c")
    for missing in (tmp_path / "none.npy", tmp_path):
        with pytest.raises(FileNotFoundError, match=missing.name):
            read_arrays(tmp_path / "x.npy", missing)


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return __import__("os").mkdir, (str(self.path),)


def test_pickled_objects_are_never_loaded(tmp_path):
    objects = np.array([Malicious(tmp_path / "it-ran")] * 20, dtype=object)
    paths = [save(tmp_path / "x.npz", X=X, y=objects), tmp_path / "x.npy", tmp_path / "y.npy"]
    np.save(paths[1], objects, allow_pickle=True)
    objects.dump(paths[2])
    for path in paths:
        with pytest.raises(ValueError, match="plain arrays"):
            read_arrays(path)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
def test_damaged_files_are_refused(tmp_path, name):
    path = save(tmp_path / "x.npz", X=X, y=Y)
    np.save(tmp_path / "x.npy", X)
    whole = (tmp_path / name).read_bytes()
    for content in (b"", whole[:5], whole[:200], b"\x93NUMPY\x01\x00\x10\x00{[[[[[[[[[[[[[[["):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="truncated"):
            read_arrays(path, path)
