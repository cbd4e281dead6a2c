"""Predictions of a network for its own training samples, without augmentation, averaged over its training.

A network fits right labels before wrong ones, and may have memorised both in the end. So it is surveyed while it
trains, and surveys that come after it has begun to memorise do not count. ``ogc.audit`` finds wrong labels in the
averages, and the noise rate of a run is the share of labels that are wrong according to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..rival_label import class_confidence, contradicted, likelier_label, margin
from .evaluate import EvaluationSet

LARGEST = 2**28  # maximum number of probabilities: 1 GiB
EARLY = 20  # epochs whose surveys always count. Few labels are memorised before a sample has been seen this often.
KEPT = 0.85  # a later survey counts only with at least this share of the disagreements after EARLY epochs
LAST, SETTLED = 3, 0.9  # training was too short if disagreements fell below this share within the last surveys


def moments(*, epochs: int, surveys: int) -> tuple[int, ...]:
    """Return the epochs that end with a survey, the last epoch among them.

    Half of the surveys are spread over the first ``EARLY`` epochs, whatever the length of training, the others over
    the rest.

    >>> moments(epochs=150, surveys=10)
    (4, 8, 12, 16, 20, 46, 72, 98, 124, 150)
    >>> moments(epochs=12, surveys=4)
    (3, 6, 9, 12)
    """
    early = surveys // 2 if epochs > EARLY else surveys
    first = min(epochs, EARLY) if early else 0
    return tuple(sorted({*_spread(0, first, early), *_spread(first, epochs, surveys - early)}))


def _spread(start: int, stop: int, count: int) -> list[int]:
    """Return ``count`` evenly spaced epochs in (start, stop], the last of them ``stop``; fewer if there are fewer."""
    return [start - (start - stop) * i // count for i in range(1, count + 1)]


class Point(NamedTuple):
    """One survey in the history of a run. Shares are in [0, 1]."""

    epoch: int
    disagreement: float  # share of labels that the network contradicts
    noise_rate: float  # estimated from the surveys so far that count
    counts: bool


class Survey:
    """Sums over the surveys that count, for one set of samples, on the device.

    :ivar count: number of surveys that count, () int64.
    :ivar H: cross entropies of the given labels, (N,).
    :ivar margin: log p(given) - log p(likeliest other class), (N,).
    :ivar probabilities: (N, C).
    """

    NAMES = ("count", "H", "margin", "probabilities")

    def __init__(self, data: EvaluationSet, given: Tensor, classes: int) -> None:
        device = data.feed.device
        self.data, self.given = data, given.to(device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self.H, self.margin = (torch.zeros(data.samples, device=device) for _ in range(2))
        self.probabilities = torch.zeros(data.samples, classes, device=device)

    @torch.no_grad()
    def predict(self, network: nn.Module, weights: Mapping[str, Tensor], bits: str) -> Tensor:
        """Return log p of all samples by the network with these weights: (N, C)."""
        log_p = torch.empty_like(self.probabilities)
        for where, logits in self.data.logits(network, weights, bits):
            log_p[where] = logits.float().log_softmax(1)
        return log_p

    def add(self, log_p: Tensor, counts: Tensor) -> None:
        """Add a survey if ``counts``, () bool. Reads nothing back from the device."""
        self.H += torch.where(counts, -log_p.gather(1, self.given[:, None])[:, 0], 0.0)
        self.margin += torch.where(counts, margin(log_p, self.given), 0.0)
        self.probabilities += torch.where(counts, log_p.exp(), 0.0)
        self.count += counts

    def state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.NAMES}

    def means(self) -> dict[str, Tensor]:
        """Return the means of H, margin and probabilities."""
        return {name: value / self.count for name, value in self.state().items() if name != "count"}


class Surveys:
    """All surveys of a run, and their history.

    Memorisation can be detected without true labels: the network agrees with labels that it contradicted before. So a
    survey after the first ``EARLY`` epochs counts only if it has at least ``KEPT`` times as many disagreements as the
    last survey of those epochs. Once a survey does not count, no later one does.

    :param parts: sets whose labels may be wrong, by name; ``train`` first.
    :ivar history: disagreement, noise rate and whether the survey counts, by epoch, (epochs, 3); NaN without a survey.
    """

    def __init__(self, parts: Mapping[str, Survey], *, epochs: int, surveys: int) -> None:
        self.parts = dict(parts)
        self.moments = moments(epochs=epochs, surveys=surveys) if parts else ()
        device = next(iter(parts.values())).given.device if parts else None
        self.history = torch.full((epochs, 3), torch.nan, dtype=torch.float64, device=device)

    def due(self, epoch: int) -> bool:
        """Return True if this epoch, counted from 1, ends with a survey."""
        return epoch in self.moments

    @torch.no_grad()
    def take(self, network: nn.Module, weights: Mapping[str, Tensor], bits: str, epoch: int) -> None:
        """Survey the network with these weights after ``epoch`` epochs. Reads nothing back from the device."""
        train, *others = self.parts.values()
        log_p = train.predict(network, weights, bits)
        disagreement = contradicted(log_p, train.given).sum().double() / len(train.given)
        counts = torch.ones((), dtype=torch.bool, device=self.history.device)
        early = [moment for moment in self.moments if moment <= EARLY]
        if epoch > EARLY and early:  # a comparison with NaN, for a survey that was not made, lets this one count
            settled = self.history[early[-1] - 1, 0]
            stopped = (self.history[:, 2] == 0).any()
            counts = ~stopped & ~(disagreement < KEPT * settled)
        train.add(log_p, counts)
        del log_p  # before the next set's, which may be as large
        for part in others:
            part.add(part.predict(network, weights, bits), counts)
        self.history[epoch - 1] = torch.stack([disagreement, self._noise_rate(), counts.double()])

    def _noise_rate(self) -> Tensor:
        """Return the share of labels in all sets that are wrong according to the surveys: () float64."""
        parts = list(self.parts.values())
        confidence = class_confidence(parts[0].means()["probabilities"], parts[0].given)
        wrong = [
            (likelier_label(part.means()["probabilities"], part.given, confidence) != part.given).sum()
            for part in parts
        ]
        return torch.stack(wrong).sum().double() / sum(len(part.given) for part in parts)

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that a checkpoint stores, by name."""
        for name, part in self.parts.items():
            yield from ((f"{name}.{what}", value) for what, value in part.state().items())
        if self.parts:
            yield "history", self.history

    def results(self) -> dict[str, Tensor]:
        """Return means by set, and the history; nothing if there was no survey."""
        if not self.parts or not int(next(iter(self.parts.values())).count):
            return {}
        means = {f"{name}.{what}": v for name, part in self.parts.items() for what, v in part.means().items()}
        return means | {"history": self.history}

    def noise_rate(self) -> float | None:
        """Estimate the share of wrong labels, like ``ogc.audit.Issues.noise_rate``; ``None`` without a survey."""
        points = points_of(self.history)
        return points[-1].noise_rate if points else None


