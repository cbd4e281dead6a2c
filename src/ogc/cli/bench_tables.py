"""Tables that ``ogc bench`` prints: the status of all runs before it starts, and the results of a tuning grid."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..report.console import say

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from rich.table import Table

    from ..benchmark.status import Status
    from ..benchmark.task import Task
    from .bench import ExecuteOptions

STATUS = {"done": "done", "invalid": "INVALID", "running": "running", "started": "started", "missing": "to run"}


def trials_note(tasks: Sequence[Task]) -> str:
    """Return a note if the tables leave out some of the runs."""
    from ..benchmark.table import is_shown

    trials = [task for task in tasks if not is_shown(task.recipe, alone=task.cell.alone)]
    which = "These" if len(trials) == len(tasks) else f"{len(trials)} of these"
    return f"{which} are trial runs, which the tables leave out." if trials else ""


def print_dry_run(tasks: Sequence[Task], options: ExecuteOptions, console: Console, note: str) -> None:
    """Print the status of each run, and how long the missing ones would take."""
    from ..benchmark.data import Data
    from ..benchmark.status import status_of
    from ..benchmark.task import runs_per_device
    from ..training.session import pick_device

    device = None if options.engine == "ray" else pick_device(options.device)
    side_by_side = 1 if device is None else runs_per_device(device.type, tasks, options.side_by_side)
    statuses = [status_of(task, options.out) for task in tasks]
    left = [each for each in statuses if each.state in ("started", "missing")]
    console.print(status_table(statuses))
    counts = {state: sum(each.state == state for each in statuses) for state in STATUS}
    parts = [f"{counts['done']} of {len(statuses)} runs are done, {len(left)} missing"]
    parts[0] += f", {side_by_side} side by side." if side_by_side > 1 else "."
    if counts["invalid"]:
        parts.append(f"Invalid results: {counts['invalid']}, see above.")
    if left:
        parts.append(estimated_time(left, options.out, device))
    try:
        Data(options.data, options.ilsvrc).check([each.task for each in left])
    except OSError as error:
        parts.append(str(error))
    say(console, " ".join([*parts, *([note] if note else [])]))


def status_table(statuses: Sequence[Status]) -> Table:
    """Return one row per run. Names are shown in full, because ``--only`` takes them."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("run", overflow="fold")
    shown.add_column("status", overflow="fold", min_width=9)
    for each in statuses:
        part = f", {each.epochs} of {each.task.recipe.epochs} epochs" if each.state in ("started", "running") else ""
        note = f": {each.note}" if each.note else ""
        shown.add_row(Text(each.task.name), Text(f"{STATUS[each.state]}{part}{note}"))
    return shown


def estimated_time(left: Sequence[Status], out: Path, device: torch.device | None) -> str:
    """Estimate the time from results on the same device.

    :param device: ``None`` for a Ray cluster, which a dry run does not contact.
    """
    from .._provenance import device_name
    from .._require import counted
    from ..benchmark.result import read_all
    from ..benchmark.status import estimate
    from ..report.table import clock

    if device is None:
        epochs = sum(each.task.recipe.epochs - each.epochs for each in left)
        return f"{counted(epochs, 'epoch')} left. Time unknown: it depends on the devices of the Ray cluster."
    name, recorded = device_name(device), read_all(out)[0]
    found = estimate(left, recorded, device=name, kind=device.type)
    if found is None:
        return f"Time unknown: {out} has no comparable results on this device, {name}."
    total, startup = clock(found.startup + found.seconds), clock(found.startup)
    basis = f"based on {counted(found.by, 'result')} on {name}"
    return f"Estimated time: {total}, including {startup} of start-up, {basis}."


def grid_table(tasks: Sequence[Task], out: Path, names: list[str]) -> Table:
    """Return one row per point of a tuning grid, with its mean over the noise types once all have results.

    :param names: the parameters of the grid.
    """
    from rich import box
    from rich.table import Table

    from ..benchmark.result import read
    from ..benchmark.status import result_status
    from ..training.method import PAPER

    points: dict[tuple[float, ...], dict[str | None, list[float]]] = {}
    for task in tasks:
        point = tuple(task.recipe.parameters[name] for name in names)
        numbers = points.setdefault(point, {}).setdefault(task.recipe.noise, [])
        status = result_status(task, out)
        if status is not None and status.state == "done":
            value = read(task.result(out)).measured(task.cell.measure)
            numbers += [] if value is None else [value]
    means = {
        point: statistics.fmean(map(statistics.fmean, by_noise.values()))
        for point, by_noise in points.items()
        if all(by_noise.values())
    }
    cell, noises = tasks[0].cell, {task.cell.noise for task in tasks}
    under = f"mean over {len(noises)} noise types" if len(noises) > 1 else cell.noise or "no added noise"
    paper = PAPER[cell.dataset].get(cell.method, {})
    shown = Table(title=f"{cell.method} on {cell.dataset}, {under}", box=box.SIMPLE_HEAD)
    for name in (*names, f"{cell.measure}, %", "runs"):
        shown.add_column(name, justify="right")
    shown.add_column("")
    for point, by_noise in points.items():
        best = point in means and means[point] == max(means.values())
        chosen = all(paper.get(name) == value for name, value in zip(names, point, strict=True))
        number, runs = f"{means[point]:.2f}" if point in means else "-", sum(map(len, by_noise.values()))
        words = [word for word, holds in (("best", best), ("paper", chosen)) if holds]
        shown.add_row(*(f"{value:g}" for value in point), number, str(runs), ", ".join(words), style="bold" * best)
    return shown
