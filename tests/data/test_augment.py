"""Batched augmentation, compared with loops over images and pixels, and with Pillow."""

import colorsys
import math
import statistics

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.testing import assert_close

from ogc.data import augment
from ogc.data.augment import (
    IMAGENET,
    Cifar,
    CifarDraws,
    Large,
    LargeDraws,
    Statistics,
    adjust_hue,
    normalise,
    resized_crop,
    rotation_source,
)

COUNT = 20
CIFAR10 = Statistics((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = Statistics((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def some_images(n=COUNT, height=32, width=32, seed=0):
    """Return random images without zeros, so that padding cannot be mistaken for image content."""
    return torch.randint(1, 256, (n, 3, height, width), dtype=torch.uint8, generator=generator(seed))


def cifar(images=None):
    return Cifar(some_images() if images is None else images, mean=CIFAR10.mean, std=CIFAR10.std)


def cifar_draws(*rows):
    top, left, flip, angle = zip(*rows, strict=True)
    return CifarDraws(torch.tensor(top), torch.tensor(left), torch.tensor(flip), torch.tensor(angle))


# Reference: each operation separately, on one image.


def cropped(image, top, left, padding):
    channels, height, width = image.shape
    padded = np.zeros((channels, height + 2 * padding, width + 2 * padding), np.uint8)
    padded[:, padding : padding + height, padding : padding + width] = image
    return padded[:, top : top + height, left : left + width]


def mirrored(image):
    return np.stack([[row[::-1] for row in channel] for channel in image])


def fixed(number):
    return math.floor(number * 65536 + 0.5)


def rotated(image, angle):
    _, height, width = image.shape
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    start_x = fixed(cos * (0.5 - width / 2) - sin * (0.5 - height / 2) + width / 2)
    start_y = fixed(sin * (0.5 - width / 2) + cos * (0.5 - height / 2) + height / 2)
    result = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            source_x = (start_x + x * fixed(cos) - y * fixed(sin)) // 65536
            source_y = (start_y + x * fixed(sin) + y * fixed(cos)) // 65536
            if 0 <= source_x < width and 0 <= source_y < height:
                result[:, y, x] = image[:, source_y, source_x]
    return result


def by_loops(images, index, draws, padding):
    result = []
    for i, top, left, flip, angle in zip(index.tolist(), *(part.tolist() for part in draws), strict=True):
        image = cropped(images[i].numpy(), top, left, padding)
        result.append(rotated(mirrored(image) if flip else image, angle))
    return torch.from_numpy(np.stack(result))


def by_pillow(images, index, draws, padding):
    result = []
    for i, top, left, flip, angle in zip(index.tolist(), *(part.tolist() for part in draws), strict=True):
        image = ImageOps.expand(Image.fromarray(images[i].permute(1, 2, 0).numpy()), padding)
        image = image.crop((left, top, left + images.shape[3], top + images.shape[2]))
        image = ImageOps.mirror(image) if flip else image
        result.append(torch.from_numpy(np.array(image.rotate(angle))).permute(2, 0, 1))
    return torch.stack(result)


EXTREMES = [
    (top, left, flip, angle)
    for top, left in [(0, 0), (0, 8), (8, 0), (8, 8), (4, 4)]
    for flip in [False, True]
    for angle in [-15.0, 0.0, 1e-3, 15.0]
]


@pytest.mark.parametrize("reference", [by_loops, by_pillow])
class TestEveryPixel:
    def test_at_the_extremes(self, reference):
        images, draws = some_images(), cifar_draws(*EXTREMES)
        index = torch.arange(len(EXTREMES)) % COUNT
        assert torch.equal(cifar(images).moved(index, draws), reference(images, index, draws, 4))

    @pytest.mark.parametrize(
        ("height", "width", "padding", "degrees"),
        [(32, 32, 4, 15.0), (32, 32, 4, 180.0), (32, 32, 0, 90.0), (7, 10, 3, 40.0), (9, 4, 5, 15.0)],
    )
    def test_for_random_draws(self, reference, height, width, padding, degrees, monkeypatch):
        monkeypatch.setattr(augment, "PADDING", padding)
        monkeypatch.setattr(augment, "DEGREES", degrees)
        images = some_images(height=height, width=width)
        augmentation = cifar(images)
        index = torch.randint(COUNT, (60,), generator=generator(1))
        draws = augmentation.draw(60, generator(2))
        assert torch.equal(augmentation.moved(index, draws), reference(images, index, draws, padding))


def test_identity_draws_return_the_images_normalised():
    images, index = some_images(), torch.tensor([3, 0, 3, -1])
    draws = cifar_draws(*[(4, 4, False, 0.0)] * 4)
    assert torch.equal(cifar(images).moved(index, draws), images[index])
    result = cifar(images)(index, draws)
    assert torch.equal(result, normalise(images[index], *CIFAR10))
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_fixed_point_map_of_5000_angles_equals_the_reference():
    """Angles are in float64. In float32, a few entries of the map would round the other way."""
    angle = 15 * (2 * torch.rand(5000, generator=generator()) - 1)
    y, x = rotation_source(angle, 32, 32)
    row, column = np.meshgrid(range(32), range(32), indexing="ij")
    for one, source_y, source_x in zip(angle.tolist(), y.numpy(), x.numpy(), strict=True):
        cos, sin = math.cos(math.radians(one)), math.sin(math.radians(one))
        start_x, start_y = fixed(-15.5 * cos + 15.5 * sin + 16), fixed(-15.5 * sin - 15.5 * cos + 16)
        assert (source_x == (start_x + column * fixed(cos) - row * fixed(sin)) // 65536).all()
        assert (source_y == (start_y + column * fixed(sin) + row * fixed(cos)) // 65536).all()


def test_normalise_uses_the_statistics_of_each_channel():
    images = some_images(3, 5, 4)
    result = normalise(images, *CIFAR100)
    for n, c, y, x in np.ndindex(3, 3, 5, 4):
        expected = (int(images[n, c, y, x]) / 255 - CIFAR100.mean[c]) / CIFAR100.std[c]
        assert result[n, c, y, x].item() == pytest.approx(expected, abs=1e-6)
    assert torch.equal(result, normalise(images, torch.tensor(CIFAR100.mean), torch.tensor(CIFAR100.std)))


def test_draws_cover_their_ranges_evenly():
    draws = cifar().draw(90_000, generator())
    for offset in (draws.top, draws.left):
        counts = offset.bincount(minlength=9).double()
        assert counts.shape == (9,)
        assert (counts - 10_000).abs().max() < 4 * math.sqrt(10_000)
    assert abs(draws.flip.double().mean() - 0.5) < 4 * 0.5 / 300
    assert draws.angle.abs().max() <= 15
    assert draws.angle.min() < -14.9
    assert draws.angle.max() > 14.9
    assert abs(draws.angle.mean()) < 4 * 15 / math.sqrt(3) / 300


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: cifar().draw(COUNT, generator(seed)),
        lambda seed: Large(16).draw(COUNT, 20, 24, generator(seed)),
        lambda seed: cifar()(torch.arange(COUNT), cifar().draw(COUNT, generator(seed))),
        lambda seed: Large(16)(some_images(), Large(16).draw(COUNT, 32, 32, generator(seed))),
    ],
    ids=["Cifar draws", "Large draws", "Cifar", "Large"],
)
def test_same_seed_reproduces_and_another_seed_differs(make):
    first, again, other = (torch.stack([part.float() for part in make(seed)]) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# Reference for Large: one image and one stage at a time.


def large_draws(n=COUNT, seed=3, **options):
    return Large(**options).draw(n, 20, 24, generator(seed))


def floats(n=COUNT, height=20, width=24):
    return some_images(n, height, width) / 255


def sampled(image, top, left, height, width, flip, size):
    """Interpolate bilinearly between pixel centres, with edge pixels extended."""
    channels, rows, columns = image.shape
    result = np.zeros((channels, size, size))
    for j in range(size):
        for i in range(size):
            y = min(max((top + height * (j + 0.5) / size) * rows - 0.5, 0), rows - 1)
            x = min(max((left + width * (i + 0.5) / size) * columns - 0.5, 0), columns - 1)
            y0, x0 = int(y), int(x)
            y1, x1 = min(y0 + 1, rows - 1), min(x0 + 1, columns - 1)
            upper = (x0 + 1 - x) * image[:, y0, x0] + (x - x0) * image[:, y0, x1]
            lower = (x0 + 1 - x) * image[:, y1, x0] + (x - x0) * image[:, y1, x1]
            result[:, j, size - 1 - i if flip else i] = (y0 + 1 - y) * upper + (y - y0) * lower
    return result


def each_image(function, images, *numbers):
    rows = zip(images.double().numpy(), *(part.tolist() for part in numbers), strict=True)
    return torch.tensor(np.stack([function(*row) for row in rows]), dtype=torch.float32)


def test_resized_crop_and_flip():
    images, draws = floats(), large_draws()
    assert 0 < draws.flip.sum() < COUNT
    expected = each_image(lambda *row: sampled(*row, 9), images, *draws[:5])
    assert_close(resized_crop(images, draws, 9), expected, rtol=0, atol=1e-5)


def grey(pixel):
    return 0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]


def brighter(image, factor):
    return np.clip(factor * image, 0, 1)


def contrasted(image, factor):
    _, height, width = image.shape
    middle = statistics.fmean(grey(image[:, y, x]) for y, x in np.ndindex(height, width))
    return np.clip(factor * image + (1 - factor) * middle, 0, 1)


def saturated(image, factor):
    result = np.empty_like(image)
    for y, x in np.ndindex(image.shape[1:]):
        result[:, y, x] = np.clip(factor * image[:, y, x] + (1 - factor) * grey(image[:, y, x]), 0, 1)
    return result


def hue_shifted(image, shift):
    result = np.empty_like(image)
    for y, x in np.ndindex(image.shape[1:]):
        hue, saturation, value = colorsys.rgb_to_hsv(*image[:, y, x])
        result[:, y, x] = colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value)
    return result


def edge_cases():
    """Images with grey, black and white pixels, and with two channels alike."""
    images = some_images(9, 6, 5)
    images[0] = images[0, :1]
    images[1], images[2] = 0, 255
    images[3, 2] = images[3, 0]
    images[4, 0] = images[4, 1]
    images[5, 1] = images[5, 2]
    return images


@pytest.mark.parametrize("order", [0, 4, -1])
def test_hue(order):
    images, shift = edge_cases() / 255, torch.linspace(-0.5, 0.5, 9)
    shift = shift.flip(0) if order < 0 else shift.roll(order)
    assert_close(adjust_hue(images, shift), each_image(hue_shifted, images, shift), rtol=0, atol=1e-5)


@pytest.mark.parametrize("low", [0.0, 1.0])  # of the jitter, up to twice as much
def test_large_applies_its_stages_in_order(low):
    images, draws, augment = edge_cases(), large_draws(9), Large(9)
    factors = [low + torch.linspace(0, 1, 9).roll(i) for i in range(3)]
    draws = draws._replace(brightness=factors[0], contrast=factors[1], saturation=factors[2])
    expected = []
    for image, row in zip(
        images.double().numpy() / 255, zip(*(part.tolist() for part in draws), strict=True), strict=True
    ):
        one = LargeDraws(*row)
        pixels = brighter(sampled(image, *one[:5], 9), one.brightness)
        pixels = hue_shifted(saturated(contrasted(pixels, one.contrast), one.saturation), one.hue)
        mean, std = (np.array(part)[:, None, None] for part in IMAGENET)
        expected.append((pixels - mean) / std)
    result = augment(images, draws)
    assert result.shape == (9, 3, 9, 9)
    assert_close(result, torch.tensor(np.stack(expected), dtype=torch.float32), rtol=0, atol=1e-4)


def test_crop_boxes_have_valid_area_and_ratio_and_lie_inside():
    draws = Large().draw(20_000, 300, 400, generator())
    area = draws.height * draws.width
    ratio = (400 * draws.width) / (300 * draws.height)
    assert area.min() >= 0.08 * (1 - 1e-5)
    assert area.max() > 0.95
    assert ratio.min() >= 3 / 4 * (1 - 1e-5)
    assert ratio.max() <= 4 / 3 * (1 + 1e-5)
    for start, side in ((draws.top, draws.height), (draws.left, draws.width)):
        assert start.min() >= 0
        assert (start + side).max() <= 1 + 1e-6
        assert (side == 1).double().mean() < 1e-3  # none had to be clipped
    for name, amount in (("brightness", 0.4), ("contrast", 0.4), ("saturation", 0.4)):
        factor = getattr(draws, name)
        assert 1 - amount <= factor.min() < 0.61
        assert 1.39 < factor.max() <= 1 + amount + 1e-6
    assert -0.2 <= draws.hue.min() < -0.19
    assert 0.19 < draws.hue.max() <= 0.2 + 1e-6


def test_crop_box_that_never_fits_is_clipped(monkeypatch):
    monkeypatch.setattr(augment, "AREA", (1.0, 1.0))
    monkeypatch.setattr(augment, "RATIO", (4.0, 4.0))
    draws = Large().draw(5, 32, 32, generator())
    assert_close(draws.width, torch.ones(5))
    assert_close(draws.height, torch.full((5,), 0.5))


def test_state_dicts_are_empty():
    assert not cifar().state_dict()
    assert not Large().state_dict()


@pytest.mark.parametrize(
    "call",
    [
        lambda: cifar(torch.zeros(2, 3, 4, 4)),
        lambda: cifar(some_images()[0]),
        lambda: normalise(torch.zeros(2, 3, 4, 4), *CIFAR10),
        lambda: Large()(floats(), large_draws()),
        lambda: Large()(some_images()[:, :1], large_draws()),
    ],
)
def test_other_images_are_refused(call):
    with pytest.raises(ValueError, match="`images"):
        call()


def test_other_sizes_and_indices_are_refused():
    with pytest.raises(ValueError, match="`size"):
        Large(0)
    with pytest.raises(IndexError):
        cifar()(torch.tensor([COUNT]), cifar().draw(1))
