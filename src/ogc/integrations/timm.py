"""timm: a classification task whose checkpoints contain the state of the criterion."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from .._extras import extra

with extra("timm", "ogc.integrations.timm needs timm 1.0.30 or newer", "timm", "torchvision"):
    from timm.task import ClassificationTask  # type: ignore[import-not-found]

__all__ = ["OGCTask"]


class OGCTask(ClassificationTask):  # type: ignore[misc]
    """A ``ClassificationTask`` for ``OGC``, for timm's training script or your own loop.

    ``CheckpointSaver(..., task=task)`` saves the state of the criterion, and ``resume_task_checkpoint`` restores it.
    The criterion is not part of DDP, ``torch.compile`` or the EMA.

    >>> criterion = OGC("ce", optimizer)  # doctest: +SKIP
    >>> task = OGCTask(model, criterion)  # doctest: +SKIP
    >>> task(images, labels)["loss"].backward()  # doctest: +SKIP

    Mixup and CutMix raise an error. Mixed images fit neither of their labels, so every label would look wrong.
    """

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        if target.is_floating_point():
            raise ValueError(
                "OGC needs integer labels, so Mixup and CutMix should be off: --mixup 0 --cutmix 0 in timm's script. "
                f"Found targets of type {target.dtype} and shape {tuple(target.shape)}."
            )
        result: dict[str, Tensor] = super().forward(input, target)
        return result

    def get_task_state(self, module: Any = None, ema: bool = False) -> dict[str, Any]:
        """Return the state for timm's checkpoint. The criterion belongs to the raw weights, not to their average."""
        return {} if ema else {"criterion": self.criterion.state_dict()}

    def load_task_state(
        self, state: dict[str, Any] | None, strict: bool = True, module: Any = None, ema: bool = False
    ) -> None:
        if ema:
            return
        if state and "criterion" in state:
            self.criterion.load_state_dict(state["criterion"], strict=strict)
        else:
            warnings.warn(
                "The checkpoint has no ogc criterion state. The queue, step count and tau are unchanged. Was "
                "it saved by another task, or by a CheckpointSaver without task=...?",
                stacklevel=2,
            )
