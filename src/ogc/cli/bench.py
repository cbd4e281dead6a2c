"""``ogc bench``: run the paper's tables, run its tuning grids, and write a script for Slurm."""

from __future__ import annotations

import math
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._require import counted, require
from ..report.console import download_bar, make_console, say, warnings_as_notes
from . import options as shared
from .bench_tables import grid_table, print_dry_run, trials_note
from .command import command
from .errors import FAILED, SIGNALLED, UNFINISHED

if TYPE_CHECKING:
    from ..benchmark.plan import Cell
    from ..benchmark.task import Task

Out = Annotated[Path, typer.Option(help="Folder for the results, one JSON per run.")]
HINTS = {
    "stopped": "Stopped. To continue from the last checkpoints, run the same command again.",
    "out_of_memory": "use a smaller --side-by-side",
}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of all three commands."""

    seeds: shared.Seeds = "1"
    data: shared.Data = None
    out: Out = Path("benchmarks/results/runs")
    side_by_side: Annotated[int | None, typer.Option(help="Number of runs that share a GPU.", show_default="4")] = None
    device: shared.Device = "auto"
    epochs: Annotated[
        int | None, typer.Option(help="Number of epochs. Makes a trial run, which the tables leave out.")
    ] = None
    changes: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting; may be repeated. Makes a trial run too, unless it is a parameter of your own loss.",
        ),
    ] = field(default_factory=list)
    ilsvrc: shared.Ilsvrc = None

    def tasks(self, cells: Sequence[Cell]) -> list[Task]:
        """Return the runs behind the cells. Custom losses are loaded and tested; no data is read."""
        from ..benchmark.plan import CLASSES
        from ..benchmark.task import tasks_of
        from ..training.method import criterion, own_loss

        tasks = tasks_of(cells, shared.parse_seeds(self.seeds), self._trial())
        custom = {task.recipe.method: task.recipe for task in tasks if own_loss(task.recipe.method)}
        for recipe in custom.values():
            criterion(recipe, classes=CLASSES[recipe.data], optimizer=None, total_steps=1)
        return tasks

    def _trial(self) -> dict[str, object]:
        """Return the settings that differ from the paper's. They become part of the names of the runs."""
        from ..benchmark.key import NOT_IN_KEY

        epochs: dict[str, object] = {} if self.epochs is None else {"epochs": self.epochs}
        found = shared.parse_settings(self.changes, epochs, "network=resnet20-cifar")
        for name, value in found.items():
            rule = f"a setting that is part of a run's name, so none of {', '.join(NOT_IN_KEY)}"
            require(name not in NOT_IN_KEY, "set", rule, name)
            auto = name == "network" and value == "auto"
            require(not auto, "set", "the name of a network, because auto depends on the device", f"{name}={value}")
        return found


