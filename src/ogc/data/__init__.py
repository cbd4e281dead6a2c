"""Data sets. Every loader returns the training set and a dictionary of evaluation sets, all of one type."""

from __future__ import annotations

from .arrays import read_arrays
from .cifar import load_cifar10, load_cifar100
from .dataset import Dataset, Loaded
from .digits import load_digits
from .folder import read_folder
from .table import read_table
from .webvision import load_webvision

__all__ = [
    "Dataset",
    "Loaded",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_webvision",
    "read_arrays",
    "read_folder",
    "read_table",
]
