"""The tables' runs over a Ray cluster: a worker a GPU with several runs side by side, or a CPU where a node has none.

The data travel with the tasks, and results with the answers: nodes need ogc, and nothing else. Where they see the same
file system, a run that its node has lost goes on from its last checkpoint, and elsewhere it begins anew. So does one
that comes from a device of another precision.
"""

from __future__ import annotations

import io
import logging
import math
import os
import platform
import shutil
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import __version__
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
from .lock import Lock
from .run import SAVE_EVERY, SIDE_BY_SIDE, Batch, Books, Data, Held, Task, Trained, beside, is_over, train_batch

TRIES = 3  # losses of a worker that end a task, and tasks lost in a row that end a node
POLL = 1.0  # seconds
PATIENCE = 60.0  # seconds: for a cluster to show a node, and for workers to save when we are stopped


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
) -> Books:
    """As :func:`ogc.benchmark.run.run`, on the nodes of the cluster at ``address``; without one, on a Ray of our own.

    :param device: ``auto``: GPUs, and the CPUs of nodes that have none; ``cuda``, ``cpu``: those alone.
    """
    require(device in ("auto", "cuda", "cpu"), "device", "auto, cuda or cpu with engine = ray", device)
    books = Books(out.absolute(), console, list(tasks))
    data.get(books.waiting)
    if books.waiting:
        with stopping() as stop, _connected(address) as ray:
            Crew(ray, books, data, device, side_by_side, deadline, save_every).work(stop)
    return books


