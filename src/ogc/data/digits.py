"""Scikit-learn's handwritten digits: 1,797 images of 8x8 pixels, included in the package, without a download."""

from __future__ import annotations

import torch

from .._extras import extra
from .dataset import Dataset, Loaded

TEST_SHARE = 0.2
BRIGHTEST = 16
CLASS_NAMES = tuple(str(digit) for digit in range(10))


def load_digits() -> Loaded:
    """Load flattened images with pixels in [0, 1], (N, 64), in a fixed stratified split."""
    with extra("cli", "The digits need scikit-learn", "sklearn"):
        from sklearn import datasets
        from sklearn.model_selection import train_test_split

    pixels, labels = datasets.load_digits(return_X_y=True)
    parts = train_test_split(range(len(labels)), test_size=TEST_SHARE, stratify=labels, random_state=0)

    def dataset(index: list[int]) -> Dataset:
        inputs = torch.tensor(pixels[index], dtype=torch.float32) / BRIGHTEST
        given = torch.tensor(labels[index], dtype=torch.int64)
        return Dataset(inputs, given, CLASS_NAMES, [f"digits/{i:04}" for i in index], true=given.clone())

    return dataset(parts[0]), {"test": dataset(parts[1])}
