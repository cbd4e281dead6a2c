"""Training on a Ray cluster: one Ray task per batch of runs, on one GPU, or on one CPU if there is no GPU.

Ray schedules the tasks and repeats those that fail or are lost with their node. Data and results are
sent through Ray, so nodes only need ogc. A repeated run resumes from its last checkpoint if the nodes share a file
system. Otherwise it starts again.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from .. import __version__
from .._extras import extra
from .._files import first_line
from .._require import require
from ..data import Loaded
from ..noise import LabelInfo
from ..report.console import say
from ..training import Interrupted, Job, Recipe, Source
from ..training.method import own_loss
from ..training.own_loss import OwnLoss
from ..training.run_folder import RESULT, is_finished, read_part
from ..training.stopping import Stop, stopping
from .batch import SAVE_EVERY, Outcome, train_batch
from .data import Data
from .lock import Lock
from .run import RunQueue
from .task import Task, batches, runs_per_device

if TYPE_CHECKING:
    from rich.console import Console

TRIES = 3  # failures after which a batch is split into its runs, or a run fails
POLL = 1.0  # seconds
TIMEOUT = 60.0  # seconds
DEVICES = {"cuda": "GPU", "cpu": "CPU"}  # names in Ray


def run(
    tasks: Sequence[Task],
    *,
    data: Data,
    out: Path,
    console: Console,
    device: str = "auto",
    side_by_side: int | None = None,
    deadline: float = math.inf,
    save_every: float = SAVE_EVERY,
    address: str | None = None,
) -> RunQueue:
    """Run tasks like :func:`ogc.benchmark.run.run`, on the cluster at ``address``, or on a local Ray without one.

    :param device: ``cuda`` or ``cpu``; ``auto`` is ``cuda`` if the cluster has a GPU.
    """
    queue = RunQueue(out.absolute(), console, list(tasks))
    data.get(queue.waiting)
    if not queue.waiting:
        return queue
    with queue, stopping(deadline) as stop, connected(address) as ray:
        device = _kind(ray, device)
        most = runs_per_device(device, tasks, side_by_side if device == "cuda" else None)
        claimed = {task.work(queue.out): task for task in queue.claim(list(queue.waiting))}
        jobs = [data.job(task, queue.out) for task in claimed.values()]
        alone = any(task.cell.alone for task in tasks)
        for job, outcome in train(ray, jobs, device, most, stop, console, alone=alone, save_every=save_every):
            queue.finish(claimed[_folder(job)], outcome)
        queue.signal = stop.signal
    return queue


def train_jobs(
    jobs: Sequence[Job], *, device: str, side_by_side: int, address: str | None, console: Console
) -> list[dict[str, Any]]:
    """Train what is missing, like :func:`ogc.training.train` with ``resume``, and return the results.

    The results stay in the jobs' folders, so the nodes share a file system with this machine.
    """
    jobs = [job._replace(out=_folder(job).absolute()) for job in jobs]
    left, errors = [job for job in jobs if not is_finished(_folder(job))], []
    if left:
        _folder(left[0]).parent.mkdir(parents=True, exist_ok=True)
        with stopping() as stop, connected(address) as ray:
            device = _kind(ray, device)
            most = side_by_side if device == "cuda" else 1
            for job, outcome in train(ray, left, device, most, stop, console):
                name = _folder(job).name
                if is_finished(_folder(job)):
                    say(console, f"{name} is finished.")
                elif outcome.error is not None:
                    errors.append(outcome.error)
                elif outcome.result is not None:
                    errors.append(
                        f"{name} was trained on a node that does not share {_folder(job).parent} with this machine. To "
                        "fix this, use an --out on a shared file system, or omit --engine ray."
                    )
        if stop:
            methods = {_folder(job): job.recipe.method for job in left if not is_finished(_folder(job))}
            raise Interrupted(stop.signal, methods, from_python=any(job.source is None for job in jobs))
    if errors:
        raise RunFailed(errors[0])
    return [read_part(_folder(job) / RESULT) for job in jobs]


class RunFailed(RuntimeError):  # noqa: N818, the name describes the state
    """Raised if a run failed on the cluster."""


def _folder(job: Job) -> Path:
    assert job.out is not None
    return job.out


def _check_address(address: str) -> None:
    """Fail immediately if nothing listens at the address. Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    require(bool(host) and port.isdecimal(), "address", "HOST:PORT of the cluster's head", address)
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(f"No Ray cluster answers at {address}: {error.strerror or error}.") from None


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect to the cluster at an address, or start a local Ray, and yield the ``ray`` module."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # workers on similar runs print similar lines
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # leave CUDA_VISIBLE_DEVICES of CPU workers alone
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # listen on the loopback only
    with extra("ray", "The engine ray needs Ray", "ray"):
        import ray
    if address is not None:
        _check_address(address)
    dashboard = False if address is None else None
    # an address of None would join any cluster on this machine
    ray.init(address=address or "local", include_dashboard=dashboard, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


def _kind(ray: Any, device: str) -> str:
    """Return ``cuda`` or ``cpu``. Raises ``ConnectionError`` if the cluster has none."""
    require(device in ("auto", *DEVICES), "device", "auto, cuda or cpu with engine = ray", device)
    if device == "auto":
        device = "cuda" if ray.cluster_resources().get("GPU") else "cpu"
    if not ray.cluster_resources().get(DEVICES[device]):
        raise ConnectionError(f"The cluster has no node with a {DEVICES[device]}.")
    return device


def train(
    ray: Any,
    jobs: Sequence[Job],
    device: str,
    most: int,
    stop: Stop,
    console: Console,
    *,
    alone: bool = False,
    save_every: float = SAVE_EVERY,
) -> Iterator[tuple[Job, Outcome]]:
    """Train jobs on the cluster, and yield each with its outcome. Ends early at ``stop``, when the jobs have saved.

    :param most: maximum number of jobs that share a device. Batches are smaller if that uses more devices.
    :param alone: run one batch at a time on the whole cluster, for timed runs.
    """
    from ray.exceptions import RayError, TaskCancelledError

    need = {"num_gpus": 1, "num_cpus": 0} if device == "cuda" else {"num_cpus": 1}
    retries = {"max_retries": TRIES - 1, "retry_exceptions": True}
    train_there = ray.remote(train_remotely).options(**need, **retries, scheduling_strategy="SPREAD")
    devices = int(ray.cluster_resources()[DEVICES[device]])
    waiting = batches(jobs, min(most, math.ceil(len(jobs) / devices)))
    images = {job.recipe.data: job.data for job in jobs}
    stored: dict[str, Any] = {}  # in Ray's object store, by data set
    busy: dict[Any, list[Job]] = {}  # by the reply that is pending
    give_up, last_device = math.inf, time.monotonic()
    while (waiting and not stop) or busy:
        while waiting and not stop and not (alone and busy):
            batch = waiting.pop(0)
            name = batch[0].recipe.data
            if name not in stored:
                stored[name] = ray.put(images[name])
            remote_jobs = [RemoteJob.of(job) for job in batch]
            busy[train_there.remote(stored[name], remote_jobs, device, save_every, __version__)] = batch
        if stop and give_up == math.inf:
            give_up = time.monotonic() + TIMEOUT
            for reply in busy:
                ray.cancel(reply)  # an interrupt: the runs save and stop
        if time.monotonic() > give_up:
            return
        if ray.cluster_resources().get(DEVICES[device]):
            last_device = time.monotonic()
        elif time.monotonic() - last_device > TIMEOUT:  # Ray would wait for a new one forever
            raise ConnectionError(f"The cluster no longer has a node with a {DEVICES[device]}.")
        for reply in ray.wait(list(busy), timeout=POLL)[0] if busy else []:
            batch = busy.pop(reply)
            try:
                outcomes = ray.get(reply)
            except TaskCancelledError:
                outcomes = [Outcome()] * len(batch)
            except RayError as error:
                if stop:
                    continue
                reason = first_line(getattr(error, "cause", None) or error)
                names = ", ".join(_folder(job).name for job in batch)
                say(console, f"{names}: failed {TRIES} times. {reason}")
                if len(batch) > 1:
                    waiting += [[job] for job in batch]
                    continue
                outcomes = [Outcome(error=f"Failed {TRIES} times on the cluster: {reason}")]
            for job, outcome in zip(batch, outcomes, strict=True):
                if outcome == Outcome() and not stop:  # its node was stopped
                    waiting.append([job])
                else:
                    yield job, outcome


# --- on the nodes -----------------------------------------------------------------------------------------------------


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
        loss, train = own_loss(job.recipe.method), job.data[0]
        custom = None if loss is None else (loss, loss.content())
        return cls(job.recipe, job.source, train.given, train.true, job.info, _folder(job), custom)

    def job(self, images: Loaded, out: Path) -> Job:
        if self.custom is not None:
            loss, content = self.custom
            loss.allow(content)
        train, sets = images
        return Job(self.recipe, self.source, (replace(train, given=self.given, true=self.true), sets), self.info, out)


def train_remotely(
    images: Loaded, remote_jobs: list[RemoteJob], device: str, save_every: float, version: str
) -> list[Outcome]:
    """Train a batch on this node, in temporary folders if it does not share a file system with the driver.

    Raises ``RuntimeError`` for an error that is not due to a run, so a retry on another node may succeed.
    """
    from rich.console import Console

    console, here = Console(width=200, highlight=False), platform.node()  # Ray forwards the output to the driver
    names = ", ".join(each.out.name for each in remote_jobs)
    say(console, f"{names}: on {here}, process {os.getpid()}")
    try:
        require(version == __version__, "version", f"{version}, as on the driver", __version__)
        with ExitStack() as stack:
            jobs = []
            for each in remote_jobs:
                shared = each.out.parent.is_dir()
                folder = each.out.parent if shared else Path(stack.enter_context(TemporaryDirectory()))
                # the task of a killed driver may keep running for a while
                lock = Lock.take(folder / f"{each.out.name}.worker.lock", wait=TIMEOUT)
                if lock is None:
                    raise TimeoutError(f"Another driver is training {each.out}.")
                stack.callback(lock.release)
                jobs.append(each.job(images, folder / each.out.name))
            return train_batch(jobs, device=device, console=console, save_every=save_every)
    except Exception as error:  # train_batch returns the errors of runs, so this one is the node's
        raise RuntimeError(f"{type(error).__name__} on {here}: {first_line(error)}") from None
