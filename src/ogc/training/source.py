"""The data source of a run: parsing, loading, and adding noise to the labels."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from .. import data
from .._require import did_you_mean, either, few, require
from ..data import Dataset, Loaded
from ..data.download import Progress
from ..data.encoder import Encoder
from ..data.images import ImageFiles
from ..data.rows import column_names
from ..noise import LabelInfo
from ..noise.by_kind import Kind, Truth
from ..noise.human import CIFAR_N_SITE, PUBLISHED
from .recipe import Checked, Recipe, Share

ONLY_ADDED = "The true noise rate counts only the added noise. Labels that were wrong before count as correct."
NAMED = ("digits", "cifar10", "cifar100", "webvision")
TABLES = (".csv", ".tsv", ".parquet", ".pq")
ARRAYS = (".npz", ".npy")
FEATURES = ("digits", "table")
WITH_IMAGES = ("digits", "cifar10", "cifar100", "folder", "arrays")
IN_MEMORY = 4 * 2**30  # bytes of decoded images; larger sets stay on disk

# The options of each kind of source.
OPTIONS: dict[str, tuple[str, ...]] = {
    "digits": ("labels",),
    "cifar10": ("path", "labels"),
    "cifar100": ("path", "labels"),
    "webvision": ("path", "ilsvrc"),
    "folder": ("path", "true", "val", "test", "skip_bad"),
    "table": ("path", "label", "true", "id", "val", "test", "skip_bad"),
    "arrays": ("path", "labels", "label", "true", "val", "test"),
}

NOUNS = {"folder": "a folder of images", "table": "a table", "arrays": "arrays"}  # other kinds have proper names


class Source(Checked):
    """A data set and how to read it. Paths are absolute, so that a run can be resumed from any directory."""

    kind: Literal["digits", "cifar10", "cifar100", "webvision", "folder", "table", "arrays"]
    path: Path | None = None
    labels: Path | None = None  # given labels of the training set: a label file, a CIFAR-N .pt, the labels of a .npy
    label: str | None = None  # a table's column, or a name in an .npz
    true: str | None = None  # likewise, for true labels; for a folder, a CSV file
    id: str | None = None  # a table's column
    val: Share = 0.2  # share of samples to validate on, for data without a split
    test: Path | None = None  # a table, a folder or an .npz file to test on
    skip_bad: bool = False  # skip unreadable images and rows without a label
    ilsvrc: Path | None = None  # folder of ILSVRC-12's validation images, for webvision

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        data: Path | None = None,
        labels: Path | None = None,
        label: str | None = None,
        true: str | None = None,
        id: str | None = None,
        val: float | None = None,
        test: Path | None = None,
        skip_bad: bool = False,
        ilsvrc: Path | None = None,
    ) -> Source:
        """Parse what the user typed: a name, a folder, a table or a NumPy file.

        :param data: the folder of a named data set.
        """
        kind = _kind(text)
        folder = (data or Path("data")) if "path" in OPTIONS[kind] else None
        path = folder if kind in NAMED else Path(text)
        given = {"labels": labels, "label": label, "true": true, "id": id, "val": val, "test": test}
        given |= {"path": path, "skip_bad": skip_bad or None, "ilsvrc": ilsvrc}
        given = {name: value for name, value in given.items() if value is not None}
        kinds = {name: [kind for kind, options in OPTIONS.items() if name in options] for name in given}
        if data is not None:
            kinds["data"] = [kind for kind in NAMED if "path" in OPTIONS[kind]]
        for name, allowed in kinds.items():
            if kind not in allowed:
                only = either([NOUNS.get(each, each) for each in allowed])
                raise ValueError(
                    f"Parameter `{name}` cannot be used with {NOUNS.get(kind, kind)}. It is only for {only}."
                )
        if kind == "table" and label is None:
            columns = few(column_names(Path(text).expanduser()), 20)
            raise ValueError(
                f"The column with the labels is missing. Give it with --label (label=... in Python). `{text}` has "
                f"{columns}."
            )
        if kind == "arrays" and Path(text).suffix.lower() == ".npy" and labels is None:
            raise ValueError(
                f"The labels of `{text}` are missing. Give their file with --labels (labels=... in Python)."
            )
        if kind == "folder" and true is not None:
            given["true"] = str(Path(true).absolute())
        paths = {name: value.expanduser().absolute() for name, value in given.items() if isinstance(value, Path)}
        for name in ("labels", "test", "ilsvrc"):
            if name in paths and not paths[name].exists():
                raise FileNotFoundError(f"There is no `{given[name]}`, given as {name}.")
        return cls(kind=kind, **given | paths)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """Short name, for folders and tables."""
        return self.kind if self.kind in NAMED or self.path is None else self.path.stem


def _kind(text: str) -> str:
    path = Path(text).expanduser()
    if text in NAMED:
        return text
    if path.is_dir():
        return "folder"
    suffix = path.suffix.lower()
    kind = "table" if suffix in TABLES else "arrays" if suffix in ARRAYS else None
    if kind is not None and path.is_file():
        return kind
    kinds = f"{', '.join(NAMED)}, a folder of images, a table ({', '.join(TABLES)}), arrays ({', '.join(ARRAYS)})"
    if path.exists():
        raise ValueError(f"`{text}` is not a supported data source. Supported: {kinds}.")
    beside = islice(path.parent.iterdir() if path.parent.is_dir() else (), 1000)
    files = [str(path.with_name(other.name)) for other in beside]
    near = did_you_mean(text, [*NAMED, *files], key=lambda text: Path(text).stem.lower())  # suffixes are often the same
    sentence = f"There is no `{text}`.{near} Supported: {kinds}."
    raise FileNotFoundError(sentence) if kind or len(path.parts) > 1 else ValueError(sentence)


def check(source: Source, recipe: Recipe) -> None:
    """Raise ``ValueError`` if noise, network and data do not fit together. Reads no data."""
    if source.kind in FEATURES:
        require(recipe.network == "mlp", "network", f"mlp with {source.kind}, which has features", recipe.network)
        require(recipe.augment == "none", "augment", f"none with {source.kind}, which has features", recipe.augment)
        require(recipe.size is None, "size", f"none with {source.kind}, which has features", recipe.size)
    kind = noise_of(source, recipe)
    if kind is None:
        return
    kind.check_source(source.kind, with_images=WITH_IMAGES)
    if not kind.in_file:
        imported = source.labels if source.kind != "arrays" else None
        require(imported is None, "labels", f"omitted with {recipe.noise}, which generates labels", str(imported))
    elif kind.name == "file":
        require(source.labels is not None, "labels", "the label file, because the noise is file", None)
    else:
        known, name = PUBLISHED[source.kind].keys, kind.name.removeprefix("human:")
        require(
            name in known, "noise", f"human:KIND with {source.kind}, where KIND is one of {', '.join(known)}", kind.name
        )
        human_file(source, kind.name)


def noise_of(source: Source, recipe: Recipe) -> Kind | None:
    """Return the kind of noise, from the recipe or a label file."""
    if recipe.noise is not None:
        return Kind.parse(recipe.noise)
    return Kind("file") if source.labels is not None and source.kind != "arrays" else None


def human_file(source: Source, kind: str) -> Path:
    """Return the file of CIFAR-N: the one given, or the published name in the data folder."""
    if source.labels is not None:
        return source.labels
    assert source.path is not None
    folder = source.path.parent if source.path.is_file() else source.path
    name = PUBLISHED[source.kind].name
    for path in (folder / name, folder.parent / name):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"{kind} is read from {name}, which is not in `{folder}`. Download it from {CIFAR_N_SITE} into that "
        "folder, or give `ogc train` its path with --labels."
    )


Known = dict[tuple[Source, int | None, str], Loaded]
"""Loaded data without noise, by source, image size and encoding."""


def load(
    source: Source,
    recipe: Recipe,
    *,
    download: bool = False,
    progress: Progress | None = None,
    known: Known | None = None,
    encoder: Encoder | None = None,
) -> tuple[Loaded, LabelInfo | None]:
    """Load the data, add the recipe's noise to the training labels, and describe the noise.

    The true labels are kept for metrics. For a folder, a table or arrays they are unknown unless given. When noise is
    added there, the labels found count as true.

    :param known: a cache of loaded data, which is updated.
    :param encoder: the encoding of a table in an earlier run, to use instead of fitting one.
    """
    check(source, recipe)
    known = {} if known is None else known
    key = source.model_copy(update={} if source.kind == "arrays" else {"labels": None}), recipe.size, repr(encoder)
    if key not in known:
        train, sets = _read(source, recipe, download, progress, encoder)
        known[key] = _in_memory(train), {name: _in_memory(part) for name, part in sets.items()}
    train, sets = known[key]
    kind = noise_of(source, recipe)
    if kind is None:
        return (train, sets), None
    file = human_file(source, kind.name) if kind.name.startswith("human:") else source.labels
    given, info = kind.make(truth_of(source, train), seed=recipe.noise_seed, file=file)
    return (train.with_given(given), sets), info


def _read(source: Source, recipe: Recipe, download: bool, progress: Progress | None, encoder: Encoder | None) -> Loaded:
    if source.kind == "digits":
        return data.load_digits()
    assert source.path is not None
    if source.kind in ("cifar10", "cifar100"):
        loader = data.load_cifar10 if source.kind == "cifar10" else data.load_cifar100
        return loader(source.path, download=download, progress=progress)
    if source.kind == "webvision":
        return data.load_webvision(source.path, size=recipe.size or 224, ilsvrc=source.ilsvrc)
    if source.kind == "folder":
        return data.read_folder(
            source.path,
            size=recipe.size or 32,
            val=source.val,
            skip_bad=source.skip_bad,
            true_labels=source.true,
            test=source.test,
        )
    if source.kind == "table":
        return data.read_table(
            source.path,
            source.label or "",
            true=source.true,
            id=source.id,
            val=source.val,
            test=source.test,
            skip_bad=source.skip_bad,
            encoder=encoder,
        )
    return data.read_arrays(
        source.path,
        source.labels,
        labels_name=source.label,
        true_name=source.true,
        val=source.val,
        test=source.test,
    )


def _in_memory(part: Dataset) -> Dataset:
    """Decode the images into memory if they fit in ``IN_MEMORY``."""
    files = part.inputs
    if isinstance(files, ImageFiles) and len(files) * 3 * files.size**2 <= IN_MEMORY:
        return replace(part, inputs=files.decoded())
    return part


def truth_of(source: Source, train: Dataset) -> Truth:
    """Return what noise is made from. Labels count as true if the true ones are unknown."""
    true = train.given if train.true is None else train.true
    return Truth(source.kind, true.numpy(), train.num_classes, _pixels(source, train))


def _pixels(source: Source, train: Dataset) -> Tensor | None:
    """Return images in memory as (N, ...) uint8; ``None`` for other inputs."""
    if not isinstance(train.inputs, Tensor):
        return None
    if source.kind == "digits":
        return (255 * train.inputs).round().to(torch.uint8)
    return train.inputs if train.inputs.dtype == torch.uint8 else None
