"""Lightning: a callback that attaches, logs and draws the OGC of a module. Lightning itself saves and restores it."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import torch

from .._extras import extra
from .._files import write_whole
from ..clipping import OGC
from ..plot import record_of
from ..report.drawing import draw_queue, figure_of, png
from . import never_fitted

with extra("lightning", "ogc.integrations.lightning needs Lightning", "lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

__all__ = ["OGCCallback"]


class OGCCallback(Callback):
    """Attach, log and draw the OGC of a module: ``Trainer(callbacks=[OGCCallback()])``.

    >>> class Classifier(LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.network = torch.nn.Linear(4, 3)
    ...         self.criterion = OGC("ce")  # no optimizer: there is none yet
    ...
    ...     def training_step(self, batch, batch_idx):
    ...         inputs, labels = batch
    ...         return self.criterion(self.network(inputs), labels)
    ...
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> trainer = Trainer(callbacks=[OGCCallback()], accelerator="cpu", logger=False, enable_checkpointing=False)

    When fitting starts, each OGC is attached to the trainer's optimizer and follows the learning rate of its first
    group. An optimizer that you attached in ``configure_optimizers`` is kept. This is required with several optimizers,
    and for Lightning's ``Tuner`` and ``LearningRateFinder``, which train without callbacks.

    At the steps that Lightning logs (``log_every_n_steps``), it logs ``ogc/tau`` and, after the first fit,
    ``ogc/noisy_weight`` and the two normals: ``ogc/clean_mean``, ``clean_std``, ``noisy_mean``, ``noisy_std``. If there
    are several OGCs, their names are added: ``ogc/criterion/tau``.

    At the end it draws the queue with the two normals to ``ogc.png`` in the trainer's ``log_dir``, and to TensorBoard.

    By default, Lightning's weight averaging also averages buffers. The OGC of the module is then meaningless after
    ``fit``.

    :param picture: ``False`` draws nothing.
    """

    def __init__(self, *, picture: bool = True) -> None:
        self.picture = picture

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        criteria = _criteria(pl_module)
        if not criteria:
            raise ValueError(
                f"OGCCallback found no OGC in {type(pl_module).__name__}. To fix this, make it a "
                'submodule: `self.criterion = OGC("ce")` in `__init__`. Then it is also saved with the module.'
            )
        for name, criterion in criteria.items():
            _attach(criterion, name, trainer.optimizers)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, criterion in _criteria(pl_module).items():
            if not criterion.training:  # Lightning leaves a module in the mode that it was in
                rank_zero_warn(
                    f"`{name}` is in evaluation mode, so OGC does not update its state. Call train() before fit."
                )

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        due = trainer._logger_connector.should_update_logs  # as in Lightning's own monitors
        if due and not trainer.fit_loop._should_accumulate():
            for prefix, criterion in _prefixed(pl_module, "/").items():
                pl_module.log_dict({prefix + name: value for name, value in _numbers(criterion).items()})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        for criterion in _criteria(pl_module).values():
            if (why := never_fitted(criterion)) is not None and criterion.training:
                rank_zero_warn(why)
        if not self.picture:
            return
        folder = trainer.log_dir or trainer.default_root_dir  # on every rank, since rank 0 broadcasts it
        if not trainer.is_global_zero:
            return
        if importlib.util.find_spec("matplotlib") is None:
            rank_zero_info("OGCCallback draws no picture, because matplotlib is missing: pip install matplotlib")
            return
        for prefix, criterion in _prefixed(pl_module, "-").items():
            if int(criterion.seen):
                _draw(criterion, prefix[:-1], folder, trainer)


def _criteria(module: LightningModule) -> dict[str, OGC]:
    """Return every OGC by its name in the module, including compiled ones."""
    found = {name: part for name, part in module.named_modules() if isinstance(part, OGC)}
    return {name.removesuffix("._orig_mod"): criterion for name, criterion in found.items()}


def _prefixed(module: LightningModule, separator: str) -> dict[str, OGC]:
    """Return every OGC by the prefix of its logged names: "ogc/", or "ogc/criterion/" if there are several."""
    criteria = _criteria(module)
    if len(criteria) == 1:
        return {f"ogc{separator}": criterion for criterion in criteria.values()}
    return {f"ogc{separator}{name}{separator}": criterion for name, criterion in criteria.items()}


def _attach(criterion: OGC, name: str, optimizers: list[torch.optim.Optimizer]) -> None:
    """Attach the optimizer, unless one of them is attached already. One from an earlier ``fit`` does not count."""
    attached = criterion.optimizer
    if not optimizers or any(attached is not None and attached.param_groups is o.param_groups for o in optimizers):
        return
    if len(optimizers) == 1:
        criterion.attach(optimizers[0])
    elif criterion.rule.follow_lr:
        raise ValueError(
            f"There are {len(optimizers)} optimizers, and `{name}` can follow the learning rate of one: call "
            f"`self.{name}.attach(optimizer)` in `configure_optimizers`, or pass follow_lr=False to OGC."
        )


def _numbers(criterion: OGC) -> dict[str, float]:
    """Return tau and, after the first fit, the mixture, with one read from the device."""
    now = record_of(criterion)
    if (fit := now.mixture) is None:
        return {"tau": now.tau}
    normals = {f"{name}_mean": fit[f"{name}_mean"] for name in ("clean", "noisy")}
    normals |= {f"{name}_std": math.sqrt(fit[f"{name}_var"]) for name in ("clean", "noisy")}
    return {"tau": now.tau, "noisy_weight": fit["noisy_weight"], **normals}


def _draw(criterion: OGC, name: str, folder: str, trainer: Trainer) -> None:
    """Draw to ``folder``, if it is local, and to loggers that accept figures. Errors only cause a warning."""
    try:
        figure = figure_of(lambda axes: draw_queue(axes, criterion))
        if "://" not in folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            write_whole(Path(folder) / f"{name}.png", png(figure))
        for logger in trainer.loggers:
            experiment: Any = getattr(logger, "experiment", None)
            if hasattr(experiment, "add_figure"):
                experiment.add_figure(name, figure, trainer.global_step)
    except Exception as error:
        rank_zero_warn(f"OGCCallback could not draw its picture: {error}")
