"""Runs of the tables on a Ray cluster: one Ray task per batch of runs, on one GPU, or on one CPU without any GPU.

Ray schedules the tasks and repeats those that fail or are lost with their node. The data travels with the tasks and
results with the answers, so nodes need nothing but ogc. A repeated run resumes from its last checkpoint if the nodes
share a file system, else it starts again. It also starts again if it moves to a device of another precision.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import __version__
from .._extras import extra
from .._files import first_line
from .._require import require
from ..data import Loaded
from ..noise import LabelInfo
from ..training import Job, Recipe, Source
from ..training.method import own_loss
from ..training.own_loss import OwnLoss
from ..training.run_folder import RESULT, read_description
from ..training.session import pick_device, resolve
from ..training.stopping import Stop, stopping
from .batch import SAVE_EVERY, Outcome, train_batch
from .data import Data
from .lock import Lock
from .run import Claim, RunQueue
from .task import Task, runs_per_device

TRIES = 3  # failures after which a batch is split into its runs, or a run fails
POLL = 1.0  # seconds
TIMEOUT = 60.0  # seconds
DEVICES = {"cuda": "GPU", "cpu": "CPU"}  # names in Ray


def run(
    tasks: Sequence[Task],
    *,
    data: Data,
    out: Path,
    console: Any,
    device: str = "auto",
    side_by_side: int | None = None,
    deadline: float = math.inf,
    save_every: float = SAVE_EVERY,
    address: str | None = None,
    queue: type[RunQueue] = RunQueue,
) -> RunQueue:
    """Run tasks like :func:`ogc.benchmark.run.run`, on the cluster at ``address``, or on a local Ray without one.

    :param device: ``cuda`` or ``cpu``; ``auto`` is ``cuda`` if the cluster has a GPU.
    """
    require(device in ("auto", *DEVICES), "device", "auto, cuda or cpu with engine = ray", device)
    filled = queue(out.absolute(), console, list(tasks))
    data.get(filled.waiting)
    if filled.waiting:
        with stopping() as stop, _connected(address) as ray:
            if device == "auto":
                device = "cuda" if ray.cluster_resources().get("GPU") else "cpu"
            most = runs_per_device(device, side_by_side if device == "cuda" else None)
            Driver(ray, filled, data, device, most, deadline, save_every).work(stop)
    return filled


def _check_address(address: str) -> None:
    """Fail at once if nothing listens at the address, where Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    require(bool(host) and port.isdecimal(), "address", "HOST:PORT of the cluster's head", address)
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(f"No Ray cluster answers at {address}: {error.strerror or error}.") from None


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
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


