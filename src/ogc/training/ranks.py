"""The processes of a run: a single one, or several under ``torchrun``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """The rank of this process among ``size``. Small messages use gloo, which never waits for a device."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.group = dist.new_group(backend="gloo") if size > 1 and dist.get_backend() != "gloo" else None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def highest(self, *values: int) -> list[int]:
        """Return the maximum of each value over all ranks."""
        if self.size == 1:
            return list(values)
        found = torch.tensor(values)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return found.tolist()

    def gather(self, value: Tensor) -> list[Tensor]:
        """Gather a CPU tensor of the same shape from every rank, in rank order."""
        if self.size == 1:
            return [value]
        found = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(found, value, group=self.group)
        return found

    def broadcast(self, text: str) -> str:
        """Return the text of the first rank."""
        if self.size == 1:
            return text
        found = [text]
        dist.broadcast_object_list(found, 0, group=self.group)
        return found[0]

    def parts(self, order: Tensor, accumulate: int) -> Tensor:
        """Split batches into micro-batches and ranks: (..., batch) -> (..., accumulate, ranks, samples)."""
        return order.view(*order.shape[:-1], accumulate, self.size, -1)


@contextmanager
def ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the processes started by ``torchrun``, or the process group of the caller, if there is one."""
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
