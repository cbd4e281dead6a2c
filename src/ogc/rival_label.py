"""Comparison of the given label y with its rivals, the other classes, for surveys and audits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ._require import printable

PRIOR = 5
"""Number of samples with the mean confidence of all classes that are added to each class."""
LEAD = 0.03
"""Lead in probability that another class needs over the given label. It is smaller for an uncertain network."""
LEARNED = 0.05
"""Minimum share of accepted labels for a class to count as learned."""
FEWEST = 10
"""Minimum number of labels of a class for it to be judged."""
MAY_BE_RIGHT = "Many of these labels may be right: a network that has not learned a class rejects its labels."
SHOWN = 3
"""Classes that a sentence names."""


def contradicted(p: Tensor, labels: Tensor) -> Tensor:
    """Return True where another class is more likely than the given label: (N, C), (N,) -> (N,) bool.

    ``p`` may also be log probabilities. A tie does not count.
    """
    return p.amax(1) > p.gather(1, labels[:, None])[:, 0]


def class_confidence(p: Tensor, labels: Tensor) -> Tensor:
    """Mean probability of each class over the samples with its label that are not contradicted: (N, C), (N,) -> (C,).

    This is the threshold of confident learning (Northcutt et al., 2021), without the labels that are likely to be
    wrong. ``PRIOR`` samples with the mean of all classes are added to each, so that a class with few samples is close
    to that mean.
    """
    agreed = ~contradicted(p, labels)
    of_given = torch.where(agreed, p.gather(1, labels[:, None])[:, 0], 0.0).double()
    zeros = torch.zeros(p.shape[1], dtype=torch.float64, device=p.device)
    sums, counts = zeros.index_add(0, labels, of_given), zeros.index_add(0, labels, agreed.double())
    mean = sums.sum() / counts.sum().clamp(min=1)
    return ((sums + PRIOR * mean) / (counts + PRIOR)).to(p.dtype)


def likelier_label(p: Tensor, labels: Tensor, confidence: Tensor) -> Tensor:
    """Return the label that each sample should have, often the given one: (N, C), (N,), (C,) -> (N,) int64.

    With t the confidence, a rival j of the given label y needs p_j - t_j > p_y - t_y + lead and p_j > p_y / 2. The lead
    is ``LEAD``, or a tenth of the mean of t if that is less. The rival with the highest p_j - t_j is returned, and y if
    there is none. Classes that lose labels to others are predicted with less confidence than classes that gain labels,
    and t makes up for it.
    """
    y, lead = labels[:, None], (confidence.mean() / 10).clamp(max=LEAD)
    above = (p - confidence).masked_fill(p <= p.gather(1, y) / 2, -torch.inf)
    best, label = above.max(1)
    return torch.where(best > above.gather(1, y)[:, 0] + lead, label, labels)


def unlearned(labels: Tensor, accepted: Tensor, names: Sequence[str]) -> dict[str, int]:
    """Return the classes that were not learned, and their number of labels, the largest first: (N,), (N,) bool.

    Nearly all of their labels are rejected. All of these may be wrong, but see ``MAY_BE_RIGHT``.
    """
    given, kept = (torch.bincount(each, minlength=len(names)) for each in (labels, labels[accepted]))
    found = torch.nonzero((given >= FEWEST) & (kept < LEARNED * given))[:, 0]
    order = given[found].argsort(descending=True, stable=True)
    return {names[i]: int(given[i]) for i in found[order].tolist()}


def almost_all(classes: Mapping[str, int]) -> str:
    """Name the labels of classes that were not learned, without control characters."""
    first = [f"{printable(name)} ({count:,})" for name, count in list(classes.items())[:SHOWN]]
    more = f" and {len(classes) - SHOWN:,} more" if len(classes) > SHOWN else ""
    which = "the class" if len(classes) == 1 else f"{len(classes):,} classes:"
    return f"almost all labels of {which} {', '.join(first)}{more}"


def margin(log_p: Tensor, labels: Tensor) -> Tensor:
    """Return log p(y|x) - max log p(j|x) over j != y: (N, C), (N,) -> (N,)."""
    label = labels.unsqueeze(1)
    return (log_p.gather(1, label) - log_p.scatter(1, label, -torch.inf).amax(1, keepdim=True)).squeeze(1)
