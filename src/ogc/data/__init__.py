"""Data sets. Every loader returns the training set and a dictionary of evaluation sets, all of one type."""

from __future__ import annotations

from .arrays import arrays
from .cifar import cifar10, cifar100
from .dataset import Dataset, Loaded
from .digits import load_digits
from .folder import folder
from .table import table
from .webvision import webvision

__all__ = [
    "Dataset",
    "Loaded",
    "arrays",
    "cifar10",
    "cifar100",
    "folder",
    "load_digits",
    "table",
    "webvision",
]
