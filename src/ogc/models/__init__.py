"""Networks by name.

To add one: write it in a small file here and add it to NETWORKS.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from .._require import did_you_mean, require, require_known
from .mlp import mlp
from .norm_act import NormAct
from .resnet import ResNet, resnet18, resnet18_cifar, resnet20_cifar, resnet34_cifar, resnet50

NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "mlp": mlp,
    "resnet20-cifar": resnet20_cifar,
    "resnet18-cifar": resnet18_cifar,
    "resnet34-cifar": resnet34_cifar,
    "resnet18": resnet18,
    "resnet50": resnet50,
}
"""Constructors by name. They take the number of features or channels, and the number of classes."""

TIMM = "timm:"


def build_network(name: str, *, inputs: tuple[int, ...], classes: int, hidden: Sequence[int] = (512, 512)) -> nn.Module:
    """Build a network by name for samples of shape ``inputs``: (N, *inputs) -> logits (N, classes).

    :param name: one of NETWORKS, or ``timm:NAME`` for a network of timm, with random weights.
    :param hidden: widths of the hidden layers of an ``mlp``, which takes samples of any shape. The other networks
        take images (C, H, W).

    >>> build_network("mlp", inputs=(1, 8, 8), classes=10, hidden=(32,))[1]
    Linear(in_features=64, out_features=32, bias=True)
    """
    check_network(name)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), *mlp(math.prod(inputs), classes, hidden=hidden))
    require(len(inputs) == 3, "inputs", f"the shape of an image, (channels, height, width), for {name}", inputs)
    if name in NETWORKS:
        return NETWORKS[name](inputs[0], classes)
    model: nn.Module = _timm().create_model(name.removeprefix(TIMM), in_chans=inputs[0], num_classes=classes)
    return model


def check_network(name: str) -> None:
    """Raise ``ValueError`` for an unknown name, with similar ones."""
    if name.startswith(TIMM):
        timm, wanted = _timm(), name.removeprefix(TIMM)
        if not timm.is_model(wanted):
            near = did_you_mean(wanted, timm.list_models())
            raise ValueError(f"timm has no network named {wanted!r}.{near} timm.list_models() lists all names.")
    else:
        require_known("network named", name, (*NETWORKS, f"{TIMM}NAME"))


def _timm() -> Any:
    try:
        return importlib.import_module("timm")
    except Exception as error:  # timm needs a torchvision that fits torch; one that does not raises RuntimeError
        why = "is missing" if isinstance(error, ModuleNotFoundError) and error.name == "timm" else f"fails: {error}"
        raise ImportError(f"timm, which has this network, {why}. pip install timm torchvision") from error


__all__ = ["NETWORKS", "TIMM", "NormAct", "ResNet", "build_network", "check_network", "mlp"]
