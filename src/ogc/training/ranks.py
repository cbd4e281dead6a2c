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
        self.talk = dist.new_group(backend="gloo") if size > 1 else None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def any(self, *flags: bool) -> list[bool]:
        """Each flag, raised by anyone."""
        if self.size == 1:
            return list(flags)
        raised = torch.tensor(flags, dtype=torch.uint8)
        dist.all_reduce(raised, dist.ReduceOp.MAX, group=self.talk)
        return [bool(flag) for flag in raised.tolist()]

    def gather(self, value: Tensor) -> list[Tensor]:
        """Everyone's tensor, all of one shape and on the CPU, in rank order."""
        if self.size == 1:
            return [value]
        found = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(found, value, group=self.talk)
        return found

    def parts(self, order: Tensor, accumulate: int) -> Tensor:
        """Each rank's part of batches in micro-batches: (..., batch) -> (..., accumulate, ranks, samples)."""
        return order.unflatten(-1, (accumulate, self.size, -1))


@contextmanager
def ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` has started, if it has."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Ranks()
        return
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        if ours:
            dist.destroy_process_group()
