"""The processes of a run: one, or several under ``torchrun``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """This process among ``size``. Small talk goes over gloo, so that no device is waited for."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.talk = dist.new_group(backend="gloo") if size > 1 and dist.get_backend() != "gloo" else None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def highest(self, *values: int) -> list[int]:
        """Of each value, the highest that anyone has."""
        if self.size == 1:
            return list(values)
        found = torch.tensor(values)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.talk)
        return [int(value) for value in found]

    def gather(self, value: Tensor) -> list[Tensor]:
        """Everyone's tensor, all of one shape and on the CPU, in rank order."""
        if self.size == 1:
            return [value]
        found = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(found, value, group=self.talk)
        return found

    def hear(self, text: str) -> str:
        """What the first one says."""
        if self.size == 1:
            return text
        said = text.encode() if self.first else b""
        letters = torch.zeros(self.highest(len(said))[0], dtype=torch.uint8)
        letters[: len(said)] = torch.tensor(list(said), dtype=torch.uint8)
        dist.broadcast(letters, 0, group=self.talk)
        return bytes(letters.tolist()).decode()

    def parts(self, order: Tensor, accumulate: int) -> Tensor:
        """Each rank's part of batches in micro-batches: (..., batch) -> (..., accumulate, ranks, samples)."""
        return order.view(*order.shape[:-1], accumulate, self.size, -1)


@contextmanager
def ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` has started, if it has, or the caller's group."""
    ours = not (dist.is_available() and dist.is_initialized())
    if ours and not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        yield Ranks()
        return
    if ours and device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
    elif ours:
        dist.init_process_group("gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        if ours:
            dist.destroy_process_group()
