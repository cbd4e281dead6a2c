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
from .classes import class_indices
from .dataset import Dataset, Loaded
from .split import stratified_split, warn_of_same_rows

FEATURE_NAMES = ("X", "features", "embeddings")
LABEL_NAMES = ("y", "labels")
TRUE_LABEL_NAMES = ("true", "true_labels", "y_true")
UNNAMED = ""  # the array of a .npy file

Arrays = Mapping[str, NDArray[Any]]


def read_arrays(
    features: str | Path,
    labels: str | Path | None = None,
    *,
    true: str | Path | None = None,
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
    arrays = _load(path)
    inputs = _inputs(arrays, features_name, path)
    if labels is None and UNNAMED in arrays:
        raise ValueError(f"`{path}` holds only features. Pass the file of labels too.")
    file = path if labels is None else Path(labels)
    given = _labels(arrays if labels is None else _load(file), LABEL_NAMES, labels_name, file, len(inputs))
    class_names = tuple(str(value) for value in sorted(set(given)))
    truth = None
    if true is not None or true_name is not None or arrays.keys() & {*TRUE_LABEL_NAMES}:
        file = path if true is None else Path(true)
        truth = _labels(arrays if true is None else _load(file), TRUE_LABEL_NAMES, true_name, file, len(inputs))
    whole = _dataset(inputs, given, truth, class_names, path)
    keep, held_out = stratified_split(whole.given, class_names, val=val, seed=seed)
    sets = {"val": whole.subset(held_out)} if val else {}
    if test is not None:
        file = Path(test)
        if file.suffix.lower() != ".npz":
            raise ValueError(f"`{file}` should be an .npz file with features and labels.")
        arrays = _load(file)
        samples = _inputs(arrays, features_name, file)
        shape, expected = tuple(samples.shape[1:]), tuple(inputs.shape[1:])
        if shape != expected:
            raise ValueError(
                f"Each sample in `{file}` should have the shape {expected}, as in training. Found {shape}."
            )
        given = _labels(arrays, LABEL_NAMES, labels_name, file, len(samples))
        known = arrays.keys() & {*(TRUE_LABEL_NAMES if true_name is None else [true_name])}
        truth = _labels(arrays, TRUE_LABEL_NAMES, true_name, file, len(samples)) if known else None
        sets["test"] = _dataset(samples, given, truth, class_names, file)
        warn_of_same_rows(sets["test"], file, [whole], path)
    return whole.subset(keep), sets


def read_array(path: Path, asked: str | None, usual: Sequence[str]) -> NDArray[Any]:
    """Read one array of a file: the one named ``asked``, or by default the first of the ``usual`` names."""
    return _pick(_load(path), usual, asked, path)[1]


def to_inputs(values: NDArray[Any], path: object) -> Tensor:
    """Turn an array into features, (N, F) float32, or images, (N, 3, height, width) uint8."""
    if values.ndim == 4 and values.dtype == "uint8" and 3 in (values.shape[1], values.shape[3]):
        images = torch.from_numpy(values)
        return images if values.shape[1] == 3 else images.permute(0, 3, 1, 2).contiguous()
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise ValueError(
            f"The features in `{path}` should be numbers, (N, F), or uint8 images, (N, 3, height, width). "
            f"Found {values.dtype}, {values.shape}."
        )
    features = torch.from_numpy(values.astype("float32"))
    finite = features.isfinite().all(dim=1)
    if not bool(finite.all()):
        raise ValueError(f"The features in `{path}` should be finite. Sample {int(finite.int().argmin())} is not.")
    return features


def _load(path: Path) -> Arrays:
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


def _pick(arrays: Arrays, usual: Sequence[str], asked: str | None, path: Path) -> tuple[str, NDArray[Any]]:
    """Return an array, and what to call it in messages."""
    for name in (UNNAMED, *usual) if asked is None else (UNNAMED, asked):
        if name in arrays:
            return f"`{name}` in `{path}`" if name else f"`{path}`", arrays[name]
    wanted = few(usual) if asked is None else f"`{asked}`"
    raise ValueError(f"`{path}` should have an array named {wanted}. Found {few(sorted(arrays))}.")


def _inputs(arrays: Arrays, asked: str | None, path: Path) -> Tensor:
    where, values = _pick(arrays, FEATURE_NAMES, asked, path)
    inputs = to_inputs(values, path)
    if not len(inputs):
        raise ValueError(f"{where} has no rows.")
    return inputs


def _labels(arrays: Arrays, usual: Sequence[str], asked: str | None, path: Path, count: int) -> list[Any]:
    """Return one label for each of ``count`` samples."""
    where, labels = _pick(arrays, usual, asked, path)
    if labels.ndim != 1 or labels.dtype.kind not in "iubU":
        raise ValueError(f"{where} should have integers or text, (N,). Found {labels.dtype}, {labels.shape}.")
    if len(labels) != count:
        raise ValueError(f"{where} should have one label for each of the {count} samples. Found {len(labels)}.")
    return list(labels.tolist())


def _dataset(
    inputs: Tensor, given: Sequence[Any], true: Sequence[Any] | None, class_names: Sequence[str], path: Path
) -> Dataset:
    def indices(labels: Sequence[Any], what: str) -> Tensor:
        return class_indices(
            [str(label) for label in labels], class_names, f"the {what} of `{path}`", range(len(labels))
        )

    truth = None if true is None else indices(true, "true labels")
    ids = [str(i) for i in range(len(inputs))]
    return Dataset(inputs, indices(given, "labels"), tuple(class_names), ids, truth)
