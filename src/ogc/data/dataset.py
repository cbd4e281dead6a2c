"""The data set type: inputs, given labels, true labels if known, class names, sample ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from .._require import counted, few, printable, require
from .._warn import warn

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .encoder import Encoder


class Inputs(Protocol):
    """Interface of the inputs: a tensor, or images that are decoded on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor, /) -> Tensor:
        """Return the inputs at some indices, (n,) int64 -> (n, ...)."""
        ...


@dataclass(frozen=True)
class Dataset:
    """N samples. Images are uint8 (N, 3, height, width) until they are on the device, features float32 (N, F).

    ``true`` is for evaluation only and never used for training.
    """

    inputs: Inputs
    given: Tensor  # (N,) int64, the labels to train on
    class_names: tuple[str, ...]
    ids: Sequence[str]  # identify a sample: a path, the key of a row, an index
    true: Tensor | None = None  # (N,) int64
    encoder: Encoder | None = None  # of the training set of a table, to encode new rows in the same way

    def __post_init__(self) -> None:
        size = len(self.inputs)
        for name, labels in (("given", self.given), ("true", self.true)):
            if labels is not None:
                require(labels.shape == (size,), name, f"of shape ({size},)", tuple(labels.shape))
                require(labels.dtype == torch.int64, name, "a torch tensor of int64", labels.dtype)
                outside = sorted({*labels[(labels < 0) | (labels >= self.num_classes)].tolist()})
                require(not outside, name, f"in [0, {self.num_classes})", outside[:5])
        require(len(self.ids) == size, "len(ids)", f"{size}", len(self.ids))

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        inputs = f"inputs {tuple(getattr(self.inputs, 'shape', ()))}"
        known = "unknown" if self.true is None else "known"
        return f"Dataset({counted(len(self), 'sample')}, {self.num_classes:,} classes, {inputs}, true labels {known})"

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def wrong(self) -> Tensor | None:
        """True where the given label is not the true one, or ``None`` if that is unknown: (N,) bool."""
        return None if self.true is None else self.given != self.true

    def subset(self, index: Tensor) -> Dataset:
        """Return the samples at some indices, (n,) int64. The inputs must be in memory."""
        ids, true = [self.ids[i] for i in index.tolist()], None if self.true is None else self.true[index]
        return replace(self, inputs=self.inputs[index], given=self.given[index], ids=ids, true=true)

    def with_given(self, given: ArrayLike) -> Dataset:
        """Return the same samples with other given labels, such as an array from ``ogc.noise``.

        The old ones become the true labels, if those are unknown.
        """
        true = self.given.clone() if self.true is None else self.true
        return replace(self, given=torch.as_tensor(given, dtype=torch.int64), true=true)


Loaded = tuple[Dataset, dict[str, Dataset]]
"""Return type of every loader: the training set, and the evaluation sets by name (``test`` or ``val``)."""


def index_labels(labels: Iterable[Any], class_names: Sequence[str], where: str, rows: Any = None) -> Tensor:
    """Return the index of each label among the classes, (N,) int64.

    :param where: location of the labels, for error messages.
    :param rows: row numbers, for error messages. By default 1 to N.
    """
    index, texts = {name: i for i, name in enumerate(class_names)}, list(labels)
    indices = [index.get(text, -1) for text in texts]
    if -1 in indices:
        first = indices.index(-1)
        label = f"label `{texts[first] or ''}` in row {first + 1 if rows is None else rows[first]}"
        raise ValueError(f"The {label} of {where} is not one of the classes {few(class_names, 20)}.")
    return torch.tensor(indices, dtype=torch.int64)


def warn_of_spellings(class_names: Sequence[str], where: str, remedy: str) -> None:
    """Warn if classes differ only in case. They may be one class, but they are not merged."""
    count = Counter(name.casefold() for name in class_names)
    if alike := sorted((name for name in class_names if count[name.casefold()] > 1), key=str.casefold):
        names = few([printable(name) for name in alike])
        warn(f"The classes {names} {where} differ only in case. If they are the same class, {remedy}.")
