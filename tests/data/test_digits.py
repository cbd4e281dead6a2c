import dataclasses
import sys

import pytest
import torch
from sklearn import datasets

from ogc.data import load_digits


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def test_shapes_types_and_range(digits):
    assert digits.inputs.shape == (1437, 64)
    assert digits.labels.shape == (1437,)
    assert digits.test_inputs.shape == (360, 64)
    assert digits.test_labels.shape == (360,)
    assert digits.inputs.dtype == digits.test_inputs.dtype == torch.float32
    assert digits.labels.dtype == digits.test_labels.dtype == torch.int64
    assert digits.inputs.min() == 0
    assert digits.inputs.max() == 1


def test_training_and_test_make_up_the_whole_set(digits):
    """Every image once, with its label: so none is in both."""

    def rows(inputs, labels):
        return sorted((*image, label) for image, label in zip(inputs, labels, strict=True))

    split = torch.cat([digits.inputs, digits.test_inputs]) * 16, torch.cat([digits.labels, digits.test_labels])
    pixels, labels = datasets.load_digits(return_X_y=True)
    whole = rows(pixels.tolist(), labels.tolist())
    assert rows(split[0].tolist(), split[1].tolist()) == whole
    assert len({row[:-1] for row in whole}) == len(whole)  # no two images are alike, or the above would prove less


def test_classes_keep_their_proportions(digits):
    train, test = (labels.bincount() / len(labels) for labels in (digits.labels, digits.test_labels))
    assert (train - test).abs().max() < 1 / 360


def test_the_split_is_fixed(digits):
    again = load_digits()
    assert all(torch.equal(getattr(digits, f.name), getattr(again, f.name)) for f in dataclasses.fields(digits))


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"ogc\[cli\]"):
        load_digits()
