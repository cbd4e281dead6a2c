"""Training a batch of runs side by side: retry runs alone if one fails, and record the session."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..report.progress import Progress
from ..training import CheckpointError, Interrupted, Job, NonFinite, train
from ..training.history import Epoch, Watch
from ..training.method import own_loss
from ..training.run_folder import RESULT, is_finished, read_description, read_part, write_part
from ..training.session import pick_device
from ..training.stopping import Stop, stopping

if TYPE_CHECKING:
    from rich.console import Console

SAVE_EVERY = 120.0  # seconds between checkpoints
SESSION = "bench.json"  # in a run's folder: how long its last session took, and how many runs shared the device


class Outcome(NamedTuple):
    """The outcome of a job: a result with its session, or an error, or neither if it was stopped and can be resumed."""

    result: dict[str, Any] | None = None
    session: dict[str, Any] | None = None
    error: str | None = None


def train_batch(
    jobs: Sequence[Job],
    *,
    device: str,
    console: Console,
    save_every: float = SAVE_EVERY,
    stop: Stop | None = None,
    started: float | None = None,
) -> list[Outcome]:
    """Train jobs side by side from their last checkpoints.

    If a job fails, the unfinished ones are trained again one at a time, so that the failure is attributed to its job.

    :param stop: the caller's request to stop, with its deadline; by default signals are handled here.
    :param started: start of the process on the monotonic clock, if these are its first jobs.
    """
    error: Exception | SystemExit | None = None
    with stopping() if stop is None else nullcontext(stop) as stop:
        if stop:
            return [Outcome()] * len(jobs)
        progress = Progress(console, jobs)
        watch = SessionWatch(progress, jobs, pick_device(device), started)
        try:
            with progress:
                train(jobs, device=device, watch=watch, save_every=save_every, resume=True, stop=stop)
        except Interrupted:
            pass
        except (Exception, SystemExit) as failure:
            custom = any(own_loss(job.recipe.method) for job in jobs)  # a custom loss may raise anything
            if not custom and not isinstance(failure, NonFinite | ValueError):
                raise
            error = failure
        if error is None or len(jobs) == 1:
            return [_outcome(job, None if error is None else _message(error, job)) for job in jobs]
        outcomes = []
        for job in jobs:
            outcome = _outcome(job)
            if outcome.result is None:
                [outcome] = train_batch([job], device=device, console=console, save_every=save_every, stop=stop)
            outcomes.append(outcome)
        return outcomes


def _message(error: BaseException, job: Job) -> str:
    known = isinstance(error, NonFinite | ValueError) and str(error)
    message = str(error) if known else f"{type(error).__name__}: {error}."
    return f"{message} To train again, remove {job.out}." if isinstance(error, CheckpointError) else message


def _outcome(job: Job, error: str | None = None) -> Outcome:
    assert job.out is not None
    if not is_finished(job.out):
        return Outcome(error=error)
    again = f"remove {job.out} to start again"
    try:
        return Outcome(read_part(job.out / RESULT, again=again), read_part(job.out / SESSION, again=again))
    except CheckpointError as unusable:
        return Outcome(error=str(unusable))


class SessionWatch:
    """A watch that records the time and the memory of each run, and how many runs trained at the same time."""

    def __init__(self, watch: Watch, jobs: Sequence[Job], device: torch.device, started: float | None = None) -> None:
        self.watch, self.jobs = watch, jobs
        self.moved, self.said = watch.moved, watch.said
        self.gpu = device if device.type == "cuda" else None
        self.start, self.started = time.monotonic(), started
        self.startup: float | None = None
        self.began_at: dict[int, float] = {}
        self.earlier: dict[int, int] = {}  # epochs of earlier sessions
        self.concurrent: dict[int, int] = {}  # the most runs that trained at the same time
        self.training: set[int] = set()
        if self.gpu is not None:
            torch.cuda.empty_cache()  # memory of an earlier batch
            torch.cuda.reset_peak_memory_stats(self.gpu)

    def began(self, run: int, *, epoch: int, epochs: int, steps: int) -> None:
        now = time.monotonic()
        if epoch < epochs and self.started is not None and self.startup is None:
            self.startup, self.start = now - self.started, now
        self.began_at[run] = now if self.concurrent and not self.training else self.start
        self.earlier[run] = epoch
        self.training |= {run} if epoch < epochs else set()
        self.concurrent |= {each: max(len(self.training), self.concurrent.get(each, 0)) for each in self.training}
        self.watch.began(run, epoch=epoch, epochs=epochs, steps=steps)

    def ended_epoch(self, run: int, epoch: Epoch) -> None:
        self.watch.ended_epoch(run, epoch)
        job = self.jobs[run]
        if epoch.epoch < job.recipe.epochs:
            return
        self.training.discard(run)
        reserved = 0 if self.gpu is None else torch.cuda.max_memory_reserved(self.gpu)
        facts = {
            "seconds": time.monotonic() - self.began_at[run],
            "earlier": self.earlier[run],
            "side_by_side": self.concurrent[run],
            "memory_gib": round(reserved / 2**30, 2) or None,
            "startup_seconds": self.startup,
        }
        assert job.out is not None
        write_part(job.out / SESSION, read_description(job.out).id, facts)
