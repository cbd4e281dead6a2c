"""``ogc train``: check all arguments, load the data, train, and write a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from .._require import counted, either, few, require
from ..report.console import download_bar, make_console, say, warnings_as_notes
from . import options as shared
from .command import command, given
from .errors import data_errors, is_first_process

if TYPE_CHECKING:
    from rich.console import Console

    from ..training.recipe import Recipe
    from ..training.run import Job
    from ..training.source import Source

HINTS = {
    "stopped": "Stopped. To resume a saved run: ogc train --resume RUN",
    "out_of_memory": "use --set accumulate=2, or a smaller batch_size",
}
WITH_RESUME = {"resume", "method", "device", "engine", "tensorboard"}  # method: of a loss from a file


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="digits, cifar10, cifar100, webvision, a folder of images, a table, or an .npz or .npy.",
        ),
    ] = None
    recipe: Annotated[
        str | None, typer.Option(metavar="NAME|FILE.toml", help="Recipe by name or from a file; see --print.")
    ] = None
    method: shared.Method = None
    noise: Annotated[
        str | None,
        typer.Option(metavar="KIND:RATE", help="Add noise to the training labels: symmetric:0.5, human:worse, ..."),
    ] = None
    seed: shared.Seed = None
    seeds: shared.OptionalSeeds = None
    epochs: shared.Epochs = None
    changes: shared.Set = field(default_factory=list)
    data: shared.Data = None
    label: shared.Label = None
    true: shared.TrueLabels = None
    id: shared.Id = None
    labels: shared.Labels = None
    val: Annotated[float | None, typer.Option(help="Fraction of the samples to validate on.", show_default="0.2")] = (
        None
    )
    test: Annotated[Path | None, typer.Option(help="Table, folder of images or .npz to test on.")] = None
    ilsvrc: shared.Ilsvrc = None
    skip_bad: shared.SkipBad = False
    device: shared.Device = "auto"
    engine: Annotated[str, typer.Option(help="auto, loop, or graph (CUDA graphs, several seeds side by side).")] = (
        "auto"
    )
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run.", show_default="runs/SOURCE-METHOD-NOISE-SEED")
    ] = None
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard events to the run's folder.")
    ] = False
    download: shared.Download = False
    resume: Annotated[list[Path], typer.Option(metavar="RUN", help="Resume a run; may be repeated.")] = field(
        default_factory=list
    )
    show: Annotated[bool, typer.Option("--print", help="Print the settings and the data without training.")] = False

    def check(self) -> None:
        """Check what does not depend on the data."""
        from ..training.method import Method, allow_loss
        from ..training.session import pick_device

        allow_loss("" if self.method is None else Method.parse(self.method).name)
        for change in self.changes:  # only files named on the command line may run
            name, _, value = change.partition("=")
            allow_loss(value.strip() if name.strip() == "method" else "")
        require(self.engine in ("auto", "loop", "graph"), "engine", "one of auto, loop, graph", self.engine)
        device = pick_device(self.device)
        require(self.engine != "graph" or device.type == "cuda", "engine", "auto or loop without a GPU", self.engine)
        if self.source is None and not self.resume:
            raise ValueError(
                "The argument `SOURCE` is missing. Give digits, a folder of images, a table or an .npz file, as in: "
                "ogc train digits. To resume a run: ogc train --resume RUN."
            )
        for name in given(self) if self.resume else ():
            if name not in WITH_RESUME:
                raise ValueError(f"Parameter `{name}` cannot be combined with --resume, which uses the run's recipe.")


@command(**HINTS)
def train(options: TrainOptions) -> None:
    """Train a classifier on noisy labels. Prints a table and writes report.html to the run's folder.

    \b
    Examples:
      ogc train digits --noise symmetric:0.5
      ogc train photos/ --method ce --epochs 20
      ogc train photos/ --recipe folder-large --set size=160 --set batch_size=32
      ogc train customers.csv --label churned --id customer
      ogc train cifar10 --data ~/cifar --noise human:worse --seeds 1,2,3
      ogc train cifar10 --data ~/cifar --recipe mine.toml --print
      ogc train --resume runs/digits-ce+ogc-symmetric-0.5-0

    Ctrl-C saves the run and prints the command that resumes it.
    A recipe file is TOML: base = "cifar10", then the settings to change.
    """
    run(options, make_console())


def run(options: TrainOptions, console: Console) -> None:
    """Train, and write a report to the folder of every run, finished or not. After an error, only of those begun."""
    from ..report.progress import Progress
    from ..report.table import table
    from ..training.session import train

    first = is_first_process()
    console.quiet = not first
    with warnings_as_notes(console):
        options.check()
        plan = None if options.resume else Plan.of(options)
        if plan is not None and options.show:
            _show(options, plan, console)
            return
        jobs = _jobs(options, plan)
        watch = Progress(console, jobs)
        try:
            with watch:
                results = train(
                    jobs,
                    device=options.device,
                    engine=options.engine,
                    tensorboard=options.tensorboard,
                    watch=watch,
                    resume=plan is None,
                )
        except BaseException:
            if first:
                _try_report([job for job, row in zip(jobs, watch.rows, strict=True) if row.steps], console)
            raise
        console.print(table(results))
        if first:
            _report(jobs, console)


class Plan(NamedTuple):
    """The runs to train: one recipe and one folder per seed."""

    source: Source
    recipes: list[Recipe]
    folders: list[Path]

    @classmethod
    def of(cls, options: TrainOptions) -> Plan:
        """Check everything that can be checked without reading data."""
        from ..models import check_network
        from ..training.method import Method
        from ..training.recipe import by_name, from_toml, override
        from ..training.source import Source, check

        names = ("data", "labels", "label", "true", "id", "val", "test", "skip_bad", "ilsvrc")
        source = Source.parse(options.source or "", **{name: getattr(options, name) for name in names})
        named = options.recipe or source.kind
        recipe = from_toml(named) if named.endswith(".toml") else by_name(named)
        typed = {name: getattr(options, name) for name in ("noise", "seed", "epochs")}
        typed = {name: value for name, value in typed.items() if value is not None}
        if options.method is not None:
            method = Method.parse(options.method)
            if both := sorted(typed.keys() & method.settings.keys()):
                require(False, "method", f"without {either(both)}, which is given as an option", options.method)
            typed |= {"method": method.name, **method.settings}
        settings = shared.parse_settings(options.changes, typed, "lr=0.05")
        require("seed" not in settings or options.seeds is None, "seed", "omitted with --seeds", settings.get("seed"))
        recipe = override(recipe, settings)
        if recipe.network != "auto":
            check_network(recipe.network)
        check(source, recipe)
        rule = "omitted with --true: it would replace the given labels. To start from correct labels, train on those"
        require(source.true is None or recipe.noise is None, "noise", rule, recipe.noise)
        seeds = [recipe.seed] if options.seeds is None else shared.parse_seeds(options.seeds)
        recipes = [override(recipe, {"seed": seed}) for seed in seeds]
        return cls(source, recipes, [_folder(options.out, source, each, len(seeds)) for each in recipes])


def _folder(out: Path | None, source: Source, recipe: Recipe, seeds: int) -> Path:
    """Return the folder of a run: ``out``, or a new one under ``runs`` named after what is trained."""
    from ..training.run_folder import LAST, RESULT, RUN, how_to_resume

    if out is not None:
        out = out if seeds == 1 else out / f"seed-{recipe.seed}"
        if any((out / name).exists() for name in (LAST, RESULT)):
            raise ValueError(
                f"{out} already contains a run. Choose another --out, or resume it with: {how_to_resume(out)}"
            )
        if out.is_dir() and any(out.iterdir()) and not (out / RUN).exists():
            raise ValueError(
                f"{out} has other files, which a run could overwrite. Choose a new or empty folder as --out."
            )
        return out
    noise = [] if recipe.noise is None else [recipe.noise]
    name = "-".join([source.name, Path(recipe.method).name, *noise, str(recipe.seed)]).replace(":", "-")
    numbered = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in range(1, 10**6))
    return next(folder for folder in numbered if not (folder / RUN).exists())


def _show(options: TrainOptions, plan: Plan, console: Console) -> None:
    """Print the recipe and the source. The user's own data is read, and its classes and columns are printed, too."""
    from ..training.recipe import shown
    from ..training.source import NAMED, OPTIONS

    names = ("kind", *OPTIONS[plan.source.kind])
    facts = [(name, shown(value)) for name, value in plan.source if name in names and value is not None]
    if plan.source.kind not in NAMED:
        train, sets = _jobs(options, plan)[0].data
        facts += [(f"{name} set", counted(len(part), "sample")) for name, part in {"train": train, **sets}.items()]
        facts += [("classes", few(train.class_names, 20))]
        facts += [] if train.encoder is None else [("columns", train.encoder.use)]
    lines = [f"{name:<14}{value}" for name, value in [*facts, *(("out", folder) for folder in plan.folders)]]
    say(console, "\n".join([plan.recipes[0].show(), "", *lines]))


