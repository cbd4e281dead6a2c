"""mini-WebVision: the first 50 classes of the Google images of WebVision 1.0 (Li et al., 2017).

The training labels come from the web. The evaluation sets are the validation sets of WebVision and of ILSVRC-12. Both
have the same 1000 classes, ordered by WordNet id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import torch

from .._require import few, require
from .dataset import Dataset, Loaded
from .images import IMAGE_SUFFIXES, ImageFiles

Listed = tuple[str, str]  # a path from the root, and the class: its number, from 0, or its WordNet id


def load_webvision(root: str | Path, *, classes: int = 50, size: int = 224, ilsvrc: str | Path | None = None) -> Loaded:
    """Load the training set, ``val`` (of WebVision), and ``ilsvrc`` if its folder is given.

    Under ``root``: ``info/train_filelist_google.txt`` (or ``info/queries_synsets_map.txt`` and the extracted tree),
    ``info/val_filelist.txt``, ``info/synsets.txt``, and the images in ``google/q0001/`` and ``val_images_256/``.
    ``ilsvrc`` has one folder per class, ``n01440764/``, or all images in one folder with ``val.txt`` (name, class or
    WordNet id) or ``LOC_val_solution.csv``. Missing images raise an error. Images are decoded on demand.
    """
    require(1 <= classes <= 1000, "classes", "in [1, 1000]", classes)
    info = Path(root, "info")
    wnids, names = _synsets(info / "synsets.txt", classes)
    known = {wnid: label for label, wnid in enumerate(wnids)} | {str(label): label for label in range(1000)}

    def dataset(folder: Path, images: Iterable[Listed], clean: bool) -> Dataset:
        labels: dict[str, int] = {}
        for path, label in images:
            if label not in known:
                raise ValueError(f"The class `{label}` of `{path}` in `{folder}` is not one of the 1000 classes.")
            if known[label] < classes:
                labels[path] = known[label]
        if outside := [path for path in labels if path.startswith("/") or ".." in PurePosixPath(path).parts]:
            raise ValueError(f"A list names images outside `{folder}`: {few(outside)}.")
        if missing := [path for path in labels if not (folder / path).is_file()]:
            share = f"{len(missing)} of {len(labels)} images"
            raise FileNotFoundError(f"{share} are missing in `{folder}`: {few(missing)}.")
        if not labels:
            raise ValueError(f"Found no images of these classes in `{folder}`.")
        given = torch.tensor(list(labels.values()), dtype=torch.int64)
        files = ImageFiles([folder / path for path in labels], size)
        return Dataset(files, given, names, list(labels), given.clone() if clean else None)

    listed = info / "train_filelist_google.txt"
    train = _pairs(listed) if listed.is_file() else _tree(Path(root), classes)
    val = ((f"val_images_256/{path}", label) for path, label in _pairs(info / "val_filelist.txt"))
    sets = {"val": dataset(Path(root), val, True)}
    if ilsvrc is not None:
        sets["ilsvrc"] = dataset(Path(ilsvrc), _ilsvrc(Path(ilsvrc), wnids[:classes]), True)
    return dataset(Path(root), train, False), sets


def _lines(path: Path) -> list[str]:
    """Read the lines that are not empty."""
    if not path.is_file():
        raise FileNotFoundError(f"The file `{path}` is missing: it is part of WebVision's info.tar.")
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _pairs(path: Path) -> Iterator[Listed]:
    """Yield both parts of each line of a list, "google/q0001/abc.jpg 0"."""
    for line in _lines(path):
        name, *label = line.rsplit(maxsplit=1)
        if not label:
            raise ValueError(f"Each line of `{path}` should be a name and a class. Found `{line[:80]}`.")
        yield name, label[0]


def _synsets(path: Path, classes: int) -> tuple[list[str], tuple[str, ...]]:
    """Read all WordNet ids and the unique names of the first classes, from "n01440764 tench, Tinca tinca"."""
    entries = [line.partition(" ") for line in _lines(path)]
    if len(entries) < classes:
        raise ValueError(f"`{path}` should name {classes} classes or more. Found {len(entries)}.")
    wnids = [wnid for wnid, _, _ in entries]
    names = [name.split(",")[0].strip() or wnid for wnid, _, name in entries]
    unique = [f"{name} ({wnid})" if names.count(name) > 1 else name for wnid, name in zip(wnids, names, strict=True)]
    return wnids, tuple(unique[:classes])


def _tree(root: Path, classes: int) -> Iterator[Listed]:
    """Yield the images in ``google/q0001`` and so on. A line of the map, "1 1", is a query and its class, from 1."""
    path = root / "info" / "queries_synsets_map.txt"
    if not path.is_file():
        raise FileNotFoundError(f"Neither train_filelist_google.txt of WebVision's info.tar nor `{path}` exists.")
    for query, label in _pairs(path):
        if 0 < int(label) <= classes:
            yield from ((image, str(int(label) - 1)) for image in _images(root, f"google/q{query:0>4}"))


def _images(root: Path, folder: str) -> list[str]:
    if not (root / folder).is_dir():
        raise FileNotFoundError(f"The folder `{root / folder}` is missing.")
    images = (path for path in sorted((root / folder).iterdir()) if path.suffix.lower() in IMAGE_SUFFIXES)
    return [f"{folder}/{path.name}" for path in images]


def _ilsvrc(folder: Path, wnids: Sequence[str]) -> Iterator[Listed]:
    """Yield the validation images of ILSVRC-12, from the folders of these classes or from a list of all images."""
    solution, listed = folder / "LOC_val_solution.csv", folder / "val.txt"
    if solution.is_file():
        for line in _lines(solution)[1:]:  # below the header: ILSVRC2012_val_00048981,n03995372 85 1 499 272
            name, _, boxes = line.partition(",")
            yield f"{name}.JPEG", boxes.partition(" ")[0]
    elif listed.is_file():
        yield from _pairs(listed)
    elif (folder / wnids[0]).is_dir():
        yield from ((image, wnid) for wnid in wnids for image in _images(folder, wnid))
    else:  # the ground-truth list of the devkit does not work: its classes are in another order
        expected = f"val.txt nor LOC_val_solution.csv nor the folder `{wnids[0]}` of a class"
        raise FileNotFoundError(f"`{folder}` has neither {expected}.")
