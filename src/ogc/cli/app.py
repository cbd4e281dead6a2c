"""The application with all its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from . import audit, bench, demo, figures, noise, tables, train


def build() -> typer.Typer:
    """Return the application. Commands import torch when they run, so that ``--help`` is fast."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(ogc)
    app.command()(demo.demo)
    app.command()(train.train)
    app.command()(noise.noise)
    app.add_typer(audit.group(), name="audit", help="Find wrong labels and suggest the right ones.")
    app.add_typer(bench.group(), name="bench", help="Run whatever is missing from the paper's tables.")
    app.command()(tables.tables)
    app.command()(figures.figures)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"ogc {__version__}")
        raise typer.Exit


def ogc(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train on data with wrong labels: Optimized Gradient Clipping.

    Start with: ogc demo
    """
