"""The data set type, and the split into training and validation samples."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from ogc.data import Dataset
from ogc.data.images import ImageFiles
from ogc.data.split import stratified_split


def dataset(**changed):
    parts = {"inputs": torch.zeros(3, 2), "given": torch.tensor([0, 1, 1]), "true": torch.tensor([0, 1, 0])}
    return Dataset(**{**parts, "class_names": ("a", "b"), "ids": ["x", "y", "z"], **changed})


def test_wrong_marks_given_labels_that_differ_from_true_ones():
    assert dataset().wrong.tolist() == [False, False, True]
    assert dataset(true=None).wrong is None
    assert (len(dataset()), dataset().num_classes) == (3, 2)
    assert dataset().subset(torch.tensor([2])).ids == ["z"]


def test_with_given_keeps_the_true_labels():
    given, labels = torch.tensor([1, 1, 1]), torch.tensor([0, 1, 1])
    assert dataset().with_given(given).given is given
    assert dataset().with_given(given).true.tolist() == [0, 1, 0]
    noisy = dataset(given=labels, true=None).with_given(np.array([1, 1, 0]))
    labels[0] = 1
    assert noisy.true.tolist() == [0, 1, 1], "a copy"
    assert noisy.wrong.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"given": torch.tensor([0, 1])}, r"`given = \(2,\)`"),
        ({"given": torch.tensor([0, 7, 2, 7])[1:]}, r"`given = \[2, 7\]`"),
        ({"given": torch.tensor([0, 1, -1])}, r"`given = \[-1\]`"),
        ({"given": torch.tensor([0.0, 1, 1])}, "`given = torch.float32`"),
        ({"true": torch.tensor([0, 1, 2])}, r"`true = \[2\]`"),
        ({"ids": ["x"]}, r"`len\(ids\) = 1`"),
    ],
)
def test_parts_that_do_not_fit_are_rejected(changed, found):
    with pytest.raises(ValueError, match=found):
        dataset(**changed)


def test_repr_is_short_and_reads_no_file():
    assert repr(dataset()) == "Dataset(3 samples, 2 classes, inputs (3, 2), true labels known)"
    images = dataset(inputs=ImageFiles(["missing.png"] * 3, 8), true=None)
    assert repr(images) == "Dataset(3 samples, 2 classes, inputs (3, 3, 8, 8), true labels unknown)"
    assert pickle.loads(pickle.dumps(dataset())).ids == ["x", "y", "z"]


def test_import_of_loaders_does_not_import_heavy_libraries():
    heavy = ("PIL", "sklearn", "pandas", "pyarrow", "matplotlib")
    code = f"import ogc.data, sys; print(*[name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == []


def split(sizes, *, val=0.2, seed=0):
    labels = torch.cat([torch.full((size,), c) for c, size in enumerate(sizes)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    return labels, *stratified_split(labels, [f"class {c}" for c in range(len(sizes))], val=val, seed=seed)


def test_split_is_stratified_and_contains_every_sample_once():
    labels, train, val = split([50, 10, 5, 2])
    assert torch.cat([train, val]).sort().values.tolist() == list(range(67))
    assert labels[val].bincount().tolist() == [10, 2, 1, 1]
    assert torch.equal(train, train.sort().values)
    assert torch.equal(train, split([50, 10, 5, 2])[1])
    assert not torch.equal(train, split([50, 10, 5, 2], seed=1)[1])
    assert len(split([3, 1], val=0)[2]) == 0
    with pytest.warns(UserWarning, match="`class 1`"):
        labels, train, val = split([10, 1])
    assert labels[val].bincount(minlength=2).tolist() == [2, 0]


def test_split_is_reproducible_across_machines():
    assert stratified_split(torch.arange(20) % 2, "ab", val=0.2, seed=3)[1].tolist() == [0, 5, 6, 15]


@pytest.mark.parametrize("val", [-0.1, 1.0])
def test_validation_fraction_out_of_range_is_rejected(val):
    with pytest.raises(ValueError, match="`val`"):
        split([3, 3], val=val)
