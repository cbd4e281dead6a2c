"""Scikit-learn's handwritten digits: 1,797 images of 8x8 pixels, shipped with scikit-learn, so nothing is downloaded.

The file is read without importing scikit-learn, which takes nearly as long as importing torch.
"""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .dataset import Dataset, Loaded

TEST_IMAGES = 360
BRIGHTEST = 16
CLASS_NAMES = tuple(str(digit) for digit in range(10))


def load_digits() -> Loaded:
    """Load flattened images with pixels in [0, 1], (N, 64), in a fixed stratified split."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ImportError('The digits need scikit-learn, which is missing: pip install "torch-ogc[cli]"')
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
    inputs, labels = torch.tensor(rows[:, :-1], dtype=torch.float32) / BRIGHTEST, torch.tensor(rows[:, -1])
    whole = Dataset(inputs, labels, CLASS_NAMES, [f"digits/{i:04}" for i in range(len(rows))], true=labels)
    train, test = (whole.subset(torch.from_numpy(index)) for index in _split(rows[:, -1]))
    return train, {"test": test}


def _split(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split as scikit-learn's ``train_test_split(test_size=0.2, stratify=labels, random_state=0)`` does."""
    draw = np.random.RandomState(0)
    counts = np.bincount(labels)
    exact = counts / len(labels) * (len(labels) - TEST_IMAGES)
    size = np.floor(exact).astype(int)  # training samples per class; the rest goes to the largest remainders
    left, remainders = len(labels) - TEST_IMAGES - size.sum(), exact - size
    for remainder in np.unique(remainders)[::-1]:
        classes = np.flatnonzero(remainders == remainder)
        chosen = draw.choice(classes, min(len(classes), left), replace=False)
        size[chosen] += 1
        left -= len(chosen)
        if left == 0:
            break
    shuffled = [draw.permutation(np.flatnonzero(labels == digit)) for digit in range(10)]
    train = np.concatenate([index[:n] for index, n in zip(shuffled, size, strict=True)])
    test = np.concatenate([index[n:] for index, n in zip(shuffled, size, strict=True)])
    return draw.permutation(train), draw.permutation(test)
