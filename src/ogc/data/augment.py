"""Augmentation of a whole batch on the device: ``Cifar`` for small images stored there, ``Large`` for 224 pixels.

All random numbers come from ``draw``; the call itself is a function of its arguments with static shapes and no host
read, so both can be captured in a CUDA graph and compiled.

    augment = Cifar(images.to(device), mean=mean, std=std)
    inputs = augment(index, augment.draw(len(index), generator))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from .._require import require


class Statistics(NamedTuple):
    """Mean and standard deviation of each channel, for pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGENET = Statistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

PADDING = 4  # zeros added on each side before the crop
DEGREES = 15.0  # largest angle of the rotation
FIXED_POINT = 16  # binary digits after the point in Pillow's nearest sampling
GREY = (0.299, 0.587, 0.114)  # ITU-R 601, as in Pillow's "L"
ATTEMPTS = 10  # at finding a box that fits, as in torchvision
AREA = (0.08, 1.0)  # range of the area of the box, relative to the image, uniform
RATIO = (3 / 4, 4 / 3)  # range of the width of the box divided by its height, in pixels, uniform in its logarithm
JITTER = 0.4  # factors of brightness, contrast and saturation are uniform in [1 - JITTER, 1 + JITTER]
HUE = 0.2  # the shift is uniform in [-HUE, HUE], in turns of the colour circle


def normalise(images: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> Tensor:
    """Compute (pixel / 255 - mean) / std: (N, C, H, W) uint8 -> (N, C, H, W) float32.

    In a CUDA graph, ``mean`` and ``std`` must be tensors on the device.
    """
    require(images.dtype == torch.uint8, "images", "uint8", images.dtype)
    return _standardise(images / 255, mean, std)


def _standardise(images: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> Tensor:
    mean, std = (torch.as_tensor(part, dtype=torch.float32, device=images.device) for part in (mean, std))
    return (images - mean[:, None, None]) / std[:, None, None]


class CifarDraws(NamedTuple):
    """Random numbers of ``Cifar``, one per image: (n,) each."""

    top: Tensor  # int64 in [0, 2 PADDING], the crop's first row in the padded image, as is its first column
    left: Tensor
    flip: Tensor  # bool
    angle: Tensor  # float32, degrees counter-clockwise


class Cifar(nn.Module):
    """Crop from the zero-padded image, flip, rotate (nearest, zero fill), normalise, in the order of the released code.

    Crop, flip and rotation are one integer gather: each output pixel is traced back through all three. The result
    equals Pillow's pixel for pixel. Pixels that the rotation takes from outside the crop are zero, even where the image
    continues. The batch is channels-last in memory.

    :param images: the training set, (N, C, H, W) uint8, on the target device.
    """

    pixels: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, images: Tensor, *, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        require(images.dtype == torch.uint8, "images", "uint8", images.dtype)
        require(images.ndim == 4, "images", "of shape (N, C, H, W)", tuple(images.shape))
        self.height, self.width = images.shape[2:]
        padded = F.pad(images, (PADDING,) * 4).flatten(2).transpose(1, 2)
        # The rotation fills with the one zero pixel after those of each image: (N, padded H W + 1, C).
        self.register_buffer("pixels", F.pad(padded, (0, 0, 0, 1)).contiguous(), persistent=False)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32, device=images.device), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32, device=images.device), persistent=False)

    def draw(self, n: int, generator: Generator | None = None) -> CifarDraws:
        device = self.pixels.device if generator is None else generator.device
        top, left = torch.randint(2 * PADDING + 1, (2, n), generator=generator, device=device)
        flip, angle = torch.rand(2, n, generator=generator, device=device)
        return CifarDraws(top, left, flip < 0.5, DEGREES * (2 * angle - 1))

    def moved(self, index: Tensor, draws: CifarDraws) -> Tensor:
        """Return the images at ``index`` after crop, flip and rotation, not normalised: (n,) -> (n, C, H, W) uint8."""
        top, left, flip = (part[:, None, None] for part in (draws.top.int(), draws.left.int(), draws.flip))
        y, x = rotation_source(draws.angle, self.height, self.width)
        inside = (y >= 0) & (y < self.height) & (x >= 0) & (x < self.width)
        x = torch.where(flip, self.width - 1 - x, x)
        source = (top + y) * (self.width + 2 * PADDING) + left + x
        source = torch.where(inside, source, self.pixels.shape[1] - 1)
        return self.pixels[index[:, None, None], source].permute(0, 3, 1, 2)

    def forward(self, index: Tensor, draws: CifarDraws) -> Tensor:
        return normalise(self.moved(index, draws), self.mean, self.std)


