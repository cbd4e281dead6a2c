"""What ``ogc noise`` does: given labels for a data set, in a file with its history beside it.

Bad values raise ``ValueError``; trouble with a file raises its subclass ``LabelFileError``, or ``OSError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from . import noise
from ._files import write_whole
from ._require import require
from .noise import LabelFileError, LabelInfo
from .noise.by_kind import RATED, Kind, Truth
from .noise.files import SUFFIXES, info_path

if TYPE_CHECKING:
    from rich.console import Console

    from .data import Dataset

MOST_CLASSES = 20_000


@dataclass(frozen=True)
class Request:
    """The command's arguments."""

    source: str
    kind: str | None = None
    rate: float | None = None
    seed: int = 0
    data: Path = Path("data")
    labels: Path | None = None
    column: str | None = None
    out: Path | None = None
    plot: bool = False
    download: bool = False

    def __post_init__(self) -> None:
        if self.kind is None:
            require(_is_file(self.source), "source", "a .npy or .csv file where no KIND is given", self.source)
            for name, value in (("--out", self.out), ("--labels", self.labels), ("rate", self.rate)):
                require(value is None, name, "left out where no KIND is given: the file is only read", str(value))
            return
        kind = Kind(self.kind, self.rate)
        require(_is_file(self.source) or self.source in SOURCES, "source", _sources(), self.source)
        require(0 <= self.seed < 2**32, "seed", "in [0, 2**32)", self.seed)
        kind.checked().check_source(self.source, with_images=tuple(SOURCES))
        if kind.in_file:
            require(self.labels is not None, "--labels", f"given with {self.kind}: the file of labels", None)
        else:
            require(self.labels is None, "--labels", "left out: only human:KIND and file read it", str(self.labels))
        require(self.target.suffix in SUFFIXES, "--out", "a .npy or .csv file", str(self.target))
        inputs = [path.resolve() for path in (Path(self.source), self.labels) if path is not None]
        require(self.target.resolve() not in inputs, "--out", "another file than those read", str(self.target))

    @property
    def target(self) -> Path:
        """Where the labels go."""
        if self.out is not None:
            return self.out
        parts = [Path(self.source).stem if _is_file(self.source) else self.source, (self.kind or "").replace(":", "-")]
        numbers = [str(self.rate), str(self.seed)] if self.kind in RATED else []
        return Path("runs/noise") / ("-".join(parts + numbers) + ".npy")


def run(request: Request) -> tuple[LabelInfo, list[Path]]:
    """Make the labels, or read them back where no kind is asked for: what they are, and the files written or read."""
    if request.kind is None:
        path = Path(request.source)
        noise.read_labels(path, request.column)
        info, files = noise.read_info(path), [path, info_path(path)]
        name, class_names = path.stem, tuple[str, ...]()
    else:
        truth = load(request)
        kind = Kind(request.kind, request.rate)
        given, info = kind.make(truth, seed=request.seed, file=request.labels, column=request.column)
        path, files = request.target, [request.target, info_path(request.target)]
        noise.write_labels(path, given, info)
        name, class_names = truth.name, truth.class_names
    if request.plot:
        from .drawing import png
        from .noise.picture import draw_confusion

        picture = path.with_suffix(".png")
        write_whole(picture, png(draw_confusion(info, name, class_names)))
        files.append(picture)
    return info, files


def show(info: LabelInfo, files: list[Path], console: Console) -> None:
    """One short table, and where the files are."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    rows = {
        "kind": info.kind if info.seed is None else f"{info.kind}, seed {info.seed}",
        "rate asked": None if info.rate_asked is None else f"{100 * info.rate_asked:g} %",
        "rate got": None if info.rate_got is None else f"{100 * info.rate_got:.2f} %",
        "flips": None if info.flips is None else f"{info.flips:,} of {int(np.sum(info.confusion or 0)):,} labels",
        "sha256": info.sha256,
    }
    for name, value in rows.items():
        table.add_row(name, value or "-")
    console.print(table)
    if info.kind == "symmetric" and (info.rate_asked or 0) - (info.rate_got or 0) > 0.01:
        console.print("Less than asked: counts are cut to integers for each pair of classes, and these are small.")
    for file in files:
        console.print(str(file), markup=False)


def load(request: Request) -> Truth:
    """The true labels of the source."""
    if request.source in SOURCES:
        return SOURCES[request.source](request)
    path = Path(request.source)
    true = noise.read_labels(path, request.column if request.kind != "file" else None)
    if len(true) and true.min() < 0:
        raise LabelFileError(f"{path} has a negative label, {true.min()}.")
    num_classes = max(2, int(true.max(initial=0)) + 1)
    if num_classes > MOST_CLASSES:
        raise LabelFileError(
            f"{path} has the label {num_classes - 1:,}: more than {MOST_CLASSES:,} classes look like ids."
        )
    if info_path(path).exists():
        num_classes = max(num_classes, noise.read_info(path).num_classes)
    return Truth(path.stem, true, num_classes)


def _digits(request: Request) -> Truth:
    from .data import load_digits

    train, _ = load_digits()
    inputs = train.inputs[torch.arange(len(train))]
    return _truth("digits", train, (255 * inputs).round().to(torch.uint8))  # pixels are in [0, 1] there


def _cifar(name: str) -> Callable[[Request], Truth]:
    def load(request: Request) -> Truth:
        from . import data

        loader = {"cifar10": data.cifar10, "cifar100": data.cifar100}[name]
        try:
            with download_bar() as progress:
                train, _ = loader(request.data, download=request.download, progress=progress)
        except ValueError as error:  # a broken file
            raise LabelFileError(str(error)) from None
        return _truth(name, train, train.inputs[torch.arange(len(train))])

    return load


@contextmanager
def download_bar() -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar for a download, shown once there is one."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), transient=True)

    def move(done: int, total: int | None) -> None:
        if not bar.task_ids:
            bar.add_task("download")
            bar.start()
        bar.update(bar.task_ids[0], completed=done, total=total)

    try:
        yield move
    finally:
        if bar.task_ids:
            bar.stop()


def _truth(name: str, train: Dataset, images: Tensor) -> Truth:
    true = train.given if train.true is None else train.true
    return Truth(name, true.numpy(), train.num_classes, train.class_names, images)


SOURCES: dict[str, Callable[[Request], Truth]] = {
    "digits": _digits,
    "cifar10": _cifar("cifar10"),
    "cifar100": _cifar("cifar100"),
}


def _sources() -> str:
    return f"one of {', '.join(SOURCES)}, or a .npy or .csv file of labels"


def _is_file(source: str) -> bool:
    return Path(source).suffix in SUFFIXES