def _reach(address: str) -> None:
    """Fail at once where nobody listens: Ray tries for many minutes."""
    host, _, port = address.rpartition(":")
    require(bool(host) and port.isdecimal(), "address", "HOST:PORT of the cluster's head", address)
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(f"No Ray cluster answers at {address}: {error.strerror or error}.") from None


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a worker without a GPU is none of Ray's business
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on any system: listen on the loopback alone
    try:
        import ray
    except ImportError as error:
        raise ImportError('Ray is missing: pip install "torch-ogc[ray]"') from error
    if address is not None:
        _reach(address)
    dashboard = False if address is None else None
    where = address or "local"  # None would join whatever cluster this machine has
    ray.init(address=where, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


class Parcel(NamedTuple):
    """A job without its images."""

    recipe: Recipe
    source: Source | None
    given: Tensor
    true: Tensor | None
    info: LabelInfo | None
    out: Path
    own: tuple[OwnLoss, bytes] | None  # the file of a loss that the node may not have

    @classmethod
    def of(cls, job: Job) -> Parcel:
        assert job.out is not None
        own, train = own_loss(job.recipe.method), job.data[0]
        content = None if own is None else (own, own.content())
        return cls(job.recipe, job.source, train.given, train.true, job.info, job.out, content)

    def job(self, images: Loaded, device: torch.device) -> Job:
        if self.own is not None:
            self.own[0].allow(self.own[1])
        train, sets = images
        labelled = replace(train, given=self.given, true=self.true), sets
        return Job(self.recipe, self.source, labelled, self.info, self.folder(device))

    def folder(self, device: torch.device) -> Path:
        """Within its own, if what is there has another precision than ``auto`` means here: neither could go on."""
        here = resolve(self.recipe, device).precision
        with suppress(FileNotFoundError):
            there = read_description(self.out).recipe.precision
            return self.out if there == here else self.out / here
        return self.out


# --- on the nodes -----------------------------------------------------------------------------------------------------


class Worker:
    """An actor, which trains a batch at a time."""

    def hello(self) -> tuple[int, str, str]:
        return os.getpid(), platform.node(), __version__

    def train(
        self,
        images: Loaded,
        parcels: list[Parcel],
        ears: Any,
        *,
        device: str,
        seconds: float | None,
        save_every: float,
    ) -> Batch | str:
        """As ``train_batch`` does, for so many ``seconds`` at most; or what is wrong here, whatever the runs."""
        from rich.console import Console

        console = Console(file=Voice(ears), width=200, highlight=False)
        deadline = None if seconds is None else time.monotonic() + seconds
        locks = []
        try:
            chosen = pick_device(device)
            for parcel in parcels:  # a driver that was killed has left workers, which Ray ends in its own time
                lock = Lock.take(parcel.out.with_name(f"{parcel.out.name}.worker.lock"), wait=PATIENCE)
                if lock is None:
                    console.print(f"A worker of another driver is at {parcel.out}.", markup=False, soft_wrap=True)
                    return Batch([Trained()] * len(parcels))
                locks.append(lock)
            jobs = [parcel.job(images, chosen) for parcel in parcels]
            return train_batch(jobs, device=device, console=console, deadline=deadline, save_every=save_every)
        except Exception as error:  # what is wrong with a run, train_batch tells
            return f"{type(error).__name__} on {platform.node()}: {first_line(error)}"
        finally:
            for lock in locks:
                lock.release()

    def tidy(self, folders: list[Path]) -> None:
        for folder in folders:
            if any(folder.rglob(RESULT)):
                shutil.rmtree(folder, ignore_errors=True)


class Ears:
    """An actor beside the driver, which is told how it goes."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def hear(self, line: str) -> None:
        self.heard.append(line)

    def tell(self) -> list[str]:
        heard, self.heard = self.heard, []
        return heard


class Voice(io.StringIO):
    """A file, for a console, whose lines the ears hear."""

    def __init__(self, ears: Any) -> None:
        super().__init__()
        self.ears, self.rest = ears, ""

    def write(self, text: str) -> int:
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            self.ears.hear.remote(f"{platform.node()}  {line}")
        return len(text)


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


# --- beside the driver ------------------------------------------------------------------------------------------------


@dataclass
class Hand:
    """A worker, as the driver knows it."""

    actor: Any
    node: str
    kind: str  # cuda or cpu
    pid: int = 0
    host: str = ""
    since: float = field(default_factory=time.monotonic)


class Crew:
    """Workers on all nodes, hired as nodes come and dropped as they go, and the batches in their hands."""

    def __init__(
        self,
        ray: Any,
        books: Books,
        data: Data,
        device: str,
        side_by_side: int | None,
        deadline: float | None,
        save_every: float,
    ) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.ray, self.books, self.data, self.device = ray, books, data, device
        self.most = {kind: beside(kind, side_by_side if kind == "cuda" else None) for kind in SIDE_BY_SIDE}
        self.deadline, self.save_every = deadline, save_every
        self.at: Callable[[str], Any] = lambda node: NodeAffinitySchedulingStrategy(node, soft=False)
        here = ray.get_runtime_context().get_node_id()
        self.ears = ray.remote(Ears).options(num_cpus=0, scheduling_strategy=self.at(here)).remote()
        self.coming: dict[Any, Hand] = {}  # by the answer that is waited for
        self.idle: list[Hand] = []
        self.busy: dict[Any, tuple[Hand, list[Held]]] = {}
        self.unfit: set[str] = set()  # nodes with another version, or where too much has failed
        self.failed: defaultdict[str, set[str | float]] = defaultdict(set)  # by node, since a batch was done there
        self.lost: defaultdict[str, list[Hand]] = defaultdict(list)  # the workers that a task was lost with
        self.images: dict[str, Any] = {}  # by data set, in Ray's store

    def work(self, stop: Stop) -> None:
        lonely, stopped = time.monotonic(), None
        try:
            while True:
                over = bool(stop) or is_over(self.deadline)
                if not over:
                    self.hire()
                    self.hand_out()
                if stop and stopped is None:
                    stopped = time.monotonic()
                    self.halt()
                if not self.busy and (over or not self.books.waiting):
                    break
                if stopped is not None and time.monotonic() - stopped > PATIENCE:
                    break
                waited_for = [*self.busy, *self.coming]
                if waited_for or self.idle:
                    lonely = time.monotonic()
                elif time.monotonic() - lonely > PATIENCE:
                    raise ConnectionError(f"The cluster has no node with a free {self.wanted()}.")
                if not waited_for:
                    time.sleep(POLL)
                for answer in self.ray.wait(waited_for, timeout=POLL)[0] if waited_for else []:
                    self.hear(answer)
                self.listen()
        finally:
            self.books.signal = stop.signal or None
            for _, held in self.busy.values():
                for one in held:
                    self.books.settle(one, Trained())

    def wanted(self) -> str:
        return {"auto": "GPU or CPU", "cuda": "GPU", "cpu": "CPU"}[self.device]

    def hire(self) -> None:
        """A worker for each GPU, or for each CPU of a node without one, while there is work for it."""
        hands = [*self.idle, *self.coming.values(), *(hand for hand, _ in self.busy.values())]
        for node in sorted(self.ray.nodes(), key=lambda node: self.rank(self.kind(node), node["NodeID"])):
            resources, name, kind = node["Resources"], node["NodeID"], self.kind(node)
            if not node["Alive"] or name in self.unfit or (kind == "cpu" and self.device == "cuda"):
                continue
            need = {"num_gpus": 1, "num_cpus": 0} if kind == "cuda" else {"num_cpus": 1}
            places = int(resources.get("GPU" if kind == "cuda" else "CPU", 0))
            places -= sum(hand.node == name for hand in hands)
            free = [self.rank(hand.kind, hand.node) for hand in (*self.idle, *self.coming.values())]
            wanted = len(self.books.waiting) - sum(rank <= self.rank(kind, name) for rank in free)
            for _ in range(min(places, wanted)):
                actor = self.ray.remote(Worker).options(**need, scheduling_strategy=self.at(name)).remote()
                self.coming[actor.hello.remote()] = Hand(actor, name, kind, host=node["NodeManagerHostname"])

    def kind(self, node: dict[str, Any]) -> str:
        return "cuda" if node["Resources"].get("GPU") and self.device != "cpu" else "cpu"

    def rank(self, kind: str, node: str) -> tuple[bool, int]:
        """The lower is hired first, even while the higher are idle: they may not suit."""
        return kind == "cpu", len(self.failed[node])

    def expected(self) -> list[Hand]:
        """Workers that are idle, or will be soon: who has not come by now may be long in coming."""
        late = time.monotonic() - PATIENCE
        return [*self.idle, *(hand for hand in self.coming.values() if hand.since > late)]

    def suits(self, task: Task, hand: Hand) -> bool:
        """Whose time counts has a node to itself; what was lost waits for who is likely to go on with it."""
        beside = [one.task for other, held in self.busy.values() if other.node == hand.node for one in held]
        if beside and any(each.cell.alone for each in (task, *beside)):
            return False
        lost = self.lost[task.name]

        def liked(hand: Hand) -> tuple[bool, bool]:
            return hand.kind == lost[-1].kind, all(hand.node != other.node for other in lost)

        hands = [*self.expected(), *(other for other, _ in self.busy.values())]
        return not lost or liked(hand) == max(map(liked, hands))

    def hand_out(self) -> None:
        """All get some, and what a worker was lost with goes last, and alone."""
        books = self.books
        books.look_again()  # even if nobody is idle: there may be nobody else left to look
        self.idle = [hand for hand in self.idle if hand.node not in self.unfit]
        for hand in list(self.idle):
            fit = [task for task in books.waiting if self.suits(task, hand)]
            fit = [task for task in fit if not self.lost[task.name]] or fit[:1]
            names = {task.name for task in fit}
            rest = [task for task in books.waiting if task.name not in names]
            share = math.ceil(len(fit) / len(self.expected()))
            books.waiting = fit
            held = books.take(min(self.most[hand.kind], share)) if fit else []
            books.waiting += rest
            if not held:
                continue
            self.idle.remove(hand)
            jobs = [self.data.job(one.task, self.books.out) for one in held]
            name = held[0].task.recipe.data
            if name not in self.images:
                self.images[name] = self.ray.put(self.data.loaded[name])
            left = None if self.deadline is None else self.deadline - time.monotonic()
            answer = hand.actor.train.remote(
                self.images[name],
                [Parcel.of(job) for job in jobs],
                self.ears,
                device=hand.kind,
                seconds=left,
                save_every=self.save_every,
            )
            self.busy[answer] = hand, held
            self.books.say(f"{', '.join(one.task.name for one in held)}: to {hand.host}, process {hand.pid}")

    def hear(self, answer: Any) -> None:
        """A worker has come, has done its batch, or is lost."""
        from ray.exceptions import RayError

        hand, held = self.busy.pop(answer) if answer in self.busy else (self.coming.pop(answer), [])
        try:
            said = self.ray.get(answer)
        except RayError as error:
            said = str(error).strip() or type(error).__name__
        if isinstance(said, str):
            with suppress(RayError):  # which an actor that was never made may raise, too
                self.ray.kill(hand.actor)  # it may be out of reach only
            self.drop(hand, held, said.splitlines()[0 if held else -1].strip())
        elif not held:
            self.idle.append(hand)
            hand.pid, hand.host, version = said
            if version != __version__:
                self.books.say(f"{hand.host} is left out: it has ogc {version}, not {__version__}.")
                self.unfit.add(hand.node)
        else:
            self.failed.pop(hand.node, None)
            if not any(trained.trouble for trained in said.trained):  # which may have spoilt its process
                self.idle.append(hand)
            folders = [one.task.work(self.books.out) for one in held]
            for one, trained in zip(held, said.trained, strict=True):
                self.books.settle(one, trained)
            hand.actor.tidy.remote(folders)

    def drop(self, hand: Hand, held: list[Held], why: str) -> None:
        """Its tasks wait again, unless they have been lost too often: perhaps they are what ends workers.

        A node where different ones are lost, or no worker can be made, for want of ogc, say, is left out after as many.
        """
        names, failed = [one.task.name for one in held], self.failed[hand.node]
        for one in held:
            self.lost[one.task.name].append(hand)
            often = len(self.lost[one.task.name]) >= TRIES
            self.books.settle(one, Trained(trouble=f"Lost {TRIES} times with its worker: {why}" if often else None))
        if held:
            self.books.say(f"{hand.host}, process {hand.pid}, is lost: {', '.join(names)}. {why}")
        elif not failed:
            self.books.say(f"{hand.host}: no worker could be started: {why}")
        if not held or own_loss(held[0].task.cell.method) is None:  # a loss of one's own may fail in any way
            failed.add(names[0] if held else hand.since)
        if len(failed) >= TRIES and hand.node not in self.unfit:
            self.books.say(f"{hand.host} is left out after {TRIES} failures.")
            self.unfit.add(hand.node)

    def halt(self) -> None:
        """Ask busy workers to save and stop."""
        for hand, _ in self.busy.values():
            strategy = self.at(hand.node)
            self.ray.remote(end).options(num_cpus=0, scheduling_strategy=strategy).remote(hand.pid)

    def listen(self) -> None:
        with suppress(Exception):  # deaf ears are no reason to stop
            for line in self.ray.get(self.ears.tell.remote(), timeout=POLL):
                self.books.say(line)
