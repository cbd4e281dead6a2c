"""The part of ``cluster.py`` that runs on the nodes: workers and the jobs they receive."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import __version__
from .._files import first_line
from ..data import Loaded
from ..noise import LabelInfo
from ..training import Job, Recipe, Source
from ..training.method import own_loss
from ..training.own_loss import OwnLoss
from ..training.run_folder import RESULT, read_description
from ..training.session import pick_device, resolve
from .batch import BatchOutcome, Outcome, train_batch
from .lock import Lock

TIMEOUT = 60.0  # seconds


class RemoteJob(NamedTuple):
    """A job without its images, which are sent once per data set."""

    recipe: Recipe
    source: Source | None
    given: Tensor
    true: Tensor | None
    info: LabelInfo | None
    out: Path
    custom: tuple[OwnLoss, bytes] | None  # the file of a custom loss, which the node may not have

    @classmethod
    def of(cls, job: Job) -> RemoteJob:
        assert job.out is not None
        loss, train = own_loss(job.recipe.method), job.data[0]
        custom = None if loss is None else (loss, loss.content())
        return cls(job.recipe, job.source, train.given, train.true, job.info, job.out, custom)

    def job(self, images: Loaded, device: torch.device) -> Job:
        if self.custom is not None:
            loss, content = self.custom
            loss.allow(content)
        train, sets = images
        labelled = replace(train, given=self.given, true=self.true), sets
        return Job(self.recipe, self.source, labelled, self.info, self.folder(device))

    def folder(self, device: torch.device) -> Path:
        """Return the job's folder; a subfolder if its checkpoint has another precision, which cannot be resumed."""
        precision = resolve(self.recipe, device).precision
        with suppress(FileNotFoundError):
            if read_description(self.out).recipe.precision != precision:
                return self.out / precision
        return self.out


class Worker:
    """A Ray actor that trains one batch at a time."""

    def describe(self) -> tuple[int, str, str]:
        """Return the process id, the host and the version of ogc."""
        return os.getpid(), platform.node(), __version__

    def train(
        self, images: Loaded, remote_jobs: list[RemoteJob], *, device: str, seconds: float | None, save_every: float
    ) -> BatchOutcome | str:
        """Train a batch for at most ``seconds``. Return an error message if this node cannot train at all."""
        from rich.console import Console

        console = Console(width=200, highlight=False)  # Ray forwards the output to the driver
        deadline = None if seconds is None else time.monotonic() + seconds
        locks = []
        try:
            chosen = pick_device(device)
            for each in remote_jobs:  # the workers of a driver that was killed live on for a while
                lock = Lock.take(each.out.with_name(f"{each.out.name}.worker.lock"), wait=TIMEOUT)
                if lock is None:
                    console.print(f"A worker of another driver trains {each.out}.", markup=False, soft_wrap=True)
                    return BatchOutcome([Outcome()] * len(remote_jobs))
                locks.append(lock)
            jobs = [each.job(images, chosen) for each in remote_jobs]
            return train_batch(jobs, device=device, console=console, deadline=deadline, save_every=save_every)
        except Exception as error:  # train_batch returns the errors of runs, so this one is the node's
            return f"{type(error).__name__} on {platform.node()}: {first_line(error)}"
        finally:
            for lock in locks:
                lock.release()

    def remove_finished(self, folders: list[Path]) -> None:
        """Remove the folders of finished runs from this node's file system."""
        for folder in folders:
            if any(folder.rglob(RESULT)):
                shutil.rmtree(folder, ignore_errors=True)


def terminate(pid: int) -> None:
    """Ask a worker on this node to save and stop."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
