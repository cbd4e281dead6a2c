"""An audit as one thing: the samples, what is suspected of them, and what a person can be shown of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from ..training.survey import Point
from .suspicion import Issues


class Shown(Protocol):
    """What can be shown of samples; most have an image or a row's fields, some have neither."""

    def image(self, index: int) -> Tensor | None:
        """uint8 (3 or 1, height, width), or nothing: no image, or one that cannot be read."""
        ...

    def fields(self, index: int) -> dict[str, str] | None:
        """A row's cells as they stand in the table, by column; nothing for images."""
        ...


@dataclass(frozen=True)
class Findings:
    """Of N samples, in the order of the data."""

    title: str
    ids: Sequence[str]  # (N,) what a person finds a sample by; no two are the same
    class_names: tuple[str, ...]
    issues: Issues
    shown: Shown
    splits: Sequence[str] = ()  # (N,) train or val; empty: all train
    true: Tensor | None = None  # (N,) int64, for measuring
    key: str = ""  # another for every audit, so that decisions of one are not taken for another's
    run: Mapping[str, Any] = field(default_factory=dict)  # what was trained: its recipe, its source, facts
    surveys: Sequence[Point] = ()  # history of the run's surveys; empty if it was not recorded
