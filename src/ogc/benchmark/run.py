"""Runs of the tables: what is missing, as many side by side as serves, resumed after anything, one JSON a run.

Every run trains in a folder of its own, ``OUT/.work/NAME``, where its checkpoints are. When it has come to its end, its
result is written to ``OUT``, and the folder goes. Killing the process at any moment costs what was trained since its
last checkpoint, and no more.
"""

from __future__ import annotations

import math
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from .._files import remove_leftovers
from .._require import require
from ..data import Loaded
from ..data.cifar import CIFAR10, CIFAR100, look_for
from ..data.download import Progress as Transfer
from ..noise import LabelInfo
from ..report.progress import Progress
from ..report.table import clock
from ..training import CheckpointError, Interrupted, Job, NonFinite, Recipe, Source, load, train
from ..training.history import Epoch, Watch
from ..training.method import own_loss
from ..training.run_folder import (
    LAST,
    METRICS,
    RESULT,
    is_finished,
    read_description,
    read_part,
    read_tensors,
    write_part,
)
from ..training.session import pick_device
from ..training.source import Known, check
from ..training.stopping import Stop, stopping
from .lock import Lock, holder
from .plan import Cell
from .result import Result, from_training, path_of, read, write

if TYPE_CHECKING:
    from rich.console import Console

SIDE_BY_SIDE = {"cuda": 4, "cpu": 1}  # 4: the fastest on an H200, of 1, 2, 4, 6 and 8
SAVE_EVERY = 120.0  # seconds, from checkpoint to checkpoint
STARTUP = {"cuda": 40.0, "cpu": 5.0}  # seconds until training begins, where no result has recorded it
UNTOLD = ("average", "precision", "surveys")  # of a recipe: two runs that differ in these alone are one
CIFARS = {"cifar10": CIFAR10, "cifar100": CIFAR100}
SESSION = "bench.json"  # in a run's folder: how long its last session took, and with how many beside it


@dataclass(frozen=True)
class Task:
    """A run: a cell, from a seed."""

    cell: Cell
    seed: int

    @cached_property
    def recipe(self) -> Recipe:
        return self.cell.recipe(self.seed)

    @property
    def name(self) -> str:
        return f"{self.cell.key}-{self.seed}"

    @property
    def kind(self) -> tuple[str, bool, bool]:
        """Tasks of one kind go side by side. A loss of one's own may turn out to be none for the engine."""
        return self.cell.dataset, self.cell.alone, own_loss(self.cell.method) is not None

    def work(self, out: Path) -> Path:
        return out / ".work" / self.name

    def lock(self, out: Path) -> Path:
        return out / ".work" / f"{self.name}.lock"

    def result(self, out: Path) -> Path:
        return path_of(out, self.cell.key, self.seed)


def tasks_of(cells: Iterable[Cell], seeds: Iterable[int], changes: Mapping[str, object] | None = None) -> list[Task]:
    """A task for each run behind the cells, the first seed's first. What is changed is told by the key."""
    cells = [replace(cell, changes={**cell.changes, **(changes or {})}) for cell in cells]
    tasks: dict[str, Task] = {}
    for task in (Task(cell, seed) for seed in seeds for cell in cells):
        if other := differences(tasks.setdefault(task.name, task).recipe, task.recipe):
            raise ValueError(f"Two runs would have one name, {task.name}: {other}.")
    return list(tasks.values())


def differences(one: Recipe, another: Recipe) -> str:
    """What makes them two runs, in words, as far as a result tells; nothing if they are one.

    Not what changes nothing in the results, nor what the device has chosen, nor where the file of a loss lies.
    """

    def told(recipe: Recipe) -> dict[str, object]:
        numbers = {f"parameters.{name}": value for name, value in recipe.parameters.items()}
        rest = {name: value for name, value in recipe if name not in (*UNTOLD, "parameters")}
        rest |= {"average": recipe.average} if recipe.report == "averaged" else {}
        return rest | numbers | {"method": PurePath(recipe.method).name}

    a, b = told(one), told(another)
    names = [name for name in a | b if a.get(name) != b.get(name)]
    return ", ".join(f"{name} is {a.get(name)!r} there, and {b.get(name)!r} here" for name in names)


