"""Features or embeddings and labels from NumPy files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._require import few
from .dataset import Dataset, Loaded, index_labels
from .split import stratified_split, warn_of_same_rows

FEATURE_NAMES = ("X", "features", "embeddings")
LABEL_NAMES = ("y", "labels")
TRUE_LABEL_NAMES = ("true", "true_labels", "y_true")
UNNAMED = ""  # the array of a .npy file

Array = NDArray[Any]


def read_arrays(
    features: str | Path,
    labels: str | Path | None = None,
    *,
    features_name: str | None = None,
    labels_name: str | None = None,
    true_name: str | None = None,
    val: float = 0.2,
    seed: int = 0,
    test: str | Path | None = None,
) -> Loaded:
    """Load the training set and ``val`` from one ``.npz`` with features and labels, or from ``.npy`` files.

    Features are (N, F), converted to float32 but not scaled, or uint8 images, (N, 3, height, width) or (N, height,
    width, 3). Labels are integers or strings, (N,); their sorted values name the classes. In an ``.npz`` file, the
    features are named `X`, `features` or `embeddings`, the labels `y` or `labels`, and the optional true labels `true`,
    `true_labels` or `y_true`.

    :param test: an ``.npz`` file with the same names, to evaluate on. Its true labels are optional, too.
    """
    path = Path(features)
    file = path if labels is None else Path(labels)
    names = features_name, labels_name, true_name
    inputs, given, true = _read(path, file, *names, required=true_name is not None)
    class_names = tuple(map(str, sorted(set(given))))
    whole = _dataset(inputs, given, true, class_names, path)
    keep, held_out = stratified_split(whole.given, class_names, val=val, seed=seed)
    sets = {"val": whole.subset(held_out)} if val else {}
    if test is not None:
        file = Path(test)
        if file.suffix.lower() != ".npz":
            raise ValueError(f"`{file}` should be an .npz file with features and labels.")
        others, given, true = _read(file, file, *names, required=False)
        shape, wanted = tuple(others.shape[1:]), tuple(inputs.shape[1:])
        if shape != wanted:
            raise ValueError(f"Each sample in `{file}` should have the shape {wanted}, as in training. Found {shape}.")
        sets["test"] = _dataset(others, given, true, class_names, file)
        warn_of_same_rows(sets["test"], file, [whole], path)
    return whole.subset(keep), sets


def read_array(path: Path, asked: str | None, usual: Sequence[str]) -> Array:
    """Read one array of a file: the one named ``asked``, or by default the first of the ``usual`` names."""
    return _pick(_load(path), usual, asked, path)[1]


def to_inputs(values: Array, path: object) -> Tensor:
    """Turn an array into features, (N, F) float32, or images, (N, 3, height, width) uint8."""
    if values.ndim == 4 and values.dtype == "uint8" and 3 in (values.shape[1], values.shape[3]):
        images = torch.from_numpy(values)
        return images if values.shape[1] == 3 else images.permute(0, 3, 1, 2).contiguous()
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        rule = "numbers, (N, F), or uint8 images, (N, 3, height, width)"
        raise ValueError(f"The features in `{path}` should be {rule}. Found {values.dtype}, {values.shape}.")
    features = torch.from_numpy(values.astype("float32"))
    finite = features.isfinite().all(dim=1)
    if not bool(finite.all()):
        raise ValueError(f"The features in `{path}` should be finite. Sample {int(finite.int().argmin())} is not.")
    return features


def _read(
    path: Path,
    file: Path,
    features_name: str | None,
    labels_name: str | None,
    true_name: str | None,
    *,
    required: bool,
) -> tuple[Tensor, list[Any], list[Any] | None]:
    """Return features, labels (from their own ``file``, perhaps), and true labels if there are any or ``required``."""
    arrays = _load(path)
    where, values = _pick(arrays, FEATURE_NAMES, features_name, path)
    inputs = to_inputs(values, path)
    if not len(inputs):
        raise ValueError(f"{where} has no rows.")
    if UNNAMED in arrays and file == path:
        raise ValueError(f"`{path}` holds only features. Pass the file of labels too.")
    given = _labels(arrays if file == path else _load(file), LABEL_NAMES, labels_name, file, len(inputs))
    known = required or arrays.keys() & {*(TRUE_LABEL_NAMES if true_name is None else [true_name])}
    return inputs, given, _labels(arrays, TRUE_LABEL_NAMES, true_name, path, len(inputs)) if known else None


def _load(path: Path) -> Mapping[str, Array]:
    """Read the arrays by name. The array of a .npy file has the name ``UNNAMED``."""
    if not path.is_file():
        raise FileNotFoundError(f"The file `{path}` is {'a folder' if path.is_dir() else 'missing'}.")
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.lib.npyio.NpzFile):
                return {name: content[name] for name in content.files}
            return {UNNAMED: np.asarray(content)}
    except Exception as error:  # a damaged file fails in many ways: BadZipFile, TokenError, MemoryError, ...
        raise ValueError(f"`{path}` is not a .npy or .npz file of plain arrays, or is truncated.") from error


def _pick(arrays: Mapping[str, Array], usual: Sequence[str], asked: str | None, path: Path) -> tuple[str, Array]:
    """Return an array, and what to call it in messages."""
    for name in (UNNAMED, *usual) if asked is None else (UNNAMED, asked):
        if name in arrays:
            return f"`{name}` in `{path}`" if name else f"`{path}`", arrays[name]
    wanted = few(usual if asked is None else [asked])
    raise ValueError(f"`{path}` should have an array named {wanted}. Found {few(sorted(arrays))}.")


def _labels(arrays: Mapping[str, Array], usual: Sequence[str], asked: str | None, path: Path, count: int) -> list[Any]:
    where, labels = _pick(arrays, usual, asked, path)
    if labels.shape != (count,) or labels.dtype.kind not in "iubU":
        rule = f"integers or text, one for each of {count} samples"
        raise ValueError(f"{where} should have {rule}. Found {labels.dtype}, {labels.shape}.")
    return list(labels.tolist())


def _dataset(
    inputs: Tensor, given: Sequence[Any], true: Sequence[Any] | None, class_names: tuple[str, ...], path: Path
) -> Dataset:
    rows = range(len(inputs))
    labels = index_labels(map(str, given), class_names, f"the labels in `{path}`", rows)
    truth = None if true is None else index_labels(map(str, true), class_names, f"the true labels in `{path}`", rows)
    return Dataset(inputs, labels, class_names, [str(i) for i in rows], truth)
