"""One training run: its parts, its state, and the record of each epoch."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import __version__
from .._provenance import commit, device_name
from .._require import require
from ..clipping import OGC
from ..data.dataset import Loaded
from ..models import build_network
from ..noise import LabelInfo
from .digests import digests
from .evaluate import EvaluationSet, clipping_facts, differ_in_size, training_shares
from .feed import Feed
from .feed import check as check_data
from .history import Epoch, summaries, summary
from .method import criterion as make_criterion
from .run_folder import NONFINITE
from .survey import LARGEST, Survey, Surveys, points_of

if TYPE_CHECKING:
    from .recipe import Recipe
    from .source import Source


FIRST_IDS = 10  # ids of samples in an error message


class Job(NamedTuple):
    """A recipe, the data, and the folder to write to. Without a folder nothing is written."""

    recipe: Recipe
    source: Source | None
    data: Loaded
    info: LabelInfo | None = None
    out: Path | None = None
    network: nn.Module | None = None  # replaces the recipe's; trained in place


def described(job: Job) -> dict[str, Any]:
    """Return the recipe and the source for JSON."""
    source = None if job.source is None else job.source.model_dump(mode="json")
    return {"recipe": job.recipe.model_dump(mode="json"), "source": source}


def check(job: Job, processes: int = 1) -> None:
    """Raise ``ValueError`` if the job cannot be trained, before anything is written or built."""
    is_pair = isinstance(job.data, tuple) and len(job.data) == 2 and isinstance(job.data[1], Mapping)
    require(is_pair, "data", 'a training set and the others by name, as in (train, {"test": test})', job.data)
    recipe, (train, sets) = job.recipe, job.data
    parts = recipe.accumulate * processes
    shape = check_data(train, batch_size=recipe.batch, augment=recipe.augment, size=recipe.size, parts=parts)
    for name, part in sets.items():
        same = part.num_classes == train.num_classes
        require(same, f"{name}.num_classes", f"{train.num_classes}, as in training", part.num_classes)
    fits = job.network is not None or recipe.network == "mlp" or len(shape) == 3
    require(fits, "network", f"mlp with features of shape {shape}", recipe.network)


class NonFinite(RuntimeError):  # noqa: N818, the name describes the state
    """Raised if the loss or the weights become infinite or NaN.

    :param batch: the epoch and the step, counted from 1, and the ids of the samples.
    """

    def __init__(self, sentence: str, batch: dict[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.batch = batch


@dataclass(frozen=True)
class Snapshot:
    """The state at the end of an epoch. Taking a snapshot reads nothing back from the device."""

    epoch: int  # from 1
    losses: Tensor  # (steps,)
    H: Tensor  # (N,)
    predicted: Tensor  # (N,)
    solution: Tensor | None  # OGC's
    hits: dict[str, Tensor]  # by evaluation set
    averaged_hits: dict[str, Tensor]
    weights: Callable[[], dict[str, Tensor]]  # copies the weights, in case this is the best epoch

    def to_host(self, *, wait: bool = True) -> Snapshot:
        """Copy to the CPU. Without ``wait`` the copies are valid once the current stream has reached this point."""

        def copied(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: copied(part) for name, part in value.items()}
            if not isinstance(value, Tensor):
                return value
            host = torch.empty_like(value, device="cpu", pin_memory=not wait)
            return host.copy_(value, non_blocking=not wait)

        return Snapshot(**{name: copied(value) for name, value in vars(self).items()})


class Run:
    """Network, optimizer, loss and records of a run. ``epoch`` epochs and ``step`` steps of the next are done.

    :param number: index of the job.
    :param rank: rank of this process. Each rank has its own random numbers for dropout.
    :param like: another run. Its images on the device are shared if they are the same.
    """

    def __init__(
        self, job: Job, *, number: int = 0, device: torch.device, rank: int = 0, like: Run | None = None
    ) -> None:
        self.job, self.number, self.device = job, number, device
        self.recipe = recipe = job.recipe
        self.train_set, sets = job.data
        classes = self.train_set.num_classes
        self.feed: Feed = Feed(
            self.train_set,
            batch_size=recipe.batch,
            augment=recipe.augment,
            size=recipe.size,
            seed=recipe.seed,
            device=device,
            like=None if like is None else like.feed,
        )
        known: dict[str, EvaluationSet] = {} if like is None else like.sets
        self.sets: dict[str, EvaluationSet] = {
            name: EvaluationSet(part, self.feed, known.get(name)) for name, part in sets.items() if len(part)
        }
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(recipe.seed)
            network = job.network or build_network(
                recipe.network, inputs=self.feed.shape, classes=classes, hidden=recipe.hidden
            )
        self.rng = new_rng(device, recipe.seed + (rank << 32))  # for layers such as dropout
        images = len(self.feed.shape) == 3
        self.network: nn.Module = cast(Any, network).to(
            device, memory_format=torch.channels_last if images else torch.preserve_format
        )
        self.network.train()
        self.average: dict[str, Tensor] | None = None
        if recipe.average is not None:
            self.average = {name: value.detach().clone() for name, value in self.state().items()}
        self.optimizer = make_optimizer(recipe, self.network)
        self.criterion = make_criterion(
            recipe,
            classes=classes,
            optimizer=self.optimizer,
            total_steps=recipe.epochs * self.feed.steps * recipe.accumulate,
            samples=self.feed.samples,
        ).to(device)

        self.id = secrets.token_hex(8)  # in all files of the run, to detect those of another run
        self.epoch = self.step = 0
        self.history: list[Epoch] = []
        self.seconds = 0.0  # training time of this epoch so far
        self.H = torch.full((len(self.train_set),), torch.nan, device=device)
        self.predicted = torch.full((len(self.train_set),), -1, device=device)
        self.losses = torch.zeros(self.feed.steps, device=device)
        parts: dict[str, Survey] = {}  # sets whose labels may be wrong
        if recipe.surveys and len(self.train_set) * classes <= LARGEST:
            parts["train"] = Survey(EvaluationSet(self.train_set, self.feed), self.train_set.given, classes)
            if "val" in self.sets:
                parts["val"] = Survey(self.sets["val"], sets["val"].given, classes)
        self.surveys: Surveys = Surveys(parts, epochs=recipe.epochs, surveys=recipe.surveys)
        self.digests: dict[str, str] = {}  # checksums of the data
        if job.out is not None and rank == 0:
            self.digests = digests(job.source, {"train": self.train_set} | sets | {"train": self.train_set})
        self.best: dict[str, Tensor] | None = None  # weights of the best epoch, until they are written
        self.saved = False  # True if there is a checkpoint
        self.events: Any = None  # TensorBoard's SummaryWriter, if enabled
        self.broken: NonFinite | None = None
        self.started = datetime.now(UTC).isoformat(timespec="seconds")

    def state(self) -> dict[str, Tensor]:
        """Return the floating-point weights and buffers of the network, each once. These are averaged."""
        named = (*self.network.named_parameters(), *self.network.named_buffers())
        return {name: value for name, value in named if value.is_floating_point()}

    @property
    def done(self) -> bool:
        return self.epoch >= self.recipe.epochs

    @property
    def finished(self) -> bool:
        """True if every epoch is recorded. A run that broke in its last epoch is done, but not finished."""
        return len(self.history) >= self.recipe.epochs

    def set_lr(self) -> None:
        lr = self.recipe.lr_at(self.epoch, self.step / self.feed.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    @torch.no_grad()
    def record_batch(self, logits: Tensor, labels: Tensor, index: Tensor) -> None:
        """Record H and the prediction of the samples of a batch."""
        self.H[index] = F.cross_entropy(logits.float(), labels, reduction="none")
        self.predicted[index] = logits.argmax(1)

    @torch.no_grad()
    def update_average(self) -> None:
        """Update the averaged weights. Early updates are larger, so that the initial weights lose their influence."""
        if self.average is not None:
            decay = decay_at(self.recipe.average or 0.0, self.epoch * self.feed.steps + self.step)
            torch._foreach_lerp_(list(self.average.values()), list(self.state().values()), 1 - decay)

    # --- the end of an epoch -----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Evaluate the network after an epoch."""
        raw, averaged = self.state(), self.average

        def hits(weights: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: part.hits(self.network, weights, self.recipe.precision) for name, part in self.sets.items()}

        def weights() -> dict[str, Tensor]:
            found = {f"network.{name}": value.detach().clone() for name, value in raw.items()}
            return found | {f"averaged.{name}": value.clone() for name, value in (averaged or {}).items()}

        return Snapshot(
            epoch=self.epoch,
            losses=self.losses,
            H=self.H,
            predicted=self.predicted,
            solution=self.criterion.solution if isinstance(self.criterion, OGC) else None,
            hits=hits(raw),
            averaged_hits={} if averaged is None else hits(averaged),
            weights=weights,
        )

    def survey(self, weights: Callable[[], Mapping[str, Tensor]]) -> None:
        """Survey the training samples if the epoch that has just ended is due for a survey."""
        if self.surveys.due(self.epoch):
            self.surveys.take(self.network, weights(), self.recipe.precision, self.epoch)

    def sample_state(self) -> dict[str, Tensor]:
        """Return what was recorded about the samples so far."""
        found = {"H": self.H, "predicted": self.predicted, "losses": self.losses}
        return found | {f"survey.{name}": value for name, value in self.surveys.state()}

    def true_noise_rate(self) -> float | None:
        """Return the share of wrong labels among those that the noise rate is estimated from; None if unknown.

        If noise was added, the labels found are the true ones.
        """
        sets = {**self.job.data[1], "train": self.train_set}
        surveyed = [sets[name] for name in self.surveys.parts] or [self.train_set]
        added = self.job.info is not None
        known = [part.given if part.true is None and added else part.true for part in surveyed]
        wrong = [part.given != true for part, true in zip(surveyed, known, strict=True) if true is not None]
        return float(torch.cat(wrong).double().mean()) if len(wrong) == len(surveyed) else None

    def recall(self) -> dict[str, dict[str, float]]:
        """Return the share of correct predictions by class, with the averaged weights if there are any.

        Only of evaluation sets whose classes differ in size.
        """
        weights, names = self.average or self.state(), self.train_set.class_names
        found = {}
        for name, part in self.sets.items():
            if differ_in_size(part.labels):
                of_set = part.recall(self.network, weights, self.recipe.precision)
                found[name] = {names[label]: share for label, share in of_set.items()}
        return found

    def record(self, snapshot: Snapshot, seconds: float) -> Epoch:
        """Record an epoch from a snapshot on the CPU. Raises ``NonFinite`` if losses or weights are not finite."""
        weights = snapshot.weights()
        names = (f"network.{name}" for name, _ in self.network.named_parameters())
        self.require_finite(snapshot.losses, snapshot.epoch, [weights[name] for name in names])
        train, images = self.train_set, self.feed.steps * self.feed.batch
        base = self.criterion.base if isinstance(self.criterion, OGC) else None
        epoch = Epoch(
            epoch=snapshot.epoch,
            lr=self.recipe.lr_at(snapshot.epoch - 1, 1 - 1 / self.feed.steps),
            loss=float(snapshot.losses.double().mean()),
            accuracy={name: int(hits) / self.sets[name].samples for name, hits in snapshot.hits.items()},
            averaged={name: int(hits) / self.sets[name].samples for name, hits in snapshot.averaged_hits.items()},
            **cast(Any, training_shares(snapshot.predicted, train.given, train.true)),
            **clipping_facts(base, snapshot.solution, snapshot.H, train.wrong),
            seconds=seconds,
            images_per_second=images / max(seconds, 1e-9),
        )
        score = self.score(epoch)
        if score is not None and all(score > (self.score(before) or 0.0) for before in self.history):
            self.best = weights
        self.history.append(epoch)
        return epoch

    @staticmethod
    def score(epoch: Epoch) -> float | None:
        """Return the accuracy that the best epoch is chosen by: first evaluation set, averaged weights if any."""
        return next(iter((epoch.averaged or epoch.accuracy).values()), None)

    def require_finite(self, losses: Tensor, epoch: int, weights: Iterable[Tensor] | None = None) -> None:
        """Raise ``NonFinite`` unless the losses of an epoch so far, (steps,), and the weights after them are finite.

        A gradient may be infinite while the loss is finite. Then neither the weights nor the next loss are finite.

        :param losses: on the CPU.
        :param epoch: counted from 1.
        """
        bad, at = ~losses.isfinite(), len(losses)
        after = self.network.parameters() if weights is None else weights
        if bool(bad.any()):
            at = int(bad.int().argmax()) + 1
            what = f"The loss is {float(losses[at - 1])} at step {at} of epoch {epoch}"
            # On the CPU weights are checked as soon as a loss is bad; elsewhere the step before may be the cause.
            batches = [at] if at == 1 or self.device.type == "cpu" else [at, at - 1]
        elif bool(torch.stack([value.detach().isfinite().all() for value in after]).all()):
            return
        else:
            what, batches = f"The gradient is not finite at step {at} of epoch {epoch}, though the loss is", [at]
            if at == 0:
                what, batches = f"The weights are not finite before epoch {epoch}", []
        order, out = self.feed.plan(epoch - 1).order, self.job.out
        ids = [str(self.train_set.ids[i]) for batch in batches for i in order[batch - 1].tolist()]
        saved = f" The last good checkpoint is in {out}." if self.saved else ""
        whose = "Samples of the batch" if len(batches) == 1 else "Samples of this batch and the one before"
        rest = f" and {len(ids) - FIRST_IDS} more" + ("" if out is None else f" (all of them in {out / NONFINITE})")
        samples = f" {whose}: {', '.join(ids[:FIRST_IDS])}{rest if len(ids) > FIRST_IDS else ''}." if ids else ""
        self.broken = NonFinite(
            f"{what} ({self.recipe.method}, seed {self.recipe.seed}).{saved} "
            f"A smaller lr or clip_norm may help.{samples}",
            {"epoch": epoch, "step": at, "samples": ids},
        )
        raise self.broken

    # --- files --------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Return what ``run.json`` and ``result.json`` hold about data, network and machine."""
        info = self.job.info
        count = sum(value.numel() for value in self.network.parameters())
        noise = None if info is None else {k: v for k, v in vars(info).items() if k != "confusion"}
        name = self.recipe.network if self.job.network is None else type(self.network).__name__
        given_here = {"data": self.job.source is None, "network": self.job.network is not None}
        return {
            "samples": len(self.train_set),
            "classes": list(self.train_set.class_names),
            "inputs": list(self.feed.shape),
            "batch": self.feed.batch,
            "steps": self.feed.steps,
            "noise": noise,
            "network": f"{name}, {count:,} parameters",
            "from_python": [part for part, given in given_here.items() if given],
            "device": device_name(self.device),
            "versions": {"ogc": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "commit": commit(),
            "started": self.started,
        }

    def result(self) -> dict[str, Any]:
        """Return the content of ``result.json``."""
        seconds = sum(epoch.seconds for epoch in self.history)
        images = len(self.history) * self.feed.steps * self.feed.batch
        last_epochs = self.recipe.report_epochs
        return {
            **described(self.job),
            "facts": self.facts(),
            "epochs": [asdict(epoch) for epoch in self.history],
            "summary": summary(self.history, last_epochs),
            "summaries": summaries(self.history, last_epochs),
            "recall": self.recall() if self.finished else {},
            "noise_rate": self.surveys.noise_rate(),
            "true_noise_rate": self.true_noise_rate(),
            "surveys": [point._asdict() for point in points_of(self.surveys.history)],
            "seconds": seconds,
            "images_per_second": images / max(seconds, 1e-9),
        }


@contextmanager
def random_numbers(run: Run) -> Iterator[None]:
    """Use the run's random numbers, and restore the caller's at the end."""
    with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
        size = torch.get_rng_state().numel()
        torch.set_rng_state(run.rng[:size])
        if run.device.type == "cuda":
            torch.cuda.set_rng_state(run.rng[size:], run.device)
        yield


def new_rng(device: torch.device, seed: int) -> Tensor:
    """Return the initial state of the random generators of the CPU and the device, as bytes."""
    devices = [torch.device("cpu")] if device.type == "cpu" else [torch.device("cpu"), device]
    return torch.cat([torch.Generator(each).manual_seed(seed).get_state() for each in devices])


def get_rng(device: torch.device) -> Tensor:
    """Return the current state of the global random generators, in the format of :func:`new_rng`."""
    own = torch.get_rng_state()
    return torch.cat([own, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else own


def decay_at(decay: float, step: int) -> float:
    """Return the decay of the averaged weights: they span about a tenth of the steps so far, up to ``decay``."""
    return min(decay, (1 + step) / (10 + step))


def make_optimizer(recipe: Recipe, network: nn.Module) -> torch.optim.Optimizer:
    weights = [value for value in network.parameters() if value.requires_grad]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr=recipe.lr, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        weights, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov, weight_decay=recipe.weight_decay
    )
