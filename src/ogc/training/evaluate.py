"""Accuracy on held-out data, and metrics of training samples with right and wrong labels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..clipping import Mixture, noisy_to_clean_ratio
from ..data.dataset import Dataset, Inputs
from ..given_label import P_MIN
from ..losses import Pointwise
from .feed import Feed, on_device, shape_of

EVALUATION_BATCH = 2000
EVALUATION_NUMBERS = 2**24  # maximum number of values in a batch, for large images
UNEQUAL = 3  # times as many samples in the largest class as in the smallest: accuracy alone may mislead


def precision(name: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the autocast context of a precision. Its cache is disabled: it would outlive a captured step."""
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False) if name == "bf16" else nullcontext()


def batch_for(shape: tuple[int, ...]) -> int:
    """Return how many samples of this shape to evaluate at once."""
    return min(EVALUATION_BATCH, max(1, EVALUATION_NUMBERS // math.prod(shape)))


def differ_in_size(labels: Tensor) -> bool:
    """Return True if accuracy can be high although a class is never predicted."""
    counts = torch.bincount(labels)
    return bool(counts.max() >= UNEQUAL * counts[counts > 0].min())


class EvaluationSet:
    """Held-out data. Accuracy is measured against the true labels if they are known."""

    inputs: Inputs  # on the device; those of ``feed`` or ``like`` if they are the same

    def __init__(self, dataset: Dataset, feed: Feed, like: EvaluationSet | None = None) -> None:
        self.feed, self.samples, self.origin = feed, len(dataset), dataset.inputs
        if self.origin is feed.origin:
            self.inputs = feed.inputs
        elif like is not None and self.origin is like.origin and feed.device == like.feed.device:
            self.inputs = like.inputs
        else:
            self.inputs = on_device(self.origin, feed.device)
        self.labels = (dataset.given if dataset.true is None else dataset.true).to(feed.device)
        self.batch = batch_for(shape_of(dataset))

    @torch.no_grad()
    def logits(self, network: nn.Module, weights: Mapping[str, Tensor], bits: str) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of samples and their logits with these weights. Reads nothing back from the device."""
        training = network.training
        network.eval()
        for start in range(0, self.samples, self.batch):
            where = slice(start, min(start + self.batch, self.samples))
            on_disk = not isinstance(self.inputs, Tensor)  # indexing a tensor with a tensor would wait for the device
            inputs = self.inputs[torch.arange(where.start, where.stop) if on_disk else where]  # type: ignore[index]
            inputs = self.feed.plain(inputs.to(self.feed.device))
            with precision(bits, self.feed.device):
                logits = functional_call(network, dict(weights), (inputs,))
            yield where, logits
        network.train(training)

    def hits(self, network: nn.Module, weights: Mapping[str, Tensor], bits: str) -> Tensor:
        """Count the correct predictions: () int64."""
        hits = torch.zeros((), dtype=torch.int64, device=self.feed.device)
        for where, logits in self.logits(network, weights, bits):
            hits += (logits.argmax(1) == self.labels[where]).sum()
        return hits

    def recall(self, network: nn.Module, weights: Mapping[str, Tensor], bits: str) -> dict[int, float]:
        """Return the share of correct predictions by class, for classes with samples."""
        right = torch.cat([logits.argmax(1) == self.labels[at] for at, logits in self.logits(network, weights, bits)])
        counts = torch.bincount(self.labels)
        shares = torch.bincount(self.labels[right], minlength=len(counts)).double() / counts
        return {label: share for label, share in enumerate(shares.tolist()) if not math.isnan(share)}


def training_shares(predicted: Tensor, given: Tensor, true: Tensor | None) -> dict[str, float | None]:
    """Return the shares of training predictions that equal given and true labels: (N,) each, -1 for none yet."""
    seen = predicted >= 0

    def share(hit: Tensor, among: Tensor) -> float | None:
        return float(hit[among].double().mean()) if bool(among.any()) else None

    agreement = share(predicted == given, seen) or 0.0
    if true is None:
        return {"agreement": agreement, "clean": None, "memorised": None, "recovered": None}
    right = given == true
    return {
        "agreement": agreement,
        "clean": share(predicted == given, seen & right),
        "memorised": share(predicted == given, seen & ~right),
        "recovered": share(predicted == true, seen & ~right),
    }


def clipping_facts(base: Pointwise | None, solution: Tensor | None, H: Tensor, wrong: Tensor | None) -> dict[str, Any]:
    """Return tau, the mixture, and r(tau) from the mixture and the true labels. H and wrong are (N,), on the CPU."""
    facts: dict[str, Any] = dict.fromkeys(("tau", "p0", "mixture", "ratio", "true_ratio"))
    if base is None or solution is None:
        return facts
    (p0, tau), mixture = solution[:2].tolist(), Mixture(*solution[2:].unbind())
    if p0 > P_MIN:
        facts |= {"tau": tau, "p0": p0}
    if not math.isnan(float(mixture.noisy_weight)):
        facts["mixture"] = {name: float(value) for name, value in mixture._asdict().items()}
        facts["ratio"] = float(noisy_to_clean_ratio(base, mixture, tau))
    if wrong is not None:
        gradient = base.slope(torch.exp(-H.double()).clamp(P_MIN, 1 - P_MIN)).clamp(max=tau)
        clean, noisy = (gradient[~H.isnan() & where] for where in (~wrong, wrong))
        if len(clean) and len(noisy):
            facts["true_ratio"] = float(noisy.mean() / clean.mean())
    return facts
