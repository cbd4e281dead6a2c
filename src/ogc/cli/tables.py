"""``ogc tables``: the paper's tables, filled with recorded runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._require import require, require_known
from . import options as shared
from .command import command, given

if TYPE_CHECKING:
    from ..benchmark.table import Filled

FORMATS = {"terminal": ".txt", "markdown": ".md", "latex": ".tex", "html": ".html"}


@dataclass(frozen=True, kw_only=True)
class TablesOptions:
    names: Annotated[list[str], typer.Argument(help=f"{shared.TABLES}.", show_default="all that have runs")] = field(
        default_factory=list
    )
    results: shared.Results = None
    format: Annotated[
        str | None,
        typer.Option("--format", help="terminal, markdown, latex or html.", show_default="from the suffix of --out"),
    ] = None
    out: Annotated[Path | None, typer.Option(help="File to write instead of printing.")] = None
    averaged: Annotated[bool, typer.Option("--averaged", help="Also show the accuracy of the averaged weights.")] = (
        False
    )
    all: Annotated[bool, typer.Option("--all", help="Also show rows without runs.")] = False
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE.md", help="Write the page with all results, docs/results.md in a clone."),
    ] = None

    def chosen_format(self) -> str:
        """Return ``--format``, or the format that fits the suffix of ``--out``."""
        if self.format is not None:
            require_known("format", self.format, FORMATS)
            return self.format
        if self.out is None:
            return "terminal"
        by_suffix = {suffix: name for name, suffix in FORMATS.items()}
        rule = f"a file that ends in one of {', '.join(by_suffix)}, unless --format is given"
        require(self.out.suffix.lower() in by_suffix, "out", rule, str(self.out))
        return by_suffix[self.out.suffix.lower()]


@command()
def tables(options: TablesOptions) -> None:
    """Fill the paper's tables with recorded runs: mean and standard deviation, the paper's number, the difference.

    \b
    Examples:
      ogc tables cifar10
      ogc tables cifar10 --averaged --results runs/bench
      ogc tables cifar10 --out cifar10.html
      ogc tables adjusting gce --format latex
      ogc tables --write docs/results.md
    """
    from .._files import write_whole
    from ..benchmark.plan import TABLES, by_table
    from ..benchmark.result import FOLDER, OTHER_DRAWS, disagreements, read_all
    from ..benchmark.table import fill
    from ..benchmark.table_formats import page
    from ..report.table import counted

    alone = options.write is None or not set(given(options)) - {"write", "results"}
    require(alone, "write", "used alone or with --results, because the page has every table", str(options.write))
    format = options.chosen_format()
    wanted = [by_table(name) for name in options.names]
    folder = options.results or FOLDER
    if not folder.is_dir() and (options.results is not None or not wanted):
        raise FileNotFoundError(f"There is no folder {folder}. Create results with ogc bench run, or give --results.")
    found, complaints = read_all(folder)
    for sentence in (*complaints, *disagreements(found)):
        typer.echo(f"Note: {sentence}", err=True)
    if not found and not wanted:
        raise FileNotFoundError(f"There are no results in {folder}. Create some with ogc bench run.")
    if options.write is not None:
        draws = read_all(folder.parent / OTHER_DRAWS)[0]
        text = page(found, folder=folder, beside=options.write.parent, other_draws=draws)
        write_whole(options.write, text.encode())
        typer.echo(f"{options.write}: {counted(len(found), 'run')}")
        return
    filled = [fill(table, found) for table in wanted or TABLES.values()]
    empty = [each.table.name for each in filled if not each.has_runs]
    filled = filled if options.all else [each.without_empty_rows() for each in filled if each.has_runs]
    missing = _missing(empty, folder)
    if not filled and wanted:
        raise FileNotFoundError(missing)
    if not filled:
        raise ValueError(
            f"The results in {folder} are trials with --epochs or --set, which no table includes. Run without these."
        )
    text = _render(filled, format, options)
    if options.out is None:
        typer.echo(text, nl=False)
    else:
        write_whole(options.out, text.encode())
        typer.echo(str(options.out))
    if wanted and empty:
        typer.echo(f"Note: {missing}", err=True)


def _missing(names: list[str], folder: Path) -> str:
    """Report tables without runs, and the command that fills the first of them."""
    from ..benchmark.result import FOLDER

    run = ["ogc", "bench", "run", *names[:1], *([] if folder == FOLDER else ["--out", str(folder)])]
    fix = f"To make them: {shlex.join(run)}. To read another folder: --results."
    return f"{folder} has no runs of {', '.join(names)}. {fix}"


def _render(filled: list[Filled], format: str, options: TablesOptions) -> str:
    """Return the tables as text; empty if they were printed to the terminal."""
    from rich.console import Console

    from ..benchmark.table_formats import html, latex, markdown, terminal

    averaged, to_file = options.averaged, options.out is not None
    if format == "html":
        return html(filled, averaged=averaged)
    if format != "terminal":
        write = {"markdown": markdown, "latex": latex}[format]
        return "\n".join(write(each, averaged=averaged) for each in filled)
    lines = StringIO()
    console = Console(highlight=False, file=lines if to_file else None, width=100 if to_file else None)
    for each in filled:
        console.print(terminal(each, averaged=averaged, width=console.width))
    return lines.getvalue()
