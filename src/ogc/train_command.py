"""What ``ogc train`` does: a plan, checked whole before any work, then data, training, and the report."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ._ending import end, one_sentence
from ._require import require
from .models import check_name
from .noise_command import download_bar
from .training.checkpoint import LAST, METRICS, REPORT, RESULT, RUN, CheckpointError
from .training.progress import Progress
from .training.recipe import Recipe, by_name, from_toml, override
from .training.report import write_report
from .training.run import Job, NonFinite
from .training.session import jobs_of, pick_device, train
from .training.source import OPTIONS, Source, check, load
from .training.table import table

if TYPE_CHECKING:
    from rich.console import Console

WITH_RESUME = ("resume", "device", "engine", "tensorboard")


@dataclass(frozen=True)
class Request:
    """The command's arguments; ``None`` where one is not given."""

    source: str | None = None
    recipe: str | None = None
    method: str | None = None
    noise: str | None = None
    seed: int | None = None
    seeds: int | None = None
    epochs: int | None = None
    changes: tuple[str, ...] = ()
    data: Path | None = None
    label: str | None = None
    true: str | None = None
    id: str | None = None
    labels: Path | None = None
    val: float | None = None
    test: Path | None = None
    ilsvrc: Path | None = None
    skip_bad: bool = False
    device: str = "auto"
    engine: str = "auto"
    out: Path | None = None
    tensorboard: bool = False
    download: bool = False
    resume: tuple[Path, ...] = ()
    show: bool = False

    def check(self) -> None:
        """What can be said of them by themselves."""
        require(self.engine in ("auto", "loop", "graph"), "engine", "one of auto, loop, graph", self.engine)
        device = pick_device(self.device)
        require(self.engine != "graph" or device.type == "cuda", "engine", "auto or loop without a GPU", self.engine)
        if not self.resume:
            require(self.source is not None, "SOURCE", "given: digits, a folder, a table, ...", self.source)
        for field in fields(self) if self.resume else ():
            value = getattr(self, field.name)
            if field.name not in WITH_RESUME and value != field.default:
                name = {"changes": "set", "show": "print"}.get(field.name, field.name)
                raise ValueError(
                    f"Parameter `{name}` should be left out with --resume: the run has a recipe of its own."
                )


@dataclass(frozen=True)
class Plan:
    """What is going to be trained, and where to."""

    source: Source
    recipes: tuple[Recipe, ...]
    folders: tuple[Path, ...]

    @classmethod
    def of(cls, request: Request) -> Plan:
        """Everything that can be checked without reading data."""
        source = Source.parse(
            request.source or "",
            data=request.data,
            labels=request.labels,
            label=request.label,
            true=request.true,
            id=request.id,
            val=request.val,
            test=request.test,
            skip_bad=request.skip_bad,
            ilsvrc=request.ilsvrc,
        )
        named = request.recipe or source.kind
        base = from_toml(named) if named.endswith(".toml") else by_name(named)
        recipe = override(base, changes(request))
        if recipe.network != "auto":
            check_name(recipe.network)
        check(source, recipe)
        seeds = 1 if request.seeds is None else request.seeds
        require(seeds >= 1, "seeds", "at least 1", seeds)
        recipes = tuple(override(recipe, {"seed": recipe.seed + i}) for i in range(seeds))
        folders = tuple(_folder(request, source, each, seeds) for each in recipes)
        return cls(source, recipes, folders)


def changes(request: Request) -> dict[str, object]:
    """What the options and ``--set`` change in the recipe; nothing twice."""
    named = {name: getattr(request, name) for name in ("method", "noise", "seed", "epochs")}
    found: dict[str, object] = {name: value for name, value in named.items() if value is not None}
    for change in request.changes:
        name, equals, value = change.partition("=")
        require(bool(equals and name.strip()), "set", "KEY=VALUE, as in lr=0.05", change)
        require(name.strip() not in found, name.strip(), "given once", change)
        found[name.strip()] = value.strip()
    return found


