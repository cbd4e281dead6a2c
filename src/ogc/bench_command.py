"""What ``ogc bench`` does: runs of the paper's tables, its tuning grids, and a script for Slurm.

Annotations are evaluated inside ``register``, like those of ``cli.py``.
"""

import shlex
import sys
import time
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ._ending import one_sentence

if TYPE_CHECKING:
    import typer
    from rich.console import Console
    from rich.table import Table

    from .benchmark.plan import Cell
    from .benchmark.run import Books, Task


@dataclass(frozen=True)
class Request:
    """What to run, where, and for how long."""

    cells: "Sequence[Cell]"
    seeds: str = "1"
    data: Path | None = None
    out: Path = Path("benchmarks/results/runs")
    epochs: int | None = None
    changes: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    ilsvrc: Path | None = None
    download: bool = False
    device: str = "auto"
    engine: str = "auto"
    address: str | None = None
    side_by_side: int | None = None
    max_minutes: float | None = None
    save_every: float = 120.0
    for_tables: bool = True  # and not for a grid
    started: float | None = None  # on the monotonic clock

    def tasks(self) -> "list[Task]":
        """Those asked for, checked; nothing is read but losses of one's own, which are tried."""
        from ._require import require
        from .benchmark.plan import CLASSES
        from .benchmark.run import tasks_of
        from .training.method import criterion, own_loss

        require(self.engine in ("auto", "ray"), "engine", "auto or ray", self.engine)
        require(self.address is None or self.engine == "ray", "address", "left out without --engine ray", self.address)
        require(self.max_minutes is None or self.max_minutes > 0, "max-minutes", "above 0", self.max_minutes)
        require(self.save_every >= 0, "save-every", "at least 0", self.save_every)
        tasks = tasks_of(self.cells, _seeds(self.seeds), self.trial())
        for recipe in {task.recipe.method: task.recipe for task in tasks if own_loss(task.recipe.method)}.values():
            criterion(recipe, classes=CLASSES[recipe.data], optimizer=None, total_steps=1)
        if not self.only:
            return tasks
        named = {task.name: task for task in tasks}
        wanted = [name for text in self.only for name in text.split(",") if name]
        for name in wanted:
            require(name in named, "only", "names of these runs, as --dry-run shows them", name, named)
        return [named[name] for name in wanted]

    def trial(self) -> dict[str, object]:
        """What is not as in the paper, by the caller's wish: the names of such runs say so."""
        from ._require import require
        from .benchmark.plan import BESIDES

        found: dict[str, object] = {} if self.epochs is None else {"epochs": self.epochs}
        for change in self.changes:
            name, equals, value = (part.strip() for part in change.partition("="))
            require(bool(equals and name), "set", "KEY=VALUE, as in network=resnet20-cifar", change)
            require(name not in found, name, "given once", change)
            untold = f"none of what the names of runs do not tell: {', '.join(BESIDES)}"
            require(name not in BESIDES, "set", untold, name)
            auto = name == "network" and value == "auto"
            require(not auto, "set", "a network by its name: what auto is, the device decides", change)
            found[name] = value
        return found

    @property
    def deadline(self) -> float | None:
        return None if self.max_minutes is None else time.monotonic() + 60 * self.max_minutes


def _seeds(text: str) -> list[int]:
    from ._require import require

    parts = [part.strip() for part in text.split(",")]
    require(all(part.isdecimal() for part in parts), "seeds", "whole numbers, as in 1,2,3", text)
    return [int(part) for part in parts]