def batches(tasks: Sequence[Task], most: int) -> list[list[Task]]:
    """Tasks that go side by side: those of one kind, evenly spread over as few batches as it takes."""
    kinds: dict[tuple[str, bool, bool], list[Task]] = {}
    for task in tasks:
        kinds.setdefault(task.kind, []).append(task)
    found = []
    for alike in kinds.values():
        size = 1 if alike[0].cell.alone else math.ceil(len(alike) / math.ceil(len(alike) / most))
        found += [alike[i : i + size] for i in range(0, len(alike), size)]
    return found


# --- where a task stands ----------------------------------------------------------------------------------------------


class Standing(NamedTuple):
    task: Task
    state: Literal["there", "refused", "running", "begun", "missing"]
    note: str = ""
    epochs: int = 0  # that are done


def settled(task: Task, out: Path) -> Standing | None:
    """Where it stands by its result, if there is one."""
    path = task.result(out)
    if not path.exists():
        return None
    try:
        result = read(path)
        if other := differences(result.recipe, task.recipe):  # whatever names may come to
            raise ValueError(f"{path} is of another run: {other}.")
        if result.labels == "other":
            raise ValueError(f"{path} was trained on other labels than those of the tables")
    except ValueError as error:
        return Standing(task, "refused", f"{str(error).rstrip('.')}. Move it away, and the run is done again.")
    return Standing(task, "there", epochs=task.recipe.epochs)


def standing(task: Task, out: Path) -> Standing:
    """As the files tell it."""
    if (stands := settled(task, out)) is not None:
        return stands
    if (who := holder(task.lock(out))) is not None:
        metrics = task.work(out) / METRICS
        return Standing(task, "running", who, metrics.read_bytes().count(b"\n") if metrics.exists() else 0)
    try:
        _, facts = read_tensors(task.work(out) / LAST)
    except FileNotFoundError:  # after a kill there may be metrics, and nothing to go on with
        return Standing(task, "missing")
    except CheckpointError as error:
        return Standing(task, "begun", str(error))
    return Standing(task, "begun", epochs=facts["epoch"])


class Estimate(NamedTuple):
    seconds: float  # of training
    startup: float  # seconds before it
    by: int  # results
    images_per_second: float  # a run
    side_by_side: int


def estimate(
    left: Sequence[Standing], results: Sequence[Result], *, device: str, kind: str = "cpu", side_by_side: int
) -> Estimate | None:
    """Estimate how long runs take, by results of the same device, data and network; ``None`` where one has no such.

    :param kind: of the device, cuda or cpu.
    """
    seconds = 0.0
    used: dict[str, Result] = {}
    for task, *_, epochs in left:
        recipe, beside = task.recipe, 1 if task.cell.alone else side_by_side
        like = [
            result
            for result in results
            if (result.provenance.device, result.recipe.data) == (device, recipe.data)
            and recipe.network in ("auto", result.recipe.network)
        ]
        if not like:
            return None
        nearest = min((result.side_by_side for result in like), key=lambda n: abs(n - beside))
        like = [result for result in like if result.side_by_side == nearest]
        used |= {f"{result.key}-{result.seed}": result for result in like}
        epoch = statistics.median(result.wall_seconds / len(result.epochs) for result in like)
        seconds += (recipe.epochs - epochs) * epoch / nearest
    speed = statistics.median(result.images_per_second for result in used.values())
    startups = [result.startup_seconds for result in results if result.provenance.device == device]
    known = [seconds for seconds in startups if seconds is not None]
    startup = statistics.median(known) if known else STARTUP[kind]
    return Estimate(seconds, startup, len(used), speed, max(result.side_by_side for result in used.values()))


# --- data -------------------------------------------------------------------------------------------------------------


