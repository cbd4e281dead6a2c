"""Runs of the tables on a Ray cluster: one worker per GPU, or per CPU on nodes without GPUs.

The data travels with the tasks and results with the answers, so nodes need nothing but ogc. A run that is lost with its
node resumes from its last checkpoint if the nodes share a file system, else it starts again. A run also starts again
if it moves to a device of another precision.

Ray's own retries and scheduling are not used. They place a call on any free node, while a run has to avoid the nodes
that it failed on, prefers the kind of device that its checkpoint is from, and may need a node of its own.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__
from .._require import require
from ..training.method import own_loss
from ..training.stopping import Stop, stopping
from .batch import SAVE_EVERY, Outcome, is_past
from .cluster_worker import TIMEOUT, RemoteJob, Worker, terminate
from .data import Data
from .run import Claim, RunQueue
from .task import SIDE_BY_SIDE, Task
from .task import side_by_side as number_side_by_side

TRIES = 3  # failures after which a task fails, or a node is excluded
POLL = 1.0  # seconds


def run(
    tasks: Sequence[Task],
    *,
    data: Data,
    out: Path,
    console: Any,
    device: str = "auto",
    side_by_side: int | None = None,
    deadline: float | None = None,
    save_every: float = SAVE_EVERY,
    address: str | None = None,
    queue: type[RunQueue] = RunQueue,
) -> RunQueue:
    """Run tasks like :func:`ogc.benchmark.run.run`, on the cluster at ``address``, or on a local Ray without one.

    :param device: ``auto``: GPUs, and the CPUs of nodes without GPUs; ``cuda`` or ``cpu``: only those.
    """
    require(device in ("auto", "cuda", "cpu"), "device", "auto, cuda or cpu with engine = ray", device)
    filled = queue(out.absolute(), console, list(tasks))
    data.get(filled.waiting)
    if filled.waiting:
        with stopping() as stop, _connected(address) as ray:
            Driver(ray, filled, data, device, side_by_side, deadline, save_every).work(stop)
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
    try:
        import ray
    except ImportError as error:
        raise ImportError('Ray is missing: pip install "torch-ogc[ray]"') from error
    if address is not None:
        _check_address(address)
    dashboard = False if address is None else None
    where = address or "local"  # None would join any cluster on this machine
    ray.init(address=where, include_dashboard=dashboard, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


@dataclass
class WorkerHandle:
    """A worker as the driver sees it."""

    actor: Any
    node: str
    kind: str  # cuda or cpu
    pid: int = 0
    host: str = ""
    since: float = field(default_factory=time.monotonic)


class Driver:
    """Start workers as nodes join, assign batches to them, and reassign the batches of workers that are lost."""

    def __init__(
        self,
        ray: Any,
        queue: RunQueue,
        data: Data,
        device: str,
        side_by_side: int | None,
        deadline: float | None,
        save_every: float,
    ) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.ray, self.queue, self.data, self.device = ray, queue, data, device
        self.most = {kind: number_side_by_side(kind, side_by_side if kind == "cuda" else None) for kind in SIDE_BY_SIDE}
        self.deadline, self.save_every = deadline, save_every
        self.on: Callable[[str], Any] = lambda node: NodeAffinitySchedulingStrategy(node, soft=False)
        self.starting: dict[Any, WorkerHandle] = {}  # by the reply that is pending
        self.idle: list[WorkerHandle] = []
        self.busy: dict[Any, tuple[WorkerHandle, list[Claim]]] = {}  # by the reply that is pending
        self.excluded: set[str] = set()  # nodes with another version of ogc, or with too many failures
        self.failures: defaultdict[str, set[str | float]] = defaultdict(set)  # by node, since its last success
        self.lost: defaultdict[str, list[WorkerHandle]] = defaultdict(list)  # by task: the workers it was lost with
        self.images: dict[str, Any] = {}  # by data set, in Ray's object store

    def work(self, stop: Stop) -> None:
        last_worker, stopped = time.monotonic(), None
        try:
            while True:
                over = bool(stop) or is_past(self.deadline)
                if not over:
                    self.start_workers()
                    self.assign()
                if stop and stopped is None:
                    stopped = time.monotonic()
                    self.stop_workers()
                if not self.busy and (over or not self.queue.waiting):
                    break
                if stopped is not None and time.monotonic() - stopped > TIMEOUT:
                    break
                pending = [*self.busy, *self.starting]
                if pending or self.idle:
                    last_worker = time.monotonic()
                elif time.monotonic() - last_worker > TIMEOUT:
                    wanted = {"auto": "GPU or CPU", "cuda": "GPU", "cpu": "CPU"}[self.device]
                    raise ConnectionError(f"The cluster has no node with a free {wanted}.")
                if not pending:
                    time.sleep(POLL)
                for reply in self.ray.wait(pending, timeout=POLL)[0] if pending else []:
                    self.receive(reply)
        finally:
            self.queue.signal = stop.signal or None
            for _, claims in self.busy.values():
                for claim in claims:
                    self.queue.finish(claim, Outcome())

    def start_workers(self) -> None:
        """Start one worker per GPU, or per CPU on nodes without GPUs, while tasks are waiting for one."""
        workers = [*self.idle, *self.starting.values(), *(worker for worker, _ in self.busy.values())]
        for node in sorted(self.ray.nodes(), key=lambda node: self.rank(self.kind(node), node["NodeID"])):
            resources, name, kind = node["Resources"], node["NodeID"], self.kind(node)
            if not node["Alive"] or name in self.excluded or (kind == "cpu" and self.device == "cuda"):
                continue
            need = {"num_gpus": 1, "num_cpus": 0} if kind == "cuda" else {"num_cpus": 1}
            places = int(resources.get("GPU" if kind == "cuda" else "CPU", 0))
            places -= sum(worker.node == name for worker in workers)
            free = [self.rank(worker.kind, worker.node) for worker in (*self.idle, *self.starting.values())]
            wanted = len(self.queue.waiting) - sum(rank <= self.rank(kind, name) for rank in free)
            for _ in range(min(places, wanted)):
                actor = self.ray.remote(Worker).options(**need, scheduling_strategy=self.on(name)).remote()
                worker = WorkerHandle(actor, name, kind, host=node["NodeManagerHostname"])
                self.starting[actor.describe.remote()] = worker

    def kind(self, node: dict[str, Any]) -> str:
        return "cuda" if node["Resources"].get("GPU") and self.device != "cpu" else "cpu"

    def rank(self, kind: str, node: str) -> tuple[bool, int]:
        """Return the sort key of a node: GPUs first, then nodes with few failures."""
        return kind == "cpu", len(self.failures[node])

    def available(self) -> list[WorkerHandle]:
        """Return the workers that are idle or about to be. Workers that take long to start are not counted."""
        late = time.monotonic() - TIMEOUT
        return [*self.idle, *(worker for worker in self.starting.values() if worker.since > late)]

    def suits(self, task: Task, worker: WorkerHandle) -> bool:
        """Return True if the worker may train the task now.

        Timed runs get a whole node. A lost task waits for a worker of the same kind on another node, if there is one.
        """
        on_node = [claim.task for other, claims in self.busy.values() if other.node == worker.node for claim in claims]
        if on_node and any(each.cell.alone for each in (task, *on_node)):
            return False
        lost = self.lost[task.name]

        def preference(worker: WorkerHandle) -> tuple[bool, bool]:
            return worker.kind == lost[-1].kind, all(worker.node != other.node for other in lost)

        workers = [*self.available(), *(other for other, _ in self.busy.values())]
        return not lost or preference(worker) == max(map(preference, workers))

    def assign(self) -> None:
        """Give each idle worker its share of the waiting tasks. Tasks that were lost come last, one at a time."""
        queue = self.queue
        queue.recheck()  # even if no worker is idle: no other process may be left to run these tasks
        self.idle = [worker for worker in self.idle if worker.node not in self.excluded]
        for worker in list(self.idle):
            fit = [task for task in queue.waiting if self.suits(task, worker)]
            fit = [task for task in fit if not self.lost[task.name]] or fit[:1]
            names = {task.name for task in fit}
            rest = [task for task in queue.waiting if task.name not in names]
            share = math.ceil(len(fit) / len(self.available()))
            queue.waiting = fit
            claims = queue.claim(min(self.most[worker.kind], share)) if fit else []
            queue.waiting += rest
            if claims:
                self.idle.remove(worker)
                self.busy[self.send(worker, claims)] = worker, claims
                names_sent = ", ".join(claim.task.name for claim in claims)
                queue.print(f"{names_sent}: to {worker.host}, process {worker.pid}")

    def send(self, worker: WorkerHandle, claims: Sequence[Claim]) -> Any:
        """Send a batch to a worker; return the pending reply."""
        jobs = [RemoteJob.of(self.data.job(claim.task, self.queue.out)) for claim in claims]
        name = claims[0].task.recipe.data
        if name not in self.images:
            self.images[name] = self.ray.put(self.data.loaded[name])
        seconds = None if self.deadline is None else self.deadline - time.monotonic()
        options = {"device": worker.kind, "seconds": seconds, "save_every": self.save_every}
        return worker.actor.train.remote(self.images[name], jobs, **options)

    def receive(self, reply: Any) -> None:
        """Handle a reply: a worker has started, has finished its batch, or is lost."""
        from ray.exceptions import RayError

        worker, claims = self.busy.pop(reply) if reply in self.busy else (self.starting.pop(reply), [])
        try:
            answer = self.ray.get(reply)
        except RayError as error:
            answer = str(error).strip() or type(error).__name__
        if isinstance(answer, str):
            with suppress(RayError):  # raised for an actor that was never created
                self.ray.kill(worker.actor)  # it may be alive and only unreachable
            self.fail(worker, claims, answer.splitlines()[0 if claims else -1].strip())
        elif not claims:
            self.idle.append(worker)
            worker.pid, worker.host, version = answer
            if version != __version__:
                self.queue.print(f"{worker.host} is excluded: it has ogc {version}, not {__version__}.")
                self.excluded.add(worker.node)
        else:
            self.failures.pop(worker.node, None)
            if not any(outcome.error for outcome in answer.outcomes):  # a failed run may leave its GPU in a bad state
                self.idle.append(worker)
            folders = [claim.task.work(self.queue.out) for claim in claims]
            for claim, outcome in zip(claims, answer.outcomes, strict=True):
                self.queue.finish(claim, outcome)
            worker.actor.remove_finished.remote(folders)

    def fail(self, worker: WorkerHandle, claims: list[Claim], reason: str) -> None:
        """Put the tasks of a lost worker back into the queue, or fail those that have lost ``TRIES`` workers.

        A node is excluded after ``TRIES`` failures with different tasks, or failures to start a worker.
        """
        names, failures = [claim.task.name for claim in claims], self.failures[worker.node]
        for claim in claims:
            self.lost[claim.task.name].append(worker)
            final = len(self.lost[claim.task.name]) >= TRIES
            self.queue.finish(claim, Outcome(error=f"Lost {TRIES} workers: {reason}" if final else None))
        if claims:
            self.queue.print(f"{worker.host}, process {worker.pid}, is lost: {', '.join(names)}. {reason}")
        elif not failures:
            self.queue.print(f"{worker.host}: no worker could be started: {reason}")
        if not claims or own_loss(claims[0].task.cell.method) is None:  # a custom loss may crash any node
            failures.add(names[0] if claims else worker.since)
        if len(failures) >= TRIES and worker.node not in self.excluded:
            self.queue.print(f"{worker.host} is excluded after {TRIES} failures.")
            self.excluded.add(worker.node)

    def stop_workers(self) -> None:
        """Ask busy workers to save and stop."""
        for worker, _ in self.busy.values():
            self.ray.remote(terminate).options(num_cpus=0, scheduling_strategy=self.on(worker.node)).remote(worker.pid)
