import sys

import numpy as np
import pytest
import torch

from ogc.data import arrays

X = np.arange(40, dtype=np.float64).reshape(20, 2)
Y = np.array([3, 7] * 10)


def save(path, **named):
    np.savez(path, **named)
    return path


@pytest.mark.parametrize("names", [("X", "y"), ("features", "labels"), ("embeddings", "y")])
def test_features_and_labels_in_one_file(tmp_path, names):
    train, others = arrays(save(tmp_path / "x.npz", **dict(zip(names, (X, Y), strict=True))))
    val = others["val"]
    assert train.class_names == ("3", "7")
    assert val.given.bincount().tolist() == [2, 2]
    assert train.inputs.dtype == torch.float32
    assert train.true is None
    for part in (train, val):
        index = [int(i) for i in part.ids]
        assert part.inputs.tolist() == X[index].tolist()
        assert [int(part.class_names[label]) for label in part.given] == Y[index].tolist()
    assert len({*train.ids, *val.ids}) == 20


def test_two_files_and_true_labels(tmp_path):
    for name, values in (("x", X), ("y", Y), ("t", Y[::-1])):
        np.save(tmp_path / f"{name}.npy", values)
    train, others = arrays(tmp_path / "x.npy", tmp_path / "y.npy", true=tmp_path / "t.npy", val=0)
    assert others == {}
    assert train.wrong.all()
    named = save(tmp_path / "all.npz", X=X, y=Y, true=Y, other=Y[::-1])
    assert not arrays(named)[0].wrong.any()
    assert arrays(named, true_name="other", val=0)[0].wrong.all()
    assert arrays(tmp_path / "x.npy", named, labels_name="other", val=0)[0].given.tolist() == [1, 0] * 10


def test_another_file_is_the_test_set(tmp_path):
    path = save(tmp_path / "x.npz", a=X, b=Y)
    names = {"features_name": "a", "labels_name": "b"}
    train, others = arrays(path, test=save(tmp_path / "t.npz", a=X[:3] + 0.5, b=[7, 7, 3]), **names)
    assert (len(train), len(others["val"])) == (16, 4)
    assert others["test"].inputs.tolist() == (X[:3] + 0.5).tolist()
    assert others["test"].given.tolist() == [1, 1, 0]
    with pytest.warns(UserWarning, match=r"also the training file"):
        arrays(path, test=path, **names)
    with pytest.warns(UserWarning, match=r"2 of 3 rows of `.*u\.npz` have the same features as a row of `.*x\.npz`"):
        arrays(path, test=save(tmp_path / "u.npz", a=[*X[:2], [0.5, 0.5]], b=[7, 7, 3]), **names)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"X": X[:, :1], "y": Y}, r"`.*t\.npz` should have the shape \(2,\), as in training\. Found \(1,\)\."),
        ({"X": X, "y": Y[1:]}, r"have a label\. `X` in `.*t\.npz` has 20 rows, and `y` in `.*t\.npz` has 19\."),
        ({"X": X, "y": Y + 1}, r"label `4` in row 1 of `.*t\.npz` is not one of the classes `3`, `7`"),
        ({"y": Y}, r"`.*t\.npz` should have an array named `X`"),
        ({"X": X, "y": Y, "true": Y[1:]}, r"have a true label\. `X` in `.*t\.npz` has 20 rows, and `true` in"),
        ({"X": X[:0], "y": Y[:0]}, r"`X` in `.*t\.npz` has no rows\."),
    ],
)
def test_test_files_that_do_not_fit_are_refused(tmp_path, named, message):
    path = save(tmp_path / "x.npz", X=X, y=Y)
    with pytest.raises(ValueError, match=message):
        arrays(path, test=save(tmp_path / "t.npz", **named))


def test_a_test_file_needs_features_and_labels(tmp_path):
    np.save(tmp_path / "t.npy", X)
    (tmp_path / "folder").mkdir()
    for name in ("t.npy", "folder"):
        with pytest.raises(ValueError, match=rf"`.*{name}` should be an \.npz file with features and labels\."):
            arrays(save(tmp_path / "x.npz", X=X, y=Y), test=tmp_path / name)


