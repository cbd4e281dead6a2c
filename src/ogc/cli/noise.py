"""``ogc noise``: write noisy labels to a file, with a JSON file that records how they were made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._require import require
from ..report.console import download_bar, make_console, say
from . import options as shared
from .command import command
from .errors import data_errors

if TYPE_CHECKING:
    from rich.console import Console

    from ..noise import LabelInfo
    from ..noise.by_kind import Kind, Truth

NAMED = ("digits", "cifar10", "cifar100")
SUFFIXES = (".npy", ".csv")
MOST_CLASSES = 20_000


@dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="digits, cifar10, cifar100, or a .npy or .csv file of labels.")
    ]
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="symmetric, asymmetric, blocks, pairflip, instance, human:KIND, file. May include the rate, as in "
            "symmetric:0.5. If KIND is omitted, describe SOURCE.",
        ),
    ] = None
    rate: Annotated[float | None, typer.Argument(metavar="RATE", help="Fraction of the labels to flip, in [0, 1].")] = (
        None
    )
    seed: Annotated[int, typer.Option(help="Seed of the noise. The same seed gives the same file.")] = 0
    data: shared.Data = None
    labels: Annotated[
        Path | None, typer.Option(help="Label file for the kinds human:KIND and file (CIFAR-N .pt, .npy or .csv).")
    ] = None
    column: Annotated[
        str | None, typer.Option("--import", metavar="COLUMN", help="Column of the .csv or .npy to read.")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(help="The .npy or .csv file to write.", show_default="runs/noise/SOURCE-KIND-RATE-SEED.npy"),
    ] = None
    plot: Annotated[bool, typer.Option("--plot", help="Also draw the confusion matrix, as PNG.")] = False
    download: shared.Download = False

    def check(self) -> None:
        """Check the arguments without reading data."""
        if self.kind is None:
            require(self.is_file, "source", "a .npy or .csv file if KIND is missing", self.source)
            for name, value in (("--out", self.out), ("--labels", self.labels), ("rate", self.rate)):
                require(value is None, name, "omitted without KIND, where the file is only read", str(value))
            return
        kind = self.kind_of_noise
        rule = f"one of {', '.join(NAMED)}, or a .npy or .csv file of labels"
        require(self.is_file or self.source in NAMED, "source", rule, self.source)
        require(0 <= self.seed < 2**32, "seed", "in [0, 2**32)", self.seed)
        kind.check_source(self.source, with_images=NAMED)
        if kind.in_file:
            require(self.labels is not None, "--labels", f"the file of labels, with {kind.name}", None)
        else:
            require(self.labels is None, "--labels", "omitted: only human:KIND and file use it", str(self.labels))
        require(self.target.suffix in SUFFIXES, "--out", "a .npy or .csv file", str(self.target))
        inputs = [path.resolve() for path in (Path(self.source), self.labels) if path is not None]
        require(self.target.resolve() not in inputs, "--out", "different from the input files", str(self.target))

    @property
    def is_file(self) -> bool:
        return Path(self.source).suffix in SUFFIXES

    @property
    def kind_of_noise(self) -> Kind:
        """The kind of noise with its rate, which is an argument of its own (``symmetric 0.5``) or part of the kind."""
        from ..noise.by_kind import Kind

        assert self.kind is not None
        name, _, rate = self.kind.partition(":")
        if name == "human" or not rate:
            return Kind(self.kind, self.rate).checked()
        require(self.rate is None, "rate", f"given once: {self.kind} includes it", self.rate)
        return Kind.parse(self.kind, "kind")

    @property
    def target(self) -> Path:
        """Path of the labels to write."""
        from ..noise.by_kind import GENERATORS

        if self.out is not None:
            return self.out
        kind = self.kind_of_noise
        parts = [Path(self.source).stem if self.is_file else self.source, kind.name.replace(":", "-")]
        parts += [str(kind.rate), str(self.seed)] if kind.name in GENERATORS else []
        return Path("runs/noise") / ("-".join(parts) + ".npy")


@command()
def noise(options: NoiseOptions) -> None:
    """Write noisy labels to a file, and their kind, rate, seed and checksum to a JSON file next to it.

    \b
    Examples:
      ogc noise digits symmetric 0.5
      ogc noise digits symmetric:0.5
      ogc noise cifar10 symmetric 0.5 --data ~/cifar --download --plot
      ogc noise cifar10 asymmetric 0.4 --data ~/cifar
      ogc noise cifar100 blocks 0.4 --data ~/cifar --seed 3
      ogc noise cifar10 human:worse --data ~/cifar --labels CIFAR-10_human.pt
      ogc noise cifar10 file --data ~/cifar --labels mine.csv --import worker_7
      ogc noise mine.csv pairflip 0.2 --import true_label
      ogc noise runs/noise/digits-symmetric-0.5-0.npy

    human: aggregate, random1, random2, random3, worse (CIFAR-10N) or noisy (CIFAR-100N).
    """
    from .._files import write_whole
    from ..noise import read_info, read_labels, write_labels
    from ..noise.files import info_path

    options.check()
    if options.kind is None:
        path = Path(options.source)
        read_labels(path, options.column)
        info, name, class_names = read_info(path), path.stem, tuple[str, ...]()
    else:
        path, truth = options.target, _truth(options)
        kind = options.kind_of_noise
        given, info = kind.make(truth, seed=options.seed, file=options.labels, column=options.column)
        write_labels(path, given, info)
        name, class_names = truth.name, truth.class_names
    files = [path, info_path(path)]
    if options.plot:
        from ..noise.picture import draw_confusion
        from ..report.drawing import png

        files.append(path.with_suffix(".png"))
        write_whole(files[-1], png(draw_confusion(info, name, class_names)))
    _show(info, files, make_console())


def _truth(options: NoiseOptions) -> Truth:
    """Load the true labels of the source."""
    from ..noise import LabelFileError, read_info, read_labels
    from ..noise.by_kind import Truth
    from ..noise.files import info_path
    from ..training.recipe import by_name
    from ..training.source import Source, load, truth_of

    if options.source in NAMED:
        source = Source.parse(options.source, data=options.data)
        with data_errors(), download_bar() as progress:
            (train, _), _ = load(source, by_name(options.source), download=options.download, progress=progress)
        return truth_of(source, train)
    path = Path(options.source)
    labels = read_labels(path, options.column if options.kind != "file" else None)
    for label in labels[(labels < 0) | (labels >= MOST_CLASSES)][:1]:
        raise LabelFileError(f"{path} contains the label {label}, but labels should be in [0, {MOST_CLASSES}).")
    num_classes = max(2, int(labels.max(initial=0)) + 1)
    if info_path(path).exists():
        num_classes = max(num_classes, read_info(path).num_classes)
    return Truth(path.stem, labels, num_classes)


def _show(info: LabelInfo, files: list[Path], console: Console) -> None:
    """Print a short table and the paths of the files."""
    from rich.table import Table

    total = sum(map(sum, info.confusion or []))
    rows = {
        "kind": info.kind if info.seed is None else f"{info.kind}, seed {info.seed}",
        "requested rate": None if info.rate_asked is None else f"{100 * info.rate_asked:g} %",
        "actual rate": None if info.rate_got is None else f"{100 * info.rate_got:.2f} %",
        "flips": None if info.flips is None else f"{info.flips:,} of {total:,} labels",
        "sha256": info.sha256,
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(name, value or "-")
    console.print(table, soft_wrap=True)
    if info.kind == "symmetric" and (info.rate_asked or 0) - (info.rate_got or 0) > 0.01:
        say(console, "The rate is lower than requested because the flips per pair of classes are rounded down.")
    for file in files:
        say(console, str(file))
