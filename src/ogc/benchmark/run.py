"""``ogc bench run``: run whatever is missing from a table. Each run writes one JSON file and resumes if it was stopped.

A run trains in its own folder, ``OUT/.work/NAME``, which holds its checkpoints. When it is finished, its result is
written to ``OUT`` and the folder is removed. Killing the process loses the training since the last checkpoint.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .._files import remove_leftovers
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
    most = runs_per_device(pick_device(device).type, side_by_side)
    queue = RunQueue(out, console, list(tasks))
    data.get(queue.waiting)
    with stopping() as stop:
        while not (stop or time.monotonic() >= deadline) and (claims := queue.claim(most)):
            try:
                queue.print("\n".join(f"{claim.task.name} ..." for claim in claims))
                jobs = [data.job(claim.task, out) for claim in claims]
                outcomes = [Outcome()] * len(jobs)
                if not stop:  # no signal arrived while data was read
                    outcomes = train_batch(
                        jobs,
                        device=device,
                        console=console,
                        deadline=deadline,
                        save_every=save_every,
                        stop=stop,
                        started=started,
                    )
                started = None
                for claim, outcome in zip(claims, outcomes, strict=True):
                    queue.finish(claim, outcome)
            finally:
                for claim in claims:
                    claim.lock.release()
    queue.signal = stop.signal or None
    return queue


class Claim(NamedTuple):
    """A task that this process has locked."""

    task: Task
    lock: Lock


@dataclass
class RunQueue:
    """The tasks that wait, and the outcome of the others. Each task is locked by the process that runs it."""

    out: Path
    console: Console
    waiting: list[Task]
    existing: list[Task] = field(default_factory=list)  # had a result before, or got one from another process
    done: list[Task] = field(default_factory=list)  # by this process
    failed: dict[str, str] = field(default_factory=dict)  # name to error message
    elsewhere: dict[str, Task] = field(default_factory=dict)  # locked by another process
    signal: int | None = None  # that stopped this process

    def __post_init__(self) -> None:
        tasks, self.waiting = self.waiting, []
        for task in tasks:
            if not self._has_result(task):
                self.waiting.append(task)
            elif task.work(self.out).exists() and (lock := Lock.take(task.lock(self.out))) is not None:
                self.release(Claim(task, lock))  # left by a process that was killed

    def claim(self, most: int) -> list[Claim]:
        """Lock the next batch, of at most ``most`` tasks. An empty list if no task is left for this process."""
        while self.waiting or self.recheck():
            batch = batches(self.waiting, most)[0]
            if claims := [claim for task in batch if (claim := self._claim(task)) is not None]:
                return claims
        return []

    def _claim(self, task: Task) -> Claim | None:
        self.waiting.remove(task)
        if (lock := Lock.take(task.lock(self.out))) is None:
            self.elsewhere[task.name] = task
            return None
        if self._has_result(task):  # from another process, since the last check
            self.release(Claim(task, lock))
            return None
        return Claim(task, lock)

    def _has_result(self, task: Task) -> bool:
        status = result_status(task, self.out)
        if status is not None and status.state == "invalid":
            self.failed[task.name] = status.note
        elif status is not None:
            self.existing.append(task)
        return status is not None

    def recheck(self) -> bool:
        """Take back tasks whose processes have ended without a result. Return True if tasks are waiting."""
        for name, task in list(self.elsewhere.items()):
            if holder(task.lock(self.out)) is None:
                del self.elsewhere[name]
                if not self._has_result(task):
                    self.waiting.append(task)
        return bool(self.waiting)

    def finish(self, claim: Claim, outcome: Outcome) -> None:
        """Write the result or note the error, else let the task wait again; then release it."""
        task = claim.task
        if outcome.result is not None:
            assert outcome.session is not None
            result = from_training(task.cell, outcome.result, outcome.session)
            remove_leftovers(self.out, [task.result(self.out).name])
            write(self.out, result)
            self.done.append(task)
            self.print(f"{task.name}  {describe(result)}")
        elif outcome.error is not None:
            self.failed[task.name] = outcome.error
        else:
            self.waiting.append(task)
        self.release(claim)

    def release(self, claim: Claim) -> None:
        """Unlock a task, and remove its checkpoints if it has a result."""
        status = result_status(claim.task, self.out)
        if status is not None and status.state == "done":
            shutil.rmtree(claim.task.work(self.out), ignore_errors=True)
        claim.lock.release()

    def print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def describe(result: Result) -> str:
    """Describe a result in one line, by the weights that its recipe reports."""
    prefix = "averaged_" if result.reports_average else ""
    last, best = (result.summary.get(f"{prefix}{name}") for name in ("last", "best"))
    time = clock(result.wall_seconds)
    if isinstance(last, float) and isinstance(best, float):
        return f"{100 * last:.2f} %, best {100 * best:.2f}, {time}"
    return time
