"""One training run of the demo: digits with wrong labels, a small network, the loop, and its history."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import OGC, losses
from .._require import require
from .._threads import one_thread
from ..clipping.mixture import Mixture
from ..data import load_digits
from ..models import mlp
from ..noise import by_matrix
from ..plot import record_of

METHODS: dict[str, Callable[[torch.optim.Optimizer], nn.Module]] = {
    "CE": lambda optimizer: losses.CrossEntropy(),
    "CE+OGC": lambda optimizer: OGC("ce", optimizer),
}


@dataclass(frozen=True)
class Settings:
    """Settings of the demo, the same for both methods. A seed determines noise, initial weights and batches."""

    seeds: tuple[int, ...] = (0,)
    epochs: int = 120
    noise_rate: float = 0.5
    hidden: tuple[int, ...] = (512, 512)
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        require(bool(self.seeds), "seeds", "at least one number", self.seeds)
        require(all(0 <= seed < 2**32 for seed in self.seeds), "seeds", "in [0, 2**32)", self.seeds)
        require(self.epochs >= 1, "epochs", "at least 1", self.epochs)

    @property
    def milestones(self) -> list[int]:
        """Epochs after which the learning rate is divided by ten: one third and two thirds of the training."""
        return [max(1, round(self.epochs * third / 3)) for third in (1, 2)]


@dataclass(frozen=True)
class Task:
    """Training digits, some with a wrong given label, and clean test digits."""

    inputs: Tensor
    given: Tensor
    wrong: Tensor  # (N,) bool: where the given label is not the true one
    test_inputs: Tensor
    test_labels: Tensor


def noisy_digits(rate: float, seed: int) -> Task:
    train, sets = load_digits()
    test = sets["test"]
    others = rate / (train.num_classes - 1)
    matrix = torch.full((train.num_classes,) * 2, others, dtype=torch.float64).fill_diagonal_(1 - rate)
    given = torch.from_numpy(by_matrix(train.given.numpy(), matrix.numpy(), seed=seed))
    inputs, test_inputs = (part.inputs[torch.arange(len(part))] for part in (train, test))
    return Task(inputs, given, given != train.given, test_inputs, test.given)


@dataclass(frozen=True)
class Epoch:
    """State after an epoch. Fields are ``None`` if nothing is clipped, or before the first fit."""

    test_accuracy: float
    memorised: float  # share of the wrong labels that the network predicts
    tau: float | None = None
    p0: float | None = None
    noisy_weight: float | None = None  # share of recent samples in the noisy normal


@dataclass(frozen=True)
class History:
    """One training run."""

    method: str
    seed: int
    epochs: list[Epoch]
    true_noise: float
    labels_sha256: str
    seconds: float
    H: Tensor  # (N,) cross entropies of the training set at the end
    wrong: Tensor  # (N,) bool
    mixture: Mixture | None  # the last fit

    @property
    def last(self) -> Epoch:
        return self.epochs[-1]

    @property
    def best_accuracy(self) -> float:
        return max(epoch.test_accuracy for epoch in self.epochs)


@one_thread()
def run(
    method: str,
    seed: int = 0,
    settings: Settings = Settings(),  # noqa: B008
    after_epoch: Callable[[int, Epoch], None] = lambda number, epoch: None,
) -> History:
    """Train once. Both methods start from the same weights and see the same batches."""
    require(method in METHODS, "method", f"one of {', '.join(METHODS)}", method)
    began = time.perf_counter()
    task = noisy_digits(settings.noise_rate, seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = mlp(task.inputs.shape[1], 10, hidden=settings.hidden)
    batches = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, settings.milestones, gamma=0.1)
    criterion = METHODS[method](optimizer)

    epochs = []
    for number in range(1, settings.epochs + 1):
        for batch in shuffled(len(task.inputs), settings.batch_size, batches):
            loss = criterion(model(task.inputs[batch]), task.given[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        epochs.append(look(model, criterion, task))
        after_epoch(number, epochs[-1])

    with torch.no_grad():
        H = F.cross_entropy(model(task.inputs), task.given, reduction="none")
    return History(
        method=method,
        seed=seed,
        epochs=epochs,
        true_noise=task.wrong.double().mean().item(),
        labels_sha256=hashlib.sha256(task.given.numpy().tobytes()).hexdigest(),
        seconds=time.perf_counter() - began,
        H=H,
        wrong=task.wrong,
        mixture=last_fit(criterion),
    )


def shuffled(samples: int, batch_size: int, generator: torch.Generator) -> Sequence[Tensor]:
    """Shuffle the indices of an epoch into batches. The last one may be smaller."""
    return torch.randperm(samples, generator=generator).split(batch_size)  # type: ignore[no-any-return, no-untyped-call]


@torch.no_grad()
def look(model: nn.Module, criterion: nn.Module, task: Task) -> Epoch:
    """Evaluate the model and read the state of the criterion."""
    hit = model(task.test_inputs).argmax(1) == task.test_labels
    memorised = (model(task.inputs).argmax(1) == task.given)[task.wrong]
    accuracy, share = hit.double().mean().item(), memorised.double().mean().item()
    if not isinstance(criterion, OGC):
        return Epoch(accuracy, share)
    now = record_of(criterion)
    if now.mixture is None:
        return Epoch(accuracy, share)
    return Epoch(accuracy, share, now.tau if now.clips else None, now.p0, now.noisy_weight)


def last_fit(criterion: nn.Module) -> Mixture | None:
    """Return the two normals, or ``None`` without a fit."""
    if not isinstance(criterion, OGC) or math.isnan(criterion.mixture.noisy_weight):
        return None
    return criterion.mixture
