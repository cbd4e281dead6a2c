"""The data of all runs: images are read once per data set, labels are made once per noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..data import Loaded
from ..data.cifar import CIFAR10, CIFAR100, find_cifar
from ..data.download import Progress
from ..noise import LabelInfo
from ..training import Job, Recipe, Source, load
from ..training.source import Known, check
from .task import Task

CIFARS = {"cifar10": CIFAR10, "cifar100": CIFAR100}


class Data:
    """A cache of data sets.

    :param folder: with the data sets, in ``ogc.data``'s layout.
    :param ilsvrc: validation images of ILSVRC-12, for WebVision.
    """

    def __init__(self, folder: Path | None, ilsvrc: Path | None = None) -> None:
        self.folder, self.ilsvrc = folder, ilsvrc
        self.read: Known = {}
        self.labelled: dict[tuple[str, str | None, int], tuple[Loaded, LabelInfo | None]] = {}

    def source(self, name: str) -> Source:
        folder = None if name == "digits" else self.folder
        return Source.parse(name, data=folder, ilsvrc=self.ilsvrc if name == "webvision" else None)

    def check(self, tasks: Iterable[Task], *, download: bool = False) -> None:
        """Check that the files exist, without reading them. Raises ``OSError`` with everything that is missing."""
        missing: list[str] = []
        for task in tasks:
            source = self.source(task.recipe.data)
            if source.kind in CIFARS and source.path is not None and not download:
                try:
                    find_cifar(CIFARS[source.kind], source.path)
                except OSError as error:
                    missing.append(str(error))
            try:
                check(source, task.recipe)
            except OSError as error:
                missing.append(str(error))
        if missing:
            raise FileNotFoundError(" ".join(dict.fromkeys(missing)))

    def get(self, tasks: Sequence[Task], *, download: bool = False, progress: Progress | None = None) -> None:
        """Check the data of all tasks and read that of the first, so that errors occur before any training."""
        self.check(tasks, download=download)
        for task in tasks[:1]:
            self.load(task.recipe, download=download, progress=progress)

    def load(
        self, recipe: Recipe, *, download: bool = False, progress: Progress | None = None
    ) -> tuple[Loaded, LabelInfo | None]:
        """Load data with the recipe's noise. Raises ``OSError`` for missing or invalid files."""
        key = recipe.data, recipe.noise, recipe.noise_seed
        if key not in self.labelled:
            source = self.source(recipe.data)
            try:
                self.labelled[key] = load(source, recipe, download=download, progress=progress, known=self.read)
            except ValueError as error:
                raise OSError(str(error)) from error
        return self.labelled[key]

    def job(self, task: Task, out: Path) -> Job:
        return Job(task.recipe, self.source(task.recipe.data), *self.load(task.recipe), task.work(out))
