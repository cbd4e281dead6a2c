"""Image files that are decoded to uint8 on demand."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._extras import extra
from .._require import counted, few, require
from .._warn import warn

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
TOO_LARGE = "more pixels than Pillow allows: shrink it, or raise PIL.Image.MAX_IMAGE_PIXELS in Python"


class ImageFiles:
    """Image files as the inputs of a data set: indices (n,) -> images (n, 3, size, size) uint8.

    An image is rotated by its EXIF orientation, converted to RGB, scaled to a shorter side of ``size`` (bilinear,
    antialiased), and cropped to the central square. Transparent pixels become white, and 16 bits are reduced to 8. Only
    the first frame of an animation is used.
    """

    def __init__(self, paths: Sequence[str | Path], size: int) -> None:
        require(size >= 1, "size", "at least 1", size)
        self.paths = [Path(path) for path in paths]
        self.size = size
        self.workers = min(8, os.cpu_count() or 1)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self), 3, self.size, self.size

    def __getitem__(self, index: Tensor) -> Tensor:
        index = index.nonzero().flatten() if index.dtype == torch.bool else index
        require(index.ndim == 1 and not index.is_floating_point(), "index", "(n,) integers or a mask", index.dtype)
        chosen = [self.paths[i] for i in index.tolist()]
        if not chosen:
            return torch.empty(0, 3, self.size, self.size, dtype=torch.uint8)
        with ThreadPoolExecutor(self.workers) as pool:  # Pillow releases the GIL while it decodes and resizes
            return torch.stack(list(pool.map(self._decode, chosen)))

    def decoded(self) -> Tensor:
        """Decode all images, for a data set that fits in memory: -> (N, 3, size, size)."""
        return self[torch.arange(len(self))]

    def unreadable(self) -> dict[str, str]:
        """Decode every file, and return why some cannot be read, by path."""

        def reason(path: Path) -> str:
            try:
                self._decode(path)
            except ValueError as error:
                return str(error.__cause__ or error)
            return ""

        with ThreadPoolExecutor(self.workers) as pool:
            reasons = zip(self.paths, pool.map(reason, self.paths), strict=True)
            return {str(path): text for path, text in reasons if text}

    def _decode(self, path: Path) -> Tensor:
        """Decode one file: -> (3, size, size)."""
        with extra("cli", "Images need Pillow", "PIL"):
            from PIL import Image, ImageOps
        try:
            with Image.open(path) as image:
                ImageOps.exif_transpose(image, in_place=True)
                square = ImageOps.fit(_rgb(image), (self.size, self.size), Image.Resampling.BILINEAR)
        except Exception as error:  # a broken image raises nearly anything: OSError, SyntaxError, struct.error, ...
            large = isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning)
            reason = ValueError(TOO_LARGE) if large else error
            raise ValueError(f"The image `{path}` cannot be read: {reason}.") from reason
        pixels = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
        return pixels.view(self.size, self.size, 3).permute(2, 0, 1)


def report_unreadable(reasons: Mapping[str, str], total: int, *, skip_bad: bool) -> None:
    """Raise ``ValueError`` for images that cannot be read, by path, or warn if they are skipped and others are left."""
    large = [path for path, reason in reasons.items() if reason == TOO_LARGE]
    hint = f" `{large[0]}` has {TOO_LARGE}." if large else ""
    if reasons and skip_bad and len(reasons) < total:
        warn(f"Skipped {counted(len(reasons), 'image')} that cannot be read: {few(list(reasons))}.{hint}")
    elif reasons:
        them = "it" if len(reasons) == 1 else "them"
        fix = "" if skip_bad else f" Remove {them}, or skip {them} with --skip-bad (skip_bad=True in Python)."
        raise ValueError(
            f"{len(reasons)} of {counted(total, 'image')} cannot be read: {few(list(reasons))}.{hint}{fix}"
        )


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if image.mode.startswith("I"):  # grey of 16 bits or more, which `convert` would clip at 255
        grey = image.convert("I")
        brightest = grey.getextrema()[1]
        if image.mode != "I" or not isinstance(brightest, int | float) or brightest > 255:
            grey = grey.point(lambda value: value * (1 / 256))
        return grey.convert("L").convert("RGB")
    if image.has_transparency_data:
        from PIL import Image

        opaque = Image.new("RGBA", image.size, "white")
        opaque.alpha_composite(image.convert("RGBA"))
        return opaque.convert("RGB")
    return image.convert("RGB")
