"""The status of each run according to its files, and estimates of how long the missing runs take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ..training import CheckpointError
from ..training.run_folder import LAST, METRICS, checked, read_tensors
from .lock import holder
from .result import Result, read
from .task import Task, differences

STARTUP = {"cuda": 35.0, "cpu": 5.0}  # seconds until training begins, where no result has recorded it


class Status(NamedTuple):
    """The state of a run. ``invalid``: a file with its name exists and is not its result."""

    task: Task
    state: Literal["done", "invalid", "running", "started", "missing"]
    note: str = ""
    epochs: int = 0  # completed


def result_status(task: Task, out: Path) -> Status | None:
    """Return ``done`` or ``invalid`` if the task has a result file, else ``None``."""
    path = task.result(out)
    if not path.exists():
        return None
    try:
        result = read(path)
        if other := differences(result.recipe, task.recipe):  # different runs can have the same name
            raise ValueError(f"{path} belongs to another run: {other}. Move it away to repeat the run.")
        if result.other_draw:
            raise ValueError(
                f"{path} was trained on labels other than those of the tables. Move it away to repeat the run."
            )
    except ValueError as error:
        return Status(task, "invalid", str(error))
    return Status(task, "done", epochs=task.recipe.epochs)


def status_of(task: Task, out: Path) -> Status:
    """Determine the status from the result, the lock and the checkpoint."""
    if (found := result_status(task, out)) is not None:
        return found
    if (process := holder(task.lock(out))) is not None:
        metrics = task.work(out) / METRICS
        return Status(task, "running", process, metrics.read_bytes().count(b"\n") if metrics.exists() else 0)
    path = task.work(out) / LAST
    try:
        _, facts = read_tensors(path)
        with checked(path):
            return Status(task, "started", epochs=int(facts["epoch"]))
    except FileNotFoundError:  # a killed run may have metrics and no checkpoint
        return Status(task, "missing")
    except CheckpointError as error:
        return Status(task, "started", str(error))


class Estimate(NamedTuple):
    """Time for a number of runs, and what it is based on."""

    seconds: float  # of training
    startup: float  # seconds before it
    by: int  # results


def estimate(left: Sequence[Status], results: Sequence[Result], *, device: str, kind: str) -> Estimate | None:
    """Estimate the time from results on the same device, data and network; ``None`` if some run has no such result.

    :param kind: kind of the device, ``cuda`` or ``cpu``.
    """
    here = [result for result in results if result.provenance.device == device]
    seconds, used = 0.0, set[str]()
    for status in left:
        recipe = status.task.recipe
        same_data = [result for result in here if result.recipe.data == recipe.data]
        similar = [result for result in same_data if recipe.network in ("auto", result.recipe.network)]
        if not similar:
            return None
        if status.task.cell.alone:  # runs that share a device are slower, but take less time in total
            similar = [result for result in similar if result.side_by_side == 1] or similar
        used |= {f"{result.key}-{result.seed}" for result in similar}
        epoch = statistics.median(each.wall_seconds / each.side_by_side / len(each.epochs) for each in similar)
        seconds += (recipe.epochs - status.epochs) * epoch
    whole = [result for result in here if result.version >= 3]  # earlier versions recorded a part of the start-up
    startups = [result.startup_seconds for result in whole if result.startup_seconds is not None]
    return Estimate(seconds, statistics.median(startups) if startups else STARTUP[kind], len(used))
