"""Scikit-learn's handwritten digits: 1,797 images of 8x8 pixels, part of the package, so nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TEST_SHARE = 0.2
BRIGHTEST = 16


@dataclass(frozen=True)
class Digits:
    """Flattened images with pixels in [0, 1], (N, 64) float32, and true labels, (N,) int64."""

    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor


def load_digits() -> Digits:
    """The digits in a fixed split, the same share of every class in training and test."""
    try:
        from sklearn import datasets
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ImportError('The digits are part of scikit-learn, which is missing: pip install "ogc[cli]"') from error

    pixels, labels = datasets.load_digits(return_X_y=True)
    split = train_test_split(pixels, labels, test_size=TEST_SHARE, stratify=labels, random_state=0)
    inputs, test_inputs = (torch.tensor(part, dtype=torch.float32) / BRIGHTEST for part in split[:2])
    labels, test_labels = (torch.tensor(part, dtype=torch.int64) for part in split[2:])
    return Digits(inputs, labels, test_inputs, test_labels)
