"""``ogc noise``: write noisy labels to a file, with a JSON file that records how they were made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._require import require
from ..report.console import download_bar
from . import options as shared
from .errors import data_errors, reported

if TYPE_CHECKING:
    from ..noise.by_kind import Truth

WITH_LABELS = ("digits", "cifar10", "cifar100")
MOST_PRINTED = 20  # classes of a confusion matrix


def noise(
    source: Annotated[str, typer.Argument(help="digits, cifar10, cifar100, or a .npy or .csv file of labels.")],
    kind: Annotated[str, typer.Argument(help="symmetric:RATE, asymmetric, blocks, pairflip, instance, human:KIND.")],
    seed: Annotated[int, typer.Option(help="Seed of the noise. The same seed gives the same file.")] = 0,
    data: shared.Data = None,
    out: Annotated[Path | None, typer.Option(help="The .npy or .csv file to write, by default in runs/noise.")] = None,
    download: shared.Download = False,
) -> None:
    """Write noisy labels to a file, and their kind, rate, seed and checksum to a JSON file next to it.

    \b
    Examples:
      ogc noise digits symmetric:0.5
      ogc noise cifar10 asymmetric:0.4 --data ~/cifar --download
      ogc noise cifar10 human:worse --data ~/cifar
      ogc noise mine.csv pairflip:0.2

    human: aggregate, random1, random2, random3, worse (CIFAR-10N) or noisy (CIFAR-100N).
    """
    from ..noise import write_labels
    from ..noise.by_kind import Kind
    from ..training.source import Source, human_file

    with reported():
        chosen = Kind.parse(kind, "kind")
        chosen.check_source(source, with_images=WITH_LABELS)
        human = human_file(Source.parse(source, data=data), chosen.name) if chosen.name.startswith("human:") else None
        target = out or Path("runs/noise", f"{Path(source).stem}-{kind.replace(':', '-')}-{seed}.npy")
        require(target.resolve() != Path(source).resolve(), "--out", "different from SOURCE", str(target))
        given, info = chosen.make(_truth(source, data, download), seed=seed, file=human)
        write_labels(target, given, info)
        typer.echo(f"{100 * (info.rate_got or 0):.2f} % of {len(given):,} labels are wrong. Written to {target}")
        if info.confusion is not None and info.num_classes <= MOST_PRINTED:
            width = 2 + max(len(str(count)) for row in info.confusion for count in row)
            rows = ("".join(f"{count:{width}}" for count in row) for row in info.confusion)
            typer.echo("\n".join(["True labels by row, given labels by column:", *rows]))


def _truth(source: str, data: Path | None, download: bool) -> Truth:
    """Load the true labels."""
    from ..noise import read_labels
    from ..noise.by_kind import Truth
    from ..training.recipe import by_name
    from ..training.source import Source, load, truth_of

    if source not in WITH_LABELS:
        labels = read_labels(source)
        return Truth(Path(source).stem, labels, max(2, int(labels.max(initial=0)) + 1))
    named = Source.parse(source, data=data)
    with data_errors(), download_bar() as progress:
        (train, _), _ = load(named, by_name(source), download=download, progress=progress)
    return truth_of(named, train)
