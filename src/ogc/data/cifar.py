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
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Version:
    """One of the two published formats of a data set."""

    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    pickled: bool

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.names)


@dataclass(frozen=True)
class Cifar:
    """The files of CIFAR-10 or CIFAR-100."""

    title: str
    classes: int
    coarse: int  # bytes before the label in the binary version: CIFAR-100's super-class
    label_key: str  # of the Python version
    names_key: str
    versions: tuple[Version, Version]
    train_size: int = 50_000
    test_size: int = 10_000


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_BINARY_10 = Version(
    *("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin"),
    *(tuple(f"{name}.bin" for name in _BATCHES), "test_batch.bin", "batches.meta.txt"),
    pickled=False,
)
_PYTHON_10 = Version(
    *("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),
    *(_BATCHES, "test_batch", "batches.meta"),
    pickled=True,
)
_BINARY_100 = Version(
    *("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"),
    *(("train.bin",), "test.bin", "fine_label_names.txt"),
    pickled=False,
)
_PYTHON_100 = Version(
    *("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
    *(("train",), "test", "meta"),
    pickled=True,
)
CIFAR10 = Cifar("CIFAR-10", 10, 0, "labels", "label_names", (_BINARY_10, _PYTHON_10))
CIFAR100 = Cifar("CIFAR-100", 100, 1, "fine_labels", "fine_label_names", (_BINARY_100, _PYTHON_100))


def load_cifar10(root: str | Path, *, download: bool = False, progress: Progress | None = None) -> Loaded:
    """Load the training set and ``test`` of CIFAR-10, from a folder or from one of the archives."""
    return load_cifar(CIFAR10, Path(root), download=download, progress=progress)


def load_cifar100(root: str | Path, *, download: bool = False, progress: Progress | None = None) -> Loaded:
    """Load the training set and ``test`` of CIFAR-100 with its 100 fine labels, like ``load_cifar10``."""
    return load_cifar(CIFAR100, Path(root), download=download, progress=progress)


def load_cifar(cifar: Cifar, root: Path, *, download: bool = False, progress: Progress | None = None) -> Loaded:
    try:
        version, path = find_cifar(cifar, root)
    except FileNotFoundError:
        if not download or root.is_file():
            raise
        version = cifar.versions[0]
        url, path = CIFAR_SITE + version.archive, root / version.archive
        download_file(url, path, md5=version.md5, progress=progress)
    files = _from_archive(version, path) if path.is_file() else {n: (path / n).read_bytes() for n in version.files}
    names = _class_names(cifar, version, files[version.names])
    train = _dataset(cifar, version, version.train, files, names, "train", cifar.train_size)
    return train, {"test": _dataset(cifar, version, (version.test,), files, names, "test", cifar.test_size)}


def find_cifar(cifar: Cifar, root: Path) -> tuple[Version, Path]:
    """Find the files without reading them: the first version, and its folder or archive.

    ``root`` may be the folder, its parent, or the archive. Raises ``FileNotFoundError`` if files are missing.
    """
    missing = []
    for version in cifar.versions:
        for folder in (root, root / version.folder):
            lacking = [folder / name for name in version.files if not (folder / name).is_file()]
            if not lacking:
                return version, folder
            missing += lacking[:1] if folder.name == version.folder and folder.is_dir() else []
    for version in cifar.versions:
        for path in (root, root / version.archive):
            if path.name == version.archive and path.is_file():
                return version, path
    expected = ", ".join(name for version in cifar.versions for name in (version.folder, version.archive))
    raise FileNotFoundError(
        f"{cifar.title} was not found in `{root}`. Expected one of {expected}. "
        + (f"The file `{missing[0]}` is missing. " if missing else "")
        + f"Get an archive from {CIFAR_SITE}cifar.html, or use --download (download=True in Python)."
    )


def _from_archive(version: Version, archive: Path) -> dict[str, bytes]:
    """Read the files by their exact names into memory, without extracting them."""
    check_md5(archive, version.md5, "Download it again.")
    wanted = {f"{version.folder}/{name}": name for name in version.files}
    with tarfile.open(archive, "r:gz") as tar:
        return {wanted[part.name]: cast(Any, tar.extractfile(part)).read() for part in tar if part.name in wanted}


def _class_names(cifar: Cifar, version: Version, content: bytes) -> tuple[str, ...]:
    listed = read_pickle(content, version.names).get(cifar.names_key) if version.pickled else content.split()
    names = [name.decode() if isinstance(name, bytes) else str(name) for name in cast(Any, listed) or ()]
    if not len(names) == len(set(names)) == cifar.classes:
        raise ValueError(f"`{version.names}` should name {cifar.classes} different classes. Found {len(set(names))}.")
    return tuple(names)


def _dataset(
    cifar: Cifar,
    version: Version,
    parts: tuple[str, ...],
    files: dict[str, bytes],
    names: tuple[str, ...],
    split: str,
    size: int,
) -> Dataset:
    decode = _unpickled if version.pickled else _binary
    images, labels = zip(*(decode(cifar, part, files.pop(part), size // len(parts)) for part in parts), strict=True)
    for part, values in zip(parts, labels, strict=True):
        if len(outside := values[(values < 0) | (values >= cifar.classes)]):
            raise ValueError(f"Labels in `{part}` should be in [0, {cifar.classes}). Found {int(outside[0])}.")
    given = torch.cat(labels)
    ids = [f"{split}/{i:05}" for i in range(len(given))]
    return Dataset(torch.cat(images).view(-1, 3, 32, 32), given, names, ids, true=given.clone())


def _binary(cifar: Cifar, name: str, content: bytes, records: int) -> tuple[Tensor, Tensor]:
    size = records * (cifar.coarse + 1 + PIXELS)
    if len(content) != size:
        raise ValueError(f"`{name}` should have {size:,} bytes. Found {len(content):,}. Download it again.")
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(records, -1)
    return rows[:, cifar.coarse + 1 :], rows[:, cifar.coarse].long()


def _unpickled(cifar: Cifar, name: str, content: bytes, records: int) -> tuple[Tensor, Tensor]:
    batch = read_pickle(content, name)
    images, labels = batch.get("data"), batch.get(cifar.label_key)
    complete = isinstance(labels, list) and len(labels) == records
    if not isinstance(images, Tensor) or images.shape != (records, PIXELS) or not complete:
        rule = f"`data` of shape ({records}, {PIXELS}), and `{cifar.label_key}`, a list of {records} labels"
        raise ValueError(f"`{name}` should have {rule}.")
    return images, torch.tensor(labels)
