"""A table's columns as features: what is learnt from the training rows, and applied to any rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Cell = str | None  # None: missing
MOST_CATEGORIES = 100
LARGEST = 1e6  # standard deviations: what float32 and a network can still take
MISSING = frozenset({"na", "n/a", "null", "none", "?"})


class Column(Protocol):
    """A fitted column: cells in, features out, N -> (N, k)."""

    def features(self, cells: Sequence[Cell]) -> Tensor: ...


@dataclass(frozen=True)
class Numeric:
    """(x - mean) / std over the training rows; missing numbers are the mean, and flagged if any were in training."""

    mean: float
    std: float
    flagged: bool

    def features(self, cells: Sequence[Cell]) -> Tensor:
        numbers = torch.tensor([finite(cell) for cell in cells], dtype=torch.float64)
        missing = numbers.isnan()
        scaled = ((numbers - self.mean) / self.std).masked_fill(missing, 0).clamp(-LARGEST, LARGEST)
        kept = ([scaled] if self.std < math.inf else []) + ([missing.double()] if self.flagged else [])
        return torch.stack(kept, dim=1).float()


@dataclass(frozen=True)
class Categorical:
    """One-hot over the most frequent values in training, and one slot for all others and for missing ones."""

    values: tuple[str, ...]

    def features(self, cells: Sequence[Cell]) -> Tensor:
        slot = {value: i for i, value in enumerate(self.values)}
        slots = torch.tensor([len(slot) if cell is None else slot.get(cell, len(slot)) for cell in cells])
        return torch.nn.functional.one_hot(slots.long(), len(slot) + 1).float()


def fit(cells: Sequence[Cell]) -> Column | None:
    """Numeric if every cell that is there is a number, categorical otherwise; ``None`` for a constant column."""
    if len({cell if _there(cell) else None for cell in cells}) < 2:
        return None
    present = [cell for cell in cells if cell is not None and _there(cell)]
    numbers = torch.tensor([finite(cell) for cell in present], dtype=torch.float64)
    if bool(numbers.isnan().any()):
        common = Counter(present).most_common(MOST_CATEGORIES)
        return Categorical(tuple(sorted(value for value, _ in common)))
    std, flagged = numbers.std(correction=0).item(), len(present) < len(cells)
    varies = bool((numbers != numbers[0]).any()) and 0 < std < math.inf
    if not varies and not flagged:
        return None
    return Numeric(numbers.mean().item(), std if varies else math.inf, flagged)


def _there(cell: Cell) -> bool:
    """Whether there is a value: not an empty cell, a word for none, NaN, an infinity, or what overflows to one."""
    if cell is None or cell.lower() in MISSING:
        return False
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return True


def finite(cell: Cell) -> float:
    """The number, or NaN for what is no finite number."""
    try:
        number = float(cell) if cell is not None else math.nan
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
