"""One training run: what it is made of, what it has seen, and the end of an epoch."""

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
from ..models import build
from ..noise import LabelInfo
from .digests import digests
from .evaluate import EvaluationSet, clipping_facts, training_shares
from .feed import Feed
from .feed import check as check_data
from .history import Epoch, summary
from .method import criterion as make_criterion
from .run_folder import NONFINITE
from .survey import LARGEST, Survey, Surveys, points_of

if TYPE_CHECKING:
    from .recipe import Recipe
    from .source import Source


FIRST_IDS = 10  # of the samples there, in the sentence


class Job(NamedTuple):
    """What to train: a recipe, data, and the folder to write to (nothing is written without one)."""

    recipe: Recipe
    source: Source | None
    data: Loaded
    info: LabelInfo | None = None
    out: Path | None = None
    network: nn.Module | None = None  # instead of the recipe's; changed in place


def described(job: Job) -> dict[str, Any]:
    """Recipe and source, as JSON."""
    source = None if job.source is None else job.source.model_dump(mode="json")
    return {"recipe": job.recipe.model_dump(mode="json"), "source": source}


def check(job: Job, processes: int = 1) -> None:
    """Refuse what cannot be trained, before a folder is taken or a network built."""
    recipe, (train, sets) = job.recipe, job.data
    parts = recipe.accumulate * processes
    shape = check_data(train, batch_size=recipe.batch_size, augment=recipe.augment, size=recipe.size, parts=parts)
    for name, part in sets.items():
        same = part.num_classes == train.num_classes
        require(same, name, f"of {train.num_classes} classes, as in training", part.num_classes)
    fits = job.network is not None or recipe.network == "mlp" or len(shape) == 3
    require(fits, "network", f"mlp with features of shape {shape}", recipe.network)