def test_true_labels_of_a_test_file_are_found_like_those_of_the_training_file(tmp_path):
    path = save(tmp_path / "x.npz", X=X, y=Y, other=Y)
    test = save(tmp_path / "t.npz", X=X + 0.5, y=Y, true=Y[::-1], other=Y)
    assert arrays(path, test=test)[1]["test"].wrong.all()
    assert not arrays(path, test=test, true_name="other")[1]["test"].wrong.any()
    test = save(tmp_path / "t.npz", X=X + 0.5, y=Y, true=Y[::-1])
    assert arrays(path, test=test, true_name="other")[1]["test"].true is None


def test_array_names_can_be_set_and_unknown_ones_list_choices(tmp_path):
    path = save(tmp_path / "x.npz", a=X, b=Y)
    assert len(arrays(path, features_name="a", labels_name="b", val=0)[0]) == 20
    with pytest.raises(ValueError, match=r"named `X`, `features`, `embeddings`\. Found `a`, `b`"):
        arrays(path)
    with pytest.raises(ValueError, match=r"named `c`\. Found `a`, `b`"):
        arrays(path, features_name="a", labels_name="c")


def test_labels_may_be_text(tmp_path):
    train, _ = arrays(save(tmp_path / "x.npz", X=X, y=np.array(["dog", "cat"] * 10)), val=0)
    assert train.class_names == ("cat", "dog")
    assert train.given[:2].tolist() == [1, 0]


@pytest.mark.parametrize("shape", [(20, 3, 4, 5), (20, 4, 5, 3)])
def test_images_stay_uint8(tmp_path, shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    train, _ = arrays(save(tmp_path / "x.npz", X=images, y=Y), val=0)
    assert train.inputs.dtype == torch.uint8
    assert train.inputs.shape == (20, 3, 4, 5)
    expected = images if shape[1] == 3 else images.transpose(0, 3, 1, 2)
    assert train.inputs.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"X": X, "y": Y[:-1]}, r"have a label\. `X` in `.*x\.npz` has 20 rows, and `y` in `.*x\.npz` has 19\."),
        ({"X": X, "y": Y, "true": Y[:-1]}, r"have a true label\. `X` in .* has 20 rows, and `true` in `.*` has 19\."),
        ({"X": X, "y": Y / 2}, r"integers or text.*Found float64"),
        ({"X": X, "y": X}, r"integers or text"),
        ({"X": X[:, 0], "y": Y}, r"should be numbers, \(N, F\)"),
        ({"X": X.astype(str), "y": Y}, r"should be numbers"),
        ({"X": np.where(X == 6, np.nan, X), "y": Y}, r"should be finite\. Sample 3 is not"),
        ({"X": X, "y": Y, "true": Y + 1}, r"label `4` in row 0 of the true labels is not one of the classes `3`, `7`"),
        ({"X": X}, r"named `y`, `labels`"),
        ({"X": X[:0], "y": Y[:0]}, r"`X` in `.*x\.npz` has no rows\."),
    ],
)
def test_invalid_arrays_raise_a_clear_error(tmp_path, named, message):
    with pytest.raises(ValueError, match=message):
        arrays(save(tmp_path / "x.npz", **named))


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
        with pytest.raises(ValueError, match=r"not a \.npy or .npz file of plain arrays"):
            arrays(path)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
@pytest.mark.parametrize("cut", [0, 5, 200])
def test_truncated_file_raises_a_clear_error(tmp_path, name, cut):
    path = tmp_path / name
    if name == "x.npz":
        save(path, X=X, y=Y)
    else:
        np.save(path, X)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match="or is truncated"):
        arrays(path)


def test_missing_labels_and_missing_files(tmp_path):
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(ValueError, match="holds only features"):
        arrays(tmp_path / "x.npy")
    with pytest.raises(FileNotFoundError, match=r"y\.npy"):
        arrays(tmp_path / "x.npy", tmp_path / "y.npy")
    with pytest.raises(FileNotFoundError, match=r"The file `.*` is a folder\."):
        arrays(tmp_path / "x.npy", tmp_path)


def test_missing_numpy_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ImportError, match=r"torch-ogc\[cli\]"):
        arrays(tmp_path / "x.npy")


def test_damaged_header_raises_a_clear_error(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00\x10\x00{[[[[[[[[[[[[[[[")
    with pytest.raises(ValueError, match=r"is not a \.npy or \.npz file"):
        arrays(path, path)
