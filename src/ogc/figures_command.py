"""What ``ogc figures`` does: the paper's first figure run anew, and its others from recorded runs.

Annotations are evaluated inside ``register``, like those of ``cli.py``.
"""

import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ._ending import one_sentence

if TYPE_CHECKING:
    import typer
    from rich.console import Console

    from .benchmark.motivation import Moment, Settings

NAMES = ("motivation", "epsilon", "queue", "every", "tau", "ratio")


def register(app: "typer.Typer") -> None:
    """Add ``figures``."""
    import typer

    @app.command()
    def figures(
        names: Annotated[list[str], typer.Argument(help=f"{', '.join(NAMES)}, or all.", metavar="NAME...")],
        results: Annotated[
            Path | None, typer.Option(help="Folder of results, a JSON a run.", show_default="benchmarks/results/runs")
        ] = None,
        out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("runs/figures"),
        format: Annotated[str, typer.Option("--format", help="png, svg, pdf, or several: png,pdf.")] = "png",
        seed: Annotated[
            int, typer.Option(help="Of motivation: the points, the noise, the weights and the batches.")
        ] = 0,
    ) -> None:
        """The paper's figures. motivation trains for about a minute, offline; the others draw what is recorded.

        \b
        motivation  gradients of clean and noisy samples, fixed threshold and OGC
        epsilon     accuracy against a fixed epsilon
        queue       accuracy and variance of tau against the queue's size
        every       the same against the steps from update to update
        tau         tau over training, for each noise
        ratio       r(tau) by the two normals and by the true labels, for each noise

        \b
        Examples:
          ogc figures motivation
          ogc figures tau ratio --results runs/bench --format pdf
          ogc figures all --out figures --format png,svg
        """
        from rich.console import Console

        with one_sentence(stopped=f"Stopped before the end. What is in {out} is whole."):
            missing = make(names, results, out, format, seed, Console(highlight=False))
        for sentence in missing:
            typer.echo(sentence, err=True)
        if missing and "all" not in names:
            raise typer.Exit(1)


def make(names: list[str], results: Path | None, out: Path, format: str, seed: int, console: "Console") -> list[str]:
    """Draw, and write; a sentence for each figure that there are no runs for."""
    from ._near import meant
    from .benchmark.figures import FORMATS
    from .benchmark.motivation import Settings

    formats = [part.strip() for part in format.split(",")]
    for name in names:
        if name not in (*NAMES, "all"):
            near = meant(name, NAMES)
            raise ValueError(f"There is no figure named {name!r}.{near} There are {', '.join(NAMES)}, and all.")
    for each in formats:
        if each not in FORMATS:
            raise ValueError(f"There is no format {each!r}.{meant(each, FORMATS)} There are {', '.join(FORMATS)}.")
    wanted = NAMES if "all" in names else tuple(dict.fromkeys(names))
    settings = Settings(seed=seed)
    if "motivation" in wanted:
        out.mkdir(parents=True, exist_ok=True)  # better found out now than after a minute of training
    recorded = [name for name in wanted if name != "motivation"]
    missing = draw_recorded(recorded, results, out, formats, console) if recorded else []
    if "motivation" in wanted:
        motivation(settings, out, formats, console)
    return missing


def draw_recorded(
    names: list[str], results: Path | None, out: Path, formats: list[str], console: "Console"
) -> list[str]:
    from .benchmark.figures import FIGURES, coverage, encode
    from .benchmark.result import FOLDER, disagreements, read_all

    folder = results or FOLDER
    if results is not None and not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}: `ogc bench run` makes one.")
    found, complaints = read_all(folder)
    for sentence in (*complaints, *disagreements(found)):
        console.print(f"Note: {sentence}", markup=False, soft_wrap=True)
    missing = []
    for name in names:
        drawn = FIGURES[name](found)
        there, wanted, command = coverage(name, found)
        for picture, figure in drawn:
            write(out, picture, {each: encode(figure, each) for each in formats}, console)
        if not drawn:
            missing.append(f"{name}: there is no run of it in {folder}. To make them: {command}")
        elif 0 < there < wanted:
            sentence = f"{name}: {there} of the paper's {wanted} runs are there. For the others: {command}"
            console.print(sentence, markup=False, soft_wrap=True)
    return missing


def write(out: Path, name: str, files: dict[str, bytes], console: "Console") -> None:
    from ._files import write_whole

    out.mkdir(parents=True, exist_ok=True)
    for ending, content in files.items():
        write_whole(out / f"{name}.{ending}", content)
        console.print(f"{out / name}.{ending}", markup=False, soft_wrap=True)


def motivation(settings: "Settings", out: Path, formats: list[str], console: "Console") -> None:
    """Train with each threshold, and write the picture and the numbers behind it."""
    from .benchmark.figures import encode
    from .benchmark.motivation import numbers, task_of, train
    from .benchmark.motivation_picture import draw

    task = task_of(settings)
    with progress(settings, console) as tell, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        histories = [
            train(threshold, settings, task, lambda moment, at=i: tell(at, moment))  # type: ignore[misc]
            for i, threshold in enumerate(settings.thresholds)
        ]
    for warning in caught:
        console.print(f"Note: {warning.message}", markup=False, soft_wrap=True)
    text = json.dumps(numbers(histories, settings, task), indent=1, allow_nan=False)
    text = re.sub(r"\[[^][{}]*\]", lambda numbers: re.sub(r"\s+", " ", numbers[0]), text)  # a list a line
    figure = draw(histories, task)
    files = {each: encode(figure, each) for each in formats} | {"json": text.encode()}
    write(out, "motivation", files, console)


@contextmanager
def progress(settings: "Settings", console: "Console") -> Iterator[Callable[[int, "Moment"], None]]:
    """A function to tell, by the number of the run: a live bar a run, or a line at each epoch that is drawn."""
    from rich.progress import BarColumn, Progress, TextColumn

    from .benchmark.motivation import name_of

    names = [f"{name_of(threshold):8}" for threshold in settings.thresholds]
    total = settings.epochs[-1]

    def facts(moment: "Moment") -> str:
        tau = "-" if moment.tau is None else f"{moment.tau:.2f}"
        return f"test {100 * moment.test_accuracy:4.1f} %  memorised {100 * moment.memorised:4.1f} %  tau {tau}"

    def say(run: int, moment: "Moment") -> None:
        if moment.epoch in settings.epochs:
            console.print(f"{names[run]}  epoch {moment.epoch:4}/{total}  {facts(moment)}", soft_wrap=True)

    if not console.is_terminal or console.is_dumb_terminal:
        yield say
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("epoch {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[facts]}"),
    )
    with Progress(*columns, console=console) as bars:
        tasks = [bars.add_task(name, total=total, facts="waiting") for name in names]
        yield lambda run, moment: bars.update(tasks[run], completed=moment.epoch, facts=facts(moment))
