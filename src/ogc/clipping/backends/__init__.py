"""Three implementations of a training step: hand-written gradient in eager mode, torch.compile, and CUDA kernels."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from torch import Tensor

from ..loss_queue import world_size

if TYPE_CHECKING:
    from ..ogc import OGC


def kernels(tensor: Tensor, samples: int) -> ModuleType | None:
    """Return the module of CUDA kernels if they can be used for this many samples on the tensor's device.

    It is imported late because Triton is slow to import and not always installed.
    """
    if not tensor.is_cuda:
        return None
    from . import cuda

    return cuda if cuda.serves(tensor, samples) else None


def step_kernels(criterion: OGC, logits: Tensor, labels: Tensor) -> ModuleType | None:
    """Return the module of CUDA kernels if one of them can run a whole training step on this batch.

    A schedule is not part of that kernel, and several ranks exchange H in the middle of a step.
    """
    found = kernels(logits, criterion.queue_size)
    if found is None or criterion.threshold is not None or world_size(criterion.process_group) > 1:
        return None
    return found if found.serves_batch(logits, labels) else None