def run(request: Request, console: "Console") -> "Books":
    """Run what is missing, and say what became of it."""
    from .benchmark.run import Data, settled
    from .benchmark.run import run as run_here
    from .noise_command import download_bar

    deadline, tasks = request.deadline, request.tasks()
    missing = [task for task in tasks if settled(task, request.out) is None]
    if missing and (note := left_out(request, tasks)):
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    data = Data(request.data, request.ilsvrc)
    if request.download:
        with download_bar() as progress:
            data.get(missing, download=True, progress=progress)
    work: Any = run_here
    places: dict[str, Any] = {"started": request.started}
    if request.engine == "ray":
        from .benchmark.cluster import run as work

        places = {"address": request.address}
    books: Books = work(
        tasks,
        data=data,
        out=request.out,
        console=console,
        device=request.device,
        side_by_side=request.side_by_side,
        deadline=deadline,
        save_every=request.save_every,
        **places,
    )
    for name, sentence in books.broken.items():
        books.say(f"{name}: {sentence}")
    there = len(books.there) + len(books.done)
    said = [f"{there} of {len(tasks)} runs are there, {len(books.done)} of them new."]
    if books.broken:
        said.append(f"{len(books.broken)} went wrong.")
    if books.elsewhere:
        said.append(f"{_are(books.elsewhere)} in the hands of other processes.")
    if books.waiting:
        said.append(f"{_are(books.waiting)} left: the same command goes on.")
    books.say(" ".join(said))
    return books


def _are(tasks: Sized) -> str:
    return f"{len(tasks)} {'is' if len(tasks) == 1 else 'are'}"


def left_out(request: Request, tasks: "Sequence[Task]") -> str:
    """That no table has some of the runs, in a sentence."""
    from .benchmark.table import is_shown

    trials = [task for task in tasks if request.for_tables and not is_shown(task.recipe, alone=task.cell.alone)]
    which = "These" if len(trials) == len(tasks) else f"{len(trials)} of them"
    return f"{which} are trials: the tables leave them out." if trials else ""


