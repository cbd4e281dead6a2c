"""``ogc compare``: train several methods on one data set with several seeds, and recommend one of them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._require import require
from ..report.console import download_bar, make_console, say, warnings_as_notes
from . import options as shared
from . import train as training
from .command import command
from .errors import SIGNALLED, data_errors, fail, is_first_process

if TYPE_CHECKING:
    from rich.console import Console

    from ..compare import Comparison
    from ..training.run import Job

AGAIN = "To continue from the last checkpoints, run the same command again."
SHARED = (
    *("recipe", "noise", "seeds", "epochs", "changes", "data", "label", "true", "id", "labels", "val", "test"),
    *("ilsvrc", "skip_bad", "device", "engine", "download"),
)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A table, a folder of images, an .npz or .npy, digits, cifar10, ..."),
    ]
    label: shared.Label = None
    methods: Annotated[
        str, typer.Option(help="Comma-separated list. A method's own settings follow it: gce:q=0.9.")
    ] = "ce,gce,ce+ogc"
    method: shared.OtherMethods = field(default_factory=list)
    seeds: shared.Seeds = "1,2,3"
    true: shared.TrueLabels = None
    test: Annotated[Path | None, typer.Option(help="Table, folder of images or .npz with checked labels.")] = None
    noise: Annotated[
        str | None,
        typer.Option(metavar="KIND:RATE", help="Add noise to the training labels, but not to the held-out ones."),
    ] = None
    epochs: shared.Epochs = None
    recipe: Annotated[str | None, typer.Option(metavar="NAME|FILE.toml", help="Recipe by name or from a file.")] = None
    changes: shared.Set = field(default_factory=list)
    val: Annotated[float | None, typer.Option(help="Fraction of the samples to hold out.", show_default="0.2")] = None
    id: shared.Id = None
    labels: shared.Labels = None
    skip_bad: shared.SkipBad = False
    data: shared.Data = None
    ilsvrc: shared.Ilsvrc = None
    download: shared.Download = False
    device: shared.Device = "auto"
    engine: Annotated[
        str, typer.Option(help="auto, loop, graph (CUDA graphs, several runs side by side), or ray: a Ray cluster.")
    ] = "auto"
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Head of the Ray cluster, whose nodes share the folder of the comparison.",
            show_default="a local Ray instance",
        ),
    ] = None
    side_by_side: Annotated[int, typer.Option(help="Number of runs that share a GPU.")] = 4
    out: Annotated[
        Path | None, typer.Option(help="Folder of the comparison.", show_default="compare/SOURCE-NOISE-TEST")
    ] = None

    @property
    def chosen(self) -> list[str]:
        return [text.strip() for text in [*self.methods.split(","), *self.method]]

    def train_options(self) -> training.TrainOptions:
        """Return the options that all runs share, as those of ``ogc train``."""
        values = {name: getattr(self, name) for name in SHARED}
        if self.engine == "ray":  # the nodes train, on their own devices
            values |= {"engine": "auto", "device": "auto"}
        return training.TrainOptions(source=self.source, **values)

    def check(self) -> None:
        """Check what does not depend on the data."""
        from ..training.method import Method, allow_loss

        require("" not in self.chosen, "methods", "a comma-separated list, as in ce,gce,ce+ogc", self.methods)
        for text in self.chosen:  # only files named on the command line may run
            allow_loss(Method.parse(text).name)
        require(
            self.val is None or self.val > 0,
            "val",
            "above 0, because methods are compared on held-out samples",
            self.val,
        )
        require(self.side_by_side >= 1, "side-by-side", "at least 1", self.side_by_side)
        engines = ("auto", "loop", "graph", "ray")
        require(self.engine in engines, "engine", f"one of {', '.join(engines)}", self.engine)
        shared.check_cluster(self.engine, self.device, self.address)
        self.train_options().check()


@command(stopped=f"Stopped. {AGAIN}", out_of_memory="use a smaller --side-by-side, or a smaller batch_size")
def compare(options: CompareOptions) -> None:
    """Find out which loss to use on your data: train several with several seeds, and compare them on held-out samples.

    \b
    Examples:
      ogc compare customers.csv --label churned
      ogc compare customers.csv --label churned --test checked.csv
      ogc compare customers.csv --label churned --method fl+ogc --method gce:q=0.9
      ogc compare photos/ --methods ce,ce+ogc --seeds 1,2 --epochs 10
      ogc compare embeddings.npz --noise symmetric:0.3
      ogc compare digits --noise pairflip:0.3 --epochs 40
      ogc compare photos/ --engine ray --address 10.0.0.1:6379

    Prints a table and one sentence, and writes compare.png and compare.json to the folder of the comparison.
    Methods are compared on the test set if there is one (--test, or a test/ folder), otherwise on held-out samples with
    the labels of --true, or else with their given labels.
    After Ctrl-C, run the same command to continue. With more methods or seeds, it trains only what is missing.
    """
    from ..compare import compare as run
    from ..report.progress import Progress
    from ..training.stopping import Interrupted

    console = make_console()
    first = is_first_process()
    console.quiet = not first
    with warnings_as_notes(console):
        options.check()
        jobs, out = _jobs(options)
        try:
            comparison = run(
                jobs,
                device=options.device,
                engine=options.engine,
                side_by_side=options.side_by_side,
                address=options.address,
                progress=lambda group: Progress(console, group),
            )
        except Interrupted as stop:
            raise fail(f"Stopped by {stop.signal.name}. {AGAIN}", SIGNALLED + stop.signal) from None
    if first:
        comparison.write(out)
        _show(comparison, out, console)


def _jobs(options: CompareOptions) -> tuple[list[Job], Path]:
    """Load the data and return the jobs, and the folder of the comparison."""
    from ..compare import jobs_of, recipes_of
    from ..training.source import load

    plan = training.Plan.of(options.train_options())
    recipe, source = plan.recipes[0], plan.source
    recipes_of(recipe, options.chosen)  # reports bad methods before the data is read
    parts = [source.name, recipe.noise, None if options.test is None else options.test.stem]
    name = "-".join(part for part in parts if part is not None).replace(":", "-")
    out = Path("compare") / name if options.out is None else options.out
    seeds = [each.seed for each in plan.recipes]
    with data_errors(), download_bar() as progress:
        data, info = load(source, recipe, download=options.download, progress=progress)
    return jobs_of(recipe, data, out, methods=options.chosen, seeds=seeds, source=source, info=info), out


def _show(comparison: Comparison, out: Path, console: Console) -> None:
    """Print the table, the recommendation, and commands that use it."""
    from ..compare import PICTURE

    say(console, f"\n{comparison.title}")  # not as the table's title, which is wrapped to the width of the table
    console.print(comparison.table())
    say(console, comparison.caption)
    for text in (comparison.sentence(), *comparison.notes()):
        say(console, text)
    say(console, f"Figure: {out / PICTURE}")
    folder = shlex.quote(str(comparison.folders[comparison.ranking[0]][0]))
    say(console, f"To predict new samples with it: ogc predict {folder} DATA")
    say(console, f"To find wrong labels with it: ogc audit {folder}")
