"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the official files: binary or Python version, folder or archive.

50,000 training and 10,000 test images of 32x32 pixels, https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from .dataset import Dataset, Loaded
from .download import Progress, check_md5, download_file
from .safe_pickle import read_pickle

CIFAR_SITE = "https://www.cs.toronto.edu/~kriz/"
BYTES_PER_IMAGE = 3 * 32 * 32


@dataclass(frozen=True)
class Version:
    """One of the two published formats of a data set."""

    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    pickled: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.names)


@dataclass(frozen=True)
class CifarFiles:
    """CIFAR-10 or CIFAR-100."""

    classes: int
    coarse: int  # bytes before the label in the binary version: CIFAR-100's super-class
    fine: str  # prefix of the keys in the Python version
    binary: Version
    python: Version
    train_size: int = 50_000
    test_size: int = 10_000


_PARTS = tuple(f"data_batch_{i}" for i in range(1, 6))
_BIN_10 = Version(
    *("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin"),
    train=tuple(f"{part}.bin" for part in _PARTS), test="test_batch.bin", names="batches.meta.txt",
)  # fmt: skip
_PY_10 = Version(
    *("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),
    train=_PARTS, test="test_batch", names="batches.meta", pickled=True,
)  # fmt: skip
_BIN_100 = Version(
    *("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"),
    train=("train.bin",), test="test.bin", names="fine_label_names.txt",
)  # fmt: skip
_PY_100 = Version(
    *("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
    train=("train",), test="test", names="meta", pickled=True,
)  # fmt: skip
CIFAR10 = CifarFiles(10, 0, "", _BIN_10, _PY_10)
CIFAR100 = CifarFiles(100, 1, "fine_", _BIN_100, _PY_100)


def load_cifar10(root: str | Path, *, download: bool = False, progress: Progress | None = None) -> Loaded:
    """Load the training set and ``test`` of CIFAR-10, from a folder or from one of the archives."""
    return load_cifar(CIFAR10, Path(root), download=download, progress=progress)


def load_cifar100(root: str | Path, *, download: bool = False, progress: Progress | None = None) -> Loaded:
    """Load the training set and ``test`` of CIFAR-100 with its 100 fine labels, like ``load_cifar10``."""
    return load_cifar(CIFAR100, Path(root), download=download, progress=progress)


def load_cifar(cifar: CifarFiles, root: Path, *, download: bool = False, progress: Progress | None = None) -> Loaded:
    try:
        version, path = find_cifar(cifar, root)
    except FileNotFoundError:
        if not download or root.is_file():
            raise
        version, path = cifar.binary, root / cifar.binary.archive
        download_file(CIFAR_SITE + version.archive, path, md5=version.md5, progress=progress)
    files = _from_archive(version, path) if path.is_file() else {n: (path / n).read_bytes() for n in version.files}
    content, key = files[version.names], f"{cifar.fine}label_names"
    listed = read_pickle(content, version.names).get(key) if version.pickled else content.split()
    names = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in cast(Any, listed) or ())
    if not len(names) == len(set(names)) == cifar.classes:
        raise ValueError(f"`{version.names}` should name {cifar.classes} different classes. Found {len(set(names))}.")

    def dataset(split: str, parts: tuple[str, ...], size: int) -> Dataset:
        decode = _unpickled if version.pickled else _binary
        pairs = [decode(cifar, part, files.pop(part), size // len(parts)) for part in parts]
        for part, (_, labels) in zip(parts, pairs, strict=True):
            if len(outside := labels[(labels < 0) | (labels >= cifar.classes)]):
                raise ValueError(f"Labels in `{part}` should be in [0, {cifar.classes}). Found {int(outside[0])}.")
        images, given = (torch.cat([pair[i] for pair in pairs]) for i in (0, 1))
        ids = [f"{split}/{i:05}" for i in range(len(given))]
        return Dataset(images.view(-1, 3, 32, 32), given, names, ids, true=given.clone())

    return dataset("train", version.train, cifar.train_size), {
        "test": dataset("test", (version.test,), cifar.test_size)
    }


def find_cifar(cifar: CifarFiles, root: Path) -> tuple[Version, Path]:
    """Find the files without reading them: the first version, and its folder or archive.

    ``root`` may be the folder, its parent, or the archive. Raises ``FileNotFoundError`` if files are missing.
    """
    versions, missing = (cifar.binary, cifar.python), ""
    for version in versions:
        for folder in (root, root / version.folder):
            lacking = [folder / name for name in version.files if not (folder / name).is_file()]
            if not lacking:
                return version, folder
            if folder.name == version.folder and folder.is_dir():
                missing = missing or f" The file `{lacking[0]}` is missing."
    for version in versions:
        for path in (root, root / version.archive):
            if path.name == version.archive and path.is_file():
                return version, path
    known = ", ".join(name for version in versions for name in (version.folder, version.archive))
    fix = f"Get an archive from {CIFAR_SITE}cifar.html, or use --download (download=True in Python)."
    raise FileNotFoundError(f"CIFAR-{cifar.classes} was not found in `{root}`. Expected one of {known}.{missing} {fix}")


def _from_archive(version: Version, archive: Path) -> dict[str, bytes]:
    """Read the files by their exact names into memory, without extracting them."""
    check_md5(archive, version.md5, "Download it again.")
    wanted = {f"{version.folder}/{name}": name for name in version.files}
    with tarfile.open(archive, "r:gz") as tar:
        return {wanted[part.name]: cast(Any, tar.extractfile(part)).read() for part in tar if part.name in wanted}


def _binary(cifar: CifarFiles, name: str, content: bytes, records: int) -> tuple[Tensor, Tensor]:
    size = records * (cifar.coarse + 1 + BYTES_PER_IMAGE)
    if len(content) != size:
        raise ValueError(f"`{name}` should have {size:,} bytes. Found {len(content):,}. Download it again.")
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(records, -1)
    return rows[:, cifar.coarse + 1 :], rows[:, cifar.coarse].long()


def _unpickled(cifar: CifarFiles, name: str, content: bytes, records: int) -> tuple[Tensor, Tensor]:
    batch, key = read_pickle(content, name), f"{cifar.fine}labels"
    images, labels = batch.get("data"), batch.get(key)
    complete = isinstance(labels, list) and len(labels) == records
    if not isinstance(images, Tensor) or images.shape != (records, BYTES_PER_IMAGE) or not complete:
        rule = f"`data` of shape ({records}, {BYTES_PER_IMAGE}), and `{key}`, a list of {records} labels"
        raise ValueError(f"`{name}` should have {rule}.")
    return images, torch.tensor(labels)
