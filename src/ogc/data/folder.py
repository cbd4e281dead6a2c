"""A folder of images, one sub-folder per class: ``cats/1.jpg``, or ``train/cats/1.jpg`` and ``val/cats/7.jpg``."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from .._require import few, require
from .dataset import Dataset, Loaded, index_labels, warn_of_spellings
from .images import IMAGE_SUFFIXES, ImageFiles, report_unreadable
from .split import stratified_split

ImagePath = tuple[str, str]  # the path from the root, and the class


def read_folder(
    root: str | Path,
    *,
    size: int = 32,
    val: float = 0.2,
    seed: int = 0,
    skip_bad: bool = False,
    true_labels: str | Path | None = None,
    test: str | Path | None = None,
) -> Loaded:
    """Load the training set and ``val`` (and ``test``, if there is such a folder), labelled by folder name.

    Without a folder ``val`` or ``test`` in ``root``, a share ``val`` of each class is split off. Every image is decoded
    once. Unreadable images raise an error, or are skipped with ``skip_bad``. Links that point outside of the folder
    count as unreadable.

    :param true_labels: a CSV file with the columns ``path`` (relative to ``root``) and ``label``. It does not apply to
        ``test``.
    :param test: another folder with the same classes.
    """
    root, other = Path(root), None if test is None else Path(test)
    if not root.is_dir():
        raise FileNotFoundError(f"The folder `{root}` is missing.")
    train_folder = training_folder(root)
    parts = {"train": _images_of(root, train_folder)}
    class_names = tuple(path.name for path in class_folders(train_folder))
    if len(class_names) < 2:
        found = f"Found only `{class_names[0]}`."
        raise ValueError(f"`{train_folder}` should have one sub-folder of images for each class. {found}")
    warn_of_spellings(class_names, f"in `{train_folder}`", "move all their images into one folder")
    for name in ("val", "test"):
        if train_folder != root and (root / name).is_dir():
            parts[name] = _images_of(root, root / name, train_folder)
    tests: list[ImagePath] = []
    if other is not None:
        require("test" not in parts, "test", f"omitted, because `{root}` has a folder named test", str(other))
        require(other.is_dir(), "test", "a folder with one sub-folder of images for each class", str(other))
        apart = not inside(train_folder, other) and not inside(other, train_folder)
        require(apart, "test", f"outside of the training images in `{train_folder}`", str(other))
        tests = _readable(other, {"test": _images_of(other, other, train_folder)}, skip_bad)["test"]
    parts = _readable(root, parts, skip_bad)
    if empty := sorted(set(class_names) - {label for _, label in parts["train"]}):
        raise ValueError(f"`{root}` has no training images of {few(empty)}.")
    truth = None if true_labels is None else _true_labels(Path(true_labels), class_names)

    def dataset(root: Path, part: Sequence[ImagePath], truth: Mapping[str, int] | None) -> Dataset:
        paths = [path for path, _ in part]
        if truth is not None and (missing := [path for path in paths if path not in truth]):
            raise ValueError(f"The true labels have no row for {few(missing)}.")
        true = None if truth is None else torch.tensor([truth[path] for path in paths], dtype=torch.int64)
        given = index_labels((label for _, label in part), class_names, f"`{root}`")
        return Dataset(ImageFiles([root / path for path in paths], size), given, class_names, paths, true)

    if len(parts) == 1 and val:
        images = parts["train"]
        labels = index_labels((label for _, label in images), class_names, f"`{root}`")
        indices = zip(("train", "val"), stratified_split(labels, class_names, val=val, seed=seed), strict=True)
        parts = {name: [images[i] for i in index.tolist()] for name, index in indices}
    sets = {name: dataset(root, part, truth) for name, part in parts.items()}
    if other is not None:
        sets["test"] = dataset(other, tests, None)
    return sets.pop("train"), sets


def inside(root: Path, path: Path) -> bool:
    """Return True if a path is inside a folder after resolving every link and ``..``."""
    return path.resolve().is_relative_to(root.resolve())


def training_folder(root: Path) -> Path:
    """Return the folder of the training classes: ``train`` if it has sub-folders, or the root itself."""
    train = root / "train"  # a class named train has images instead of sub-folders
    return train if train.is_dir() and class_folders(train) else root


def class_folders(folder: Path) -> list[Path]:
    """Return the folders of the classes, in order."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def images_in(folder: Path) -> Iterator[Path]:
    """Yield the image files in a folder and its sub-folders, in order."""
    for parent, folders, files in os.walk(folder):  # does not follow links to folders
        folders.sort()
        for name in sorted(files):
            if Path(name).suffix.lower() in IMAGE_SUFFIXES and not name.startswith("."):
                yield Path(parent, name)


def _images_of(root: Path, folder: Path, train_folder: Path | None = None) -> list[ImagePath]:
    """Return the images of the classes in a folder, sorted. If ``train_folder`` is given, it has the same classes."""
    classes = class_folders(folder)
    if outside := [path for path in classes if not inside(root, path)]:
        raise ValueError(
            f"The folder `{outside[0]}` is a link that points outside of `{root}`. Replace it with a folder."
        )
    images = [(path.relative_to(root).as_posix(), label.name) for label in classes for path in images_in(label)]
    if not images:
        flat = any(path.parent == folder for path in images_in(folder))
        found = "the images directly in it. Move each into the sub-folder of its class" if flat else "no image in any"
        raise ValueError(f"`{folder}` should have one sub-folder of images for each class. Found {found}.")
    known = {path.name for path in class_folders(train_folder or folder)}
    if unknown := [label for _, label in images if label not in known]:
        raise ValueError(f"The class `{unknown[0]}` of `{folder}` has no folder in `{train_folder}`.")
    return images


def _readable(root: Path, parts: Mapping[str, list[ImagePath]], skip_bad: bool) -> dict[str, list[ImagePath]]:
    """Decode all images, and leave out those that cannot be read. Unless ``skip_bad``, they raise ``ValueError``."""
    paths = [path for part in parts.values() for path, _ in part]
    outside = {path for path in paths if (root / path).is_symlink() and not inside(root, root / path)}
    reasons = ImageFiles([root / path for path in paths if path not in outside], 1).unreadable()
    reasons |= {str(root / path): "it is a link that points outside of the folder" for path in outside}
    bad = {path: reasons[str(root / path)] for path in paths if str(root / path) in reasons}
    report_unreadable(bad, len(paths), skip_bad=skip_bad)
    return {name: [image for image in part if image[0] not in bad] for name, part in parts.items()}


def _true_labels(path: Path, class_names: Sequence[str]) -> dict[str, int]:
    """Read the true class of each image by its path."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.DictReader(file)
        if not {"path", "label"} <= set(reader.fieldnames or ()):
            raise ValueError(f"`{path}` should have the columns path and label. Found {reader.fieldnames}.")
        rows = list(reader)
    labels = index_labels((row["label"] for row in rows), class_names, f"`{path}`").tolist()
    return dict(zip((row["path"] for row in rows), labels, strict=True))
