"""Hugging Face's Trainer: one object that is its loss function and, as a callback, keeps OGC's state in checkpoints.

The Trainer tells no callback which checkpoint it resumes from, but writes what callbacks export to
``trainer_state.json`` itself, rank 0 alone, and hands it back. That is where the criterion's state is.
"""

from __future__ import annotations

import base64
import math
import warnings
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from .._require import require
from ..clipping import OGC
from ..losses import Loss
from . import never_fitted

try:
    import safetensors.torch as safetensors
    from transformers.trainer_callback import ExportableState, TrainerCallback, TrainerControl, TrainerState
    from transformers.training_args import TrainingArguments
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] not in ("safetensors", "transformers"):
        raise
    raise ImportError(
        'ogc.integrations.huggingface needs transformers, which is missing: pip install "torch-ogc[huggingface]"'
    ) from None


def loss(criterion: Loss) -> TrainerLoss:
    """The criterion as the Trainer wants it. Hand it over twice, as the loss function and as a callback.

    As a callback it attaches the criterion to the Trainer's optimizer, keeps its state in every checkpoint, restores it
    with ``resume_from_checkpoint`` and ``load_best_model_at_end``, and logs tau and the estimated noise. Several GPUs
    must bring as many labels each: pad tokens to one length, or give OGC ``process_group=False``.

    >>> from ogc import OGC
    >>> from transformers import Trainer  # doctest: +SKIP
    >>> criterion = OGC("ce")
    >>> of_trainer = loss(criterion)
    >>> trainer = Trainer(..., compute_loss_func=of_trainer, callbacks=[of_trainer])  # doctest: +SKIP

    :param criterion: an ``OGC``, or another of ogc's losses; ``reduction="mean"`` and ``ignore_index=-100``, by which
        the Trainer counts labels. With ``weight`` and gradient accumulation, what is averaged over the labels is each
        micro-batch's weighted mean.
    """
    require(isinstance(criterion, Loss), "criterion", "an OGC or another of ogc.losses", criterion)
    require(criterion.reduction == "mean", "reduction", "mean: the Trainer's loss is one number", criterion.reduction)
    require(criterion.ignore_index == -100, "ignore_index", "-100, which the Trainer counts by", criterion.ignore_index)

    class OGCLoss(TrainerLoss):
        """A type of its own: ``restore_callback_states_from_checkpoint`` makes callbacks anew from their types."""

        def __init__(self) -> None:
            self.criterion = criterion
            self.fresh = self.state()["attributes"]["saved"]

    return OGCLoss()


class TrainerLoss(TrainerCallback, ExportableState):
    """What :func:`loss` makes."""

    criterion: Loss
    fresh: dict[str, Any]
    is_known = False  # of the type, so that one made anew counts for the one that is the loss function

    # --- the loss function -------------------------------------------------------------------------------------------

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The sum over this micro-batch, divided by the labels of all micro-batches that make up a step."""
        if labels is None:
            raise ValueError("The Trainer found no `labels` in the batch, and ogc's loss needs a given label a sample.")
        if torch.is_grad_enabled() and not self.is_known:
            type(self).is_known = True  # said once
            warnings.warn(
                "The Trainer's checkpoints will lack the state of ogc's criterion, and nothing attached its optimizer: "
                "give what ogc.integrations.huggingface.loss returned to `callbacks=[...]` too.",
                stacklevel=3,
            )
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        if labels.dim() == 2:  # a label a token
            logits = logits.movedim(-1, 1)
        mean: Tensor = self.criterion(logits, labels)
        if num_items_in_batch is None:
            return mean
        items = torch.as_tensor(num_items_in_batch, device=mean.device).sum()  # DataParallel brings a share a device
        return mean * ((labels != -100).sum().to(mean.dtype) / items.clamp(min=1))

    # --- the callback ------------------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        type(self).is_known = True
        smoothing = args.label_smoothing_factor
        require(smoothing == 0, "label_smoothing_factor", "0: ogc's losses judge single labels", smoothing)
        _refuse_shifted_labels(kwargs["model"])
        if isinstance(self.criterion, OGC):
            self.criterion.attach(kwargs["optimizer"])

        if state.global_step > 0:
            self._restore(state, "The checkpoint to resume from")
        elif state.is_hyper_param_search:
            self._load(self.fresh)
        exported = cast("dict[str, Any]", state.stateful_callbacks)
        exported[type(self).__name__] = self.state()  # where there was none, the Trainer's next save would fail

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Into the Trainer's history, and on to the callbacks that come later."""
        logs: dict[str, float] = kwargs["logs"]
        if isinstance(self.criterion, OGC) and "loss" in logs:
            now = {"tau": float(self.criterion.tau), "noisy_weight": float(self.criterion.mixture.noisy_weight)}
            now = {name: value for name, value in now.items() if not math.isnan(value)}  # no JSON, before the first fit
            logs.update(now)
            state.log_history[-1].update(now)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The mixture that goes with the best weights, if those are what the Trainer loaded last."""
        if isinstance(self.criterion, OGC) and (why := never_fitted(self.criterion)) is not None:
            warnings.warn(why, stacklevel=2)
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            path = Path(state.best_model_checkpoint, "trainer_state.json")
            best = TrainerState.load_from_json(str(path)) if path.exists() else TrainerState()
            self._restore(best, state.best_model_checkpoint)

    def state(self) -> dict[str, Any]:
        """For ``trainer_state.json``: the tensors as safetensors in base64, the rest as it is."""
        state = self.criterion.state_dict()
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        saved = {name: value for name, value in state.items() if name not in tensors}
        saved["tensors"] = base64.b64encode(safetensors.save(tensors)).decode()
        return {"args": {}, "attributes": {"saved": saved}}

    def _restore(self, state: TrainerState, where: str) -> None:
        own = cast("dict[str, Any]", state.stateful_callbacks).get(type(self).__name__)
        if own is None:
            warnings.warn(
                f"{where} has no state of ogc's criterion, whose queue, clock and tau stay as they are now. Was the "
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
    """By the model's own loss, as the Trainer does, and by name: GPT-2's loss has no type."""
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's
    name, config = type(model).__name__, getattr(model, "config", None)
    shifts = LOSS_MAPPING.get(getattr(model, "loss_type", None) or "") is ForCausalLMLoss
    shifts = shifts and not getattr(config, "is_encoder_decoder", False)
    if shifts or name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        raise ValueError(
            "ogc's loss judges the label given at each position, and those of a causal language model are of the next: "
            f"shift logits and labels in a loss function of your own. Found {name}."
        )
