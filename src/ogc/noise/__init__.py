"""Label noise: functions that turn true labels into given ones, and label files."""

from __future__ import annotations

from .files import LabelFileError, LabelInfo, confusion_matrix, labels_sha256, read_info, read_labels, write_labels
from .human import cifar_n
from .instance import instance_dependent
from .transition import (
    CIFAR10_PAIRS,
    CIFAR100_BLOCKS,
    CIFAR100_PAIRS,
    asymmetric,
    by_matrix,
    pair_flip,
    symmetric,
)

__all__ = [
    "CIFAR10_PAIRS",
    "CIFAR100_BLOCKS",
    "CIFAR100_PAIRS",
    "LabelFileError",
    "LabelInfo",
    "asymmetric",
    "by_matrix",
    "cifar_n",
    "confusion_matrix",
    "instance_dependent",
    "labels_sha256",
    "pair_flip",
    "read_info",
    "read_labels",
    "symmetric",
    "write_labels",
]
