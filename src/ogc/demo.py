"""The first run: digits with half of their labels wrong, one small network trained with CE and with CE+OGC."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ._files import write_whole
from ._require import require
from .report.drawing import BLUE, RED, Curve, draw_curves, draw_histogram, draw_tau, figure_of, figure_of_several, png
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
PASTE = """\
    from ogc import OGC
    criterion = OGC("ce", optimizer)          # was: nn.CrossEntropyLoss()
    loss = criterion(model(inputs), labels)"""


class Stopped(KeyboardInterrupt):
    """Raised on Ctrl-C. The message lists the files that were written."""


@dataclass(frozen=True)
class Settings:
    """Settings that both methods share. The seed decides the noise, the initial weights and the batches."""

    seeds: tuple[int, ...] = (0,)
    epochs: int = 120
    noise_rate: float = 0.5
    hidden: tuple[int, ...] = (512, 512)

    def __post_init__(self) -> None:
        require(bool(self.seeds), "seeds", "at least one number", self.seeds)
        require(all(0 <= seed < 2**32 for seed in self.seeds), "seeds", "in [0, 2**32)", self.seeds)
        require(self.epochs >= 1, "epochs", "at least 1", self.epochs)

    def recipe(self, method: str, seed: int) -> Recipe:
        noise = {"noise": f"symmetric:{self.noise_rate}", "noise_seed": seed}
        changes = {"epochs": self.epochs, "hidden": self.hidden, "average": None, "report_epochs": 1}
        return override(RECIPES["digits"], {"method": method, "seed": seed, **noise, **changes})


def demo(out: Path, settings: Settings, console: Console) -> list[Result]:
    """Train both methods, print a table, and write the pictures and result.json to ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    written: list[str] = []
    try:
        console.print(
            f"Handwritten digits, about {settings.noise_rate:.0%} of the training labels replaced at random. "
            f"The same network is trained for {settings.epochs} epochs with CE, then with CE+OGC.\n"
        )
        results, runs = train_all(settings, console)
        console.print()
        console.print(table(results))
        for name, picture in pictures(runs).items():
            write_whole(out / name, png(picture))
            written.append(name)
        content = {"settings": asdict(settings), "runs": results}
        write_whole(out / "result.json", json.dumps(content, indent=1).encode())
        written.append("result.json")
    except KeyboardInterrupt:
        kept = f"{', '.join(written)} written to {out}" if written else f"nothing was written to {out}"
        raise Stopped(f"Stopped before the end: {kept}.") from None
    console.print(
        f"\nPictures: {out / 'demo.png'} (and {', '.join(written[1:-1])})\nNumbers:  {out / 'result.json'}\n\n"
        f"In your own training loop:\n\n{PASTE}\n",
        markup=False,
        soft_wrap=True,
    )
    console.print("Next: see README.md for other losses and options, and docs/method.md for the equations.")
    return results


def train_all(settings: Settings, console: Console) -> tuple[list[Result], list[StoredRun]]:
    """Train every method with every seed, on the CPU."""
    source = Source(kind="digits")
    with TemporaryDirectory() as folder:
        jobs: list[Job] = []
        for recipe in (settings.recipe(method, seed) for method in COLOURS for seed in settings.seeds):
            jobs.append(Job(recipe, source, *load(source, recipe), Path(folder, str(len(jobs)))))
        with Progress(console, jobs) as watch:
            results = train(jobs, device="cpu", watch=watch)
        return results, [read(job.out) for job in jobs if job.out is not None]


def pictures(runs: Sequence[StoredRun]) -> dict[str, Figure]:
    """Draw the three panels side by side, and each on its own: file name to figure."""
    ogc = [run for run in runs if run.recipe.method == "ce+ogc"]
    first, drops = ogc[0], lr_drops(ogc[0].epochs)
    wrong = first.samples["given"] != first.samples["true"]
    which = f" (seed {first.recipe.seed})" if len(ogc) > 1 else ""
    xlabel = f"H, cross entropy of the given label, at the end{which}"
    panels: dict[str, Callable[[Axes], str]] = {
        "accuracy.png": lambda axes: draw_accuracy(axes, runs, drops),
        "tau.png": lambda axes: draw_tau(axes, [[epoch.tau for epoch in run.epochs] for run in ogc], drops=drops),
        "histogram.png": lambda axes: draw_histogram(
            axes, first.samples["H"], wrong, mixture_of(first.epochs[-1]), xlabel=xlabel
        ),
    }
    return {"demo.png": figure_of_several(panels.values())} | {name: figure_of(draw) for name, draw in panels.items()}


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
