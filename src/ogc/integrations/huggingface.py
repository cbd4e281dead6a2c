"""Hugging Face's Trainer: one object is its loss function and a callback that saves OGC's state in checkpoints.

Callbacks are not told which checkpoint the Trainer resumes from. But the Trainer itself writes their exported state to
``trainer_state.json``, on rank 0, and restores it. The criterion's state is stored there.
"""

from __future__ import annotations

import base64
import math
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from .._extras import extra
from .._require import require
from ..clipping import OGC
from ..losses import Loss
from . import never_fitted

with extra("huggingface", "ogc.integrations.huggingface needs transformers", "safetensors", "transformers"):
    import safetensors.torch as safetensors
    from transformers.trainer_callback import ExportableState, TrainerCallback, TrainerControl, TrainerState
    from transformers.training_args import TrainingArguments


def loss(criterion: Loss) -> TrainerLoss:
    """Wrap a criterion for the Trainer. Pass the result both as the loss function and as a callback.

    The callback attaches the criterion to the Trainer's optimizer, saves its state in every checkpoint, restores it
    with ``resume_from_checkpoint`` and ``load_best_model_at_end``, and logs tau and the weight of the noisy normal. On
    several GPUs all batches need the same number of labels: pad tokens to one length, or pass ``process_group=False``
    to OGC.

    >>> from ogc import OGC
    >>> from transformers import Trainer  # doctest: +SKIP
    >>> criterion = OGC("ce")
    >>> loss_function = loss(criterion)
    >>> trainer = Trainer(..., compute_loss_func=loss_function, callbacks=[loss_function])  # doctest: +SKIP

    :param criterion: an ``OGC`` or another loss of ogc, with ``reduction="mean"`` and ``ignore_index=-100``, which the
        Trainer assumes when it counts labels. With ``weight`` and gradient accumulation, the weighted means of the
        micro-batches are averaged, in proportion to their labels.
    """
    require(isinstance(criterion, Loss), "criterion", "an OGC or another loss from ogc.losses", criterion)
    require(criterion.reduction == "mean", "reduction", "mean, since the Trainer needs one number", criterion.reduction)
    require(criterion.ignore_index == -100, "ignore_index", "-100, as in the Trainer", criterion.ignore_index)

    class OGCLoss(TrainerLoss):
        """A class for this criterion: ``restore_callback_states_from_checkpoint`` builds callbacks from their class."""

        def __init__(self) -> None:
            self.criterion = criterion
            self.fresh = self.state()["attributes"]["saved"]

    return OGCLoss()


class TrainerLoss(TrainerCallback, ExportableState):
    """The result of :func:`loss`."""

    criterion: Loss
    fresh: dict[str, Any]
    is_registered = False  # on the class, because the Trainer may rebuild the callback from its class

    # --- the loss function -------------------------------------------------------------------------------------------

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the sum over this micro-batch, divided by the number of labels in the whole step."""
        if labels is None:
            raise ValueError("The loss of ogc needs one given label per sample. Found no `labels` in the batch.")
        if torch.is_grad_enabled() and not self.is_registered:
            type(self).is_registered = True  # warn once
            warnings.warn(
                "The criterion of ogc is not attached to the optimizer, and checkpoints will not contain its state. To "
                "fix this, also pass the result of ogc.integrations.huggingface.loss in `callbacks=[...]`.",
                stacklevel=3,
            )
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        if labels.dim() == 2:  # one label per token
            logits = logits.movedim(-1, 1)
        mean: Tensor = self.criterion(logits, labels)
        if num_items_in_batch is None:
            return mean
        items = torch.as_tensor(num_items_in_batch, device=mean.device).sum()  # with DataParallel one number per device
        return mean * ((labels != -100).sum().to(mean.dtype) / items.clamp(min=1))

    # --- the callback ------------------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        type(self).is_registered = True
        smoothing = args.label_smoothing_factor
        require(smoothing == 0, "label_smoothing_factor", "0, since the losses of ogc need hard labels", smoothing)
        _refuse_shifted_labels(kwargs["model"])
        if isinstance(self.criterion, OGC):
            self.criterion.attach(kwargs["optimizer"])

        if state.global_step > 0:
            self._restore(state, "The checkpoint to resume from")
        elif state.is_hyper_param_search:
            self._load(self.fresh)
        exported = cast("dict[str, Any]", state.stateful_callbacks)
        exported[type(self).__name__] = self.state()  # without it, the next save of the Trainer would fail

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add tau and the noisy weight to the Trainer's history and to the logs of later callbacks."""
        logs: dict[str, float] = kwargs["logs"]
        if isinstance(self.criterion, OGC) and "loss" in logs:
            now = {"tau": float(self.criterion.tau), "noisy_weight": float(self.criterion.mixture.noisy_weight)}
            # NaN before the first fit, which is not valid JSON
            now = {name: value for name, value in now.items() if not math.isnan(value)}
            logs.update(now)
            state.log_history[-1].update(now)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the state of the best checkpoint, if the Trainer loaded its weights."""
        if isinstance(self.criterion, OGC) and (why := never_fitted(self.criterion)) is not None:
            warnings.warn(why, stacklevel=2)
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            path = Path(state.best_model_checkpoint, "trainer_state.json")
            best = TrainerState.load_from_json(str(path)) if path.exists() else TrainerState()
            self._restore(best, state.best_model_checkpoint)

    def state(self) -> dict[str, Any]:
        """Return the state for ``trainer_state.json``, with tensors as safetensors in base64."""
        state = self.criterion.state_dict()
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        saved = {name: value for name, value in state.items() if name not in tensors}
        saved["tensors"] = base64.b64encode(safetensors.save(tensors)).decode()
        return {"args": {}, "attributes": {"saved": saved}}

    def _restore(self, state: TrainerState, where: str) -> None:
        own = cast("dict[str, Any]", state.stateful_callbacks).get(type(self).__name__)
        if own is None:
            warnings.warn(
                f"{where} has no ogc criterion state. The queue, step count and tau are unchanged. Was the "
                "loss missing from `callbacks` when it was saved?",
                stacklevel=2,
            )
            return
        self._load(own["attributes"]["saved"])

    def _load(self, saved: dict[str, Any]) -> None:
        rest = dict(saved)
        tensors = safetensors.load(base64.b64decode(rest.pop("tensors")))
        self.criterion.load_state_dict({**tensors, **rest})


def _refuse_shifted_labels(model: Any) -> None:
    """Raise ``ValueError`` for causal language models, by their loss type or, as for GPT-2, by their name."""
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # unwrap PEFT
    name, config = type(model).__name__, getattr(model, "config", None)
    shifts = LOSS_MAPPING.get(getattr(model, "loss_type", None) or "") is ForCausalLMLoss
    shifts = shifts and not getattr(config, "is_encoder_decoder", False)
    if shifts or name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise ValueError(
            "The loss of ogc expects the label of each position, but the labels of a causal language model are "
            f"shifted by one. To fix this, shift logits and labels in your own loss function. Found {name}."
        )
