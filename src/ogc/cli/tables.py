"""``ogc tables``: the paper's tables, filled with recorded runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._require import counted, require, require_known
from . import options as shared
from .command import command, given

if TYPE_CHECKING:
    from ..benchmark.table import Filled

FORMATS = {"terminal": ".txt", "markdown": ".md", "latex": ".tex", "html": ".html"}


@dataclass(frozen=True, kw_only=True)
class TablesOptions:
    names: Annotated[
        list[str], typer.Argument(metavar="TABLE", help=f"{shared.TABLES}.", show_default="all that have runs")
    ] = field(default_factory=list)
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
    from ..benchmark.table import fill, is_shown
    from ..benchmark.table_formats import page

    alone = options.write is None or not set(given(options)) - {"write", "results"}
    require(alone, "write", "used alone or with --results, because the page has every table", str(options.write))
    page_name = options.write is None or options.write.suffix == ".md"  # an option without its value takes the next one
    require(page_name, "write", "a file that ends in .md", str(options.write))
    format, folder = options.chosen_format(), options.results or FOLDER
    wanted = [by_table(name) for name in options.names]
    found, errors = read_all(folder)
    for sentence in (*errors, *disagreements(found)):
        typer.echo(f"Note: {sentence}", err=True)
    filled = [fill(table, found, averaged=options.averaged) for table in wanted or TABLES.values()]
    empty = [each.table.name for each in filled if not each.has_runs]
    to_folder = [] if folder == FOLDER else ["--out", str(folder)]
    datasets = {cell.dataset for each in filled if not each.has_runs for cell in each.table.cells}
    trials = any(run.dataset in datasets and not is_shown(run.recipe, alone=run.alone) for run in found)
    left_out = ", except trial runs (other settings, such as --epochs or --set), which tables leave out"
    missing = (
        f"{folder} has no runs of {', '.join(empty) if wanted else 'any table'}{left_out if trials else ''}. To make "
        f"them: {shlex.join(['ogc', 'bench', 'run', *empty[:1], *to_folder])}. To read another folder: --results."
    )
    if options.write is not None and found:
        draws = read_all(folder.parent / OTHER_DRAWS)[0]
        text = page(found, folder=folder, beside=options.write.parent, other_draws=draws)
        write_whole(options.write, text.encode())
        typer.echo(f"{options.write}: {counted(len(found), 'run')}")
        return
    if len(empty) == len(filled) and not (wanted and options.all):
        raise FileNotFoundError(missing)
    filled = filled if options.all else [each.without_empty_rows() for each in filled if each.has_runs]
    text = _render(filled, format, options.out)
    if options.out is None:
        typer.echo(text, nl=False)
    else:
        write_whole(options.out, text.encode())
        typer.echo(str(options.out))
    if wanted and empty:
        typer.echo(f"Note: {missing}", err=True)


def _render(filled: list[Filled], format: str, out: Path | None) -> str:
    """Return the tables as text; empty if they were printed to the terminal."""
    from rich.console import Console

    from ..benchmark.table_formats import html, latex, markdown, terminal

    if format == "html":
        return html(filled)
    if format != "terminal":
        return "\n".join(map({"markdown": markdown, "latex": latex}[format], filled))
    lines = StringIO()
    console = Console(highlight=False, file=lines if out else None, width=100 if out else None)
    for each in filled:
        console.print(terminal(each, width=console.width))
    return lines.getvalue()
