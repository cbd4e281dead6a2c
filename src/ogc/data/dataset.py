"""The data set type: inputs, given labels, true labels if known, class names, sample ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .._require import counted, require

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


Loaded = tuple[Dataset, dict[str, Dataset]]
"""Return type of every loader: the training set, and the evaluation sets by name (``test`` or ``val``)."""
