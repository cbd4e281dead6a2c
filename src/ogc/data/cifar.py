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
from .download import Progress, check_md5, download
from .safe_pickle import read_pickle

SITE = "https://www.cs.toronto.edu/~kriz/"
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

    def is_in(self, folder: Path) -> bool:
        return all((folder / file).is_file() for file in self.files)


@dataclass(frozen=True)
class Cifar:
    """The files of CIFAR-10 or CIFAR-100."""

    title: str
    classes: int
    coarse: int  # bytes before the label in the binary version: CIFAR-100's super-class
    labels: str  # the keys of the Python version
    names: str
    binary: Version
    python: Version
    train_size: int = 50_000
    test_size: int = 10_000


CIFAR10 = Cifar(
    title="CIFAR-10",
    classes=10,
    coarse=0,
    labels="labels",
    names="label_names",
    binary=Version(
        archive="cifar-10-binary.tar.gz",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        folder="cifar-10-batches-bin",
        train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        test="test_batch.bin",
        names="batches.meta.txt",
        pickled=False,
    ),
    python=Version(
        archive="cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test="test_batch",
        names="batches.meta",
        pickled=True,
    ),
)
CIFAR100 = Cifar(
    title="CIFAR-100",
    classes=100,
    coarse=1,
    labels="fine_labels",
    names="fine_label_names",
    binary=Version(
        archive="cifar-100-binary.tar.gz",
        md5="03b5dce01913d631647c71ecec9e9cb8",
        folder="cifar-100-binary",
        train=("train.bin",),
        test="test.bin",
        names="fine_label_names.txt",
        pickled=False,
    ),
    python=Version(
        archive="cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        train=("train",),
        test="test",
        names="meta",
        pickled=True,
    ),
)


def cifar10(root: str | Path, *, download: bool = False, progress: Progress | None = None) -> Loaded:
    """Load the training set and ``test`` of CIFAR-10, from a folder or from one of the archives."""
    return load(CIFAR10, Path(root), fetch=download, progress=progress)


def cifar100(root: str | Path, *, download: bool = False, progress: Progress | None = None) -> Loaded:
    """Load the training set and ``test`` of CIFAR-100 with its 100 fine labels, like ``cifar10``."""
    return load(CIFAR100, Path(root), fetch=download, progress=progress)


def load(cifar: Cifar, root: Path, *, fetch: bool = False, progress: Progress | None = None) -> Loaded:
    try:
        version, path = look_for(cifar, root)
    except FileNotFoundError:
        if not fetch or root.is_file():
            raise
        version = cifar.binary
        path = download(SITE + version.archive, root / version.archive, md5=version.md5, progress=progress)
    files = _from_archive(version, path) if path.is_file() else {n: (path / n).read_bytes() for n in version.files}
    names = _class_names(cifar, version, files.pop(version.names))
    train, test = (_dataset(cifar, version, split, files, names) for split in ("train", "test"))
    return train, {"test": test}


def look_for(cifar: Cifar, root: Path) -> tuple[Version, Path]:
    """Find the files without reading them: the first version, and its folder or archive.

    ``root`` may be the folder, its parent, or the archive. Raises ``FileNotFoundError`` if files are missing.
    """
    versions = (cifar.binary, cifar.python)
    folders = [(version, folder) for version in versions for folder in (root, root / version.folder)]
    archives = [(version, path) for version in versions for path in (root, root / version.archive)]
    for version, folder in folders:
        if version.is_in(folder):
            return version, folder
    for version, path in archives:
        if path.name == version.archive and path.is_file():
            return version, path
    begun = [folder / file for version, folder in folders if folder.name == version.folder for file in version.files]
    missing = [path for path in begun if path.parent.is_dir() and not path.is_file()]
    looked = [name for version in versions for name in (version.folder, version.archive)]
    raise FileNotFoundError(
        f"{cifar.title} was not found in `{root}`. Expected one of {', '.join(looked[:-1])} and {looked[-1]}. "
        + (f"The file `{missing[0]}` is missing. " if missing else "")
        + f"Get one of the archives from {SITE}cifar.html, or use --download (download=True in Python)."
    )


def _from_archive(version: Version, archive: Path) -> dict[str, bytes]:
    """Read the files by their exact names into memory, without extracting them."""
    check_md5(archive, version.md5, "Download it again.")
    wanted = {f"{version.folder}/{name}": name for name in version.files}
    with tarfile.open(archive, "r:gz") as tar:
        return {wanted[part.name]: cast(Any, tar.extractfile(part)).read() for part in tar if part.name in wanted}


def _class_names(cifar: Cifar, version: Version, content: bytes) -> tuple[str, ...]:
    found = read_pickle(content, version.names).get(cifar.names) if version.pickled else content.split()
    names = [name.decode() if isinstance(name, bytes) else str(name) for name in cast(Any, found) or ()]
    if not len(names) == len(set(names)) == cifar.classes:
        raise ValueError(f"`{version.names}` should name {cifar.classes} different classes. Found {len(set(names))}.")
    return tuple(names)


def _dataset(cifar: Cifar, version: Version, split: str, files: dict[str, bytes], names: tuple[str, ...]) -> Dataset:
    parts, size = (version.train, cifar.train_size) if split == "train" else ((version.test,), cifar.test_size)
    decode = _unpickled if version.pickled else _binary
    images, labels = zip(*(decode(cifar, part, files.pop(part), size // len(parts)) for part in parts), strict=True)
    for part, found in zip(parts, labels, strict=True):
        if len(outside := found[(found < 0) | (found >= cifar.classes)]):
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
    found = read_pickle(content, name)
    images, labels = found.get("data"), found.get(cifar.labels)
    there = isinstance(labels, list) and len(labels) == records
    if not isinstance(images, Tensor) or images.shape != (records, PIXELS) or not there:
        rule = f"`data` of shape ({records}, {PIXELS}), and `{cifar.labels}`, a list of {records} labels"
        raise ValueError(f"`{name}` should have {rule}.")
    return images, torch.tensor(labels)
