"""Residual networks: 18, 34 and a narrow 20 layers for 32 x 32 pixels, 18 and 50 for 224 x 224.

Deep Residual Learning for Image Recognition, He et al., 2016, https://arxiv.org/abs/1512.03385. A shortcut whose shape
changes is a 1x1 convolution with a norm (option B of He et al.); the bottleneck strides in its 3x3 convolution, as is
usual today. Parameters have torchvision's names, so its weights load.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from .._require import require
from .norm_act import NormAct

Pair = tuple[Tensor, Tensor]


def conv(before: int, after: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Build a convolution without bias, padded to keep the size of the image if the stride is 1."""
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)


class Shortcut(nn.Sequential):
    """The shortcut of a block that changes the shape: (N, C, H, W) -> (N, C', H / stride, W / stride)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__(conv(before, after, 1, stride), NormAct(after))

    def forward(self, x: Tensor) -> Tensor:
        projection, norm = self
        return norm(projection(x), act=False)  # type: ignore[no-any-return]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut: pairs of (N, C, H, W) -> (N, width, H / stride, W / stride).

    A pair has the same tensor twice, for the convolutions and for the shortcut (see :meth:`NormAct.fork`).
    """

    expansion = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(before, width, 3, stride), NormAct(width)
        self.conv2, self.bn2 = conv(width, width, 3), NormAct(width)
        self.downsample = Shortcut(before, width, stride) if stride > 1 or before != width else None

    def forward(self, pair: Pair) -> Pair:
        x, shortcut = pair
        shortcut = shortcut if self.downsample is None else self.downsample(shortcut)
        x = self.bn1(self.conv1(x))
        return self.bn2.fork(self.conv2(x), shortcut)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions with a shortcut: pairs of (N, C, H, W) -> (N, 4 width, H / stride, W / stride)."""

    expansion = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = self.expansion * width
        self.conv1, self.bn1 = conv(before, width, 1), NormAct(width)
        self.conv2, self.bn2 = conv(width, width, 3, stride), NormAct(width)
        self.conv3, self.bn3 = conv(width, after, 1), NormAct(after)
        self.downsample = Shortcut(before, after, stride) if stride > 1 or before != after else None

    def forward(self, pair: Pair) -> Pair:
        x, shortcut = pair
        shortcut = shortcut if self.downsample is None else self.downsample(shortcut)
        x = self.bn1(self.conv1(x))
        x = self.bn2(self.conv2(x))
        return self.bn3.fork(self.conv3(x), shortcut)


class ResNet(nn.Module):
    """A residual network: (N, channels, H, W) -> logits (N, classes).

    :param block: type of the blocks.
    :param depths: blocks per stage. Each stage after the first halves the image and doubles the number of channels.
    :param width: channels of the stem and of the first stage.
    :param small: use a 3x3 stem, for images of about 32 pixels, instead of 7x7 and pooling, which reduce each side to
        a quarter.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        width: int = 64,
        channels: int,
        classes: int,
        small: bool,
    ) -> None:
        super().__init__()
        require(channels >= 1, "channels", "at least 1", channels)
        require(classes >= 1, "classes", "at least 1", classes)
        self.conv1 = conv(channels, width, 3) if small else conv(channels, width, 7, stride=2)
        self.bn1 = NormAct(width)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = [f"layer{i}" for i in range(1, len(depths) + 1)]
        before = width
        for i, (stage, depth) in enumerate(zip(self.stages, depths, strict=True)):
            after = block.expansion * width * 2**i
            rest = (block(after, width * 2**i, 1) for _ in range(depth - 1))
            self.add_module(stage, nn.Sequential(block(before, width * 2**i, 2 if i else 1), *rest))
            before = after
        self.fc = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
        nn.init.xavier_uniform_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits. ``x`` may have extra channels of zeros, since tensor cores are faster with eight channels."""
        extra = x.shape[1] - self.conv1.in_channels
        weight = F.pad(self.conv1.weight, (0, 0, 0, 0, 0, extra)) if extra else self.conv1.weight
        x = F.conv2d(x, weight, stride=self.conv1.stride, padding=self.conv1.padding)
        pair: Pair = self.bn1.fork(x)
        if isinstance(self.maxpool, nn.MaxPool2d):
            pair = (self.maxpool(pair[0]),) * 2
        for stage in self.stages:
            pair = self.get_submodule(stage)(pair)
        return self.fc(pair[0].mean((2, 3)))  # type: ignore[no-any-return]


def resnet20_cifar(channels: int, classes: int) -> ResNet:
    """Build the narrow ResNet-20 for CIFAR of He et al., with about a fourteenth of the operations of ResNet-18."""
    return ResNet(BasicBlock, (3, 3, 3), width=16, channels=channels, classes=classes, small=True)


def resnet18_cifar(channels: int, classes: int) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), channels=channels, classes=classes, small=True)


def resnet34_cifar(channels: int, classes: int) -> ResNet:
    return ResNet(BasicBlock, (3, 4, 6, 3), channels=channels, classes=classes, small=True)


def resnet18(channels: int, classes: int) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), channels=channels, classes=classes, small=False)


def resnet50(channels: int, classes: int) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), channels=channels, classes=classes, small=False)
