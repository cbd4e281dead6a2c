"""Class names and the indices of labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._require import few, printable
from .._warn import warn

MOST_SPELLINGS = 3  # groups of classes that a warning names


def class_indices(
    labels: Iterable[str | None],
    class_names: Sequence[str],
    where: str,
    rows: Sequence[int] | NDArray[np.int64] | None = None,
) -> Tensor:
    """Return the index of each label among the classes, (N,) int64.

    :param where: location of the labels, for error messages.
    :param rows: row numbers, for error messages. By default 1 to N.
    """
    index = {name: i for i, name in enumerate(class_names)}
    texts = [label or "" for label in labels]
    indices = [index.get(text, -1) for text in texts]
    if -1 in indices:
        first = indices.index(-1)
        row = first + 1 if rows is None else rows[first]
        known = few(class_names, 20)
        raise ValueError(f"The label `{texts[first]}` in row {row} of {where} is not one of the classes {known}.")
    return torch.tensor(indices, dtype=torch.int64)


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
        found = f"{', '.join(groups[:MOST_SPELLINGS])}{more}"
        warn(f"The classes {found} {where} differ only in case. If they are the same class, {remedy}.")
