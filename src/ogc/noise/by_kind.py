"""Label noise by name, ``symmetric:0.5`` or ``human:worse``, for commands and recipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .._require import either, require
from .files import LabelFileError, LabelInfo, read_labels
from .human import HUMAN_KINDS, PUBLISHED, cifar_n
from .instance import instance_dependent
from .transition import CIFAR10_PAIRS, CIFAR100_BLOCKS, CIFAR100_PAIRS, asymmetric, pair_flip, symmetric

GivenLabels = NDArray[np.int64]
CIFAR_PAIRS = {
    "asymmetric": {"cifar10": CIFAR10_PAIRS, "cifar100": CIFAR100_PAIRS},
    "blocks": {"cifar100": CIFAR100_BLOCKS},
}


@dataclass(frozen=True)
class Truth:
    """True labels of a data set, with its images if it has any."""

    name: str
    labels: GivenLabels
    num_classes: int
    images: Tensor | None = None  # (N, ...) uint8

    def pixels(self) -> Tensor:
        if self.images is None:
            raise ValueError(f"Instance noise needs images, as raw pixels in memory. {self.name} has none.")
        return self.images


GENERATORS: dict[str, Callable[[Truth, float, int], GivenLabels]] = {
    "symmetric": lambda of, rate, seed: symmetric(of.labels, rate, num_classes=of.num_classes, seed=seed),
    "asymmetric": lambda of, rate, seed: asymmetric(
        of.labels, rate, pairs=CIFAR_PAIRS["asymmetric"][of.name], seed=seed
    ),
    "blocks": lambda of, rate, seed: asymmetric(of.labels, rate, pairs=CIFAR_PAIRS["blocks"][of.name], seed=seed),
    "pairflip": lambda of, rate, seed: pair_flip(of.labels, rate, num_classes=of.num_classes, seed=seed),
    "instance": lambda of, rate, seed: instance_dependent(
        of.pixels(), of.labels, rate, num_classes=of.num_classes, seed=seed
    ),
}


class Kind(NamedTuple):
    """A kind of noise: generated with a rate (``symmetric``), or read from a file (``human:worse``, ``file``)."""

    name: str
    rate: float | None = None

    @classmethod
    def parse(cls, text: str, parameter: str = "noise") -> Kind:
        """Parse a kind of noise. Errors name the parameter.

        >>> Kind.parse("symmetric:0.5"), Kind.parse("human:worse")
        (Kind(name='symmetric', rate=0.5), Kind(name='human:worse', rate=None))
        """
        name, _, rest = text.partition(":")
        known = [f"human:{kind}" for kind in HUMAN_KINDS]
        if text in known or text == "file":
            return cls(text)
        require(name != "human", parameter, f"human:KIND, where KIND is one of {', '.join(HUMAN_KINDS)}", text, known)
        rule = f"one of {', '.join(GENERATORS)}, human:KIND, file"
        require(name in GENERATORS, parameter, rule, name, [*GENERATORS, *known])
        try:
            rate = float(rest)
        except ValueError:
            rate = math.nan
        require(0 <= rate <= 1, parameter, "KIND:RATE with a rate in [0, 1], as in symmetric:0.5", text)
        return cls(name, rate)

    @property
    def in_file(self) -> bool:
        return self.name not in GENERATORS

    def check_source(self, source: str, *, with_images: Sequence[str]) -> None:
        """Raise ``ValueError`` if this noise is not defined for a data source."""
        human = list(PUBLISHED) if self.name.startswith("human:") else [source]
        known = [*with_images] if self.name == "instance" else list(CIFAR_PAIRS.get(self.name, human))
        if source not in known:
            needs = f"{'images: ' if self.name == 'instance' else ''}{either(known)}"
            fix = "Use another kind, such as pairflip."
            raise ValueError(f"{self.name} noise is defined only for {needs}. Found {source}. {fix}")

    def make(self, truth: Truth, *, seed: int, file: Path | None = None) -> tuple[GivenLabels, LabelInfo]:
        """Return given labels and their info. ``file`` is for the kinds that are read from one."""
        if not self.in_file:
            given = GENERATORS[self.name](truth, self.rate or 0.0, seed)
        elif file is None:
            raise ValueError(f"{self.name} noise needs the file of labels.")
        elif self.name == "file":
            given = _imported(file, truth)
        else:
            given = cifar_n(file, self.name.removeprefix("human:"), clean=truth.labels)
        drawn, classes = None if self.in_file else seed, truth.num_classes
        return given, LabelInfo.measure(truth.labels, given, self.name, num_classes=classes, rate=self.rate, seed=drawn)


def _imported(path: Path, truth: Truth) -> GivenLabels:
    """Read given labels from a label file, in the order of the samples."""
    given = read_labels(path)
    if len(given) != len(truth.labels):
        raise LabelFileError(f"{path} has {len(given)} labels, but {truth.name} has {len(truth.labels)}.")
    for label in given[(given < 0) | (given >= truth.num_classes)][:1]:
        raise LabelFileError(f"{path} has the label {label}, but {truth.name} has {truth.num_classes} classes.")
    return given
