"""timm: its classification task, with the criterion's state in its checkpoints."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

try:
    from timm.task import ClassificationTask  # type: ignore[import-not-found]
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] not in ("timm", "torchvision"):
        raise
    raise ImportError(
        'ogc.integrations.timm needs timm 1.0.30 or newer, which is missing: pip install "torch-ogc[timm]"'
    ) from None

__all__ = ["OGCTask"]


class OGCTask(ClassificationTask):  # type: ignore[misc]
    """timm's ``ClassificationTask`` for an ``OGC``: in place of that one, in its train script or in a loop of yours.

    ``CheckpointSaver(..., task=task)`` saves the criterion's state with the rest, and ``resume_task_checkpoint`` brings
    it back. The criterion stays outside of DDP, of ``torch.compile`` and of the EMA.

    >>> criterion = OGC("ce", optimizer)  # doctest: +SKIP
    >>> task = OGCTask(model, criterion)  # doctest: +SKIP
    >>> task(images, labels)["loss"].backward()  # doctest: +SKIP

    Mixup and CutMix are refused: an image that is part cat, part dog is likely neither, so that all labels, right ones
    too, would look like wrong ones to the queue.
    """

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        if target.is_floating_point():
            raise ValueError(
                "Mixup and CutMix leave no given label that OGC could judge: train without them, --mixup 0 --cutmix 0 "
                f"in timm's script. Found targets of type {target.dtype} and shape {tuple(target.shape)}."
            )
        result: dict[str, Tensor] = super().forward(input, target)
        return result

    def get_task_state(self, module: Any = None, ema: bool = False) -> dict[str, Any]:
        """For timm's checkpoint; the criterion goes with the trained weights, not with their average."""
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
                "The checkpoint has no state of ogc's criterion, whose queue, clock and tau stay as they are now. Was "
                "it saved by another task, or by a CheckpointSaver without task=...?",
                stacklevel=2,
            )
