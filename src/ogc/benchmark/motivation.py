"""The experiment behind the paper's first figure: why tau has to change during training.

For "a simple binary classification task" with gradients clipped at a fixed threshold, the paper shows the raw data, the
densities of the gradients of clean and noisy samples (before clipping) at epochs 50, 500, 1000 and 1500, and the
decision boundaries. Here the same network is also trained with OGC. The paper does not describe the task further.
:class:`Settings` chooses:

- two half moons of 150 points each, with 35 % of the labels swapped;
- a network that can memorise them: two hidden layers of 256, the paper's momentum and weight decay, and the learning
  rate of its second stage, 0.01, throughout;
- tau fixed at 5, in the middle of the paper's grid for PHuber-CE, and at 2, its choice for CIFAR-10;
- OGC by the paper's rule, epsilon = lr epsilon0 = 0.01 * 20 = 0.2, with its queue of 4096 and an update every 32 steps.

An epsilon of 2, the paper's at its first learning rate, would clip nothing here. With two classes and a share eta of
wrong labels, a network that has learned only how often labels are wrong predicts the true one with 1 - eta. The
gradients of noisy samples are then (1 - eta) / eta times those of clean ones, 1.86 at 35 %, which is below 1 + epsilon.
"""

from __future__ import annotations

import hashlib
import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import OGC, __version__, _provenance, losses
from .._require import require
from ..given_label import P_MIN
from ..models import mlp
from ..noise import symmetric
from ..training.loop import one_thread

TEST_SAMPLES = 2000
PLANE = ((-1.9, 2.9), (-1.4, 1.9))  # limits of the region that is drawn: x, y
PIXELS = 240  # per side
EVALUATIONS = 10  # averaged to describe the end of a run


@dataclass(frozen=True)
class Settings:
    """The task, the network and the thresholds. The seed determines data, noise, weights and batches."""

    seed: int = 0
    samples: int = 300
    spread: float = 0.2  # standard deviation around the moons
    noise_rate: float = 0.35
    hidden: tuple[int, ...] = (256, 256)
    batch_size: int = 50
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    taus: tuple[float, ...] = (5.0, 2.0)  # fixed thresholds; the first is drawn beside OGC
    epsilon0: float = 20.0
    every: int = 32
    queue_size: int = 4096
    epochs: tuple[int, ...] = (50, 500, 1000, 1500)  # to draw; training ends with the last
    look_every: int = 10  # epochs

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**32, "seed", "in [0, 2**32)", self.seed)

    @property
    def thresholds(self) -> tuple[float | None, ...]:
        """The threshold of each run: a fixed tau, or ``None`` for OGC."""
        return (*self.taus, None)


@dataclass(frozen=True)
class Task:
    inputs: Tensor  # (N, 2)
    given: Tensor
    wrong: Tensor  # (N,) bool: where the given label is not the true one
    test_inputs: Tensor
    test_labels: Tensor


def task_of(settings: Settings) -> Task:
    generator = torch.Generator().manual_seed(settings.seed)
    inputs, labels = moons(settings.samples, settings.spread, generator)
    given = torch.from_numpy(symmetric(labels.numpy(), settings.noise_rate, num_classes=2, seed=settings.seed))
    return Task(inputs, given, given != labels, *moons(TEST_SAMPLES, settings.spread, generator))