@dataclass(frozen=True, kw_only=True)
class ExecuteOptions(RunOptions):
    """Options of the commands that train."""

    max_minutes: Annotated[
        float | None, typer.Option(help="Save and stop after this many minutes. Exit code 3 if runs are left.")
    ] = None
    save_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 120.0
    dry: Annotated[bool, typer.Option("--dry-run", help="Show what would run and for how long.")] = False
    engine: Annotated[str, typer.Option(help="auto: this machine. ray: a Ray cluster.")] = "auto"
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of the cluster.", show_default="this machine")
    ] = None
    download: shared.Download = False

    def tasks(self, cells: Sequence[Cell]) -> list[Task]:
        require(self.engine in ("auto", "ray"), "engine", "auto or ray", self.engine)
        shared.check_cluster(self.engine, self.device, self.address)
        require(self.max_minutes is None or self.max_minutes > 0, "max-minutes", "above 0", self.max_minutes)
        require(self.save_every >= 0, "save-every", "at least 0", self.save_every)
        return super().tasks(cells)


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options that select cells of a table."""

    table: Annotated[str, typer.Argument(help=f"{shared.TABLES}.", metavar="TABLE")]
    methods: Annotated[
        str | None, typer.Option(help="all, or a comma-separated list: ce+ogc,fl+ogc.", show_default="the table's")
    ] = None
    method: shared.OtherMethods = field(default_factory=list)
    noises: Annotated[str, typer.Option(help="all, or a comma-separated list: symmetric:0.5,instance:0.4.")] = "all"

    def cells(self) -> list[Cell]:
        from ..benchmark.plan import find
        from ..training.method import allow_loss

        listed = [] if self.methods in (None, "all") else [name.strip() for name in str(self.methods).split(",")]
        noises = None if self.noises == "all" else [noise.strip() for noise in self.noises.split(",")]
        for method in (*listed, *self.method):
            allow_loss(method)  # typed in this command
        if self.methods == "all":
            return find(self.table, None, noises) + find(self.table, self.method, noises)
        return find(self.table, [*listed, *self.method] or None, noises)


@dataclass(frozen=True, kw_only=True)
class BenchRunOptions(ExecuteOptions, TableOptions):
    only: Annotated[
        list[str], typer.Option(metavar="NAME,...", help="Run only these runs, by the names that --dry-run shows.")
    ] = field(default_factory=list)

    def tasks(self, cells: Sequence[Cell]) -> list[Task]:
        tasks = super().tasks(cells)
        if not self.only:
            return tasks
        named = {task.name: task for task in tasks}
        wanted = [name for text in self.only for name in text.split(",") if name]
        for name in wanted:
            require(name in named, "only", "names of selected runs, as shown by --dry-run", name, named)
        return [named[name] for name in wanted]


@dataclass(frozen=True, kw_only=True)
class TuneOptions(ExecuteOptions):
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="cifar10, cifar100 or webvision.")]
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="A method that the paper tunes: gce, sce, ..., ce+ogc.")
    ]
    out: Out = Path("runs/tuning")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(RunOptions, TableOptions):
    slurm: Annotated[bool, typer.Option("--slurm", help="Write an array script for sbatch.")] = False
    script: Annotated[Path | None, typer.Option(help="The file to write.", show_default="ogc-TABLE.sbatch")] = None
    limit: Annotated[str, typer.Option("--time", help="Time limit of a task, in Slurm's format.")] = "04:00:00"
    sbatch: Annotated[
        list[str], typer.Option(metavar="OPTION", help="Option for sbatch, as in --partition=gpu; may be repeated.")
    ] = field(default_factory=list)


def group() -> typer.Typer:
    """Return ``bench`` with its commands."""
    app = typer.Typer(no_args_is_help=True)
    for each in (run, tune, export):
        app.command()(each)
    return app


@command(**HINTS)
def run(options: BenchRunOptions) -> None:
    """Run whatever is missing from a table, several runs side by side on a GPU. Writes one JSON per run to --out.

    \b
    Examples:
      ogc bench run digits --methods ce,ce+ogc
      ogc bench run cifar10 --data ~/cifar --dry-run
      ogc bench run cifar10 --data ~/cifar --methods ce+ogc,fl+ogc --seeds 1,2,3 --max-minutes 55
      ogc bench run cifar10 --data ~/cifar --noises symmetric:0.5 --method my_loss.py:MyLoss
      ogc bench run cifar100 --data ~/cifar --engine ray --address 10.0.0.1:6379

    Stop it at any time and run the same command again to continue. Finished runs are not repeated.
    Ctrl-C saves; if the process is killed, training since the last checkpoint is lost.
    """
    started, tasks = time.monotonic(), options.tasks(options.cells())
    execute(tasks, options, note=trials_note(tasks), started=started)


@command(**HINTS)
def tune(options: TuneOptions) -> None:
    """Run the paper's tuning grid for a method, at 50 % symmetric noise, and show the results.

    ce+linear and ce+ema are tuned on five noise types, by mean accuracy.

    \b
    Examples:
      ogc bench tune cifar10 gce --data ~/cifar
      ogc bench tune cifar10 ce+ogc --data ~/cifar --max-minutes 55
    """
    from ..benchmark.plan import tuning

    cells = tuning(options.dataset, options.method)
    tasks = options.tasks(cells)
    try:
        execute(tasks, options)
    finally:
        if not options.dry:
            make_console().print(grid_table(tasks, options.out, names=list(cells[0].changes)))


@command(**HINTS)
def export(options: ExportOptions) -> None:
    """Write a Slurm script that runs whatever is missing from a table, one batch of runs per task.

    \b
    Examples:
      ogc bench export --slurm cifar10 --data ~/cifar --out ~/results --seeds 1,2,3
      ogc bench export --slurm cifar100 --data ~/cifar --out ~/results --sbatch --partition=gpu --time 08:00:00

    A task saves two minutes before its time limit and is requeued automatically.
    """
    from .._files import write_whole
    from ..benchmark.data import Data
    from ..benchmark.slurm import script as slurm_script
    from ..benchmark.status import result_status
    from ..benchmark.task import batches, runs_per_device

    if not options.slurm:
        raise ValueError("Add --slurm. No other kind of script is supported.")
    console, left = make_console(stderr=True), []
    for task in options.tasks(options.cells()):
        if (status := result_status(task, options.out)) is None:
            left.append(task)
        elif status.note:
            say(console, f"{task.name} is skipped. {status.note}")
    if not left:
        raise ValueError("All runs have results already. No script was written.")
    try:
        Data(options.data or Path("data"), options.ilsvrc).check(left)
    except OSError as error:
        say(console, f"Note, on this machine: {error}")
    path = options.script or Path(f"ogc-{options.table}.sbatch")
    grouped = batches(left, runs_per_device("cuda", left, options.side_by_side))
    text = slurm_script(
        f"ogc-{options.table}",
        [[task.name for task in batch] for batch in grouped],
        _worker_command(options, left),
        log=path.absolute().with_suffix(""),
        time=options.limit,
        more=options.sbatch,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
    typer.echo(f"{path}: {counted(len(grouped), 'task')}. Submit it with: sbatch {shlex.quote(str(path))}")


def _worker_command(options: ExportOptions, tasks: Sequence[Task]) -> list[str]:
    """Return the command of a Slurm task. Paths are absolute."""
    words: list[str] = []
    for option, value in (
        *(("--method", method) for method in dict.fromkeys(task.recipe.method for task in tasks)),
        ("--seeds", options.seeds),
        ("--data", (options.data or Path("data")).absolute()),
        ("--out", options.out.absolute()),
        ("--ilsvrc", options.ilsvrc and options.ilsvrc.absolute()),
        ("--epochs", options.epochs),
        ("--device", options.device),
        ("--side-by-side", options.side_by_side),
        *(("--set", change) for change in options.changes),
    ):
        words += [] if value is None else [option, str(value)]
    return [sys.executable, "-m", "ogc", "bench", "run", options.table, *words]


def execute(tasks: Sequence[Task], options: ExecuteOptions, *, note: str = "", started: float | None = None) -> None:
    """Run what is missing, or show it with ``--dry-run``; raise ``typer.Exit`` unless all runs are done.

    :param note: printed before any work.
    :param started: start of the process on the monotonic clock.
    """
    from ..benchmark import run as local
    from ..benchmark.data import Data
    from ..benchmark.status import result_status

    console = make_console()
    if options.dry:
        print_dry_run(tasks, options, console, note)
        return
    deadline = math.inf if options.max_minutes is None else time.monotonic() + 60 * options.max_minutes
    missing = [task for task in tasks if result_status(task, options.out) is None]
    if missing and note:
        say(console, note)
    data = Data(options.data, options.ilsvrc)
    with warnings_as_notes(console):
        if options.download:
            with download_bar() as progress:
                data.get(missing, download=True, progress=progress)
        common: dict[str, Any] = {
            "data": data,
            "out": options.out,
            "console": console,
            "device": options.device,
            "side_by_side": options.side_by_side,
            "deadline": deadline,
            "save_every": options.save_every,
        }
        if options.engine == "ray":
            from ..benchmark import cluster

            queue = cluster.run(tasks, **common, address=options.address)
        else:
            queue = local.run(tasks, **common, started=started)
    for name, message in queue.failed.items():
        say(console, f"{name}: {message}")
    counts = {
        f"{len(queue.existing) + len(queue.done)} of {len(tasks)} runs are done, {len(queue.done)} of them new.": True,
        f"{len(queue.failed)} failed.": queue.failed,
        f"{len(queue.elsewhere)} in progress in other processes.": queue.elsewhere,
        f"{len(queue.waiting)} left: run the same command again.": queue.waiting,
    }
    say(console, " ".join(sentence for sentence, applies in counts.items() if applies))
    if queue.signal not in (0, signal.SIGALRM):  # SIGALRM: --max-minutes is over
        raise typer.Exit(SIGNALLED + queue.signal)
    if queue.failed:
        raise typer.Exit(FAILED)
    if queue.waiting:
        raise typer.Exit(UNFINISHED)
