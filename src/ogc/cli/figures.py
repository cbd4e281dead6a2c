"""``ogc figures``: train and draw the paper's first figure, and draw the others from recorded runs."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._require import require_known
from ..report.console import make_console, say, warnings_as_notes
from . import options as shared
from .command import command
from .errors import FAILED, fail

if TYPE_CHECKING:
    from rich.console import Console

    from ..benchmark.motivation import Settings

NAMES = ("motivation", "epsilon", "queue", "every", "tau", "ratio")


@dataclass(frozen=True, kw_only=True)
class FiguresOptions:
    names: Annotated[list[str], typer.Argument(help=f"{', '.join(NAMES)}, or all.", metavar="NAME")]
    results: shared.Results = None
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("runs/figures")
    format: Annotated[str, typer.Option("--format", help="png, svg, pdf, or several of them: png,pdf.")] = "png"
    seed: Annotated[int, typer.Option(help="Seed of motivation: points, noise, weights and batches.")] = 0


@command(stopped="Stopped. Files that were already written are complete.")
def figures(options: FiguresOptions) -> None:
    """Draw the paper's figures. motivation trains for one to two minutes; the others are drawn from recorded runs.

    \b
    motivation  gradients of clean and noisy samples, with a fixed threshold and with OGC
    epsilon     accuracy against a fixed epsilon
    queue       accuracy and variance of tau against the size of the queue
    every       the same against the number of steps between updates
    tau         tau over training, for each noise
    ratio       r(tau) from the two normals and from the true labels, for each noise

    \b
    Examples:
      ogc figures motivation
      ogc figures tau ratio --results runs/bench --format pdf
      ogc figures all --out figures --format png,svg
    """
    from ..benchmark.motivation import Settings
    from ..plot import FORMATS

    formats = [part.strip() for part in options.format.split(",")]
    for name in options.names:
        require_known("figure", name, (*NAMES, "all"))
    for format in formats:
        require_known("format", format, FORMATS)
    console, settings = make_console(), Settings(seed=options.seed)
    wanted = list(NAMES if "all" in options.names else dict.fromkeys(options.names))
    if "motivation" in wanted:
        options.out.mkdir(parents=True, exist_ok=True)  # fail before the training
    missing = draw_recorded([name for name in wanted if name != "motivation"], options, formats, console)
    if "motivation" in wanted:
        motivation(settings, options.out, formats, console)
    if missing and "all" in options.names:
        typer.echo("\n".join(missing), err=True)
    elif missing:
        raise fail("\n".join(missing), FAILED)


def draw_recorded(names: list[str], options: FiguresOptions, formats: list[str], console: Console) -> list[str]:
    """Draw figures from recorded runs, and return one message per figure that has none."""
    if not names:
        return []
    from ..benchmark.figures import FIGURES, SWEPT
    from ..benchmark.result import FOLDER, disagreements, read_all
    from ..report.drawing import rendered

    folder = options.results or FOLDER
    if options.results is not None and not folder.is_dir():
        to_create = f"ogc bench run TABLE --out {shlex.quote(str(folder))}"
        raise FileNotFoundError(f"There is no folder {folder}. Create results with {to_create}.")
    to_folder = [] if folder == FOLDER else ["--out", str(folder)]
    found, errors = read_all(folder)
    for sentence in (*errors, *disagreements(found)):
        say(console, f"Note: {sentence}")
    missing = []
    for name in names:
        drawn = FIGURES[name](found)
        for picture, figure in drawn.items():
            write(options.out, picture, {each: rendered(figure, each) for each in formats}, console)
        if not drawn:
            runs = [name] if name in SWEPT else ["cifar10", "--methods", "ce+ogc,fl+ogc"]
            to_run = shlex.join(["ogc", "bench", "run", *runs, "--data", "DIR", *to_folder])
            missing.append(f"{name}: {folder} has no runs for it. To run them: {to_run}")
    return missing


def write(out: Path, name: str, files: dict[str, bytes], console: Console) -> None:
    """Write one file per suffix, and print the paths."""
    from .._files import write_whole

    out.mkdir(parents=True, exist_ok=True)
    for suffix, content in files.items():
        write_whole(out / f"{name}.{suffix}", content)
        say(console, f"{out / name}.{suffix}")


def motivation(settings: Settings, out: Path, formats: list[str], console: Console) -> None:
    """Train with each threshold, print a line for each epoch that is drawn, and write the picture and its numbers."""
    from ..benchmark.motivation import Moment, name_of, numbers, task_of, train
    from ..benchmark.motivation_picture import draw
    from ..report.drawing import rendered

    def show(threshold: float | None, moment: Moment) -> None:
        if moment.epoch in settings.epochs:
            tau = "-" if moment.tau is None else f"{moment.tau:.2f}"
            shares = f"test {100 * moment.test_accuracy:4.1f} %  memorised {100 * moment.memorised:4.1f} %"
            epoch = f"epoch {moment.epoch:4}/{settings.epochs[-1]}"
            say(console, f"{name_of(threshold):8}  {epoch}  {shares}  tau {tau}")

    task = task_of(settings)
    with warnings_as_notes(console):
        histories = [train(each, settings, task, partial(show, each)) for each in settings.thresholds]
    text = json.dumps(numbers(histories, settings, task), indent=1, allow_nan=False)
    text = re.sub(r"\[[^][{}]*\]", lambda numbers: re.sub(r"\s+", " ", numbers[0]), text)  # one list per line
    figure = draw(histories, task)
    write(out, "motivation", {each: rendered(figure, each) for each in formats} | {"json": text.encode()}, console)
