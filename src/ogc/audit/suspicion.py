"""Find wrong labels from a network's predictions for the samples that it was trained on.

A network learns right labels before wrong ones, so its predictions during training are more informative than those at
the end. Everything here is averaged over *surveys*, predictions from before labels are memorised
(``training/survey.py``).
For a sample x with given label y:

    margin        mean of log p(y|x) - log max_{j != y} p(j|x)       compares it with the best other class
    label_score   1 / (1 + e^-margin)                                in [0, 1], lower is worse, 0.5 is a tie
    P(wrong)      1 - mean of p(y|x)
    t_j           mean of p(j|x) over the samples with label j whose likeliest class it is
    rival         a class j with p(j|x) - t_j > p(y|x) - t_y + 0.03 and p(j|x) > p(y|x) / 2, where p is the mean;
                  0.03 is replaced by a tenth of the mean of t if that is less
    predicted     the rival of the highest p(j|x) - t_j; y if there is none
    issue         predicted is not y
    noise rate    share of issues

``docs/audit_measurements.md`` compares this with other choices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .._require import require
from ..rival_label import class_confidence, likelier_label, margin

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

TINY = 1e-12  # smallest probability


class Pair(NamedTuple):
    """A given label, the label suggested instead, and the number of samples."""

    given: int
    suggested: int
    samples: int


@dataclass(frozen=True)
class Issues:
    """Label issues of N samples with C classes. The first four fields have cleanlab's names."""

    is_label_issue: Tensor  # (N,) bool: the predicted label is another one
    label_score: Tensor  # (N,) in [0, 1], lower is worse
    given_label: Tensor  # (N,) int64
    predicted_label: Tensor  # (N,) int64, likeliest relative to the confidence in each class; the given label in a tie
    wrong_probability: Tensor  # (N,) P(given label is wrong)
    predicted_probability: Tensor  # (N,) of the predicted label
    num_classes: int

    def __len__(self) -> int:
        return len(self.given_label)

    @property
    def noise_rate(self) -> float:
        """Estimate the share of wrong labels: the share of issues."""
        return float(self.is_label_issue.double().mean())

    @property
    def worst_first(self) -> Tensor:
        """Indices of all samples, (N,): the issues, then the others, each by score. Ties keep the order of the data."""
        by_score = torch.argsort(self.label_score, stable=True)
        return by_score[torch.argsort(~self.is_label_issue[by_score], stable=True)]

    @property
    def separation(self) -> float:
        """Ashman's D of the margins of the issues and of the other labels. NaN with fewer than two of either."""
        margin = torch.logit(self.label_score, eps=TINY)
        issues, others = margin[self.is_label_issue], margin[~self.is_label_issue]
        if min(len(issues), len(others)) < 2:
            return math.nan
        return float((others.mean() - issues.mean()) / ((issues.var() + others.var()) / 2).sqrt())

    @property
    def suggested_label(self) -> Tensor:
        """The predicted label, equal to the given one where there is no issue: (N,)."""
        return self.predicted_label

    def confusion(self) -> Tensor:
        """Count samples with given label i (rows) and suggested label j: (C, C) int64."""
        cell = self.given_label * self.num_classes + self.suggested_label
        counts = torch.bincount(cell, minlength=self.num_classes**2)
        return counts.view(self.num_classes, self.num_classes)

    def pairs(self) -> list[Pair]:
        """Return the pairs of classes with issues, most frequent first."""
        counts, places = self.confusion().fill_diagonal_(0).flatten().sort(descending=True, stable=True)
        found, C = zip(places.tolist(), counts.tolist(), strict=True), self.num_classes
        return [Pair(place // C, place % C, count) for place, count in found if count]


def find_label_issues(
    labels: ArrayLike | Tensor,
    pred_probs: ArrayLike | Tensor | None = None,
    *,
    logits: ArrayLike | Tensor | None = None,
) -> Issues:
    """Find wrong labels from a network's probabilities or logits: (N,), (N, C) or (surveys, N, C).

    Pass predictions without augmentation from several points of training, for example ten. Predictions from the end
    alone are less informative, because the network has memorised wrong labels by then.

    >>> issues = find_label_issues([0, 1], [[0.9, 0.1], [0.8, 0.2]])
    >>> issues.is_label_issue.tolist(), issues.predicted_label.tolist()
    ([False, True], [0, 0])
    """
    if (pred_probs is None) == (logits is None):
        raise ValueError("Pass either `pred_probs` or `logits`, and not both.")
    name, found = ("pred_probs", pred_probs) if logits is None else ("logits", logits)
    values, given = _tensor(found, name), _tensor(labels, "labels")
    values = values[None] if values.dim() == 2 else values
    require(values.dim() == 3, name, "of shape (N, C) or (surveys, N, C)", tuple(values.shape))
    whole = not (given.dtype.is_floating_point or given.dtype.is_complex or given.dtype == torch.bool)
    require(whole or len(given) == 0, "labels", "integers", given.dtype)
    given = given.long()
    surveys, N, C = values.shape
    require(given.shape == (N,), "labels", f"of shape ({N},), like {name}", tuple(given.shape))
    require(surveys >= 1 and C >= 2, name, "of at least 1 survey and 2 classes", tuple(values.shape))
    outside = given[(given < 0) | (given >= C)]
    require(len(outside) == 0, "labels", f"in [0, {C})", sorted(set(outside.tolist()))[:5])
    margins, probabilities = torch.zeros(N, dtype=torch.float64), torch.zeros(N, C, dtype=torch.float64)
    for survey in values:
        log_p = _log_probabilities(survey, name)
        margins += margin(log_p, given)
        probabilities += log_p.exp()
    return from_surveys(given, margin=margins / surveys, probabilities=probabilities / surveys)


def _tensor(found: object, name: str) -> Tensor:
    """Convert a tensor, a list of tensors, nested lists, an array or a data frame to a tensor."""
    if isinstance(found, Tensor):
        return found.detach().cpu()
    if isinstance(found, list | tuple) and found and isinstance(found[0], Tensor):
        return torch.stack([part.detach().cpu() for part in found])
    import numpy as np

    try:
        array = np.array(found)
        return torch.from_numpy(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))
    except (TypeError, ValueError):
        kind = type(found).__name__
        raise ValueError(f"Parameter `{name}` should be numbers, all rows of one length. Found a {kind}.") from None


def _require_finite(holds: bool, name: str) -> None:
    if not holds:
        raise ValueError(f"Parameter `{name}` should be finite. Found NaN or infinity.")


def _log_probabilities(values: Tensor, name: str) -> Tensor:
    """Check one survey and return log p, clamped at log TINY: (N, C) -> (N, C) float64."""
    short = values.dtype in (torch.float16, torch.bfloat16)
    values, known = values.double(), bool((values < torch.inf).all())  # a logit of -inf rules a class out
    if name == "logits":
        log_p = values.log_softmax(-1)
        _require_finite(known and not bool(log_p.isnan().any()), name)
        return log_p.clamp(min=math.log(TINY))
    sums = values.sum(-1, keepdim=True)
    _require_finite(known and bool(values.isfinite().all()), name)
    proper = bool((values >= 0).all()) and bool(((sums - 1).abs() < (0.05 if short else 1e-3)).all())
    if not proper:
        lowest, found = float(values.min()), [float(sums.min()), float(sums.max())]
        raise ValueError(
            f"Parameter `{name}` should be at least 0, with a sum of 1 for each sample. Found a lowest value of "
            f"{lowest:.3g} and sums from {found[0]:.3g} to {found[1]:.3g}."
        )
    return (values / sums).clamp(min=TINY).log()


def from_surveys(given: Tensor, *, margin: Tensor, probabilities: Tensor, confidence: Tensor | None = None) -> Issues:
    """Find issues from means over surveys: (N,), (N,), (N, C).

    :param confidence: of each class, (C,), from the training samples, if not all samples here were trained on.
    """
    confidence = class_confidence(probabilities, given) if confidence is None else confidence
    predicted = likelier_label(probabilities, given, confidence)
    of_given, of_predicted = (probabilities.gather(1, label[:, None])[:, 0] for label in (given, predicted))
    return Issues(
        is_label_issue=predicted != given,
        label_score=torch.sigmoid(margin.double()),
        given_label=given,
        predicted_label=predicted,
        wrong_probability=(1 - of_given).clamp(0, 1),
        predicted_probability=of_predicted,
        num_classes=probabilities.shape[1],
    )
