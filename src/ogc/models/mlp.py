"""A multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from .._require import require


def mlp(inputs: int, classes: int, *, hidden: Sequence[int] = (512, 512)) -> nn.Sequential:
    """Build linear layers with ReLU between them: (N, inputs) -> logits (N, classes).

    >>> [layer.out_features for layer in mlp(64, 10) if isinstance(layer, nn.Linear)]
    [512, 512, 10]
    """
    widths = [inputs, *hidden, classes]
    require(min(widths) >= 1, "widths", "at least 1 each", widths)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
