"""Arithmetic on the few numbers of an update, written once for every device.

On CPU a number is a Python float: reading it costs nothing, and arithmetic on it a tenth of what a 0-dim tensor takes.
On an accelerator reading would wait for the device, so there a number stays a 0-dim tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Number = Any
"""A float on CPU, a 0-dim tensor elsewhere; both have the operators of arithmetic."""


@dataclass(frozen=True)
class Numbers:
    """What the two kinds of number do not share."""

    on_host: bool  # whether looking at a number is free
    read: Callable[[Tensor], Number]  # () -> number
    unpack: Callable[[Tensor], Sequence[Number]]  # (n,) -> n numbers
    pack: Callable[[Sequence[Number]], Tensor]  # n numbers -> (n,)
    pair: Callable[[Tensor, Number], Sequence[Number]]  # the entries before and at an index
    either: Callable[[Number, Number, Number], Number]  # condition, then, otherwise
    unless: Callable[[Number, Tensor, Tensor], Tensor]  # (n,), or once the condition holds, the other (n,)
    clamp: Callable[[Number, float, float], Number]
    log: Callable[[Number], Number]
    exp: Callable[[Number], Number]


HOST = Numbers(
    on_host=True,
    read=Tensor.item,
    unpack=Tensor.tolist,
    pack=lambda numbers: torch.tensor(numbers, dtype=torch.float64),
    pair=lambda tensor, index: tensor[index - 1 : index + 1].tolist(),
    either=lambda condition, then, otherwise: then if condition else otherwise,
    unless=lambda condition, tensor, other: other if condition else tensor,
    clamp=lambda number, low, high: min(max(number, low), high),
    log=math.log,
    exp=math.exp,
)
DEVICE = Numbers(
    on_host=False,
    read=lambda tensor: tensor,
    unpack=Tensor.unbind,
    pack=lambda numbers: torch.stack([torch.as_tensor(number) for number in numbers]),
    pair=lambda tensor, index: (torch.take(tensor, index - 1), torch.take(tensor, index)),
    either=torch.where,
    unless=lambda condition, tensor, other: tensor if condition is False else torch.where(condition, other, tensor),
    clamp=torch.clamp,
    log=torch.log,
    exp=torch.exp,
)


def numbers_on(device: torch.device) -> Numbers:
    return HOST if device.type == "cpu" else DEVICE
