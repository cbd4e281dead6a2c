"""Flat memory: all weights of a run in one tensor, which a kernel updates in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import sgd
from ..training.run import Run


class Flat:
    """Weights, momentum and averages of a run in flat memory. The run's own tensors become views of it.

    Weights of convolutions and linear layers come first. They have a copy in bf16, ``short``.
    """

    def __init__(self, run: Run) -> None:
        device, low = run.device, run.recipe.precision == "bf16"
        cast = (nn.modules.conv._ConvNd, nn.Linear) if low else ()
        casts = {
            id(p)
            for module in run.network.modules()
            if isinstance(module, cast)
            for p in module.parameters(recurse=False)
        }
        named = sorted(run.network.named_parameters(), key=lambda item: id(item[1]) not in casts)
        sizes = [-(-value.numel() // sgd.ALIGNED) * sgd.ALIGNED for _, value in named]  # rounded up
        self.offsets = [0, *accumulate(sizes[:-1])]
        self.names = [name for name, _ in named]
        self.params = [value for _, value in named]
        self.n_low = sum(size for size, (_, value) in zip(sizes, named, strict=True) if id(value) in casts)
        self.weight, self.momentum = (torch.zeros(sum(sizes), device=device) for _ in range(2))
        self.short = torch.zeros(self.n_low, device=device, dtype=torch.bfloat16)
        self.average = None if run.average is None else torch.zeros_like(self.weight)
        rows = [
            (i, start, offset + start, min(sgd.BLOCK, size - start))
            for i, (offset, size) in enumerate(zip(self.offsets, sizes, strict=True))
            for start in range(0, size, sgd.BLOCK)
        ]
        self.blocks = torch.tensor(rows, dtype=torch.int32, device=device)
        self.pointers = torch.zeros(len(named), dtype=torch.int64, device=device)

        for i, value in enumerate(self.params):
            state = run.optimizer.state[value]
            if state.get("momentum_buffer") is not None:
                self.view(self.momentum, i).copy_(state["momentum_buffer"])
            state["momentum_buffer"] = self.view(self.momentum, i)
            if run.average is not None and self.average is not None:
                run.average[self.names[i]] = self.view(self.average, i).copy_(run.average[self.names[i]])
            value.data = self.view(self.weight, i).copy_(value.data)
        self.short.copy_(self.weight[: self.n_low])

        buffers = {name: value for name, value in run.network.named_buffers() if value.is_floating_point()}
        self.stats = torch.cat([torch.zeros(0, device=device), *(value.flatten() for value in buffers.values())])
        self.average_stats = None if run.average is None else torch.zeros_like(self.stats)
        self.buffers: dict[str, tuple[int, torch.Size]] = {}
        at = 0
        for name, buffer in buffers.items():
            self.buffers[name] = (at, buffer.shape)
            owner, _, last = name.rpartition(".")
            run.network.get_submodule(owner)._buffers[last] = self.buffer(self.stats, name)
            if run.average is not None and self.average_stats is not None:
                run.average[name] = self.buffer(self.average_stats, name).copy_(run.average[name])
            at += buffer.numel()

    def view(self, flat: Tensor, i: int) -> Tensor:
        """Return the slice of parameter i in its shape; weights of convolutions are channels-last."""
        shape = self.params[i].shape
        piece = flat[self.offsets[i] : self.offsets[i] + shape.numel()]
        if len(shape) != 4:
            return piece.view(shape)
        return piece.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)

    def buffer(self, flat: Tensor, name: str) -> Tensor:
        at, shape = self.buffers[name]
        return flat[at : at + shape.numel()].view(shape)

    def network_weights(self, weight: Tensor, short: Tensor) -> dict[str, Tensor]:
        """Return the weights of the network as views of flat memory."""
        is_low = [offset < self.n_low for offset in self.offsets]
        return {name: self.view(short if is_low[i] else weight, i) for i, name in enumerate(self.names)}

    def network_buffers(self, stats: Tensor) -> dict[str, Tensor]:
        return {name: self.buffer(stats, name) for name in self.buffers}

    def in_memory_order(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients in the memory layout of their weights, padding included. Nearly all have it already."""
        like = [torch.channels_last if gradient.dim() == 4 else torch.contiguous_format for gradient in gradients]
        laid = [gradient.contiguous(memory_format=order) for gradient, order in zip(gradients, like, strict=True)]
        gaps = [-gradient.numel() % sgd.ALIGNED for gradient in gradients]
        whole = [F.pad(part.flatten(), (0, gap)) if gap else part for part, gap in zip(laid, gaps, strict=True)]
        return [part.clone() if part.data_ptr() % 16 else part for part in whole]  # a slice of another tensor
