"""Images of every mode, valid and broken."""

import sys

import pytest
import torch
from PIL import Image

from ogc.data.images import ImageFiles, report_unreadable


def files(tmp_path, size, **images):
    for name, image in images.items():
        image.save(tmp_path / name.replace("_", "."))
    return ImageFiles([tmp_path / name.replace("_", ".") for name in images], size)


def test_every_mode_becomes_rgb_bytes(tmp_path):
    palette = Image.new("RGB", (4, 4), (10, 20, 30)).convert("P", palette=Image.Palette.ADAPTIVE)
    images = {
        "rgb_png": (Image.new("RGB", (4, 4), (10, 20, 30)), (10, 20, 30)),
        "grey_png": (Image.new("L", (4, 4), 77), (77,) * 3),
        "one_png": (Image.new("1", (4, 4), 1), (255,) * 3),
        "palette_png": (palette, (10, 20, 30)),
        "deep_png": (Image.new("I;16", (4, 4), 40_000), (40_000 // 256,) * 3),
        "small_tif": (Image.new("I", (4, 4), 200), (200,) * 3),  # 32 bits, but not darkened
        "large_tif": (Image.new("I", (4, 4), 200 * 256), (200,) * 3),
        "clear_png": (Image.new("RGBA", (4, 4), (10, 20, 30, 0)), (255,) * 3),
        "half_png": (Image.new("RGBA", (4, 4), (0, 0, 0, 128)), (127,) * 3),
        "greyalpha_png": (Image.new("LA", (4, 4), (0, 0)), (255,) * 3),
        "cmyk_tif": (Image.new("CMYK", (4, 4), (0, 0, 0, 255)), (0,) * 3),
        "gif_gif": (palette, (10, 20, 30)),
    }
    found = files(tmp_path, 4, **{name: image for name, (image, _) in images.items()})
    decoded = found.decoded()
    assert (decoded.shape, decoded.dtype) == ((len(images), 3, 4, 4), torch.uint8)
    for path, image, (_, colour) in zip(found.paths, decoded, images.values(), strict=True):
        assert (image.flatten(1).T - torch.tensor(colour)).abs().max() <= 1, path.name
    assert found.unreadable() == {}


def test_transparent_palette_is_composited_on_white(tmp_path):
    image = Image.new("P", (4, 4), 0)
    image.putpalette([10, 20, 30])
    image.save(tmp_path / "x.png", transparency=0)
    assert ImageFiles([tmp_path / "x.png"], 4).decoded().unique().tolist() == [255]


@pytest.mark.parametrize("shape", [(60, 20), (20, 60)])
def test_centre_crop_at_the_requested_size(tmp_path, shape):
    image = Image.new("RGB", shape, "red")
    image.paste(Image.new("RGB", (20, 20), "blue"), tuple((side - 20) // 2 for side in shape))
    pixels = files(tmp_path, 10, x_png=image).decoded()
    assert pixels.shape == (1, 3, 10, 10)
    pixels = pixels[..., 1:-1, 1:-1]  # the edge is blended with the pixels around it
    assert pixels[0, 2].unique().tolist() == [255]
    assert pixels[0, 0].unique().tolist() == [0]


def test_rows_and_channels_are_not_mixed_up(tmp_path):
    image = Image.new("RGB", (3, 3))
    image.putpixel((2, 0), (1, 2, 3))  # x, y
    pixels = files(tmp_path, 3, x_png=image).decoded()
    assert pixels[0, :, 0, 2].tolist() == [1, 2, 3]
    assert pixels.sum() == 6


def test_exif_orientation_is_applied(tmp_path):
    image = Image.new("RGB", (2, 2))
    image.putpixel((0, 0), (255, 255, 255))
    exif = image.getexif()
    exif[0x0112] = 3  # upside down
    image.save(tmp_path / "x.png", exif=exif)
    assert ImageFiles([tmp_path / "x.png"], 2).decoded()[0, 0].tolist() == [[0, 0], [0, 255]]


def test_only_indexed_images_are_decoded(tmp_path):
    found = files(tmp_path, 2, a_png=Image.new("L", (2, 2), 1), b_png=Image.new("L", (2, 2), 2))
    found.paths[0].write_bytes(b"broken")
    assert found[torch.tensor([1, 1])].unique().tolist() == [2]
    assert found[torch.tensor([False, True])].unique().tolist() == [2]
    assert found[torch.tensor([], dtype=torch.int64)].shape == (0, 3, 2, 2)
    with pytest.raises(ValueError, match=r"`.*a\.png`"):
        found[torch.tensor([1, 0])]
    with pytest.raises(ValueError, match="`index`"):
        found[torch.tensor([0.0])]
    with pytest.raises(ValueError, match="`size`"):
        ImageFiles([], 0)


def test_unreadable_files_are_listed(tmp_path):
    noise = Image.effect_noise((64, 64), 100)
    found = files(tmp_path, 2, a_png=noise, b_jpg=noise, c_jpg=noise, d_tif=Image.new("F", (4, 4), 0.5))
    found.paths[1].write_bytes(found.paths[1].read_bytes()[:-1000])  # opens, but is truncated
    found.paths[2].unlink()
    assert list(found.unreadable()) == [str(path) for path in found.paths[1:]]


@pytest.mark.parametrize("limit", [40, 90])  # Pillow warns above its limit, and raises above twice the limit
def test_an_image_over_pillows_limit_says_how_to_allow_it(tmp_path, monkeypatch, limit):
    found = files(tmp_path, 2, a_png=Image.new("L", (10, 10)), b_png=Image.new("L", (2, 2)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    bad = found.unreadable()
    assert list(bad) == [str(found.paths[0])]
    with pytest.raises(ValueError, match=r"`.*a\.png` has more pixels .*PIL\.Image\.MAX_IMAGE_PIXELS"):
        report_unreadable(bad, 2, skip_bad=False)
    with pytest.warns(UserWarning, match=r"PIL\.Image\.MAX_IMAGE_PIXELS"):
        report_unreadable(bad, 2, skip_bad=True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert found.unreadable() == {}


def test_missing_pillow_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"torch-ogc\[cli\]"):
        ImageFiles([tmp_path / "x.png"], 2).decoded()