class Data:
    """The data of all runs: files are read once per data set, labels are made once per noise."""

    def __init__(self, folder: Path | None, ilsvrc: Path | None = None) -> None:
        self.folder, self.ilsvrc = folder, ilsvrc
        self.read: Known = {}
        self.loaded: dict[str, Loaded] = {}  # with any of the noises
        self.labelled: dict[tuple[str, str | None, int], tuple[Loaded, LabelInfo | None]] = {}

    def source(self, name: str) -> Source:
        folder = None if name == "digits" else self.folder
        return Source.parse(name, data=folder, ilsvrc=self.ilsvrc if name == "webvision" else None)

    def check(self, tasks: Iterable[Task], *, download: bool = False) -> None:
        """What can be said before anything is read. Raises ``OSError`` that names all that is missing."""
        missing: list[str] = []
        for task in tasks:
            source = self.source(task.recipe.data)
            looks: list[Callable[[], object]] = [partial(check, source, task.recipe)]
            if source.kind in CIFARS and source.path is not None and not download:
                looks.insert(0, partial(look_for, CIFARS[source.kind], source.path))
            for look in looks:
                try:
                    look()
                except OSError as error:
                    missing.append(str(error))
        if missing:
            raise FileNotFoundError(" ".join(dict.fromkeys(missing)))

    def get(self, tasks: Sequence[Task], *, download: bool = False, progress: Transfer | None = None) -> None:
        """Check, and read what the first task needs: if something is missing, nothing has been begun."""
        self.check(tasks, download=download)
        for task in tasks[:1]:
            self.load(task.recipe, download=download, progress=progress)

    def load(
        self, recipe: Recipe, *, download: bool = False, progress: Transfer | None = None
    ) -> tuple[Loaded, LabelInfo | None]:
        """Raises ``OSError`` for files that are missing, or not what they should be."""
        key = recipe.data, recipe.noise, recipe.noise_seed
        if key not in self.labelled:
            try:
                loaded, info = load(
                    self.source(recipe.data), recipe, download=download, progress=progress, known=self.read
                )
            except ValueError as error:
                raise OSError(str(error)) from error
            self.loaded.setdefault(recipe.data, loaded)
            self.labelled[key] = loaded, info
        return self.labelled[key]

    def job(self, task: Task, out: Path) -> Job:
        return Job(task.recipe, self.source(task.recipe.data), *self.load(task.recipe), task.work(out))


# --- a batch ----------------------------------------------------------------------------------------------------------


class Trained(NamedTuple):
    """What became of a job: what ``train`` and the session know of it, or what went wrong, or neither: it goes on."""

    result: dict[str, Any] | None = None
    session: dict[str, Any] | None = None
    trouble: str | None = None


class Batch(NamedTuple):
    trained: list[Trained]
    signal: int | None = None  # that stopped it


def train_batch(
    jobs: Sequence[Job],
    *,
    device: str,
    console: Console,
    deadline: float | None = None,
    save_every: float = SAVE_EVERY,
    stop: Stop | None = None,
    started: float | None = None,
) -> Batch:
    """Train jobs side by side, from their last checkpoints, until ``deadline`` (on the monotonic clock) at most.

    A job that breaks leaves the others alone.

    :param stop: a wish of before training, which has a ``stopping`` of its own.
    :param started: when the process did (on the monotonic clock), if these are its first jobs.
    """
    trouble, stopped = None, None
    try:
        with Progress(console, jobs) as told:
            session = Session(told, jobs, deadline, stop, pick_device(device), started)
            train(jobs, device=device, watch=session, save_every=save_every, resume=True)
    except Interrupted as interrupt:
        stopped = None if session.out_of_time else int(interrupt.signal)
    except (Exception, SystemExit) as error:
        foreign = any(own_loss(job.recipe.method) for job in jobs)  # which may fail in any way
        known = isinstance(error, NonFinite | ValueError)
        if not foreign and not known:
            raise
        trouble = str(error) if known and str(error) else f"{type(error).__name__}: {error}."
        trouble += f" Remove {jobs[0].out} to begin anew." if isinstance(error, CheckpointError) else ""
    if trouble is None or len(jobs) == 1:
        return Batch([_trained(job, trouble) for job in jobs], stopped)
    found: list[Trained] = []  # whose trouble it is shows when each goes on by itself; most have come to their end
    for job in jobs:
        one = Batch([_trained(job)])
        if one.trained[0].result is None and not (stopped or stop):
            one = train_batch(
                [job], device=device, console=console, deadline=deadline, save_every=save_every, stop=stop
            )
        found, stopped = found + one.trained, stopped or one.signal
    return Batch(found, stopped)


def _trained(job: Job, trouble: str | None = None) -> Trained:
    assert job.out is not None
    if not is_finished(job.out):
        return Trained(trouble=trouble)
    fix = f"Remove {job.out} to begin anew."
    try:
        return Trained(read_part(job.out / RESULT, fix=fix), read_part(job.out / SESSION, fix=fix))
    except CheckpointError as error:
        return Trained(trouble=str(error))


