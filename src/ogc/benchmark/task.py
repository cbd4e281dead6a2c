"""Tasks: the training runs behind the cells of a table, and how they are grouped into batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import TypeVar

from .._require import require
from ..training import Job, Recipe
from ..training.method import own_loss
from .plan import Cell
from .result import path_of

SIDE_BY_SIDE = {"cuda": 4, "cpu": 1}  # 4 was the fastest on an H200, of 1, 2, 4, 6 and 8
NOT_COMPARED = ("average", "precision", "surveys")  # recipe fields that do not change the reported results


@dataclass(frozen=True)
class Task:
    """One training run: a cell and a seed."""

    cell: Cell
    seed: int

    @cached_property
    def recipe(self) -> Recipe:
        return self.cell.recipe(self.seed)

    @property
    def name(self) -> str:
        return f"{self.cell.key}-{self.seed}"

    def work(self, out: Path) -> Path:
        """Folder of the run's checkpoints."""
        return out / ".work" / self.name

    def lock(self, out: Path) -> Path:
        return out / ".work" / f"{self.name}.lock"

    def result(self, out: Path) -> Path:
        return path_of(out, self.cell.key, self.seed)


def tasks_of(cells: Iterable[Cell], seeds: Iterable[int], changes: Mapping[str, object] | None = None) -> list[Task]:
    """Return one task per run behind the cells, ordered by seed. ``changes`` to recipes are part of the names."""
    cells = [replace(cell, changes={**cell.changes, **(changes or {})}) for cell in cells]
    tasks: dict[str, Task] = {}
    for task in (Task(cell, seed) for seed in seeds for cell in cells):
        if other := differences(tasks.setdefault(task.name, task).recipe, task.recipe):
            raise ValueError(f"Two different runs have the same name, {task.name}: {other}.")
    return list(tasks.values())


def differences(one: Recipe, another: Recipe) -> str:
    """List the settings in which two recipes differ; an empty string if they describe the same run.

    Settings that do not affect the results are ignored, and so is the folder of a custom loss.
    """

    def settings(recipe: Recipe) -> dict[str, object]:
        parameters = {f"parameters.{name}": value for name, value in recipe.parameters.items()}
        fields = {name: value for name, value in recipe if name not in (*NOT_COMPARED, "parameters")}
        fields |= {"average": recipe.average} if recipe.report == "averaged" else {}
        return fields | parameters | {"method": PurePath(recipe.method).name}

    a, b = settings(one), settings(another)
    names = [name for name in a | b if a.get(name) != b.get(name)]
    return ", ".join(f"{name} is {a.get(name)!r} there and {b.get(name)!r} here" for name in names)


Item = TypeVar("Item", Task, Job)


def batches(items: Sequence[Item], most: int) -> list[list[Item]]:
    """Group runs of the same recipe into as few batches as possible, of similar size and at most ``most`` runs.

    Custom losses are kept apart: the engine may not support them.
    """
    kinds: dict[tuple[str, bool], list[Item]] = {}
    for item in items:
        kinds.setdefault((item.recipe.name, own_loss(item.recipe.method) is not None), []).append(item)
    found = []
    for alike in kinds.values():
        size = math.ceil(len(alike) / math.ceil(len(alike) / most))
        found += [alike[i : i + size] for i in range(0, len(alike), size)]
    return found


def runs_per_device(device: str, tasks: Sequence[Task], wanted: int | None = None) -> int:
    """Return how many runs share a device: ``wanted``, or the default for ``cuda`` or ``cpu``. Timed runs do not."""
    require(wanted is None or wanted >= 1, "side-by-side", "at least 1", wanted)
    serial = device != "cuda" and (wanted or 1) > 1
    require(not serial, "side-by-side", "1 without a GPU, where runs are sequential", wanted)
    return 1 if any(task.cell.alone for task in tasks) else wanted or SIDE_BY_SIDE[device]
