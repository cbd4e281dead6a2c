"""Demo: digits with half of their labels wrong, one small network trained with CE and with CE+OGC."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ._files import write_whole
from .report.console import say
from .report.drawing import BLUE, RED, Curve, draw_curves, draw_histogram, draw_tau, figure_of_several, png
from .report.pictures import lr_drops, mixture_of
from .report.progress import Progress
from .report.table import table
from .training import RECIPES, Job, Recipe, Result, Source, load, override, train
from .training.run_folder import StoredRun, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

COLOURS = {"ce": RED, "ce+ogc": BLUE}  # by method
NOISE_RATE = 0.5
PASTE = """\
    from ogc import OGC
    criterion = OGC("ce", optimizer)          # was: nn.CrossEntropyLoss()
    loss = criterion(model(inputs), labels)"""


def demo(out: Path, console: Console, *, seeds: Sequence[int] = (0,), epochs: int = 120) -> list[Result]:
    """Train both methods, print a table, and write ``demo.png`` and ``result.json`` to ``out``."""
    recipes = recipes_of(seeds, epochs)
    out.mkdir(parents=True, exist_ok=True)
    console.print(
        f"Handwritten digits, about {NOISE_RATE:.0%} of the training labels replaced at random. "
        f"The same network is trained for {epochs} epochs with CE, then with CE+OGC.\n"
    )
    try:
        results, runs = train_all(recipes, console)
    except KeyboardInterrupt as stop:
        stop.args = (f"Stopped before the end: nothing was written to {out}.",)
        raise
    console.print()
    console.print(table(results))
    write_whole(out / "demo.png", png(picture(runs)))
    write_whole(out / "result.json", json.dumps({"runs": results}, indent=1).encode())
    say(
        console,
        f"\nPicture: {out / 'demo.png'}\nNumbers: {out / 'result.json'}\n\nIn your own training loop:\n\n{PASTE}\n",
    )
    console.print("Next: see README.md for other losses and options, and docs/method.md for the equations.")
    return results


def recipes_of(seeds: Sequence[int], epochs: int) -> list[Recipe]:
    """Make one recipe per method and seed. The seed decides the noise, the initial weights and the batches."""
    shared = {"noise": f"symmetric:{NOISE_RATE}", "epochs": epochs, "average": None}
    return [
        override(RECIPES["digits"], {"method": method, "seed": seed, "noise_seed": seed, "report_epochs": 1, **shared})
        for method in COLOURS
        for seed in seeds
    ]


def train_all(recipes: Sequence[Recipe], console: Console) -> tuple[list[Result], list[StoredRun]]:
    """Train on the CPU."""
    source = Source(kind="digits")
    with TemporaryDirectory() as folder:
        outs = [Path(folder, str(number)) for number in range(len(recipes))]
        pairs = zip(recipes, outs, strict=True)
        jobs = [Job(recipe, source, *load(source, recipe), out) for recipe, out in pairs]
        with Progress(console, jobs) as watch:
            results = train(jobs, device="cpu", watch=watch)
        return results, [read(out) for out in outs]


def picture(runs: Sequence[StoredRun]) -> Figure:
    """Draw accuracy, tau and the histogram side by side."""
    ogc = [run for run in runs if run.recipe.method == "ce+ogc"]
    first, drops = ogc[0], lr_drops(ogc[0].epochs)
    wrong = first.samples["given"] != first.samples["true"]
    which = f" (seed {first.recipe.seed})" if len(ogc) > 1 else ""
    xlabel = f"H, cross entropy of the given label, at the end{which}"
    return figure_of_several(
        [
            lambda axes: draw_accuracy(axes, runs, drops),
            lambda axes: draw_tau(axes, [[epoch.tau for epoch in run.epochs] for run in ogc], drops=drops),
            lambda axes: draw_histogram(axes, first.samples["H"], wrong, mixture_of(first.epochs[-1]), xlabel=xlabel),
        ]
    )


def draw_accuracy(axes: Axes, runs: Sequence[StoredRun], drops: dict[int, str]) -> str:
    """Draw the test accuracy over epochs: the mean of each method, and every seed as a thin line."""
    means = []
    for method, colour in COLOURS.items():
        curves = [[100 * epoch.accuracy["test"] for epoch in run.epochs] for run in runs if run.recipe.method == method]
        for curve in curves if len(curves) > 1 else []:
            axes.plot(range(1, len(curve) + 1), curve, color=colour, linewidth=0.7, alpha=0.35)
        means.append(Curve(method.upper(), [statistics.fmean(at) for at in zip(*curves, strict=True)], colour))
    draw_curves(axes, means, ylabel="accuracy on clean test digits, %", drops=drops)
    return "At the end: " + ", ".join(f"{mean.label} {mean.values[-1]:.1f} %" for mean in means)
