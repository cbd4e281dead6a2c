"""The command ``ogc tables``: the paper's tables with our runs in them."""

from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from ._ending import one_sentence

FORMATS = ("terminal", "markdown", "latex", "html")
ENDINGS = {".md": "markdown", ".tex": "latex", ".html": "html", ".txt": "terminal"}


def register(app: typer.Typer) -> None:
    @app.command()
    def tables(
        names: Annotated[
            list[str] | None,
            typer.Argument(
                help="cifar10, cifar100, adjusting, gce, webvision, epsilon, queue, every, time, digits, q, "
                "default, plus, "
                "plus100; none: those that have runs."
            ),
        ] = None,
        results: Annotated[
            Path | None, typer.Option(help="Folder of results, a JSON a run.", show_default="benchmarks/results/runs")
        ] = None,
        format: Annotated[
            str | None,
            typer.Option("--format", help="terminal, markdown, latex or html.", show_default="by --out's ending"),
        ] = None,
        out: Annotated[Path | None, typer.Option(help="The file to write instead of the screen.")] = None,
        averaged: Annotated[
            bool, typer.Option("--averaged", help="Show the accuracy of the averaged weights, too.")
        ] = False,
        write: Annotated[
            Path | None,
            typer.Option(metavar="FILE.md", help="Write the page of all results, docs/results.md in a clone."),
        ] = None,
    ) -> None:
        """The paper's tables filled with our runs: mean and deviation, the paper's number, the difference.

        \b
        Examples:
          ogc tables cifar10
          ogc tables cifar10 --averaged --results runs/bench
          ogc tables cifar10 --out cifar10.html
          ogc tables adjusting gce --format latex
          ogc tables --write docs/results.md
        """
        with one_sentence():
            _tables(names or [], results, format, out, averaged, write)


def _tables(
    names: list[str], results: Path | None, format: str | None, out: Path | None, averaged: bool, write: Path | None
) -> None:
    from rich.console import Console

    from ._files import write_whole
    from ._near import meant
    from ._require import require
    from .benchmark.plan import TABLES, by_table
    from .benchmark.result import FOLDER, OTHER_DRAWS, disagreements, read_all
    from .benchmark.table import fill
    from .benchmark.table_formats import html, latex, markdown, page, terminal

    if write is not None:
        others = bool(names) or out is not None or averaged or format is not None
        require(not others, "write", "alone, or with --results: the page has every table", str(write))
    if format is None and out is not None:
        known = out.suffix.lower() in ENDINGS
        require(known, "out", f"a file that ends in {', '.join(ENDINGS)}, or with --format", str(out))
    format = format or (ENDINGS[out.suffix.lower()] if out else "terminal")
    if format not in FORMATS:
        raise ValueError(f"There is no format {format!r}.{meant(format, FORMATS)} There are {', '.join(FORMATS)}.")
    wanted = [by_table(name) for name in names]
    folder = results or FOLDER
    if not folder.is_dir() and (results is not None or not wanted):
        raise FileNotFoundError(f"There is no folder {folder}: `ogc bench run` makes one, or give --results.")
    found, complaints = read_all(folder)
    for sentence in (*complaints, *disagreements(found)):
        typer.echo(f"Note: {sentence}", err=True)
    if not found and not wanted:
        raise FileNotFoundError(f"There is no result in {folder}: `ogc bench run` makes some.")
    if write is not None:
        draws = read_all(folder.parent / OTHER_DRAWS)[0]
        write_whole(write, page(found, folder=folder, beside=write.parent, other_draws=draws).encode())
        typer.echo(f"{write}: {len(found)} run{'' if len(found) == 1 else 's'}")
        return
    filled = [fill(table, found) for table in wanted or TABLES.values()]
    empty = ", ".join(each.table.name for each in filled if not each.has_runs)
    filled = filled if wanted else [each for each in filled if each.has_runs]
    if not filled:
        raise ValueError(f"The results in {folder} are trials, by --epochs or --set: no table has them.")
    if format == "terminal":
        lines = StringIO()
        console = Console(highlight=False, file=lines if out else None, width=100 if out else None)
        for each in filled:
            console.print(terminal(each, averaged=averaged, width=console.width))
        text = lines.getvalue()  # nothing, if it is on the screen
    elif format == "html":
        text = html(filled, averaged=averaged)
    else:
        shown = {"markdown": markdown, "latex": latex}[format]
        text = "\n".join(shown(each, averaged=averaged) for each in filled)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_whole(out, text.encode())
        typer.echo(str(out))
    if wanted and empty:
        typer.echo(f"Note: {folder} has no run of {empty}: `ogc bench run` makes them, or give --results.", err=True)