def moons(samples: int, spread: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw points from two interleaved half circles in turn, with their labels: -> (N, 2), (N,)."""
    labels = torch.arange(samples) % 2
    angle = math.pi * torch.rand(samples, generator=generator)
    upper, side = 1 - 2 * labels, labels
    points = torch.stack([upper * angle.cos() + side, upper * angle.sin() + 0.5 * side], 1)
    return points + spread * torch.randn(samples, 2, generator=generator), labels


@dataclass(frozen=True)
class Moment:
    """The state of training after an epoch. Shares are in [0, 1]."""

    epoch: int
    test_accuracy: float
    memorised: float  # share of the wrong labels that the network predicts
    tau: float | None  # None where nothing is clipped
    noisy_clipped: float  # share of the samples with a wrong label whose gradient exceeds tau
    clean_clipped: float


@dataclass(frozen=True)
class Snapshot:
    moment: Moment
    H: Tensor  # (N,) of the training set; the gradient of CE with respect to p is e^H
    plane: Tensor  # (PIXELS, PIXELS) probability of the second class, from the lower left corner


@dataclass(frozen=True)
class History:
    """One training run; ``threshold`` is the fixed tau, ``None`` with OGC."""

    threshold: float | None
    moments: list[Moment]
    snapshots: list[Snapshot]
    seconds: float

    @property
    def name(self) -> str:
        return name_of(self.threshold)


def name_of(threshold: float | None) -> str:
    return "CE+OGC" if threshold is None else f"tau = {threshold:g}"


@one_thread()
def train(
    threshold: float | None, settings: Settings, task: Task, progress: Callable[[Moment], None] = lambda moment: None
) -> History:
    """Train with a fixed threshold, or with OGC. All runs have the same initial weights and batches."""
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)
        model = mlp(2, 2, hidden=settings.hidden)
    batches = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    criterion: nn.Module = (
        OGC("ce", optimizer, epsilon0=settings.epsilon0, every=settings.every, queue_size=settings.queue_size)
        if threshold is None
        else losses.PHuberCE(tau=threshold)
    )
    moments, snapshots = [], []
    for epoch in range(1, settings.epochs[-1] + 1):
        order = torch.randperm(len(task.inputs), generator=batches)
        for batch in torch.split(order, settings.batch_size):
            loss = criterion(model(task.inputs[batch]), task.given[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % settings.look_every == 0 or epoch in settings.epochs:
            snapshot = evaluate(model, tau_of(criterion), task, epoch, with_plane=epoch in settings.epochs)
            moments.append(snapshot.moment)
            snapshots += [snapshot] if epoch in settings.epochs else []
            progress(snapshot.moment)
    return History(threshold, moments, snapshots, time.perf_counter() - began)


def tau_of(criterion: nn.Module) -> float | None:
    if isinstance(criterion, OGC):
        return float(criterion.tau) if float(criterion.p0) > P_MIN else None
    return criterion.tau if isinstance(criterion, losses.PHuberCE) else None


@torch.no_grad()
def evaluate(model: nn.Module, tau: float | None, task: Task, epoch: int, *, with_plane: bool) -> Snapshot:
    logits = model(task.inputs)
    H = F.cross_entropy(logits, task.given, reduction="none")
    clipped = H > (math.inf if tau is None else math.log(tau))
    moment = Moment(
        epoch=epoch,
        test_accuracy=_share(model(task.test_inputs).argmax(1) == task.test_labels),
        memorised=_share((logits.argmax(1) == task.given)[task.wrong]),
        tau=tau,
        noisy_clipped=_share(clipped[task.wrong]),
        clean_clipped=_share(clipped[~task.wrong]),
    )
    return Snapshot(moment, H, model(_plane()).softmax(1)[:, 1].view(PIXELS, PIXELS) if with_plane else H.new_empty(0))


def _share(hits: Tensor) -> float:
    return hits.double().mean().item()


def _plane() -> Tensor:
    across, up = (torch.linspace(low, high, PIXELS) for low, high in PLANE)
    return torch.cartesian_prod(up, across).flip(1)


def numbers(histories: Sequence[History], settings: Settings, task: Task) -> dict[str, Any]:
    """Return the numbers behind the figure with their provenance, for JSON. The planes follow from the settings.

    ``last`` is described in :func:`final_means`.
    """
    return {
        "settings": asdict(settings),
        "provenance": {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": _provenance.commit(),
            "device": f"{_provenance.device_name(torch.device('cpu'))}, one thread",
            "torch": version("torch"),
            "python": platform.python_version(),
            "ogc": __version__,
        },
        "labels_sha256": hashlib.sha256(task.given.numpy().tobytes()).hexdigest(),
        "across": [round(x, 4) for x in task.inputs[:, 0].tolist()],
        "up": [round(x, 4) for x in task.inputs[:, 1].tolist()],
        "given": task.given.tolist(),
        "wrong": task.wrong.int().tolist(),
        "runs": [
            {
                "method": history.name,
                "seconds": round(history.seconds, 2),
                "last": final_means(history),
                "moments": columns(history),
                "H": {str(s.moment.epoch): [round(H, 4) for H in s.H.tolist()] for s in history.snapshots},
            }
            for history in histories
        ],
    }


def final_means(history: History) -> dict[str, Any]:
    """Average the last ten evaluations, because single ones fluctuate."""
    return {name: _mean(values[-EVALUATIONS:]) for name, values in columns(history).items() if name != "epoch"}


def columns(history: History) -> dict[str, list[Any]]:
    def column(name: str) -> list[Any]:
        found = [getattr(moment, name) for moment in history.moments]
        return [round(value, 5) if isinstance(value, float) else value for value in found]

    return {field.name: column(field.name) for field in fields(Moment)}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.fmean(known), 5) if known else None