def dry_run(request: Request, console: "Console") -> None:
    """A table of what would run and what is there, and how long it would take."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ._provenance import device_name
    from .benchmark.result import read_all
    from .benchmark.run import Data, beside, estimate, standing
    from .training.session import pick_device
    from .training.table import clock

    stands = [standing(task, request.out) for task in request.tasks()]
    device = pick_device(request.device)
    beside_each_other = beside(device.type, request.side_by_side)
    left = [each for each in stands if each.state in ("begun", "missing")]
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("run", overflow="fold")  # whole: --only wants it
    shown.add_column("stands", overflow="fold", min_width=9)
    words = {"there": "there", "refused": "NO RESULT", "running": "running", "begun": "begun", "missing": "to run"}
    for each in stands:
        part = f", {each.epochs} of {each.task.recipe.epochs} epochs" if each.state in ("begun", "running") else ""
        note = f": {each.note}" if each.note else ""
        shown.add_row(Text(each.task.name), Text(f"{words[each.state]}{part}{note}"))
    console.print(shown)
    counts = {state: sum(each.state == state for each in stands) for state in words}
    sentences = [f"{counts['there']} of {len(stands)} are there, {len(left)} would run"]
    sentences[0] += f", {beside_each_other} side by side." if beside_each_other > 1 else "."
    if refused := counts["refused"]:
        sentences.append(f"{refused} {'has' if refused == 1 else 'have'} no valid result: see above.")
    if left:
        name = device_name(device)
        recorded = read_all(request.out)[0]
        known = estimate(left, recorded, device=name, kind=device.type, side_by_side=beside_each_other)
        if known is None:
            sentences.append(f"How long is not known: {request.out} has no such result of this device, {name}.")
        else:
            speed = f"{known.images_per_second:,.0f} images/s per run, {known.side_by_side} side by side"
            startup = f"{clock(known.startup)} of start-up included"
            total = clock(known.startup + known.seconds)
            sentences.append(f"That takes about {total}, {startup}, by {known.by} results of {name} ({speed}).")
    try:
        Data(request.data, request.ilsvrc).check([each.task for each in left])
    except OSError as error:
        sentences.append(str(error))
    sentences += [note] if (note := left_out(request, [each.task for each in stands])) else []
    console.print(" ".join(sentences), markup=False, highlight=False, soft_wrap=True)


def grid(request: Request) -> "Table":
    """What the points of a tuning grid have come to, each as the mean over its noises, once all of these are there."""
    import statistics

    from rich import box
    from rich.table import Table

    from .benchmark.result import read
    from .benchmark.run import settled
    from .training.method import PAPER

    tasks, names = request.tasks(), list(request.cells[0].changes)
    points: dict[tuple[float, ...], dict[str | None, list[float]]] = {}
    for task in tasks:
        point = tuple(task.recipe.parameters[name] for name in names)
        numbers = points.setdefault(point, {}).setdefault(task.recipe.noise, [])
        stands = settled(task, request.out)
        if stands is not None and stands.state == "there":
            value = read(task.result(request.out)).measured(task.cell.measure)
            numbers += [] if value is None else [value]
    means = {
        point: statistics.fmean(map(statistics.fmean, by_noise.values()))
        for point, by_noise in points.items()
        if all(by_noise.values())
    }
    cell, noises = request.cells[0], {cell.noise for cell in request.cells}
    under = f"mean of {len(noises)} noises" if len(noises) > 1 else cell.noise or "as it is"
    paper = PAPER[cell.dataset].get(cell.method, {})
    shown = Table(title=f"{cell.method} on {cell.dataset}, {under}", box=box.SIMPLE_HEAD)
    for name in names:
        shown.add_column(name, justify="right")
    shown.add_column(f"{cell.measure}, %", justify="right")
    shown.add_column("runs", justify="right")
    shown.add_column("")
    for point, by_noise in points.items():
        best = point in means and means[point] == max(means.values())
        chosen = all(paper.get(name) == value for name, value in zip(names, point, strict=True))
        number, runs = f"{means[point]:.2f}" if point in means else "-", sum(map(len, by_noise.values()))
        words = [word for word, holds in (("best", best), ("the paper's", chosen)) if holds]
        shown.add_row(*(f"{value:g}" for value in point), number, str(runs), ", ".join(words), style="bold" * best)
    return shown


def export(request: Request, table: str, script: Path, limit: str, options: Sequence[str], console: "Console") -> int:
    """Write the Slurm script for what is not there; the number of its tasks."""
    from ._files import write_whole
    from .benchmark.run import Data, batches, beside, settled
    from .benchmark.slurm import script as slurm_script

    left = []
    for task in request.tasks():
        stands = settled(task, request.out)
        left += [task] if stands is None else []
        if stands is not None and stands.note:
            console.print(f"{task.name} is left out: {stands.note}", markup=False, soft_wrap=True)
    if not left:
        raise ValueError("Nothing is left to run: no script was written.")
    try:
        Data(request.data, request.ilsvrc).check(left)
    except OSError as error:
        console.print(f"Note: here {error}", markup=False, soft_wrap=True)
    together = batches(left, beside("cuda", request.side_by_side))
    methods = dict.fromkeys(task.recipe.method for task in left)
    words = [word for method in methods for word in ("--method", method)]
    for option, value in (
        ("--seeds", request.seeds),
        ("--data", request.data and request.data.absolute()),
        ("--out", request.out.absolute()),
        ("--ilsvrc", request.ilsvrc and request.ilsvrc.absolute()),
        ("--epochs", request.epochs),
        ("--device", request.device),
        ("--side-by-side", request.side_by_side),
        *(("--set", change) for change in request.changes),
    ):
        words += [] if value is None else [option, str(value)]
    command = [sys.executable, "-m", "ogc", "bench", "run", table, *words]
    names = [[task.name for task in batch] for batch in together]
    log = script.absolute().with_suffix("")
    text = slurm_script(f"ogc-{table}", names, command, log=log, time=limit, more=options)
    script.parent.mkdir(parents=True, exist_ok=True)
    write_whole(script, text.encode())
    return len(together)


def _cells(table: str, names: str | None, files: Sequence[str] | None, noises: str) -> "list[Cell]":
    """The cells asked for: by lists of names, and by methods one at a time, whose paths may have commas."""
    from .benchmark.plan import find

    methods = [] if names in (None, "all") else [name.strip() for name in str(names).split(",")]
    methods += files or []
    wanted = None if names == "all" or not methods else methods
    under = None if noises == "all" else [noise.strip() for noise in noises.split(",")]
    return find(table, wanted, under) + (find(table, files, under) if names == "all" and files else [])


def register(app: "typer.Typer") -> None:
    """Add ``bench`` with its commands."""
    import typer

    bench = typer.Typer(no_args_is_help=True, help="Run the paper's tables, as far as their results are not there.")
    app.add_typer(bench, name="bench")

    tables = (
        "cifar10, cifar100, adjusting, gce, webvision, epsilon, queue, every, time, digits, q, default, plus "
        "or plus100."
    )
    table_argument = Annotated[str, typer.Argument(help=tables, metavar="TABLE")]
    methods_option = Annotated[str | None, typer.Option(help="ce+ogc,fl+ogc,...", show_default="the table's")]
    method_option = Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD|FILE.py:CLASS",
            help="One more beside --methods, or alone; may be a loss of your own, and repeated.",
        ),
    ]
    noises_option = Annotated[str, typer.Option(help="all, or symmetric:0.5,instance:0.4,...")]
    seeds_option = Annotated[str, typer.Option(help="1,2,3: a run each.")]
    data_option = Annotated[
        Path | None, typer.Option(help="Folder of the CIFAR or WebVision files.", show_default="data")
    ]
    ilsvrc_option = Annotated[Path | None, typer.Option(help="ILSVRC-12's validation images, with webvision.")]
    download_option = Annotated[bool, typer.Option("--download", help="Fetch CIFAR into --data, if missing.")]
    out_option = Annotated[Path, typer.Option(help="Folder of the results, a JSON each.")]
    beside_option = Annotated[int | None, typer.Option(help="Runs at a time on a GPU.", show_default="4")]
    minutes_option = Annotated[float | None, typer.Option(help="Save and stop after so many minutes.")]
    save_option = Annotated[float, typer.Option(help="Seconds from checkpoint to checkpoint.")]
    dry_option = Annotated[bool, typer.Option("--dry-run", help="Show what would run, and how long; do nothing.")]
    device_option = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
    engine_option = Annotated[str, typer.Option(help="auto: this machine; ray: a cluster.")]
    address_option = Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of the Ray cluster.", show_default="this machine")
    ]
    epochs_option = Annotated[int | None, typer.Option(help="For trying: the tables leave such runs out.")]
    set_option = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="For trying, likewise.")]
    only_option = Annotated[
        list[str] | None, typer.Option(metavar="NAME,...", help="These runs, by the names that --dry-run shows.")
    ]

    ending = partial(
        one_sentence,
        stopped="Stopped at once. The same command goes on from the last checkpoints.",
        way_out="try --side-by-side with a smaller number",
    )

    def go(request: Request, dry: bool) -> None:
        from rich.console import Console

        from .train_command import warnings_told

        console = Console(highlight=False)
        if dry:
            dry_run(request, console)
            return
        with warnings_told(console):
            books = run(request, console)
        if books.signal is not None:
            raise typer.Exit(128 + books.signal)
        if books.broken:
            raise typer.Exit(1)

    @bench.command(name="run")
    def run_table(
        table: table_argument,
        methods: methods_option = None,
        method: method_option = None,
        noises: noises_option = "all",
        seeds: seeds_option = "1",
        data: data_option = None,
        out: out_option = Request.out,
        side_by_side: beside_option = None,
        max_minutes: minutes_option = None,
        save_every: save_option = Request.save_every,
        dry: dry_option = False,
        device: device_option = "auto",
        engine: engine_option = "auto",
        address: address_option = None,
        epochs: epochs_option = None,
        changes: set_option = None,
        only: only_option = None,
        ilsvrc: ilsvrc_option = None,
        download: download_option = False,
    ) -> None:
        """Run what is missing of a table, several runs side by side on a GPU; a JSON a run in --out.

        \b
        Examples:
          ogc bench run digits --methods ce,ce+ogc
          ogc bench run cifar10 --data ~/cifar --dry-run
          ogc bench run cifar10 --data ~/cifar --methods ce+ogc,fl+ogc --seeds 1,2,3 --max-minutes 55
          ogc bench run cifar10 --data ~/cifar --noises symmetric:0.5 --method my_loss.py:MyLoss
          ogc bench run cifar100 --data ~/cifar --engine ray --address 10.0.0.1:6379

        Stop it as you like: the same command goes on, and runs nothing twice. Ctrl-C saves; a kill costs what was
        trained since the last checkpoint.
        """
        started = time.monotonic()
        with ending():
            cells = _cells(table, methods, method, noises)
            go(
                Request(
                    cells=cells,
                    seeds=seeds,
                    data=data,
                    out=out,
                    epochs=epochs,
                    changes=tuple(changes or ()),
                    only=tuple(only or ()),
                    ilsvrc=ilsvrc,
                    download=download,
                    device=device,
                    engine=engine,
                    address=address,
                    side_by_side=side_by_side,
                    max_minutes=max_minutes,
                    save_every=save_every,
                    started=started,
                ),
                dry,
            )

    @bench.command()
    def tune(
        dataset: Annotated[str, typer.Argument(help="cifar10, cifar100 or webvision.")],
        method: Annotated[str, typer.Argument(help="gce, sce, ..., ce+ogc: one that the paper has tuned.")],
        seeds: seeds_option = "1",
        data: data_option = None,
        out: out_option = Path("runs/tuning"),
        side_by_side: beside_option = None,
        max_minutes: minutes_option = None,
        save_every: save_option = Request.save_every,
        dry: dry_option = False,
        device: device_option = "auto",
        engine: engine_option = "auto",
        address: address_option = None,
        epochs: epochs_option = None,
        changes: set_option = None,
        ilsvrc: ilsvrc_option = None,
        download: download_option = False,
    ) -> None:
        """Run the grid that the paper has tuned a method on, at 50 % symmetric noise, and show what came of it.

        ce+linear and ce+ema are tuned under five noises: the best point is that with the best mean.

        \b
        Examples:
          ogc bench tune cifar10 gce --data ~/cifar
          ogc bench tune cifar10 ce+ogc --data ~/cifar --max-minutes 55
        """
        from .benchmark.plan import tuning

        with ending():
            request = Request(
                cells=tuning(dataset, method),
                for_tables=False,
                seeds=seeds,
                data=data,
                out=out,
                epochs=epochs,
                changes=tuple(changes or ()),
                ilsvrc=ilsvrc,
                download=download,
                device=device,
                engine=engine,
                address=address,
                side_by_side=side_by_side,
                max_minutes=max_minutes,
                save_every=save_every,
            )
            try:
                go(request, dry)
            finally:
                if not dry:
                    from rich.console import Console

                    Console(highlight=False).print(grid(request))

    @bench.command(name="export")
    def export_script(
        table: table_argument,
        slurm: Annotated[bool, typer.Option("--slurm", help="An array script for sbatch.")] = False,
        script: Annotated[Path | None, typer.Option(help="The file to write.", show_default="ogc-TABLE.sbatch")] = None,
        limit: Annotated[str, typer.Option("--time", help="Of a task, as Slurm reads it.")] = "04:00:00",
        sbatch: Annotated[
            list[str] | None, typer.Option(metavar="OPTION", help="For sbatch: --partition=gpu; may be repeated.")
        ] = None,
        methods: methods_option = None,
        method: method_option = None,
        noises: noises_option = "all",
        seeds: seeds_option = "1",
        data: data_option = None,
        out: out_option = Request.out,
        side_by_side: beside_option = None,
        device: device_option = "auto",
        epochs: epochs_option = None,
        changes: set_option = None,
        ilsvrc: ilsvrc_option = None,
    ) -> None:
        """Write a script that has Slurm run what is missing of a table, a batch of runs a task.

        \b
        Examples:
          ogc bench export --slurm cifar10 --data ~/cifar --out ~/results --seeds 1,2,3
          ogc bench export --slurm cifar100 --data ~/cifar --out ~/results --sbatch --partition=gpu --time 08:00:00

        A task saves two minutes before its time is up, and is queued again by itself.
        """
        from rich.console import Console

        with ending():
            if not slurm:
                raise ValueError("Say --slurm: there is no other kind of script yet.")
            request = Request(
                cells=_cells(table, methods, method, noises),
                seeds=seeds,
                data=data or Path("data"),
                out=out,
                epochs=epochs,
                changes=tuple(changes or ()),
                ilsvrc=ilsvrc,
                device=device,
                side_by_side=side_by_side,
            )
            path = script or Path(f"ogc-{table}.sbatch")
            count = export(request, table, path, limit, sbatch or (), Console(highlight=False, stderr=True))
            tasks = f"{count} task{'' if count == 1 else 's'}"
            typer.echo(f"{path}: {tasks}. Submit it with: sbatch {shlex.quote(str(path))}")
