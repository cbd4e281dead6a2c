"""The metrics of an epoch, their summary, and the interface that receives progress."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Epoch:
    """One line of ``metrics.jsonl``. Shares are in [0, 1]. Training samples are predicted with augmentation."""

    epoch: int  # from 1
    lr: float  # at the epoch's last step
    loss: float  # mean over the epoch's steps
    accuracy: dict[str, float]  # by evaluation set
    averaged: dict[str, float]  # the same with the averaged weights
    agreement: float  # share of training predictions that equal the given label
    clean: float | None  # the same among samples whose given label is right; None if that is unknown
    memorised: float | None  # the same among samples whose given label is wrong
    recovered: float | None  # predictions that equal the true label, among samples whose given label is wrong
    tau: float | None  # None if nothing is clipped
    p0: float | None
    mixture: dict[str, float] | None  # None before the first fit
    ratio: float | None  # r(tau) from the mixture
    true_ratio: float | None  # r(tau) from the true labels
    seconds: float  # of training, without evaluation
    images_per_second: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Watch(Protocol):
    """Receives the progress of runs. ``run`` is the index of a job."""

    def began(self, run: int, *, epoch: int, epochs: int, steps: int) -> None:
        """Receive the start of a run. ``epoch`` of its ``epochs`` are done. An epoch has ``steps`` steps."""

    def moved(self, run: int, *, epoch: int, step: int, images_per_second: float | None) -> None:
        """Receive the epoch and step of a run. The engine may report a step before the end of the previous epoch."""

    def ended_epoch(self, run: int, epoch: Epoch) -> None:
        """Receive the metrics of an epoch."""

    def said(self, sentence: str) -> None:
        """Receive a note for the user."""


class SilentWatch:
    """A watch that ignores all progress."""

    def began(self, *_: Any, **__: Any) -> None: ...

    moved = ended_epoch = said = began


def summary(epochs: Sequence[Epoch], report_epochs: int) -> dict[str, Any]:
    """Summarise a run for tables by its first evaluation set."""
    return next(iter(summaries(epochs, report_epochs)), {"set": None})


def summaries(epochs: Sequence[Epoch], report_epochs: int) -> list[dict[str, Any]]:
    """Summarise each evaluation set of the last epoch. Sets that were added on resuming lack the first epochs."""
    found = []
    for name in epochs[-1].accuracy if epochs else ():
        raw = {each.epoch: each.accuracy[name] for each in epochs if name in each.accuracy}
        averaged = {each.epoch: each.averaged[name] for each in epochs if name in each.averaged}
        found.append({"set": name, **_measures(raw, report_epochs)})
        if averaged:
            found[-1] |= {f"averaged_{key}": value for key, value in _measures(averaged, report_epochs).items()}
    return found


def _measures(shares: Mapping[int, float], report_epochs: int) -> dict[str, float | int]:
    """Return mean and standard deviation of the last epochs, and the best epoch. ``shares`` is by epoch."""
    last = list(shares.values())[-report_epochs:]
    mean = sum(last) / len(last)
    best = max(shares, key=shares.__getitem__)
    return {
        "last": mean,
        "std": (sum((value - mean) ** 2 for value in last) / len(last)) ** 0.5,
        "best": shares[best],
        "best_epoch": best,
    }