class NonFinite(RuntimeError):  # noqa: N818, what it says is what it is
    """The loss, or the weights, became infinite or NaN.

    :param batch: where: the epoch and the step, from 1, and the ids of the samples.
    """

    def __init__(self, sentence: str, batch: dict[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.batch = batch


@dataclass(frozen=True)
class Snapshot:
    """An epoch's end, as tensors: taking one reads nothing back from the device."""

    epoch: int  # from 1
    losses: Tensor  # (steps,)
    H: Tensor  # (N,)
    predicted: Tensor  # (N,)
    solution: Tensor | None  # OGC's
    hits: dict[str, Tensor]  # by evaluation set
    averaged_hits: dict[str, Tensor]
    weights: Callable[[], dict[str, Tensor]]  # a copy to keep, should this be the best epoch

    def to_host(self, *, wait: bool = True) -> Snapshot:
        """Numbers on the CPU; without ``wait`` they come when the present stream gets there."""

        def home(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: home(part) for name, part in value.items()}
            if not isinstance(value, Tensor):
                return value
            host = torch.empty_like(value, device="cpu", pin_memory=not wait)
            return host.copy_(value, non_blocking=not wait)

        return Snapshot(**{name: home(value) for name, value in vars(self).items()})


class Run:
    """Network, optimizer, loss and books of one run, and where it stands: ``epoch`` epochs and ``step`` steps are done.

    :param number: of the job.
    :param rank: of this process, whose dropout draws random numbers of its own.
    :param like: another run, whose images on the device are shared where they are the same.
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
            batch_size=recipe.batch_size,
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
            network = job.network or build(
                recipe.network, inputs=self.feed.shape, classes=classes, hidden=recipe.hidden
            )
        self.rng = new_rng(device, recipe.seed + (rank << 32))  # for layers that draw in training: dropout
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

        self.id = secrets.token_hex(8)  # in all files of the run, so that no other run's is taken for one of them
        self.epoch = self.step = 0
        self.history: list[Epoch] = []
        self.seconds = 0.0  # of training in this epoch so far
        self.H = torch.full((len(self.train_set),), torch.nan, device=device)
        self.predicted = torch.full((len(self.train_set),), -1, device=device)
        self.losses = torch.zeros(self.feed.steps, device=device)
        parts: dict[str, Survey] = {}  # of the samples whose labels may be wrong
        if recipe.surveys and len(self.train_set) * classes <= LARGEST:
            own = EvaluationSet(self.train_set, self.feed, inputs=self.feed.inputs)
            parts["train"] = Survey(own, self.train_set.given, classes)
            if "val" in self.sets:
                parts["val"] = Survey(self.sets["val"], sets["val"].given, classes)
        self.surveys: Surveys = Surveys(parts, epochs=recipe.epochs, surveys=recipe.surveys)
        asked = {"train": self.train_set, **sets}
        self.digests: dict[str, str] = {}  # of the data as they were read: by them they are known again
        if job.out is not None and rank == 0 and parts:
            self.digests = digests(job.source, {name: asked[name] for name in parts})
        self.best: dict[str, Tensor] | None = None  # weights, until they are written
        self.saved = False  # whether there is a checkpoint
        self.broken: NonFinite | None = None
        self.started = datetime.now(UTC).isoformat(timespec="seconds")

    def state(self) -> dict[str, Tensor]:
        """The network's floating-point weights and buffers, each once: what is averaged."""
        named = (*self.network.named_parameters(), *self.network.named_buffers())
        return {name: value for name, value in named if value.is_floating_point()}

    @property
    def done(self) -> bool:
        return self.epoch >= self.recipe.epochs

    @property
    def finished(self) -> bool:
        """Done, and every epoch recorded: one that broke in its last epoch is not."""
        return len(self.history) >= self.recipe.epochs

    @property
    def steps_done(self) -> int:
        return self.epoch * self.feed.steps + self.step

    def set_lr(self) -> None:
        lr = self.recipe.lr_at(self.epoch, self.step / self.feed.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    @torch.no_grad()
    def watch_batch(self, logits: Tensor, labels: Tensor, index: Tensor) -> None:
        """Keep H and the prediction of each training sample as last seen."""
        self.H[index] = F.cross_entropy(logits.float(), labels, reduction="none")
        self.predicted[index] = logits.argmax(1)

    @torch.no_grad()
    def follow(self) -> None:
        """Move the averaged weights; young averages move faster, so that the initial weights are soon forgotten."""
        if self.average is not None:
            decay = decay_at(self.recipe.average or 0.0, self.steps_done)
            torch._foreach_lerp_(list(self.average.values()), list(self.state().values()), 1 - decay)

    # --- the end of an epoch -----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Evaluate, and note where the epoch that has just been trained ends."""
        raw, averaged = self.state(), self.average
        bits = self.recipe.precision

        def weights() -> dict[str, Tensor]:
            found = {f"network.{name}": value.detach().clone() for name, value in raw.items()}
            return found | {f"averaged.{name}": value.clone() for name, value in (averaged or {}).items()}

        return Snapshot(
            epoch=self.epoch,
            losses=self.losses,
            H=self.H,
            predicted=self.predicted,
            solution=self.criterion.solution if isinstance(self.criterion, OGC) else None,
            hits={name: part.hits(self.network, raw, bits) for name, part in self.sets.items()},
            averaged_hits={}
            if averaged is None
            else {name: part.hits(self.network, averaged, bits) for name, part in self.sets.items()},
            weights=weights,
        )

    def survey(self, weights: Callable[[], Mapping[str, Tensor]], epoch: int) -> None:
        """Ask the network about its training samples, if it is time: after ``epoch`` epochs."""
        if self.surveys.due(epoch):
            self.surveys.ask(self.network, weights(), self.recipe.precision, epoch)

    def books(self) -> dict[str, Tensor]:
        """What was seen of the samples so far."""
        found = {"H": self.H, "predicted": self.predicted, "losses": self.losses}
        return found | {f"survey.{name}": value for name, value in self.surveys.state()}

    def record(self, snapshot: Snapshot, seconds: float) -> Epoch:
        """What the epoch was, from a snapshot on the host. Its losses and its weights have to be finite."""
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
        """What the best epoch is chosen by: the first evaluation set, averaged weights if there are any."""
        return next(iter((epoch.averaged or epoch.accuracy).values()), None)

    def require_finite(self, losses: Tensor, epoch: int, weights: Iterable[Tensor] | None = None) -> None:
        """The losses of an epoch so far, (steps,), on the host, and the weights after them; epochs counted from 1.

        A gradient may be infinite where the loss is not: then the weights are lost, and the next loss tells.
        """
        bad, at = ~losses.isfinite(), len(losses)
        if bool(bad.any()):
            at = int(bad.int().argmax()) + 1
            what = f"The loss is {float(losses[at - 1])} at step {at} of epoch {epoch}"
            # On the CPU weights are looked at as soon as a loss is bad; elsewhere the step before may have lost them.
            batches = [at] if at == 1 or self.device.type == "cpu" else [at, at - 1]
        elif all_finite(self.network.parameters() if weights is None else weights):
            return
        else:
            what, batches = f"The gradient is not finite at step {at} of epoch {epoch}, though the loss is", [at]
            if at == 0:
                what, batches = f"The weights are not finite before epoch {epoch}", []
        order, out = self.feed.plan(epoch - 1).order, self.job.out
        ids = [str(self.train_set.ids[i]) for batch in batches for i in order[batch - 1].tolist()]
        saved = f" The last good checkpoint is in {out}." if self.saved else ""
        whose = "the batch's samples" if len(batches) == 1 else "the samples of this batch, and of the one before"
        rest = f" and {len(ids) - FIRST_IDS} more" + ("" if out is None else f" (all of them in {out / NONFINITE})")
        samples = f"; {whose}: {', '.join(ids[:FIRST_IDS])}{rest if len(ids) > FIRST_IDS else ''}" if ids else ""
        self.broken = NonFinite(
            f"{what} ({self.recipe.method}, seed {self.recipe.seed}).{saved} "
            f"A smaller lr or clip_norm may help{samples}.",
            {"epoch": epoch, "step": at, "samples": ids},
        )
        raise self.broken

    # --- what is written ---------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
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
        seconds = sum(epoch.seconds for epoch in self.history)
        images = len(self.history) * self.feed.steps * self.feed.batch
        return {
            **described(self.job),
            "facts": self.facts(),
            "epochs": [asdict(epoch) for epoch in self.history],
            "summary": summary(self.history, self.recipe.report_epochs),
            "noise_rate": self.surveys.noise_rate(),
            "surveys": [point._asdict() for point in points_of(self.surveys.history)],
            "seconds": seconds,
            "images_per_second": images / max(seconds, 1e-9),
        }


def all_finite(values: Iterable[Tensor]) -> bool:
    """Waits for the device."""
    return bool(torch.stack([value.detach().isfinite().all() for value in values]).all())


@contextmanager
def random_numbers(run: Run) -> Iterator[None]:
    """The run's own, and then those of the caller again."""
    before = get_rng(run.device)
    set_rng(run.device, run.rng)
    try:
        yield
    finally:
        set_rng(run.device, before)


def new_rng(device: torch.device, seed: int) -> Tensor:
    """The state of random numbers at their beginning: those of the CPU, then the device's, in bytes."""
    devices = [torch.device("cpu")] if device.type == "cpu" else [torch.device("cpu"), device]
    return torch.cat([torch.Generator(each).manual_seed(seed).get_state() for each in devices])


def get_rng(device: torch.device) -> Tensor:
    """As :func:`new_rng`, of the random numbers that a network draws now."""
    own = torch.get_rng_state()
    return torch.cat([own, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else own


def set_rng(device: torch.device, state: Tensor) -> None:
    size = torch.get_rng_state().numel()
    torch.set_rng_state(state[:size])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[size:], device)


def decay_at(decay: float, step: int) -> float:
    """The averaged weights' decay after ``step`` steps: about a tenth of the way so far, up to ``decay``."""
    return min(decay, (1 + step) / (10 + step))


def make_optimizer(recipe: Recipe, network: nn.Module) -> torch.optim.Optimizer:
    weights = [value for value in network.parameters() if value.requires_grad]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr=recipe.lr, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        weights,
        lr=recipe.lr,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
    )
