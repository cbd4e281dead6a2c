"""The first arrow: logits and given labels to H = -log p(y), the cross entropy of the given label.

Shapes: N samples, C classes, and any d1, d2, ... of a dense prediction: logits (N, C, d1, ...), labels (N, d1, ...).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

P_MIN = 1e-7
"""Probabilities live in [P_MIN, 1 - P_MIN]; so do the ends of the clipping threshold's grid."""
H_MIN = -math.log1p(-P_MIN)
H_MAX = -math.log(P_MIN)
PRIOR = 5  # samples with the mean confidence of all classes that are added to each class
LEAD = 0.03  # of probability, that another class needs over the given label


def can_read(tensor: Tensor) -> bool:
    """Whether values may be looked at: in eager mode on CPU. Elsewhere a look is a synchronisation or a graph break."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def check_input(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Refuse wrong shapes and types; logits to float32 (float64 stays, halves are too coarse), labels to int64."""
    if not (isinstance(logits, Tensor) and isinstance(labels, Tensor)):
        raise ValueError(f"Give tensors, logits first. Found {type(logits).__name__} and {type(labels).__name__}.")
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            "Labels should be class indices of an integer type; soft labels (probabilities, mixup, label smoothing) "
            f"have no single given label to judge. Found labels of type {labels.dtype} and shape {tuple(labels.shape)}."
        )
    if not logits.is_floating_point():
        raise ValueError(f"Logits should be of a floating-point type. Found {logits.dtype}.")
    if logits.dim() < 2 or logits.shape[:1] + logits.shape[2:] != labels.shape:
        raise ValueError(
            "Logits should have the shape (N, C, d1, ...) and labels (N, d1, ...). "
            f"Found logits {tuple(logits.shape)} and labels {tuple(labels.shape)}."
        )
    return logits if logits.dtype == torch.float64 else logits.float(), labels.long()


def pick(log_p: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """H = -log p(y), zero where ignored: (N, C, ...), (N, ...) -> (N, ...).

    Labels out of range and NaN raise where they can; elsewhere they become NaN, and the caller queues nothing.
    """
    if not can_read(log_p):
        return pick_quietly(log_p, labels, ignore_index)
    try:
        H = F.nll_loss(log_p, labels, ignore_index=ignore_index, reduction="none")
    except IndexError:
        wrong = labels[((labels < 0) | (labels >= log_p.shape[1])) & (labels != ignore_index)]
        raise ValueError(
            f"Labels should be in [0, {log_p.shape[1]}) or equal to ignore_index = {ignore_index}. "
            f"Found {sorted(set(wrong.tolist()))[:5]}."
        ) from None
    if math.isnan(H.detach().sum().item()):
        rows = H.isnan().flatten(1).any(1) if H.dim() > 1 else H.isnan()
        raise ValueError(
            "Logits should be free of NaN and +inf. "
            f"Found some in {int(rows.sum())} of {len(rows)} samples, the first at index {int(rows.int().argmax())}."
        )
    return H


def pick_quietly(log_p: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """:func:`pick` without a look at the values: NaN for labels out of range."""
    ignored = labels == ignore_index
    nearest = labels.clamp(0, log_p.shape[1] - 1)
    H = F.nll_loss(log_p, nearest, reduction="none", ignore_index=-1)
    return H.masked_fill(nearest != labels, math.nan).masked_fill(ignored, 0.0)


def cross_entropy(logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """H of every sample, straight from checked logits: (N, C, ...), (N, ...) -> (N, ...)."""
    return pick(F.log_softmax(logits, dim=1), labels, ignore_index)


def contradicted(p: Tensor, labels: Tensor) -> Tensor:
    """Return where another class is likelier than the given label: (N, C), (N,) -> (N,) bool.

    Log probabilities serve as well. A tie is no contradiction.
    """
    return p.amax(1) > p.gather(1, labels[:, None])[:, 0]


def class_confidence(p: Tensor, labels: Tensor) -> Tensor:
    """Mean probability of each class over the samples with its label that are not contradicted: (N, C), (N,) -> (C,).

    It is the threshold of confident learning (Northcutt et al., 2021), without the labels that are likely to be wrong.
    ``PRIOR`` samples with the mean of all classes are added to each, so that a class of few samples is near that mean.
    """
    agreed = ~contradicted(p, labels)
    of_given = torch.where(agreed, p.gather(1, labels[:, None])[:, 0], 0.0).double()
    zeros = torch.zeros(p.shape[1], dtype=torch.float64, device=p.device)
    sums, counts = zeros.index_add(0, labels, of_given), zeros.index_add(0, labels, agreed.double())
    mean = sums.sum() / counts.sum().clamp(min=1)
    return ((sums + PRIOR * mean) / (counts + PRIOR)).to(p.dtype)


def likelier_label(p: Tensor, labels: Tensor, confidence: Tensor) -> Tensor:
    """Return the label that a sample should have, often the given one: (N, C), (N,), (C,) -> (N,) int64.

    With t the confidence, a rival j of the given label y needs p_j - t_j > p_y - t_y + ``LEAD`` and p_j > p_y / 2. The
    rival with the highest p_j - t_j is returned, and y if there is none. Classes that lose labels to others are
    predicted with less confidence than classes that gain labels, and t makes up for it.
    """
    y = labels[:, None]
    above = (p - confidence).masked_fill(p <= p.gather(1, y) / 2, -torch.inf)
    best, label = above.max(1)
    return torch.where(best > above.gather(1, y)[:, 0] + LEAD, label, labels)


def margin(log_p: Tensor, labels: Tensor) -> Tensor:
    """The given label against its likeliest rival, log p(y|x) - max log p(j|x), j != y: (N, C), (N,) -> (N,)."""
    label = labels.unsqueeze(1)
    return (log_p.gather(1, label) - log_p.scatter(1, label, -torch.inf).amax(1, keepdim=True)).squeeze(1)
