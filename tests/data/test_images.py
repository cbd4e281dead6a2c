"""Images of every mode, valid and broken."""

import sys

import pytest
import torch
from PIL import Image

from ogc.data.images import ImageFiles


def files(tmp_path, size, **images):
    paths = []
    for name, image in images.items():
        paths.append(tmp_path / name.replace("_", "."))
        image.save(paths[-1])
    return ImageFiles(paths, size)


def test_every_mode_becomes_rgb_bytes(tmp_path):
    palette = Image.new("RGB", (4, 4), (10, 20, 30)).convert("P", palette=Image.Palette.ADAPTIVE)
    found = files(
        tmp_path,
        4,
        rgb_png=Image.new("RGB", (4, 4), (10, 20, 30)),
        grey_png=Image.new("L", (4, 4), 77),
        one_png=Image.new("1", (4, 4), 1),
        palette_png=palette,
        deep_png=Image.new("I;16", (4, 4), 40_000),
        clear_png=Image.new("RGBA", (4, 4), (10, 20, 30, 0)),
        half_png=Image.new("RGBA", (4, 4), (0, 0, 0, 128)),
        greyalpha_png=Image.new("LA", (4, 4), (0, 0)),
        cmyk_tif=Image.new("CMYK", (4, 4), (0, 0, 0, 255)),
        gif_gif=palette,
    )
    images = found.decoded()
    assert images.shape == (10, 3, 4, 4)
    assert images.dtype == torch.uint8
    expected = {
        "rgb": (10, 20, 30),
        "grey": (77,) * 3,
        "one": (255,) * 3,
        "palette": (10, 20, 30),
        "deep": (40_000 // 256,) * 3,
        "clear": (255,) * 3,
        "half": (127,) * 3,
        "greyalpha": (255,) * 3,
        "cmyk": (0,) * 3,
        "gif": (10, 20, 30),
    }
    for path, image in zip(found.paths, images, strict=True):
        wanted = torch.tensor(expected[path.stem])
        assert (image.flatten(1).T - wanted).abs().max() <= 1, path.name
    assert found.check() == []


def test_transparent_palette_is_composited_on_white(tmp_path):
    image = Image.new("P", (4, 4), 0)
    image.putpalette([10, 20, 30])
    image.save(tmp_path / "x.png", transparency=0)
    assert ImageFiles([tmp_path / "x.png"], 4).decoded().unique().tolist() == [255]


@pytest.mark.parametrize("shape", [(60, 20), (20, 60)])
def test_centre_crop_at_the_requested_size(tmp_path, shape):
    image = Image.new("RGB", shape, "red")
    middle = tuple((side - 20) // 2 for side in shape)
    image.paste(Image.new("RGB", (20, 20), "blue"), middle)
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
    assert found[torch.tensor([], dtype=torch.int64)].shape == (0, 3, 2, 2)
    with pytest.raises(ValueError, match=r"`.*a\.png` cannot be read"):
        found[torch.tensor([1, 0])]


def test_unreadable_files_are_listed(tmp_path):
    noise = Image.effect_noise((64, 64), 100)
    found = files(tmp_path, 2, a_png=noise, b_jpg=noise, c_jpg=noise)
    found.paths[1].write_bytes(found.paths[1].read_bytes()[:-1000])  # opens, but is truncated
    found.paths[2].unlink()
    assert found.check() == [str(path) for path in found.paths[1:]]


def test_size_is_validated():
    with pytest.raises(ValueError, match="`size` should be at least 1"):
        ImageFiles([], 0)


def test_missing_pillow_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"torch-ogc\[cli\]"):
        ImageFiles([tmp_path / "x.png"], 2).decoded()


def test_boolean_mask_selects_images(tmp_path):
    from PIL import Image

    for i, grey in enumerate((0, 100, 200)):
        Image.new("RGB", (4, 4), (grey,) * 3).save(tmp_path / f"{i}.png")
    files = ImageFiles([tmp_path / f"{i}.png" for i in range(3)], 4)
    assert files[torch.tensor([False, False, True])].unique().tolist() == [200]
    with pytest.raises(ValueError, match="index"):
        files[torch.tensor([0.0])]


def test_32_bit_grey_is_not_darkened_if_it_fits_in_8_bits(tmp_path):
    from PIL import Image

    Image.new("I", (4, 4), 200).save(tmp_path / "a.tif")
    Image.new("I", (4, 4), 200 * 256).save(tmp_path / "b.tif")
    Image.new("F", (4, 4), 0.5).save(tmp_path / "c.tif")
    files = ImageFiles([tmp_path / "a.tif", tmp_path / "b.tif"], 4)
    assert files.decoded().unique().tolist() == [200]
    assert ImageFiles([tmp_path / "c.tif"], 4).check() == [str(tmp_path / "c.tif")]
