"""Training batches: the order of an epoch, augmentation, and transfer to the device."""

from __future__ import annotations

import hashlib
from typing import NamedTuple, cast

import torch
from torch import Tensor

from .._require import require
from ..data.augment import IMAGENET, Cifar, CifarDraws, Large, LargeDraws, Statistics, normalise
from ..data.dataset import Dataset, Inputs


class Plan(NamedTuple):
    """The samples of each batch of an epoch, and the random numbers of their augmentation."""

    order: Tensor  # (steps, batch) int64, on the CPU
    draws: tuple[Tensor, ...]  # each (steps, batch)


class Feed:
    """Training batches of one data set.

    The order of an epoch and the augmentation's random numbers depend only on ``seed`` and the epoch, not on the
    device. So runs resume on any device, and the engine reproduces the plain loop. Every batch is full. The remaining
    samples are skipped in that epoch.

    :param augment: ``none``, ``cifar`` (crop, flip, rotation) or ``large`` (resized crop, flip, colour jitter).
    :param size: side of the images made by ``large``.
    :param like: another feed. Its images on the device are shared if they are the same.
    """

    inputs: Inputs
    shape: tuple[int, ...]  # of one sample as the network sees it
    statistics: Statistics | None
    scale: list[Tensor] | None  # the statistics on the device
    augment: Cifar | Large | None

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        augment: str,
        size: int | None,
        seed: int,
        device: torch.device,
        like: Feed | None = None,
    ) -> None:
        self.shape = check(dataset, batch_size=batch_size, augment=augment, size=size)
        self.samples, self.seed, self.device = len(dataset), seed, device
        self.batch = min(batch_size, self.samples)
        self.steps = self.samples // self.batch
        self.given = dataset.given.to(device)
        self.origin, self.options = dataset.inputs, (augment, size, device)
        if like is not None and like.origin is self.origin and like.options == self.options:
            self.inputs, self.statistics, self.augment = like.inputs, like.statistics, like.augment
        else:
            self.inputs, self.statistics = on_device(dataset.inputs, device), statistics(dataset.inputs)
            self.augment = self._augmentation(augment, size)
        self.origin_shape = shape_of(dataset)
        self.scale = self.statistics and [torch.tensor(part, device=device) for part in self.statistics]

    def _augmentation(self, name: str, size: int | None) -> Cifar | Large | None:
        if self.statistics is None or name == "none":
            return None
        mean, std = self.statistics
        if name == "large":
            return Large(cast(int, size), mean=mean, std=std).to(self.device)
        return Cifar(cast(Tensor, self.inputs), mean=mean, std=std)

    def plan(self, epoch: int) -> Plan:
        """Plan an epoch, counted from 0."""
        digest = hashlib.sha256(f"{self.seed}/{epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
        n = self.steps * self.batch
        order = torch.randperm(self.samples, generator=generator)[:n]
        draws: tuple[Tensor, ...] = ()
        if isinstance(self.augment, Cifar):
            draws = self.augment.draw(n, generator)
        elif isinstance(self.augment, Large):
            _, height, width = self.origin_shape
            draws = self.augment.draw(n, height, width, generator)
        shape = (self.steps, self.batch)
        return Plan(order.view(shape), tuple(part.view(shape) for part in draws))

    def __call__(self, index: Tensor, draws: tuple[Tensor, ...]) -> Tensor:
        """Return a batch of network inputs on the device: (n,) -> (n, ...)."""
        draws = tuple(part.to(self.device, non_blocking=True) for part in draws)
        if isinstance(self.augment, Cifar):
            return cast(Tensor, self.augment(index.to(self.device, non_blocking=True), CifarDraws(*draws)))
        at = index.to(self.inputs.device, non_blocking=True) if isinstance(self.inputs, Tensor) else index.cpu()
        inputs = self.inputs[at].to(self.device, non_blocking=True)
        if isinstance(self.augment, Large):
            return cast(Tensor, self.augment(inputs, LargeDraws(*draws)))
        return self.plain(inputs)

    def plain(self, inputs: Tensor) -> Tensor:
        """Prepare inputs without augmentation: normalise images, keep features."""
        return inputs if self.scale is None else normalise(inputs, *self.scale)


def check(dataset: Dataset, *, batch_size: int, augment: str, size: int | None, parts: int = 1) -> tuple[int, ...]:
    """Check the data and return the shape of a sample as the network sees it.

    :param parts: number of parts that every batch is split into.
    """
    require(len(dataset) >= 2, "data", "at least 2 samples", len(dataset))
    rule = f"a multiple of {parts} (accumulate times processes) and no more than there are samples"
    require(min(batch_size, len(dataset)) % parts == 0, "batch_size", rule, batch_size)
    shape, inputs = shape_of(dataset), dataset.inputs
    if isinstance(inputs, Tensor) and inputs.dtype != torch.uint8:
        require(augment == "none", "augment", "none with features", augment)
        require(size is None, "size", "none with features", size)
        return shape
    require(len(shape) == 3, "data", "images, (N, channels, height, width), if they are uint8", (len(dataset), *shape))
    if augment != "large":
        in_memory = augment == "none" or isinstance(inputs, Tensor)
        require(in_memory, "augment", "large or none for images that are read from disk", augment)
        return shape
    require(shape[0] == 3, "augment", f"none or cifar with images of {shape[0]} channels", augment)
    require(size is not None, "size", "given with augment = large", size)
    return 3, cast(int, size), cast(int, size)


def shape_of(dataset: Dataset) -> tuple[int, ...]:
    """Return the shape of one stored sample."""
    return tuple(dataset.inputs[torch.zeros(1, dtype=torch.int64)].shape[1:])


def on_device(inputs: Inputs, device: torch.device) -> Inputs:
    """Move inputs in memory to the device. Images on disk stay there."""
    return inputs.to(device) if isinstance(inputs, Tensor) else inputs


def statistics(inputs: Inputs) -> Statistics | None:
    """Return the mean and standard deviation of each channel; ImageNet's for images on disk, ``None`` for features."""
    if not isinstance(inputs, Tensor):
        return IMAGENET
    if inputs.dtype != torch.uint8:
        return None
    counts = torch.stack([torch.bincount(channel.flatten().int(), minlength=256) for channel in inputs.transpose(0, 1)])
    share = counts.double() / counts.sum(1, keepdim=True)
    value = torch.arange(256, dtype=torch.float64, device=inputs.device) / 255
    mean = share @ value
    std = (share @ value**2 - mean**2).clamp(min=1e-8).sqrt()
    return Statistics(tuple(round(m, 4) for m in mean.tolist()), tuple(max(round(s, 4), 1e-4) for s in std.tolist()))
