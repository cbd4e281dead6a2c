import sys

import pytest
import torch
from sklearn import datasets
from sklearn.model_selection import train_test_split

from ogc.data import load_digits


@pytest.fixture(scope="module")
def digits():
    train, others = load_digits()
    return train, others["test"]


def test_shapes_types_and_range(digits):
    train, test = digits
    assert train.inputs.shape == (1437, 64)
    assert train.given.shape == (1437,)
    assert test.inputs.shape == (360, 64)
    assert test.given.shape == (360,)
    assert train.inputs.dtype == test.inputs.dtype == torch.float32
    assert train.given.dtype == test.given.dtype == torch.int64
    assert train.inputs.min() == 0
    assert train.inputs.max() == 1
    assert train.class_names == tuple("0123456789")
    assert torch.equal(train.true, train.given)


def test_training_and_test_sets_partition_the_data(digits):
    """Every image appears exactly once, with its label."""

    def rows(inputs, labels):
        return sorted((*image, label) for image, label in zip(inputs, labels, strict=True))

    split = torch.cat([part.inputs for part in digits]) * 16, torch.cat([part.given for part in digits])
    pixels, labels = datasets.load_digits(return_X_y=True)
    expected = rows(pixels.tolist(), labels.tolist())
    assert rows(split[0].tolist(), split[1].tolist()) == expected
    assert len({row[:-1] for row in expected}) == len(expected)  # no duplicates, so no image is in both sets


def test_ids_are_positions_in_the_original_data(digits):
    _, labels = datasets.load_digits(return_X_y=True)
    for part in digits:
        assert [labels[int(id.removeprefix("digits/"))] for id in part.ids] == part.given.tolist()


def test_classes_keep_their_proportions(digits):
    train, test = (part.given.bincount() / len(part) for part in digits)
    assert (train - test).abs().max() < 1 / 360


def test_split_equals_scikit_learn(digits):
    pixels, labels = datasets.load_digits(return_X_y=True)
    parts = train_test_split(range(len(labels)), test_size=0.2, stratify=labels, random_state=0)
    for part, index in zip(digits, parts, strict=True):
        assert part.ids == [f"digits/{i:04}" for i in index]
        assert torch.equal(part.inputs, torch.tensor(pixels[index] / 16, dtype=torch.float32))
        assert part.given.tolist() == labels[index].tolist()


def test_missing_scikit_learn_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"torch-ogc\[cli\]"):
        load_digits()
