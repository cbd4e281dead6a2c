"""The findings of an audit: samples, label issues, and what can be shown of each sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..rival_label import unlearned
from ..training.survey import Point, why_unreliable
from .suspicion import Issues

MANY, SEPARATED = 0.25, 3.0  # share of issues above which, and separation below which, suggestions are doubtful


@dataclass(frozen=True)
class Findings:
    """Findings about N samples, in the order of the data."""

    title: str
    ids: Sequence[str]  # (N,) unique, so that users can find the samples
    class_names: tuple[str, ...]
    issues: Issues
    image: Callable[[int], Tensor | None] = lambda index: None  # of a sample, uint8 (3 or 1, height, width), if any
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of a table: (N,) cells each
    splits: Sequence[str] = ()  # (N,) train or val; empty: all train
    true: Tensor | None = None  # (N,) int64, for measuring
    key: str = ""  # identifies the audit, so that decisions are not applied to another one
    run: Mapping[str, Any] = field(default_factory=dict)  # the audited run: recipe, source, facts
    surveys: Sequence[Point] = ()  # history of the run's surveys; empty if it was not recorded

    @property
    def unlearned(self) -> dict[str, int]:
        """Classes whose labels are nearly all issues, and how many labels they have."""
        return unlearned(self.issues.given_label, ~self.issues.is_label_issue, self.class_names)

    @property
    def unreliable(self) -> str | None:
        """Why the estimated noise rate cannot be trusted; ``None`` if it can."""
        return why_unreliable(self.surveys, self.unlearned, len(self.issues))

    @property
    def limit(self) -> float | None:
        """A limit for P(wrong) that keeps at least the more certain half of the issues; ``None`` if it keeps all."""
        wrong = self.issues.wrong_probability[self.issues.is_label_issue].double()
        limit = min(math.floor(100 * float(wrong.median())) / 100, 0.99) if len(wrong) else 0.0
        return limit if bool((wrong < limit).any()) else None

    @property
    def doubtful(self) -> str | None:
        """Why the suggestions should not all be applied; ``None`` without a reason."""
        if not (self.issues.noise_rate > MANY and self.issues.separation < SEPARATED):
            return None
        return (
            "Applying all suggestions may make the labels worse. There are many issues, and their scores are not "
            "clearly separated from those of other labels, as in data that is hard to learn. Review them first, or "
            "apply only the most certain ones."
        )
