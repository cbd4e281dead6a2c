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

Labels = NDArray[np.int64]

PAIRS = {
    ("cifar10", "asymmetric"): CIFAR10_PAIRS,
    ("cifar100", "asymmetric"): CIFAR100_PAIRS,
    ("cifar100", "blocks"): CIFAR100_BLOCKS,
}


@dataclass(frozen=True)
class Truth:
    """True labels of a data set, with its images if it has any."""

    name: str
    labels: Labels
    num_classes: int
    images: Tensor | None = None  # (N, ...) uint8


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
        human = [f"human:{kind}" for kind in HUMAN_KINDS]
        if text in human or text == "file":
            return cls(text)
        rule = f"one of {', '.join(GENERATORS)}, human:KIND, file"
        require(name in GENERATORS, parameter, rule, text, [*GENERATORS, *human])
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
        known, what = [source], ""
        if self.name in ("asymmetric", "blocks"):
            known = [name for name, kind in PAIRS if kind == self.name]
        elif self.name == "instance":
            known, what = [*with_images], "images: "
        elif self.name.startswith("human:"):
            known = list(PUBLISHED)
        if source not in known:
            needs = f"{self.name} noise is defined only for {what}{either(known)}"
            raise ValueError(f"{needs}. Found {source}. Use another kind, such as pairflip.")

    def make(self, truth: Truth, *, seed: int, file: Path | None = None) -> tuple[Labels, LabelInfo]:
        """Return given labels and their info. ``file`` is for the kinds that are read from one."""
        if self.name in GENERATORS:
            given = GENERATORS[self.name](truth, self.rate or 0.0, seed)
        elif file is None:
            raise ValueError(f"{self.name} noise needs the file of labels.")
        elif self.name == "file":
            given = _imported(file, truth)
        else:
            given = cifar_n(file, self.name.removeprefix("human:"), clean=truth.labels)
        return given, LabelInfo.measure(
            truth.labels,
            given,
            kind=self.name,
            num_classes=truth.num_classes,
            rate=self.rate,
            seed=None if self.in_file else seed,
        )


def _imported(path: Path, truth: Truth) -> Labels:
    """Read given labels from a label file, in the order of the samples."""
    given = read_labels(path)
    if len(given) != len(truth.labels):
        raise LabelFileError(f"{path} has {len(given)} labels, but {truth.name} has {len(truth.labels)}.")
    for label in given[(given < 0) | (given >= truth.num_classes)][:1]:
        raise LabelFileError(f"{path} has the label {label}, but {truth.name} has {truth.num_classes} classes.")
    return given


def _by_pairs(kind: str) -> Callable[[Truth, float, int], Labels]:
    return lambda truth, rate, seed: asymmetric(truth.labels, rate, pairs=PAIRS[truth.name, kind], seed=seed)


def _by_image(truth: Truth, rate: float, seed: int) -> Labels:
    if truth.images is None:
        raise ValueError(f"Instance noise needs images, as raw pixels in memory. {truth.name} has none.")
    return instance_dependent(truth.images, truth.labels, rate, num_classes=truth.num_classes, seed=seed)


GENERATORS: dict[str, Callable[[Truth, float, int], Labels]] = {
    "symmetric": lambda truth, rate, seed: symmetric(truth.labels, rate, num_classes=truth.num_classes, seed=seed),
    "asymmetric": _by_pairs("asymmetric"),
    "blocks": _by_pairs("blocks"),
    "pairflip": lambda truth, rate, seed: pair_flip(truth.labels, rate, num_classes=truth.num_classes, seed=seed),
    "instance": _by_image,
}
