"""``ogc bench run``: run whatever is missing from a table. Each run writes one JSON file and resumes if it was stopped.

A run trains in its own folder, ``OUT/.work/NAME``, which holds its checkpoints. When it is finished, its result is
written to ``OUT`` and the folder is removed. Killing the process loses the training since the last checkpoint.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from .._files import remove_leftovers
from ..report.console import say
from ..report.table import clock
from ..training.session import pick_device
from ..training.stopping import stopping
from .batch import SAVE_EVERY, Outcome, train_batch
from .data import Data
from .lock import Lock, holder
from .result import Result, from_training, write
from .status import result_status
from .task import Task, batches, runs_per_device

if TYPE_CHECKING:
    from rich.console import Console


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
    started: float | None = None,
) -> RunQueue:
    """Run the tasks that have no result in ``out``, until ``deadline`` on the monotonic clock at the latest.

    :param side_by_side: number of runs that share a GPU; by the kind of device if not given.
    :param save_every: seconds between checkpoints.
    :param started: start of the process on the monotonic clock. The first batch records it as its start-up time.
    """
    most = runs_per_device(pick_device(device).type, tasks, side_by_side)
    queue = RunQueue(out, console, list(tasks))
    data.get(queue.waiting)
    with queue, stopping(deadline) as stop:
        while not stop and (queue.waiting or queue.recheck()):
            batch = queue.claim(batches(queue.waiting, most)[0])
            if not batch:
                continue
            for task in batch:
                say(console, f"{task.name} ...")
            jobs = [data.job(task, out) for task in batch]
            outcomes = train_batch(
                jobs, device=device, console=console, save_every=save_every, stop=stop, started=started
            )
            started = None
            for task, outcome in zip(batch, outcomes, strict=True):
                queue.finish(task, outcome)
        queue.signal = stop.signal
    return queue


@dataclass
class RunQueue:
    """The waiting tasks, and the outcome of the others. Each task is locked by the process that runs it.

    On exit as a context manager, claimed tasks that are not finished are queued again.
    """

    out: Path
    console: Console
    waiting: list[Task]
    existing: list[Task] = field(default_factory=list)  # had a result before, or got one from another process
    done: list[Task] = field(default_factory=list)  # by this process
    failed: dict[str, str] = field(default_factory=dict)  # name to error message
    elsewhere: dict[str, Task] = field(default_factory=dict)  # locked by another process
    claimed: dict[str, tuple[Task, Lock]] = field(default_factory=dict)  # locked by this process
    signal: int = 0  # that stopped this process

    def __post_init__(self) -> None:
        tasks, self.waiting = self.waiting, []
        for task in tasks:
            if not self._has_result(task):
                self.waiting.append(task)
            elif task.work(self.out).exists() and self._lock(task):  # left by a process that was killed
                self.release(task)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for task, _lock in list(self.claimed.values()):
            self.finish(task, Outcome())

    def claim(self, tasks: Sequence[Task]) -> list[Task]:
        """Lock waiting tasks. Return those that no other process has locked or finished."""
        locked = []
        for task in tasks:
            self.waiting.remove(task)
            if not self._lock(task):
                self.elsewhere[task.name] = task
            elif self._has_result(task):  # from another process, since the last check
                self.release(task)
            else:
                locked.append(task)
        return locked

    def _lock(self, task: Task) -> bool:
        lock = Lock.take(task.lock(self.out))
        if lock is not None:
            self.claimed[task.name] = task, lock
        return lock is not None

    def _has_result(self, task: Task) -> bool:
        status = result_status(task, self.out)
        if status is not None and status.state == "invalid":
            self.failed[task.name] = status.note
        elif status is not None:
            self.existing.append(task)
        return status is not None

    def recheck(self) -> bool:
        """Queue tasks again whose processes have ended without a result. Return True if tasks are waiting."""
        for name, task in list(self.elsewhere.items()):
            if holder(task.lock(self.out)) is None:
                del self.elsewhere[name]
                if not self._has_result(task):
                    self.waiting.append(task)
        return bool(self.waiting)

    def finish(self, task: Task, outcome: Outcome) -> None:
        """Write the result, record the error, or queue the task again. Then release it."""
        if outcome.result is not None:
            assert outcome.session is not None
            result = from_training(task.cell, outcome.result, outcome.session)
            remove_leftovers(self.out, [task.result(self.out).name])
            write(self.out, result)
            self.done.append(task)
            say(self.console, f"{task.name}  {describe(result)}")
        elif outcome.error is not None:
            self.failed[task.name] = outcome.error
        else:
            self.waiting.append(task)
        self.release(task)

    def release(self, task: Task) -> None:
        """Unlock a task, and remove its checkpoints if it has a result."""
        status = result_status(task, self.out)
        if status is not None and status.state == "done":
            shutil.rmtree(task.work(self.out), ignore_errors=True)
        self.claimed.pop(task.name)[1].release()


def describe(result: Result) -> str:
    """Describe a result in one line, by the weights that its recipe reports."""
    prefix = "averaged_" if result.reports_average else ""
    last, best = (result.summary.get(f"{prefix}{name}") for name in ("last", "best"))
    time = clock(result.wall_seconds)
    if isinstance(last, float) and isinstance(best, float):
        return f"{100 * last:.2f} %, best {100 * best:.2f}, {time}"
    return time
