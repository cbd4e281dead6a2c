import pickle
import subprocess
import sys

import pytest
import torch

from ogc.data import Dataset
from ogc.data.images import ImageFiles
from ogc.data.split import stratified_split


def dataset(**changed):
    parts = {
        "inputs": torch.zeros(3, 2),
        "given": torch.tensor([0, 1, 1]),
        "class_names": ("a", "b"),
        "ids": ["x", "y", "z"],
        "true": torch.tensor([0, 1, 0]),
    }
    return Dataset(**parts | changed)


def test_wrong_marks_given_labels_that_differ_from_true_ones():
    assert dataset().wrong.tolist() == [False, False, True]
    assert dataset(true=None).wrong is None
    assert len(dataset()) == 3
    assert dataset().num_classes == 2


def test_with_given_keeps_the_true_labels():
    given = torch.tensor([1, 1, 1])
    assert dataset().with_given(given).true.tolist() == [0, 1, 0]
    assert dataset(true=None).with_given(given).true.tolist() == [0, 1, 1]
    assert dataset().with_given(given).given is given


@pytest.mark.parametrize(
    "changed",
    [
        {"given": torch.tensor([0, 1])},
        {"given": torch.tensor([0, 1, 2])},
        {"given": torch.tensor([0, 1, -1])},
        {"given": torch.tensor([0.0, 1, 1])},
        {"true": torch.tensor([0, 1, 2])},
        {"ids": ["x"]},
    ],
)
def test_mismatched_parts_are_rejected(changed):
    with pytest.raises(ValueError, match=rf"Parameter `(len\()?{next(iter(changed))}"):
        dataset(**changed)


def test_repr_is_short():
    assert repr(dataset()) == "Dataset(3 samples, 2 classes, inputs (3, 2), true labels known)"
    images = dataset(inputs=ImageFiles(["missing.png"] * 3, 8), true=None)  # no file is read
    assert repr(images) == "Dataset(3 samples, 2 classes, inputs (3, 3, 8, 8), true labels unknown)"


def test_dataset_can_be_pickled():
    assert pickle.loads(pickle.dumps(dataset())).ids == ["x", "y", "z"]


def test_import_of_loaders_does_not_import_heavy_libraries():
    code = "import ogc.data, sys; print(*[m for m in ('PIL', 'sklearn', 'pyarrow', 'matplotlib') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def split(sizes, *, val=0.2, seed=0):
    labels = torch.cat([torch.full((size,), c) for c, size in enumerate(sizes)])
    labels = labels[torch.randperm(len(labels))]
    return labels, stratified_split(labels, [f"class {c}" for c in range(len(sizes))], val=val, seed=seed)


def test_split_is_stratified_and_contains_every_sample_once():
    labels, (train, val) = split([50, 10, 5, 2])
    assert torch.cat([train, val]).sort().values.tolist() == list(range(67))
    assert labels[val].bincount().tolist() == [10, 2, 1, 1]
    assert torch.equal(train, train.sort().values)


def test_split_depends_on_seed():
    labels, (train, _) = split([50, 50])
    again = stratified_split(labels, "ab", val=0.2, seed=0)[0]
    other = stratified_split(labels, "ab", val=0.2, seed=1)[0]
    assert torch.equal(train, again)
    assert not torch.equal(train, other)


def test_split_is_reproducible_across_machines():
    _, val = stratified_split(torch.arange(20) % 2, "ab", val=0.2, seed=3)
    assert val.tolist() == [0, 5, 6, 15]


def test_class_with_one_sample_stays_in_training_with_warning():
    with pytest.warns(UserWarning, match="single sample have no validation sample: `class 1`"):
        labels, (train, val) = split([10, 1])
    assert labels[train].bincount().tolist() == [8, 1]
    assert labels[val].bincount(minlength=2).tolist() == [2, 0]


def test_split_without_validation():
    _, (train, val) = split([3, 1], val=0)
    assert len(train) == 4
    assert len(val) == 0


@pytest.mark.parametrize("val", [-0.1, 1.0])
def test_validation_fraction_out_of_range_is_rejected(val):
    with pytest.raises(ValueError, match="`val`"):
        split([3, 3], val=val)


def test_with_given_accepts_numpy_labels_and_copies_true_ones():
    import numpy as np

    labels = torch.tensor([0, 1, 2])
    plain = Dataset(torch.zeros(3, 1), labels, ("a", "b", "c"), ["x", "y", "z"])
    noisy = plain.with_given(np.array([1, 1, 2]))
    assert noisy.wrong.tolist() == [True, False, False]
    labels[0] = 2
    assert noisy.true.tolist() == [0, 1, 2]


def test_labels_out_of_range_are_named():
    with pytest.raises(ValueError, match=r"in \[0, 2\)\. Found `given = \[7\]`"):
        Dataset(torch.zeros(3, 1), torch.tensor([0, 1, 7]), ("a", "b"), ["x", "y", "z"])
