"""What is known of a run after each epoch, and who is told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Epoch:
    """One line of ``metrics.jsonl``. Shares are in [0, 1]; training ones are taken in training, on augmented inputs."""

    epoch: int  # from 1
    lr: float  # at the epoch's last step
    loss: float  # mean over the epoch's steps
    accuracy: dict[str, float]  # by evaluation set
    averaged: dict[str, float]  # the same with the averaged weights
    agreement: float  # training predictions that equal the given label
    clean: float | None  # ... where the given label is right, if that is known
    memorised: float | None  # ... where it is wrong
    recovered: float | None  # training predictions that equal the true label, where the given one is wrong
    tau: float | None  # None where nothing is clipped
    p0: float | None
    mixture: dict[str, float] | None  # None before the first fit
    ratio: float | None  # r(tau) by the mixture
    true_ratio: float | None  # r(tau) by the true labels
    seconds: float  # of training, without evaluation
    images_per_second: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Watch(Protocol):
    """Who is told how the runs go; ``run`` is the number of a job."""

    def began(self, run: int, *, epoch: int, epochs: int, steps: int) -> None:
        """``epoch`` epochs are done, of ``steps`` steps each."""

    def moved(self, run: int, *, epoch: int, step: int, images_per_second: float | None) -> None:
        """``epoch`` epochs and so many steps are done. The engine may tell this before the end of the last epoch."""

    def ended_epoch(self, run: int, epoch: Epoch) -> None: ...

    def said(self, sentence: str) -> None: ...


class Nobody:
    """A watch that looks away."""

    def began(self, run: int, *, epoch: int, epochs: int, steps: int) -> None: ...

    def moved(self, run: int, *, epoch: int, step: int, images_per_second: float | None) -> None: ...

    def ended_epoch(self, run: int, epoch: Epoch) -> None: ...

    def said(self, sentence: str) -> None: ...


def summary(epochs: list[Epoch], report_epochs: int) -> dict[str, Any]:
    """The numbers that tables show: mean and standard deviation of the last epochs, and the best one."""
    if not epochs or not epochs[-1].accuracy:
        return {"set": None}
    name = next(iter(epochs[-1].accuracy))

    def tell(values: list[float], prefix: str) -> dict[str, float | int]:
        last = values[-report_epochs:]
        mean = sum(last) / len(last)
        std = (sum((value - mean) ** 2 for value in last) / len(last)) ** 0.5
        best = max(range(len(values)), key=values.__getitem__)
        return {
            f"{prefix}last": mean,
            f"{prefix}std": std,
            f"{prefix}best": values[best],
            f"{prefix}best_epoch": epochs[best].epoch,
        }

    averaged = [epoch.averaged[name] for epoch in epochs if name in epoch.averaged]
    return {
        "set": name,
        **tell([epoch.accuracy[name] for epoch in epochs], ""),
        **(tell(averaged, "averaged_") if averaged else {}),
    }
