"""Options that several commands share, each declared once."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from .._require import require

TABLES = (
    "cifar10, cifar100, adjusting, gce, webvision, epsilon, queue, every, time, digits, instance, default, plus, "
    "plus100"
)

Data = Annotated[Path | None, typer.Option(help="Folder with the CIFAR or WebVision files.", show_default="data")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Download = Annotated[bool, typer.Option("--download", help="Download CIFAR into --data if it is missing.")]
Epochs = Annotated[int | None, typer.Option(help="Number of epochs; the schedule is scaled to it.")]
Id = Annotated[str | None, typer.Option("--id", help="Column that identifies the rows of a table.")]
Ilsvrc = Annotated[Path | None, typer.Option(help="Folder with the ILSVRC-12 validation images, for webvision.")]
Label = Annotated[str | None, typer.Option(help="Label column of a table, or label array of an .npz.")]
Labels = Annotated[
    Path | None, typer.Option(help="Read the given labels from a file: .npy, .csv, or the .pt of CIFAR-N.")
]
Method = Annotated[
    str | None, typer.Option(help="Loss, with or without clipping: ce, gce:q=0.9, fl+ogc, ...", show_default="ce+ogc")
]
OtherMethods = Annotated[
    list[str],
    typer.Option(
        metavar="METHOD|FILE.py:CLASS", help="Another method, or a loss of your own in a file; may be repeated."
    ),
]
Results = Annotated[
    Path | None,
    typer.Option(help="Folder with the results, one JSON per run.", show_default="benchmarks/results/runs"),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the weights, the batches and the augmentation.")]
_SEEDS = typer.Option(metavar="N,N,...", help="Comma-separated seeds, one run per seed.")
Seeds = Annotated[str, _SEEDS]
OptionalSeeds = Annotated[str | None, _SEEDS]
Set = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the recipe; may be repeated.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be read and rows without a label.")]
TrueLabels = Annotated[
    str | None,
    typer.Option(help="Column or array with the true labels, for evaluation only; for a folder, a CSV file."),
]
Weights = Annotated[str, typer.Option(help="Weights of the run: averaged (if it has any), last or best.")]


def check_weights(weights: str) -> None:
    require(weights in ("averaged", "last", "best"), "weights", "one of averaged, last, best", weights)


def check_new_file(option: str, path: Path, suffix: str) -> None:
    """Refuse a file of another type, one that exists, and one whose folder cannot be created."""
    require(path.suffix.lower() == suffix, option, f"a {suffix} file", str(path))
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path} exists, and is not overwritten. Choose another file with --{option} FILE{suffix}.")
    nearest = next(folder for folder in path.parents if folder.exists())
    if not nearest.is_dir():  # reported before the work, not after it
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(nearest))


def parse_settings(changes: Iterable[str], given: dict[str, object], example: str) -> dict[str, object]:
    """Add the ``KEY=VALUE`` pairs of ``--set`` to the settings given by options of their own."""
    found = dict(given)
    for change in changes:
        name, equals, value = (part.strip() for part in change.partition("="))
        require(bool(equals and name), "set", f"KEY=VALUE, as in {example}", change)
        require(name not in found, "set", f"omitted for {name}, which is already given", change)
        found[name] = value
    return found


def parse_seeds(text: str) -> list[int]:
    """Parse ``1,2,3``."""
    parts = [part.strip() for part in text.split(",")]
    seeds = [int(part) for part in parts if part.isdecimal()]
    require(len(set(seeds)) == len(parts), "seeds", "distinct integers, as in 1,2,3", text)
    return seeds


def check_cluster(engine: str, device: str, address: str | None) -> None:
    """Check the options of a Ray cluster, whose nodes have their own devices."""
    require(address is None or engine == "ray", "address", "omitted without --engine ray", address)
    known = engine != "ray" or device in ("auto", "cuda", "cpu")
    require(known, "device", "auto, cuda or cpu with engine = ray", device)
