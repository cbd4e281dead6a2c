"""The FIFO queue Q of recent cross entropies, a ring buffer in one tensor: Algorithm 1, line 5, of Ye et al., 2025.

``queue`` has one slot more than its size. The spare slot at its end takes entries that are not queued, so that a push
on an accelerator needs no boolean mask and no host read. ``seen`` counts the samples queued so far: ``seen % size`` is
the next slot, ``seen >= size`` means full.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from ..given_label import H_MAX, H_MIN

LearningRate = Tensor | float | None


def push(queue: Tensor, seen: Tensor, H: Tensor) -> None:
    """Append the finite entries of H, (N,) in order, clamped to [H_MIN, H_MAX]; in place. Algorithm 1, line 5."""
    (push_on_cpu if queue.device.type == "cpu" else push_by_scatter)(queue, seen, H)


def push_on_cpu(queue: Tensor, seen: Tensor, H: Tensor) -> None:
    """Push where counts may be read, in slices, which is faster."""
    size = len(queue) - 1
    if not math.isfinite(H.sum().item()):
        H = H[H.isfinite()]
    seen.add_(len(H))
    H = H[-size:]  # of a batch larger than the queue, keep the last ones
    start = (int(seen) - len(H)) % size
    room = size - start
    torch.clamp(H[:room], H_MIN, H_MAX, out=queue[start : min(start + len(H), size)])
    if len(H) > room:
        torch.clamp(H[room:], H_MIN, H_MAX, out=queue[: len(H) - room])


def push_by_scatter(queue: Tensor, seen: Tensor, H: Tensor) -> None:
    """Push without a host read: every entry is written, those that are not queued to the spare slot."""
    size = queue.numel() - 1
    if H.numel() == 0:
        return
    keep = H.isfinite()
    rank = keep.cumsum(0)  # 1 for the first kept entry
    count = rank[-1]
    if H.numel() > size:
        keep = keep & (rank > count - size)  # of a batch larger than the queue, keep the last ones
    slot = torch.where(keep, (rank + (seen - 1)) % size, size)
    queue.scatter_(0, slot, torch.where(keep, H.clamp(H_MIN, H_MAX), 0.0))
    seen.add_(count)


class Backlog:
    """Training steps that the state does not know of yet. On a CPU they wait, because it is cheaper to count many."""

    def __init__(self) -> None:
        self.steps: list[tuple[Tensor, Tensor, LearningRate]] = []
        self.samples = 0

    def append(self, H: Tensor, labels: Tensor, lr: LearningRate) -> None:
        self.steps.append((H, labels, lr))
        self.samples += H.numel()

    def take(self) -> tuple[Tensor, Tensor, tuple[LearningRate, ...]]:
        """Return H and labels of all steps, (N,) each, and their learning rates, and forget them."""
        H, labels, lrs = zip(*self.steps, strict=True)
        self.steps, self.samples = [], 0
        if len(lrs) == 1:
            return H[0].flatten(), labels[0].flatten(), lrs
        return torch.cat([part.flatten() for part in H]), torch.cat([part.flatten() for part in labels]), lrs


def newest(queue: Tensor, seen: int, count: int) -> Tensor:
    """Return the last ``count`` samples, in any order; on the CPU."""
    size = queue.numel() - 1
    if count == size:
        return queue[:-1]
    start, end = (seen - count) % size, (seen - 1) % size + 1
    return queue[start:end] if start < end else torch.cat([queue[start:size], queue[:end]])


def gather_labels(labels: Tensor, process_group: dist.ProcessGroup | bool | None) -> Tensor:
    """Concatenate all ranks' labels in rank order, 0 in the gaps: (n,) each -> (N,)."""
    if world_size(process_group) == 1:
        return labels
    return gather_ranks(labels.float(), process_group).nan_to_num(0).long()  # exact for class indices


def gather_ranks(H: Tensor, process_group: dist.ProcessGroup | bool | None) -> Tensor:
    """Concatenate all ranks' H in rank order, so that every rank queues the same: (n,) each -> (N,).

    On the CPU, batches may differ in size: the sizes are exchanged and the gaps filled with NaN, which :func:`push`
    skips. On CUDA, where that would be a host read, all ranks need batches of the same size.
    """
    world = world_size(process_group)
    if world == 1:
        return H
    group = None if isinstance(process_group, bool) else process_group
    if H.device.type == "cpu":
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
        dist.all_gather(sizes, torch.tensor([H.numel()]), group=group)
        H = torch.cat([H, H.new_full((int(max(sizes)) - H.numel(),), math.nan)])
    union = H.new_empty(world, H.numel())
    dist.all_gather(list(union.unbind()), H.contiguous(), group=group)
    return union.flatten()


def world_size(process_group: dist.ProcessGroup | bool | None) -> int:
    """Return the number of ranks that share the queue."""
    if process_group is False or not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(None if isinstance(process_group, bool) else process_group)