class Driver:
    """Submit batches while the cluster has devices for them, and collect the outcomes."""

    def __init__(
        self, ray: Any, queue: RunQueue, data: Data, device: str, most: int, deadline: float, save_every: float
    ) -> None:
        self.ray, self.queue, self.data, self.device, self.most = ray, queue, data, device, most
        self.deadline, self.save_every = deadline, save_every
        self.busy: dict[Any, list[Claim]] = {}  # by the reply that is pending
        self.images: dict[str, Any] = {}  # by data set, in Ray's object store
        need = {"num_gpus": 1, "num_cpus": 0} if device == "cuda" else {"num_cpus": 1}
        retries = {"max_retries": TRIES - 1, "retry_exceptions": True}
        self.train = ray.remote(train_remotely).options(**need, **retries, scheduling_strategy="SPREAD")

    def work(self, stop: Stop) -> None:
        last_device, stopped = time.monotonic(), None
        try:
            while True:
                over, devices = bool(stop) or time.monotonic() >= self.deadline, self.devices()
                if devices:
                    last_device = time.monotonic()
                elif time.monotonic() - last_device > TIMEOUT:
                    raise ConnectionError(f"The cluster has no node with a {DEVICES[self.device]}.")
                if not over:
                    self.submit(devices)
                if stop and stopped is None:
                    stopped = time.monotonic()
                    for reply in self.busy:
                        self.ray.cancel(reply)  # an interrupt: the runs save and stop
                if not self.busy and (over or not self.queue.waiting):
                    break
                if stopped is not None and time.monotonic() - stopped > TIMEOUT:
                    break
                if not self.busy:
                    time.sleep(POLL)
                for reply in self.ray.wait(list(self.busy), timeout=POLL)[0] if self.busy else []:
                    self.receive(reply, stop)
        finally:
            self.queue.signal = stop.signal or None
            for claims in self.busy.values():
                for claim in claims:
                    self.queue.finish(claim, Outcome())

    def devices(self) -> int:
        return int(self.ray.cluster_resources().get(DEVICES[self.device], 0))

    def submit(self, devices: int) -> None:
        """Submit as many batches as there are free devices. A timed run has the cluster to itself."""
        queue = self.queue
        queue.recheck()
        while queue.waiting and len(self.busy) < devices:
            running = [claim.task for claims in self.busy.values() for claim in claims]
            if running and any(task.cell.alone for task in (*running, queue.waiting[0])):
                return
            share = math.ceil(len(queue.waiting) / (devices - len(self.busy)))
            if claims := queue.claim(min(self.most, share)):
                self.send(claims)

    def send(self, claims: list[Claim]) -> None:
        jobs = [self.data.job(claim.task, self.queue.out) for claim in claims]
        name = claims[0].task.recipe.data
        if name not in self.images:
            self.images[name] = self.ray.put(jobs[0].data)
        remote_jobs = [RemoteJob.of(job) for job in jobs]
        until = time.time() + self.deadline - time.monotonic()
        reply = self.train.remote(self.images[name], remote_jobs, self.device, until, self.save_every, __version__)
        self.busy[reply] = claims

    def receive(self, reply: Any, stop: Stop) -> None:
        """Record the outcomes of a batch. If it failed, try its runs one at a time, or let them wait."""
        from ray.exceptions import RayError, TaskCancelledError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        claims = self.busy.pop(reply)
        try:
            node, outcomes = self.ray.get(reply)
        except TaskCancelledError:
            node, outcomes = None, [Outcome()] * len(claims)
        except RayError as error:
            reason = first_line(getattr(error, "cause", None) or error)
            over = bool(stop) or time.monotonic() >= self.deadline
            if not over:
                names = ", ".join(claim.task.name for claim in claims)
                self.queue.print(f"{names}: failed {TRIES} times. {reason}")
            if not over and len(claims) > 1:
                for claim in claims:
                    self.send([claim])
                return
            alone = Outcome(error=f"Failed {TRIES} times on the cluster: {reason}")
            node, outcomes = None, [Outcome()] * len(claims) if over else [alone]
        for claim, outcome in zip(claims, outcomes, strict=True):
            self.queue.finish(claim, outcome)
        if node is not None:
            folders = [claim.task.work(self.queue.out) for claim in claims]
            there = NodeAffinitySchedulingStrategy(node, soft=True)
            self.ray.remote(remove_finished).options(num_cpus=0, scheduling_strategy=there).remote(folders)


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


def train_remotely(
    images: Loaded, remote_jobs: list[RemoteJob], device: str, until: float, save_every: float, version: str
) -> tuple[str, list[Outcome]]:
    """Train a batch until a time at most. Return the id of this node and the outcomes.

    Raises ``RuntimeError`` for an error that is not due to a run: another try on another node may succeed.
    """
    import ray
    from rich.console import Console

    console = Console(width=200, highlight=False)  # Ray forwards the output to the driver
    here, node = platform.node(), ray.get_runtime_context().get_node_id()
    names = ", ".join(each.out.name for each in remote_jobs)
    console.print(f"{names}: on {here}, process {os.getpid()}", markup=False, soft_wrap=True)
    deadline = time.monotonic() + until - time.time()  # monotonic clocks differ between machines
    try:
        require(version == __version__, "version", f"{version}, as on the driver", __version__)
        chosen = pick_device(device)
        with ExitStack() as locks:
            for each in remote_jobs:  # the task of a driver that was killed may run on for a while
                lock = Lock.take(each.out.with_name(f"{each.out.name}.worker.lock"), wait=TIMEOUT)
                if lock is None:
                    console.print(f"Another driver is training {each.out}.", markup=False, soft_wrap=True)
                    return node, [Outcome()] * len(remote_jobs)
                locks.callback(lock.release)
            jobs = [each.job(images, chosen) for each in remote_jobs]
            return node, train_batch(jobs, device=device, console=console, deadline=deadline, save_every=save_every)
    except Exception as error:  # train_batch returns the errors of runs, so this one is the node's
        raise RuntimeError(f"{type(error).__name__} on {here}: {first_line(error)}") from None


def remove_finished(folders: list[Path]) -> None:
    """Remove the folders of finished runs from this node's file system."""
    for folder in folders:
        if any(folder.rglob(RESULT)):
            shutil.rmtree(folder, ignore_errors=True)