def rotation_source(angle: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the source of each pixel of an image rotated about its centre: (n,) -> y, x of (n, height, width) int32.

    With u = x + 1/2 - width/2 and v = y + 1/2 - height/2, the position relative to the centre, the source is

        x' = floor(u cos(angle) - v sin(angle) + width/2),  y' = floor(u sin(angle) + v cos(angle) + height/2)

    in Pillow's arithmetic: the six coefficients are rounded to 16 binary digits, and the rest is computed in integers.
    So the result does not depend on the device or the compiler. It may be outside of the image.
    """
    radians = torch.deg2rad(angle.double())[:, None, None]  # float64: the rounding below is then the same everywhere
    cos, sin = radians.cos(), radians.sin()
    y = torch.arange(height, device=angle.device, dtype=torch.int32)[:, None]
    x = torch.arange(width, device=angle.device, dtype=torch.int32)
    u, v = (1 - width) / 2, (1 - height) / 2  # of the first pixel
    source_x = _fixed(u * cos - v * sin + width / 2) + x * _fixed(cos) - y * _fixed(sin)
    source_y = _fixed(u * sin + v * cos + height / 2) + x * _fixed(sin) + y * _fixed(cos)
    return source_y >> FIXED_POINT, source_x >> FIXED_POINT


def _fixed(number: Tensor) -> Tensor:
    return torch.floor(number * 2**FIXED_POINT + 0.5).int()


class LargeDraws(NamedTuple):
    """Random numbers of ``Large``, one per image: (n,) each. The box is relative to the sides of the image."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor  # bool
    brightness: Tensor  # a factor, like the next two
    contrast: Tensor
    saturation: Tensor
    hue: Tensor  # in turns of the colour circle


class Large(nn.Module):
    """Resized crop, flip, colour jitter (brightness, contrast, saturation, hue, in this order), normalise.

    The formulas of the jitter and the ranges are those of torchvision, which applies the jitter in random order. The
    box is not rounded to whole pixels and is sampled bilinearly without a low-pass filter, so store images that are not
    much larger than ``size`` (for example, with a shorter side of 256).

    :param size: height and width of the output.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, size: int = 224, *, mean: Sequence[float] = IMAGENET.mean, std: Sequence[float] = IMAGENET.std
    ) -> None:
        super().__init__()
        require(size >= 1, "size", "at least 1", size)
        self.size = size
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32), persistent=False)

    def draw(self, n: int, height: int, width: int, generator: Generator | None = None) -> LargeDraws:
        """Draw for n images of one size. Use the first of ten boxes that fits, or clamp the first box if none does."""
        device = self.mean.device if generator is None else generator.device

        def uniform(low: float, high: float, *shape: int) -> Tensor:
            return low + (high - low) * torch.rand(*shape, n, generator=generator, device=device)

        area = uniform(*AREA, ATTEMPTS)
        ratio = uniform(math.log(RATIO[0]), math.log(RATIO[1]), ATTEMPTS).exp() * (height / width)
        box_height, box_width = (area / ratio).sqrt(), (area * ratio).sqrt()
        first = ((box_height <= 1) & (box_width <= 1)).int().argmax(0, keepdim=True)
        box_height, box_width = (side.gather(0, first)[0].clamp(max=1) for side in (box_height, box_width))
        top, left = uniform(0, 1) * (1 - box_height), uniform(0, 1) * (1 - box_width)
        flip = uniform(0, 1) < 0.5
        brightness, contrast, saturation = (uniform(1 - JITTER, 1 + JITTER) for _ in range(3))
        hue = uniform(-HUE, HUE)
        return LargeDraws(top, left, box_height, box_width, flip, brightness, contrast, saturation, hue)

    def forward(self, images: Tensor, draws: LargeDraws) -> Tensor:
        """Augment and normalise: (n, 3, H, W) uint8 -> (n, 3, size, size)."""
        require(images.dtype == torch.uint8, "images", "uint8", images.dtype)
        require(images.ndim == 4 and images.shape[1] == 3, "images", "of shape (n, 3, H, W)", tuple(images.shape))
        x = resized_crop(images / 255, draws, self.size)
        x = _blend(x, torch.zeros_like(x[:, :1]), draws.brightness)  # with black
        x = _blend(x, _grey(x).mean((2, 3), keepdim=True), draws.contrast)
        x = _blend(x, _grey(x), draws.saturation)
        x = adjust_hue(x, draws.hue)
        return _standardise(x, self.mean, self.std)


def resized_crop(images: Tensor, draws: LargeDraws, size: int) -> Tensor:
    """Sample the boxes bilinearly, mirrored if ``flip``, with repeated edges: (n, C, H, W) -> (n, C, size, size)."""
    steps = (torch.arange(size, device=images.device) + 0.5) / size
    across = torch.where(draws.flip[:, None], 1 - steps, steps)
    x = draws.left[:, None] + draws.width[:, None] * across
    y = draws.top[:, None] + draws.height[:, None] * steps
    grid = torch.stack([x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)], dim=-1)
    return F.grid_sample(images, 2 * grid - 1, mode="bilinear", padding_mode="border", align_corners=False)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue by ``shift`` turns: (n, 3, H, W) in [0, 1], (n,) -> (n, 3, H, W). Value and saturation stay."""
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    sixths = torch.where(
        value == red,
        (green - blue) / chroma,
        torch.where(value == green, 2 + (blue - red) / chroma, 4 + (red - green) / chroma),
    )
    sixths = torch.where(chroma > 0, sixths, 0) + 6 * shift[:, None, None]

    def channel(start: int) -> Tensor:  # HSV to RGB: V - C clamp(min(k, 4 - k), 0, 1), start 5, 3, 1 for R, G, B
        k = (start + sixths) % 6
        return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)

    return torch.stack([channel(5), channel(3), channel(1)], dim=1)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    factor = factor[:, None, None, None]
    return (factor * images + (1 - factor) * other).clamp(0, 1)


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (GREY[0] * red + GREY[1] * green + GREY[2] * blue)[:, None]
