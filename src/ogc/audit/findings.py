"""The findings of an audit: samples, label issues, and what can be shown of each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from ..training.survey import Point
from .suspicion import Issues


class Shown(Protocol):
    """Access to what can be shown of a sample: an image, the fields of a row, or neither."""

    def image(self, index: int) -> Tensor | None:
        """Return the image as uint8 (3 or 1, height, width), or ``None`` if there is none or it cannot be read."""
        ...

    def fields(self, index: int) -> dict[str, str] | None:
        """Return the cells of a table row by column, or ``None`` for images."""
        ...


@dataclass(frozen=True)
class Findings:
    """Findings about N samples, in the order of the data."""

    title: str
    ids: Sequence[str]  # (N,) unique names by which a person finds the samples
    class_names: tuple[str, ...]
    issues: Issues
    shown: Shown
    splits: Sequence[str] = ()  # (N,) train or val; empty: all train
    true: Tensor | None = None  # (N,) int64, for measuring
    key: str = ""  # identifies the audit, so that decisions are not applied to another one
    run: Mapping[str, Any] = field(default_factory=dict)  # the audited run: recipe, source, facts
    surveys: Sequence[Point] = ()  # history of the run's surveys; empty if it was not recorded