def _jobs(options: TrainOptions, plan: Plan | None) -> list[Job]:
    """Return the jobs to resume, or one per seed; these share the data and its noise."""
    from ..training.run import Job
    from ..training.session import jobs_of
    from ..training.source import load

    with data_errors(), download_bar() as progress:
        if plan is None:
            return jobs_of(options.resume, loss=options.method)
        data, info = load(plan.source, plan.recipes[0], download=options.download, progress=progress)
    return [Job(recipe, plan.source, data, info, out) for recipe, out in zip(plan.recipes, plan.folders, strict=True)]


def _try_report(jobs: list[Job], console: Console) -> None:
    """Write the reports after an error. A second error is only printed, so that it does not hide the first."""
    try:
        _report(jobs, console)
    except (Exception, KeyboardInterrupt) as error:
        why = "it was interrupted." if isinstance(error, KeyboardInterrupt) else error
        say(console, f"The report could not be written: {why}")


def _report(jobs: list[Job], console: Console) -> None:
    """Write a report for every run that has started. Print where it is, notes, and the next step."""
    from ..report.report import balanced_sentences, predict_command, training_notes, write_report
    from ..training.run_folder import METRICS, REPORT, is_finished, read

    folders = [job.out for job in jobs if job.out is not None and (job.out / METRICS).exists()]
    for folder in folders:
        write_report(folder)
        say(console, f"Report: {folder / REPORT}")
        run = read(folder)
        for note in (*balanced_sentences(run), *training_notes(run)):
            say(console, f"Note: {note}")
    if finished := [folder for folder in folders if is_finished(folder)]:
        say(console, f"To predict new data: {predict_command(read(finished[0]))}")
