"""Train the runs of a comparison on a Ray cluster, with the driver and the workers of ``ogc bench run --engine ray``.

The nodes read and write the folder of the comparison, so they share a file system with this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .benchmark import cluster
from .benchmark.batch import Outcome
from .benchmark.data import Data
from .benchmark.plan import Cell
from .benchmark.run import Claim, RunQueue
from .benchmark.task import Task
from .training.recipe import Recipe
from .training.run import Job
from .training.run_folder import RESULT, is_finished, read_part
from .training.stopping import Interrupted

if TYPE_CHECKING:
    from rich.console import Console


def train(
    jobs: Sequence[Job], *, device: str, side_by_side: int, address: str | None, console: Console
) -> list[dict[str, Any]]:
    """Train what is missing, like :func:`ogc.training.train` with ``resume``, and return the results."""
    jobs = [job._replace(out=job.out.absolute()) for job in jobs if job.out is not None]
    tasks = [JobTask(Cell(job.recipe.name, job.recipe.method, job.recipe.noise), job.recipe.seed, job) for job in jobs]
    folders = [task.folder for task in tasks]
    queue = cluster.run(
        tasks,
        data=JobData(None),
        out=folders[0].parent,
        console=console,
        device=device,
        side_by_side=side_by_side,
        address=address,
        queue=JobQueue,
    )
    if queue.signal is not None:
        left = {task.folder: task.recipe.method for task in tasks if not is_finished(task.folder)}
        raise Interrupted(queue.signal, left, from_python=any(job.source is None for job in jobs))
    for error in queue.failed.values():
        raise RunFailed(error)
    return [read_part(folder / RESULT) for folder in folders]


class RunFailed(RuntimeError):  # noqa: N818, the name describes the state
    """Raised if a run failed on the cluster."""


@dataclass(frozen=True)
class JobTask(Task):
    """A run of a comparison. It has a folder of its own, which remains when it is finished."""

    job: Job

    @cached_property
    def recipe(self) -> Recipe:
        return self.job.recipe

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def folder(self) -> Path:
        assert self.job.out is not None
        return self.job.out


class JobData(Data):
    """The data that all runs of a comparison share, which their jobs hold."""

    def get(self, tasks: Sequence[Task], **options: Any) -> None:
        """Do nothing: the data is loaded."""

    def job(self, task: Task, out: Path) -> Job:
        assert isinstance(task, JobTask)
        return task.job


class JobQueue(RunQueue):
    """A queue of runs whose results stay in their folders."""

    def _has_result(self, task: Task) -> bool:
        assert isinstance(task, JobTask)
        return is_finished(task.folder)

    def finish(self, claim: Claim, outcome: Outcome) -> None:
        name = claim.task.name
        if self._has_result(claim.task):
            self.print(f"{name} is finished.")
            self.release(claim)
            return
        if outcome.result is not None:
            outcome = Outcome(
                error=f"{name} was trained on a node that does not share {self.out} with this machine. To fix this, "
                "give an --out on a shared file system, or leave --engine ray out."
            )
        super().finish(claim, outcome)

    def release(self, claim: Claim) -> None:
        claim.lock.release()
