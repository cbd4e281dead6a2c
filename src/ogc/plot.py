"""Pictures of an OGC in your own training loop: the recent cross entropies with the two normals, and its history.

Each function returns a matplotlib ``Figure``, which a notebook shows, and writes it to ``path`` if one is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ._extras import extra
from ._files import write_whole
from ._require import require
from .clipping import OGC
from .given_label import P_MIN
from .report.drawing import (
    draw_noisy_weight,
    draw_normals,
    draw_queue,
    draw_tau,
    figure_of,
    figure_of_several,
    rendered,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Record", "Recorder", "histogram", "history"]

FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Record:
    """The state of an OGC at one moment, in plain numbers."""

    steps: int
    """Training steps so far."""
    tau: float
    """The clipping threshold."""
    p0: float
    """The probability below which the loss is clipped."""
    mixture: dict[str, float] | None
    """The two normals by the names of :class:`ogc.clipping.Mixture`; None before the first fit."""

    @property
    def clips(self) -> bool:
        """Return True if tau clips anything. Before the first update, tau is the steepest slope of the loss."""
        return self.p0 > P_MIN

    @property
    def noisy_weight(self) -> float | None:
        """The noise estimate of the mixture: the share of recent samples in the noisy normal."""
        return None if self.mixture is None else self.mixture["noisy_weight"]


class Recorder:
    """Keep tau, the mixture and the noise estimate of an OGC, one record per epoch.

    >>> criterion = OGC("ce", follow_lr=False)
    >>> recorder = Recorder(criterion)
    >>> for epoch in range(3):
    ...     recorder.record()  # after the epoch's last step
    >>> len(recorder.records), recorder.records[-1].clips
    (3, False)

    ``state_dict()`` is plain numbers; save it with the criterion's to continue the history after a restart.

    :param criterion: an ``OGC``, compiled or not.
    """

    def __init__(self, criterion: nn.Module) -> None:
        self.criterion = _ogc(criterion)
        self.records: list[Record] = []

    def record(self) -> None:
        """Append the current state to ``records``. On a GPU this waits for the device once."""
        self.records.append(record_of(self.criterion))

    def state_dict(self) -> dict[str, Any]:
        """Return all records as plain numbers."""
        return {"records": [asdict(record) for record in self.records]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all records with those of ``state_dict()``."""
        self.records = [Record(**record) for record in state["records"]]


def record_of(criterion: OGC) -> Record:
    """Read the current state of an OGC."""
    fit = criterion.mixture
    steps, tau, p0, *numbers = torch.stack([criterion.steps.double(), criterion.tau, criterion.p0, *fit]).tolist()
    mixture = dict(zip(fit._fields, numbers, strict=True))
    return Record(int(steps), tau, p0, None if math.isnan(mixture["noisy_weight"]) else mixture)


def histogram(criterion: nn.Module, *, path: str | Path | None = None) -> Figure:
    """Draw the cross entropies of recent training samples with the two normals fitted to them.

    :param criterion: an ``OGC`` after its first fit.
    :param path: a file to write too: .png, .svg or .pdf.
    """
    ogc = _ogc(criterion)
    if not ogc.samples_needed:
        raise ValueError(
            f"This OGC has nothing to draw a histogram of: {ogc.rule} moves tau without "
            "a queue of cross entropies. Leave out `threshold`, or draw tau with ogc.plot.history."
        )
    if record_of(ogc).mixture is None:
        raise ValueError(
            f"OGC has not fitted its two normals yet: it saw {int(ogc.seen):,} samples in {int(ogc.steps):,} steps of "
            f"training, and fits at the first update after {ogc.samples_needed:,} samples. Train for more steps first, "
            "with the criterion in training mode."
        )
    _require_matplotlib()
    return _written(figure_of(lambda axes: draw_queue(axes, ogc)), path)


def history(recorder: Recorder, *, path: str | Path | None = None) -> Figure:
    """Draw tau, the two normals and the share of the noisy one over epochs; tau alone where nothing was fitted.

    :param recorder: a ``Recorder`` with at least one record.
    :param path: a file to write too: .png, .svg or .pdf.
    """
    if not isinstance(recorder, Recorder):
        raise TypeError(
            f"`recorder` should be an ogc.plot.Recorder. Found {type(recorder).__name__}. Make one before training, "
            "`recorder = ogc.plot.Recorder(criterion)`, and call `recorder.record()` after each epoch."
        )
    records = recorder.records
    if not records:
        raise ValueError("The recorder is empty: call `recorder.record()` after each epoch, then draw.")
    _require_matplotlib()
    taus = [record.tau if record.clips else None for record in records]
    mixtures = [record.mixture for record in records]
    if not any(mixtures):
        return _written(figure_of(lambda axes: draw_tau(axes, [taus], drops={})), path)
    panels: list[Callable[[Axes], str]] = [
        lambda axes: draw_tau(axes, [taus], drops={}),
        lambda axes: draw_normals(axes, mixtures),
        lambda axes: draw_noisy_weight(axes, [record.noisy_weight for record in records]),
    ]
    return _written(figure_of_several(panels), path)


def _ogc(criterion: object) -> OGC:
    """Return the OGC itself, also of a compiled one."""
    found = getattr(criterion, "_orig_mod", criterion)
    if not isinstance(found, OGC):
        raise TypeError(
            f"`criterion` should be an ogc.OGC. Found {type(found).__name__}, which keeps neither a queue of cross "
            'entropies nor a tau. Train with `criterion = OGC("ce", optimizer)`.'
        )
    return found


def _require_matplotlib() -> None:
    with extra("plot", "ogc.plot needs matplotlib", "matplotlib"):
        import matplotlib  # noqa: F401


def _written(figure: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        path = Path(path)
        kind = path.suffix[1:].lower()
        require(kind in FORMATS, "path", "a file name that ends in .png, .svg or .pdf", str(path))
        write_whole(path, rendered(figure, kind))
    return figure
