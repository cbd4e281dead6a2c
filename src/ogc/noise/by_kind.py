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
from .human import KINDS, cifar_n
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
    """True labels of a data set, with its classes and images."""

    name: str
    labels: Labels
    num_classes: int
    class_names: tuple[str, ...] = ()
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
        if name == "human" or text == "file":
            return cls(text).checked(parameter)
        cls(name).check_name(parameter)
        try:
            rate = float(rest)
        except ValueError:
            rate = math.nan
        rule = "KIND:RATE with a rate in [0, 1], as in symmetric:0.5"
        require(name == "file" or 0 <= rate <= 1, parameter, rule, text)
        return cls(name, rate).checked(parameter)

    @property
    def in_file(self) -> bool:
        return self.name == "file" or self.name.startswith("human:")

    def checked(self, parameter: str = "kind") -> Kind:
        """Return the kind itself. Raise ``ValueError`` if it does not exist, or with another rate than it needs."""
        self.check_name(parameter)
        if self.in_file:
            require(self.rate is None, "rate", f"omitted with {self.name}, which has a fixed rate", self.rate)
        else:
            require(self.rate is not None, "rate", f"given with {self.name}, in [0, 1]", None)
            require(0 <= (self.rate or 0) <= 1, "rate", "in [0, 1]", self.rate)
        return self

    def check_name(self, parameter: str) -> None:
        """Raise ``ValueError``, which names the parameter and similar kinds, if there is no such kind."""
        rule = f"one of {', '.join(GENERATORS)}, human:KIND, file"
        known = [*GENERATORS, *(f"human:{kind}" for kind in KINDS)]
        require(self.in_file or self.name in GENERATORS, parameter, rule, self.name, known)
        if self.name.startswith("human:"):
            human = self.name.removeprefix("human:")
            require(human in KINDS, parameter, f"human:KIND, where KIND is one of {', '.join(KINDS)}", self.name)

    def check_source(self, source: str, *, with_images: Sequence[str]) -> None:
        """Raise ``ValueError`` if this noise is not defined for a data source."""
        known, what = [source], ""
        if self.name in ("asymmetric", "blocks"):
            known = [name for name, kind in PAIRS if kind == self.name]
        if self.name == "instance":
            known, what = [*with_images], "images: "
        if self.name.startswith("human:"):
            known = ["cifar10", "cifar100"]
        if source not in known:
            needs = f"{self.name} noise is defined only for {what}{either(known)}"
            raise ValueError(f"{needs}. Found {source}. Use another kind, such as pairflip.")

    def make(
        self, truth: Truth, *, seed: int, file: Path | None = None, column: str | None = None
    ) -> tuple[Labels, LabelInfo]:
        """Return given labels and their info. ``file`` and ``column`` are for the kinds that are read from a file."""
        if self.in_file:
            assert file is not None
            given = imported(file, self.name, column, truth)
        else:
            given = GENERATORS[self.name](truth, self.rate or 0.0, seed)
        return given, LabelInfo.measure(
            truth.labels,
            given,
            kind=self.name,
            num_classes=truth.num_classes,
            rate=self.rate,
            seed=None if self.in_file else seed,
        )


def imported(path: Path, kind: str, column: str | None, truth: Truth) -> Labels:
    """Read given labels from a file, in the order of the samples."""
    if kind != "file":
        return cifar_n(path, kind.removeprefix("human:"), clean=truth.labels)
    given = read_labels(path, column)
    if len(given) != len(truth.labels):
        raise LabelFileError(f"{path} has {len(given)} labels, but {truth.name} has {len(truth.labels)}.")
    outside = given[(given < 0) | (given >= truth.num_classes)]
    if len(outside):
        raise LabelFileError(f"{path} has the label {outside[0]}, but {truth.name} has {truth.num_classes} classes.")
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