class Session:
    """A watch that stops training in time, and notes what a result says of the machine."""

    def __init__(
        self,
        told: Watch,
        jobs: Sequence[Job],
        deadline: float | None,
        stop: Stop | None = None,
        device: torch.device | None = None,
        started: float | None = None,
    ) -> None:
        self.told, self.jobs, self.deadline, self.stop = told, jobs, deadline, stop
        self.gpu = device if device is not None and device.type == "cuda" else None
        self.said, self.out_of_time, self.passed_on = told.said, False, False
        self.start = time.monotonic()
        self.startup = None if started is None else self.start - started
        self.began_at: dict[int, float] = {}
        self.earlier: dict[int, int] = {}  # epochs of earlier sessions
        self.beside: dict[int, int] = {}  # the most runs that went on together
        self.going: set[int] = set()
        if self.gpu is not None:
            torch.cuda.empty_cache()  # what an earlier batch has left
            torch.cuda.reset_peak_memory_stats(self.gpu)

    def began(self, run: int, *, epoch: int, epochs: int, steps: int) -> None:
        self.began_at[run] = time.monotonic() if self.beside and not self.going else self.start
        self.earlier[run] = epoch
        self.going |= {run} if epoch < epochs else set()
        self.beside |= {each: max(len(self.going), self.beside.get(each, 0)) for each in self.going}
        self.told.began(run, epoch=epoch, epochs=epochs, steps=steps)

    def moved(self, run: int, *, epoch: int, step: int, images_per_second: float | None) -> None:
        self.told.moved(run, epoch=epoch, step=step, images_per_second=images_per_second)
        if self.out_of_time or self.passed_on:
            return
        if self.stop:  # noted before training could note it
            self.passed_on = True
            signal.raise_signal(self.stop.signal)
        elif is_over(self.deadline):
            self.out_of_time = True
            signal.raise_signal(signal.SIGTERM)  # which training takes for a wish to save and stop

    def ended_epoch(self, run: int, epoch: Epoch) -> None:
        self.told.ended_epoch(run, epoch)
        job = self.jobs[run]
        if epoch.epoch < job.recipe.epochs:
            return
        self.going.discard(run)
        reserved = 0 if self.gpu is None else torch.cuda.max_memory_reserved(self.gpu)
        facts = {
            "seconds": time.monotonic() - self.began_at[run],
            "earlier": self.earlier[run],
            "side_by_side": self.beside[run],
            "memory_gib": round(reserved / 2**30, 2) or None,
            "startup_seconds": self.startup,
        }
        assert job.out is not None
        write_part(job.out / SESSION, read_description(job.out).id, facts)


# --- the books --------------------------------------------------------------------------------------------------------


class Held(NamedTuple):
    task: Task
    lock: Lock


