import sys

import pytest
import torch
from sklearn import datasets
from sklearn.model_selection import train_test_split

from ogc.data import load_digits


def test_split_equals_scikit_learn():
    train, sets = load_digits()
    pixels, labels = datasets.load_digits(return_X_y=True)
    parts = train_test_split(range(len(labels)), test_size=0.2, stratify=labels, random_state=0)
    for part, index in zip((train, sets["test"]), parts, strict=True):
        assert part.ids == [f"digits/{i:04}" for i in index]
        assert torch.equal(part.inputs, torch.tensor(pixels[index] / 16, dtype=torch.float32))
        assert part.given.tolist() == part.true.tolist() == labels[index].tolist()
        assert part.class_names == tuple("0123456789")
    assert (len(train), len(sets["test"])) == (1437, 360)


def test_missing_scikit_learn_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"torch-ogc\[cli\]"):
        load_digits()