def _folder(request: Request, source: Source, recipe: Recipe, seeds: int) -> Path:
    """The run's folder: the one asked for, or a new one under ``runs`` named after what is trained."""
    if request.out is not None:
        out = request.out if seeds == 1 else request.out / f"seed-{recipe.seed}"
        if any((out / name).exists() for name in (LAST, RESULT)):
            raise ValueError(f"{out} holds a run already: go on with ogc train --resume {out}, or give another --out.")
        return out
    noise = [] if recipe.noise is None else [recipe.noise.replace(":", "-")]
    name = "-".join([source.name, Path(recipe.method).name, *noise, str(recipe.seed)])
    taken = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in range(1, 10**6))
    return next(folder for folder in taken if not (folder / RUN).exists())


def run(request: Request, console: Console) -> None:
    """Train, and leave a report in every run's folder. What goes wrong ends in one sentence."""
    first = os.environ.get("RANK", "0") == "0"  # of torchrun's processes
    console.quiet = not first
    with (
        one_sentence(
            stopped="Stopped at once. A run that was saved goes on with ogc train --resume RUN.",
            way_out="try --set accumulate=2, or a smaller batch_size",
            failures=(CheckpointError, NonFinite),
        ),
        warnings_told(console),
    ):
        request.check()
        plan = None if request.resume else Plan.of(request)
        if plan is not None and request.show:
            _show(plan, console)
            return
        jobs = _jobs(request, plan)
        try:
            with Progress(console, jobs) as watch:
                results = train(
                    jobs,
                    device=request.device,
                    engine=request.engine,
                    tensorboard=request.tensorboard,
                    watch=watch,
                    resume=plan is None,
                )
        except BaseException:
            if first:
                _report_anyway(jobs, console)
            raise
        console.print(table(results))
        if first:
            _report(jobs, console)


def _show(plan: Plan, console: Console) -> None:
    """The recipe and the source as they would be used."""
    options = ("kind", *OPTIONS[plan.source.kind])
    facts = [(name, value) for name, value in plan.source if name in options and value is not None]
    lines = [f"{name:<14}{value}" for name, value in [*facts, *(("out", folder) for folder in plan.folders)]]
    console.print("\n".join([plan.recipes[0].show(), "", *lines]), markup=False, soft_wrap=True)


def _jobs(request: Request, plan: Plan | None) -> list[Job]:
    """Those of the folders to go on with, or one a seed, which share the data and their noise."""
    try:
        if plan is None:
            return jobs_of(request.resume)
        with download_bar() as progress:
            data, info = load(plan.source, plan.recipes[0], download=request.download, progress=progress)
    except ValueError as error:  # a broken file, a column that is not there
        raise end(str(error), 1) from None
    return [Job(recipe, plan.source, data, info, out) for recipe, out in zip(plan.recipes, plan.folders, strict=True)]


def _report_anyway(jobs: list[Job], console: Console) -> None:
    """For what was trained before it ended as it did, which no other trouble may hide."""
    try:
        _report(jobs, console)
    except (Exception, KeyboardInterrupt) as error:
        console.print(f"No report: {error}", markup=False, soft_wrap=True)


def _report(jobs: list[Job], console: Console) -> None:
    """A report in the folder of every run that has begun, and where it is."""
    folders = [job.out for job in jobs if job.out is not None and (job.out / METRICS).exists()]
    for folder in folders:
        write_report(folder)
        console.print(f"Report: {folder / REPORT}", markup=False, soft_wrap=True)
    if folders:
        console.print("It shows what was learnt, and has the commands and the code to go on with.")


@contextmanager
def warnings_told(console: Console) -> Iterator[None]:
    """Warnings as sentences among the output."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: console.print(f"Note: {message}", markup=False, soft_wrap=True)
        yield
