"""``ogc demo``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..report.console import make_console
from . import options as shared
from .command import command


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    out: Annotated[Path, typer.Option(help="Folder for demo.png and result.json.")] = Path("runs/demo")
    seeds: shared.Seeds = "0"
    epochs: Annotated[int, typer.Option(help="Epochs per run. The learning rate drops after 1/3 and 2/3.")] = 120


@command()
def demo(options: DemoOptions) -> None:
    """Compare CE with CE+OGC on digits with about half of the labels wrong. Takes less than a minute and works offline.

    \b
    Examples:
      ogc demo
      ogc demo --seeds 0,1,2 --out runs/three
    """
    from .. import demo

    demo.demo(options.out, make_console(), seeds=shared.parse_seeds(options.seeds), epochs=options.epochs)
