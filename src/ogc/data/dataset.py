"""The data set type: inputs, given labels, true labels if known, class names, sample ids."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .._require import counted, few, printable, require

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .columns import Encoder

MOST_SPELLINGS = 3  # classes that a warning names


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
        for name, labels in (("given", self.given), ("true", self.true)):
            if labels is None:
                continue
            require(labels.shape == (len(self.inputs),), name, f"of shape ({len(self.inputs)},)", tuple(labels.shape))
            require(labels.dtype == torch.int64, name, "a torch tensor of int64", labels.dtype)
            outside = labels[(labels < 0) | (labels >= len(self.class_names))]
            require(len(outside) == 0, name, f"in [0, {len(self.class_names)})", sorted(set(outside.tolist()))[:5])
        require(len(self.ids) == len(self.inputs), "len(ids)", f"{len(self.inputs)}", len(self.ids))

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        shape = getattr(self.inputs, "shape", None)
        inputs = type(self.inputs).__name__ if shape is None else tuple(shape)
        known = "unknown" if self.true is None else "known"
        samples = counted(len(self), "sample")
        return f"Dataset({samples}, {self.num_classes:,} classes, inputs {inputs}, true labels {known})"

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
        """Return the same samples with other given labels. The old ones become the true labels, if those are unknown.

        ``given`` may be an array from ``ogc.noise``.
        """
        true = self.given.clone() if self.true is None else self.true
        return replace(self, given=torch.as_tensor(given, dtype=torch.int64), true=true)


def warn_of_spellings(class_names: Sequence[str], where: str, remedy: str) -> None:
    """Warn if classes differ only in case. They may be one class, but they are not merged.

    :param where: location of the classes.
    :param remedy: what to do if they are the same class.
    """
    spellings: dict[str, list[str]] = {}
    for name in class_names:
        spellings.setdefault(name.casefold(), []).append(f"`{printable(name)}`")
    groups = [" and ".join(group) for group in spellings.values() if len(group) > 1]
    if groups:
        more = f" (and {len(groups) - MOST_SPELLINGS} more)" if len(groups) > MOST_SPELLINGS else ""
        warnings.warn(
            f"The classes {', '.join(groups[:MOST_SPELLINGS])}{more} {where} differ only in case. If they are the same "
            f"class, {remedy}.",
            stacklevel=3,
        )


def warn_of_same_rows(part: Tensor, file: Path, rows: Tensor, path: Path) -> None:
    """Warn if most rows of a held-out file, (n, F), are also rows of the training file, (N, F), or if it is that file.

    If more than a tenth of the training rows repeat another one, independent rows may well be the same.
    """
    if file.samefile(path):
        warnings.warn(f"`{file}` is also the training file, so the accuracy on it is too high.", stacklevel=3)
        return
    known = {hash(row.tobytes()) for row in rows.numpy()}  # hashes, because the rows may take most of the memory
    same = sum(hash(row.tobytes()) in known for row in part.numpy())
    if 2 * same > len(part) and len(known) >= 0.9 * len(rows):
        warnings.warn(
            f"{same:,} of {len(part):,} rows of `{file}` have the same features as a row of `{path}`. "
            "If they are the same samples, the accuracy on them is too high.",
            stacklevel=3,
        )


def class_indices(
    labels: Sequence[str | None], class_names: Sequence[str], where: str, rows: Sequence[int] | None = None
) -> Tensor:
    """Return the index of each label among the classes, (N,) int64.

    :param where: location of the labels, for error messages.
    :param rows: row numbers, for error messages. By default 1 to N.
    """
    index = {name: i for i, name in enumerate(class_names)}
    for number, label in zip(rows or range(1, len(labels) + 1), labels, strict=True):
        if label not in index:
            known = few(class_names, 20)
            raise ValueError(f"The label `{label or ''}` in row {number} of {where} is not one of the classes {known}.")
    return torch.tensor([index[label] for label in labels if label is not None], dtype=torch.int64)


Loaded = tuple[Dataset, dict[str, Dataset]]
"""Return type of every loader: the training set, and the evaluation sets by name (``test`` or ``val``)."""