@dataclass
class Books:
    """Which tasks wait, and what became of the others. Nobody but the process that holds a task works on it."""

    out: Path
    console: Console
    waiting: list[Task]
    there: list[Task] = field(default_factory=list)  # from before, or by another process
    done: list[Task] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # name to sentence
    elsewhere: dict[str, Task] = field(default_factory=dict)  # in another process's hands
    signal: int | None = None  # that stopped us

    def __post_init__(self) -> None:
        tasks, self.waiting = self.waiting, []
        for task in tasks:
            if not self._is_settled(task):
                self.waiting.append(task)
            elif task.work(self.out).exists() and (lock := Lock.take(task.lock(self.out))) is not None:
                self.let_go(Held(task, lock))  # its process was killed before it could tidy up

    def take(self, most: int) -> list[Held]:
        """Up to so many tasks that go together, evenly spread over the batches to come."""
        while self.waiting or self.look_again():
            if held := [one for task in batches(self.waiting, most)[0] if (one := self._hold(task)) is not None]:
                return held
        return []

    def _hold(self, task: Task) -> Held | None:
        self.waiting.remove(task)
        if (lock := Lock.take(task.lock(self.out))) is None:
            self.elsewhere[task.name] = task
            return None
        if self._is_settled(task):  # since we looked
            self.let_go(Held(task, lock))
            return None
        return Held(task, lock)

    def _is_settled(self, task: Task) -> bool:
        stands = settled(task, self.out)
        if stands is not None and stands.state == "refused":
            self.broken[task.name] = stands.note
        elif stands is not None:
            self.there.append(task)
        return stands is not None

    def look_again(self) -> bool:
        """Of the tasks that others held: such a process may be done by now, or dead."""
        for name, task in list(self.elsewhere.items()):
            if holder(task.lock(self.out)) is None:
                del self.elsewhere[name]
                if not self._is_settled(task):
                    self.waiting.append(task)
        return bool(self.waiting)

    def settle(self, held: Held, trained: Trained) -> None:
        """Write the result, or note what went wrong, or leave the task for another time; and let go of it."""
        task = held.task
        if trained.result is not None:
            result = result_of(task, trained)
            remove_leftovers(self.out, [task.result(self.out).name])
            write(self.out, result)
            self.done.append(task)
            self.say(f"{task.name}  {outcome(result)}")
        elif trained.trouble is not None:
            self.broken[task.name] = trained.trouble
        else:
            self.waiting.append(task)
        self.let_go(held)

    def let_go(self, held: Held) -> None:
        stands = settled(held.task, self.out)
        if stands is not None and stands.state == "there":
            shutil.rmtree(held.task.work(self.out), ignore_errors=True)
        held.lock.release()
        with suppress(OSError):  # others may be at work there
            held.lock.path.parent.rmdir()

    def say(self, sentence: str) -> None:
        self.console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def result_of(task: Task, trained: Trained) -> Result:
    """What is recorded of a run: of a loss of one's own, the file's name and checksum, not where it was."""
    assert trained.result is not None
    assert trained.session is not None
    found, session = trained.result, trained.session
    recipe = found["recipe"] | {"method": PurePath(found["recipe"]["method"]).name}
    earlier = sum(epoch["seconds"] for epoch in found["epochs"][: session["earlier"]])
    return from_training(
        task.cell,
        found | {"recipe": recipe},
        wall_seconds=earlier + session["seconds"],
        side_by_side=session["side_by_side"],
        memory_gib=session["memory_gib"],
        startup_seconds=session.get("startup_seconds"),  # which a session of an earlier version did not note
    )


def outcome(result: Result) -> str:
    """Describe a result in one line, by the weights that its recipe reports."""
    prefix = "averaged_" if result.reports_average else ""
    share, best = (result.summary.get(f"{prefix}{name}") for name in ("last", "best"))
    time = clock(result.wall_seconds)
    if isinstance(share, float) and isinstance(best, float):
        return f"{100 * share:.2f} %, best {100 * best:.2f}, {time}"
    return time


def run(
    tasks: Sequence[Task],
    *,
    data: Data,
    out: Path,
    console: Console,
    device: str = "auto",
    side_by_side: int | None = None,
    deadline: float | None = None,
    save_every: float = SAVE_EVERY,
    started: float | None = None,
) -> Books:
    """Do the tasks whose results are not in ``out``, until ``deadline`` (on the monotonic clock) at most.

    :param side_by_side: how many share a GPU; by the kind of device if not given.
    :param save_every: seconds from checkpoint to checkpoint.
    :param started: when the process did, on the monotonic clock; recorded as start-up of the first batch.
    """
    chosen = pick_device(device)
    most = beside(chosen.type, side_by_side)
    books = Books(out, console, list(tasks))
    data.get(books.waiting)
    with stopping() as stop:  # between trainings; each has its own
        while not (stop or books.signal or is_over(deadline)) and (held := books.take(most)):
            try:
                books.say("\n".join(f"{one.task.name} ..." for one in held))
                jobs = [data.job(one.task, out) for one in held]
                if stop:  # while data were read
                    for one in held:
                        books.settle(one, Trained())
                    break
                batch = train_batch(
                    jobs,
                    device=device,
                    console=console,
                    deadline=deadline,
                    save_every=save_every,
                    stop=stop,
                    started=started,
                )
                started = None
                books.signal = batch.signal
                for one, trained in zip(held, batch.trained, strict=True):
                    books.settle(one, trained)
            finally:
                for one in held:
                    one.lock.release()
    books.signal = books.signal or stop.signal or None
    return books


def beside(device: str, wanted: int | None = None) -> int:
    """How many runs go side by side on a kind of device."""
    require(wanted is None or wanted >= 1, "side-by-side", "at least 1", wanted)
    alone = device != "cuda" and (wanted or 1) > 1
    require(not alone, "side-by-side", "1 without a GPU, where runs follow each other", wanted)
    return wanted or SIDE_BY_SIDE[device]


def is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
