"""mini-WebVision: the first 50 classes of the Google images of WebVision 1.0 (Li et al., 2017).

The training labels come from the web. The evaluation sets are the validation sets of WebVision and of ILSVRC-12. Both
have the same 1000 classes, ordered by WordNet id.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import torch

from .._require import require
from .dataset import Dataset, Loaded
from .images import SUFFIXES, ImageFiles
from .paths import few

Sample = tuple[str, int]  # a path from the root, and the class


def webvision(root: str | Path, *, classes: int = 50, size: int = 224, ilsvrc: str | Path | None = None) -> Loaded:
    """Load the training set, ``val`` (of WebVision), and ``ilsvrc`` if its folder is given.

    Under ``root``: ``info/train_filelist_google.txt`` (or ``info/queries_synsets_map.txt`` and the extracted tree),
    ``info/val_filelist.txt``, ``info/synsets.txt``, and the images in ``google/q0001/`` and ``val_images_256/``.
    ``ilsvrc`` has one folder per class, ``n01440764/``, or all images in one folder with ``val.txt`` (name, class or
    WordNet id) or ``LOC_val_solution.csv``. Missing images raise an error. Images are decoded on demand.
    """
    require(1 <= classes <= 1000, "classes", "in [1, 1000]", classes)
    root = Path(root)
    info = root / "info"
    synsets = _synsets(info / "synsets.txt") if (info / "synsets.txt").is_file() else []
    if synsets and len(synsets) < classes:
        raise ValueError(f"`{info / 'synsets.txt'}` should name {classes} classes or more. Found {len(synsets)}.")
    names = tuple(name for _, name in synsets[:classes]) if synsets else tuple(str(i) for i in range(classes))

    def dataset(folder: Path, samples: Sequence[Sample], clean: bool) -> Dataset:
        _check(folder, [path for path, _ in samples])
        files = ImageFiles([folder / path for path, _ in samples], size)
        given = torch.tensor([label for _, label in samples], dtype=torch.int64)
        return Dataset(files, given, names, [path for path, _ in samples], given.clone() if clean else None)

    listed = info / "train_filelist_google.txt"
    train = list(_listed(listed, classes) if listed.is_file() else _tree(root, classes))
    val = [(f"val_images_256/{path}", label) for path, label in _listed(info / "val_filelist.txt", classes)]
    sets = {"val": dataset(root, val, True)}
    if ilsvrc is not None:
        folder = Path(ilsvrc)
        sets["ilsvrc"] = dataset(folder, list(_ilsvrc(folder, [wnid for wnid, _ in synsets], classes)), True)
    return dataset(root, train, False), sets


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, numbered from 1."""
    if not path.is_file():
        raise FileNotFoundError(f"The file `{path}` is missing: it is part of WebVision's info.tar.")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            yield number, line.strip()


def _synsets(path: Path) -> list[tuple[str, str]]:
    """Read WordNet ids and unique names in the order of the classes, from "n01440764 tench, Tinca tinca"."""
    found = [line.partition(" ") for _, line in _lines(path)]
    names = [name.split(",")[0].strip() or wnid for wnid, _, name in found]
    return [
        (wnid, name if names.count(name) == 1 else f"{name} ({wnid})")
        for (wnid, _, _), name in zip(found, names, strict=True)
    ]


def _listed(path: Path, classes: int) -> Iterator[Sample]:
    """Yield the samples of the first classes from a list, "google/q0001/abc.jpg 0"."""
    for number, line in _lines(path):
        name, _, label = line.rpartition(" ")
        if not name or not label.isdecimal():
            raise ValueError(f"Line {number} of `{path}` should be a path and a class. Found `{line[:80]}`.")
        if int(label) < classes:
            yield name.strip(), int(label)


def _tree(root: Path, classes: int) -> Iterator[Sample]:
    """Yield the images in ``google/q0001`` and so on, by the class of the query, from 1 in the map: "1 1"."""
    path = root / "info" / "queries_synsets_map.txt"
    if not path.is_file():
        raise FileNotFoundError(
            f"Neither `{root / 'info' / 'train_filelist_google.txt'}` nor `{path}` exists. They are part of info.tar."
        )
    for number, line in _lines(path):
        cells = line.split()
        if len(cells) != 2 or not all(cell.isdecimal() for cell in cells):
            raise ValueError(f"Line {number} of `{path}` should be a query and a class. Found `{line[:80]}`.")
        query, synset = int(cells[0]), int(cells[1])
        if 1 <= synset <= classes:
            folder = root / "google" / f"q{query:04}"
            if not folder.is_dir():
                raise FileNotFoundError(f"The folder `{folder}` is missing: it is part of WebVision's google images.")
            for image in _images(folder):
                yield image.relative_to(root).as_posix(), synset - 1


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _ilsvrc(folder: Path, wnids: Sequence[str], classes: int) -> Iterator[Sample]:
    """Yield the validation images of ILSVRC-12 of the first classes."""
    solution, listed = folder / "LOC_val_solution.csv", folder / "val.txt"
    if solution.is_file():
        with solution.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        if bad := [row for row in rows if not (row.get("ImageId") and (row.get("PredictionString") or "").split())]:
            raise ValueError(f"`{solution}` should have an ImageId and a PredictionString in each row. Found {bad[0]}.")
        pairs = [(f"{row['ImageId']}.JPEG", row["PredictionString"].split()[0]) for row in rows]
    elif listed.is_file():
        columns = (line.split(maxsplit=1) for _, line in _lines(listed))
        pairs = [(name, "".join(label)) for name, *label in columns]  # no label is "", which is refused below
    else:
        if not wnids:
            raise FileNotFoundError("`info/synsets.txt` is missing. It maps the folders of ILSVRC-12 to classes.")
        for label, wnid in enumerate(wnids[:classes]):
            if not (folder / wnid).is_dir():
                raise FileNotFoundError(
                    f"`{folder}` has neither val.txt nor LOC_val_solution.csv nor the folder `{wnid}` of a class. "
                    "(The ground-truth list of the devkit does not work, because its classes are in a different order.)"
                )
            for image in _images(folder / wnid):
                yield image.relative_to(folder).as_posix(), label
        return
    index = {wnid: label for label, wnid in enumerate(wnids)} | {str(label): label for label in range(1000)}
    for name, text in pairs:
        if text.strip() not in index:
            raise ValueError(f"The class `{text.strip()}` of `{name}` in `{folder}` is not one of the 1000 classes.")
        if (label := index[text.strip()]) < classes:
            yield name, label


def _check(folder: Path, paths: Sequence[str]) -> None:
    if outside := [path for path in paths if path.startswith("/") or ".." in PurePosixPath(path).parts]:
        raise ValueError(f"A list names images outside `{folder}`: {few(outside)}.")
    if missing := [path for path in paths if not (folder / path).is_file()]:
        raise FileNotFoundError(f"{len(missing)} of {len(paths)} images are missing in `{folder}`: {few(missing)}.")
    if not paths:
        raise ValueError(f"Found no images of these classes in `{folder}`.")