def points_of(history: Tensor | None) -> list[Point]:
    """Return one point per survey of a history, (epochs, 3); none if it is ``None``: no surveys were taken."""
    rows = [] if history is None else history.tolist()
    return [Point(i, row[0], row[1], bool(row[2])) for i, row in enumerate(rows, 1) if row[0] == row[0]]


def memorised_from(points: Sequence[Point]) -> int | None:
    """Return the epoch of the first survey that does not count; None if all do."""
    return next((point.epoch for point in points if not point.counts), None)


def why_unreliable(points: Sequence[Point], unlearned: Mapping[str, int], labels: int) -> str | None:
    """Explain why the estimated noise rate of a run cannot be trusted: training was too short, or learned late.

    :param unlearned: number of labels of each class that the surveys that count reject.
    """
    if unsettled(points):
        return (
            "The estimated noise rate is unreliable, because training was too short for the network to learn the right "
            "labels. Train for more epochs."
        )
    if memorised_from(points) is None or 2 * sum(unlearned.values()) < labels:
        return None
    last = [point.epoch for point in points if point.counts][-1]
    return (
        f"The estimated noise rate is unreliable, because the network had hardly learned anything after {last} epochs. "
        "Use a smaller batch_size, so that each epoch has more steps."
    )


def unsettled(points: Sequence[Point]) -> bool:
    """Return True if training was too short: below ``EARLY`` / 2 epochs, or disagreements still fell at the end.

    The end is the last ``LAST`` surveys, without those of the first half. This applies to runs of at most ``EARLY``
    epochs. In longer ones such a fall counts as memorisation.
    """
    if not points or points[-1].epoch > EARLY:
        return False
    last = [point.disagreement for point in points[-LAST:] if 2 * point.epoch >= points[-1].epoch]
    return 2 * points[-1].epoch < EARLY or last[-1] < SETTLED * max(last)
