"""From logits and given labels to H = -log p(y), the cross entropy of the given label: Eq. 7 of Ye et al., 2025.

Shapes: N samples, C classes, and any d1, d2, ... of a dense prediction: logits (N, C, d1, ...), labels (N, d1, ...).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

P_MIN = 1e-7
"""The grid of the threshold covers p from P_MIN to 1 - P_MIN. By default, pointwise losses clamp p at 1 - P_MIN."""
H_MIN = -math.log1p(-P_MIN)
H_MAX = -math.log(P_MIN)


def can_read(tensor: Tensor) -> bool:
    """Return True in eager mode on the CPU. Elsewhere reading a value is a synchronisation or a graph break."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def widest_float(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on Apple's MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def require_tensors(logits: Tensor, labels: Tensor) -> None:
    if not (isinstance(logits, Tensor) and isinstance(labels, Tensor)):
        raise ValueError(
            f"Expected tensors, logits first. Found {type(logits).__name__} and {type(labels).__name__}. "
            "Convert NumPy arrays with torch.as_tensor."
        )


def check_input(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Check shapes and types. Return logits as float32 (or float64, if they are) and labels as int64."""
    require_tensors(logits, labels)
    shape = logits.shape
    alike = len(shape) > 1 and shape[1] != 1 and shape[:1] + shape[2:] == labels.shape
    if not (alike and logits.is_floating_point()) or labels.is_floating_point() or labels.is_complex():
        raise ValueError(_problem_of(logits, labels))
    return logits if logits.dtype == torch.float64 else logits.float(), labels.long()


def _problem_of(logits: Tensor, labels: Tensor) -> str:
    found = f"Found logits {tuple(logits.shape)} of {logits.dtype}, labels {tuple(labels.shape)} of {labels.dtype}."
    is_single = logits.dim() > 0 and logits.numel() == len(logits) == labels.numel()  # as of a binary head
    if is_single or (logits.dim() > 1 and logits.shape[1] == 1):
        return (
            f"Logits should have two columns or more, one per class. {found} For two classes, end the network with "
            "nn.Linear(features, 2), or pass torch.stack([0 * z, z], 1) with z = logits.flatten()."
        )
    if labels.is_floating_point() or labels.is_complex():
        return f"Labels should be class indices of an integer type; soft labels are not supported. {found}"
    if not logits.is_floating_point():
        return f"Logits should be of a floating-point type. {found}"
    return f"Logits should have the shape (N, C, d1, ...) and labels (N, d1, ...). {found}"


def pick(log_p: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """Return H = -log p(y), zero where ignored: (N, C, ...), (N, ...) -> (N, ...). Eq. 7 of Ye et al., 2025.

    In eager mode on the CPU, labels out of range and NaN logits raise an error. Elsewhere they give NaN, which is not
    queued.
    """
    if not can_read(log_p):
        return pick_quietly(log_p, labels, ignore_index)
    return _checked(F.nll_loss, log_p, labels, ignore_index)[0]


def cross_entropy(logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """Return H of every sample from checked logits, with the errors of :func:`pick`. Algorithm 1, line 4."""
    return cross_entropy_and_lowest(logits, labels, ignore_index)[0]


def cross_entropy_and_lowest(logits: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, float]:
    """Return H, and the lowest of them, above 0 only if no label is ignored. NaN if it cannot be read."""
    if not can_read(logits):
        return pick_quietly(F.log_softmax(logits, dim=1), labels, ignore_index), math.nan
    return _checked(F.cross_entropy, logits, labels, ignore_index)


def _checked(loss: Callable[..., Tensor], scores: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, float]:
    """Compute H by a function of torch. Raise ``ValueError`` for labels out of range and for NaN."""
    try:
        H = loss(scores, labels, ignore_index=ignore_index, reduction="none")
    except IndexError:
        wrong = labels[((labels < 0) | (labels >= scores.shape[1])) & (labels != ignore_index)]
        raise ValueError(
            f"Labels should be in [0, {scores.shape[1]}) or equal to ignore_index = {ignore_index}. "
            f"Found {sorted(set(wrong.tolist()))[:5]}."
        ) from None
    lowest = H.detach().min().item() if H.numel() else 0.0
    if math.isnan(lowest):
        rows = H.isnan().flatten(1).any(1) if H.dim() > 1 else H.isnan()
        raise ValueError(
            "Logits should be free of NaN and +inf. "
            f"Found some in {int(rows.sum())} of {len(rows)} samples, the first at index {int(rows.int().argmax())}."
        )
    return H, lowest


def pick_quietly(log_p: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """Do the same as :func:`pick` without reading values: NaN for labels out of range."""
    ignored = labels == ignore_index
    nearest = labels.clamp(0, log_p.shape[1] - 1)
    H = F.nll_loss(log_p, nearest, reduction="none", ignore_index=-1)
    return H.masked_fill(nearest != labels, math.nan).masked_fill(ignored, 0.0)
