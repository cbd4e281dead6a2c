"""The application with all its commands."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as library_version
from typing import Annotated

import typer

from .. import __version__
from . import audit, bench, compare, demo, export, figures, noise, predict, tables, train
from .errors import USAGE, fail

LIBRARIES = (
    *(
        "torch",
        "triton",
        "numpy",
        "pandas",
        "scikit-learn",
        "pydantic",
        "safetensors",
        "pillow",
        "matplotlib",
        "typer",
        "rich",
    ),
    *("pyarrow", "tensorboard", "ray", "lightning", "transformers", "accelerate", "timm", "skorch"),
)


def build() -> typer.Typer:
    """Return the application. Commands import torch when they run, so that ``--help`` is fast."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(ogc)
    app.command()(demo.demo)
    app.command()(train.train)
    app.command()(compare.compare)
    app.command()(predict.predict)
    app.command()(export.export)
    app.command()(noise.noise)
    app.add_typer(audit.group(), name="audit", help="Find wrong labels and suggest the right ones.")
    app.add_typer(bench.group(), name="bench", help="Run whatever is missing from the paper's tables.")
    app.command()(tables.tables)
    app.command()(figures.figures)
    return app


def ogc(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --version: show the versions of all libraries, and the device.")
    ] = False,
) -> None:
    """Train on data with wrong labels: Optimized Gradient Clipping.

    Start with: ogc demo
    """
    if version:
        typer.echo("\n".join([f"ogc {__version__}", *(_environment() if verbose else [])]))
        raise typer.Exit
    if verbose:
        raise fail("Parameter `verbose` should be used with --version.", USAGE)


def _environment() -> list[str]:
    """Describe the machine and the libraries, for a bug report."""
    import torch

    from .._provenance import commit, device_name

    found = {"commit": commit(), "python": platform.python_version(), "system": platform.platform()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = library_version(name)
    cuda = torch.cuda.is_available()
    device = device_name(torch.device("cuda" if cuda else "cpu"))
    found["device"] = f"{device}, CUDA {torch.version.cuda}" if cuda else device
    return [f"{name:<14}{value or '-'}" for name, value in found.items()]
