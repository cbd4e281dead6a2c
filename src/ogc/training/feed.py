"""A data set on its way into a network: the order of an epoch, and batches on the device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .._require import require
from ..data.augment import IMAGENET, Cifar, CifarDraws, Large, LargeDraws, Statistics, normalise
from ..data.dataset import Dataset, Inputs

EVALUATION_BATCH = 1000


class Plan(NamedTuple):
    """An epoch, decided beforehand: which samples in which batch, and what is random in their augmentation."""

    order: Tensor  # (steps, batch) int64, on the CPU
    draws: tuple[Tensor, ...]  # each (steps, batch)


class Feed:
    """Training batches of one data set.

    The order of an epoch and the augmentation's random numbers are a function of ``seed`` and the epoch alone, on every
    device: a run is resumed anywhere, and the engine follows the plain loop. Every batch is full; the samples left over
    sit the epoch out.

    :param augment: ``none``, ``cifar`` (crop, flip, rotation) or ``large`` (resized crop, flip, colour jitter).
    """

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
        self.batch = min(batch_size, len(dataset))
        self.steps = len(dataset) // max(self.batch, 1)
        require(len(dataset) >= 2, "data", "at least 2 samples", len(dataset))
        self.samples, self.seed, self.device = len(dataset), seed, device
        self.given = dataset.given.to(device)
        if like is not None and like.inputs_id == id(dataset.inputs) and like.device == device:  # share the images
            self.inputs_id, self.inputs, self.statistics, self.augment = (
                like.inputs_id,
                like.inputs,
                like.statistics,
                like.augment,
            )
            return
        self.inputs_id = id(dataset.inputs)
        self.inputs: Inputs = dataset.inputs.to(device) if isinstance(dataset.inputs, Tensor) else dataset.inputs
        self.statistics = statistics(dataset.inputs)
        self.augment: Cifar | Large | None = None
        if self.statistics is not None and augment == "cifar":
            require(isinstance(self.inputs, Tensor), "augment", "large for images that stay on the disk", augment)
            assert isinstance(self.inputs, Tensor)
            self.augment = Cifar(self.inputs, mean=self.statistics.mean, std=self.statistics.std)
        elif self.statistics is not None and augment == "large":
            assert size is not None
            self.augment = Large(size, mean=self.statistics.mean, std=self.statistics.std).to(device)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample as the network sees it."""
        one = self.inputs[torch.zeros(1, dtype=torch.int64, device=self._index_device)]
        return (3, self.augment.size, self.augment.size) if isinstance(self.augment, Large) else tuple(one.shape[1:])

    @property
    def _index_device(self) -> torch.device:
        return self.inputs.device if isinstance(self.inputs, Tensor) else torch.device("cpu")

    def plan(self, epoch: int) -> Plan:
        """The epoch's batches and draws, epochs counted from 0."""
        digest = hashlib.sha256(f"{self.seed}/{epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
        n = self.steps * self.batch
        order = torch.randperm(self.samples, generator=generator)[:n]
        draws: tuple[Tensor, ...] = ()
        if isinstance(self.augment, Cifar):
            draws = self.augment.draw(n, generator)
        elif isinstance(self.augment, Large):
            height, width = self.inputs[torch.zeros(1, dtype=torch.int64, device=self._index_device)].shape[2:]
            draws = self.augment.draw(n, height, width, generator)
        shape = (self.steps, self.batch)
        return Plan(order.view(shape), tuple(part.view(shape) for part in draws))

    def __call__(
        self, index: Tensor, draws: tuple[Tensor, ...], compiled: Callable[..., Tensor] | None = None
    ) -> Tensor:
        """A batch as the network wants it, (n,) -> (n, ...), on the device.

        :param compiled: the augmentation, compiled.
        """
        augment = self.augment if compiled is None else compiled
        draws = tuple(part.to(self.device, non_blocking=True) for part in draws)
        if isinstance(self.augment, Cifar):
            return augment(index.to(self.device, non_blocking=True), CifarDraws(*draws))
        inputs = self.inputs[index.to(self._index_device)].to(self.device, non_blocking=True)
        if isinstance(self.augment, Large):
            return augment(inputs, LargeDraws(*draws))
        return self.plain(inputs)

    def plain(self, inputs: Tensor) -> Tensor:
        """Without augmentation: images are normalised, features stay as they are."""
        if self.statistics is None:
            return inputs
        return normalise(inputs, self.statistics.mean, self.statistics.std)


def statistics(inputs: Inputs) -> Statistics | None:
    """Mean and standard deviation of each channel, of images in memory to four digits; none for features."""
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
