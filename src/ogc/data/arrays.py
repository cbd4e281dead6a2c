"""Features or embeddings and labels from NumPy files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from .._extras import extra
from .._require import few
from .dataset import Dataset, Loaded, class_indices, warn_of_same_rows
from .split import stratified_split

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEATURES = ("X", "features", "embeddings")
LABELS = ("y", "labels")
TRUE_LABELS = ("true", "true_labels", "y_true")
UNNAMED = ""  # the array of a .npy file


def arrays(
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
    found, inputs, rows = _features(path, features_name)
    if labels is None and UNNAMED in found:
        raise ValueError(f"`{path}` holds only features. Pass the file of labels too.")
    file = path if labels is None else Path(labels)
    raw = _labels(found if labels is None else _load(file), LABELS, labels_name, file, rows, len(inputs))
    class_names = tuple(str(value) for value in sorted(set(raw)))
    given, truth = class_indices(list(map(str, raw)), class_names, "the labels"), None
    if true is not None or true_name is not None or found.keys() & {*TRUE_LABELS}:
        file = path if true is None else Path(true)
        known = _labels(found if true is None else _load(file), TRUE_LABELS, true_name, file, rows, len(inputs))
        truth = class_indices(list(map(str, known)), class_names, "the true labels", range(len(known)))
    whole = Dataset(inputs, given, class_names, [str(i) for i in range(len(inputs))], truth)
    keep, held_out = stratified_split(given, class_names, val=val, seed=seed)
    sets = {"val": whole.subset(held_out)} if val else {}
    if test is not None:
        sets["test"] = _test_set(Path(test), whole, features_name, labels_name, true_name)
        warn_of_same_rows(cast(Tensor, sets["test"].inputs), Path(test), inputs, path)
    return whole.subset(keep), sets


def _test_set(
    path: Path, training: Dataset, features_name: str | None, labels_name: str | None, true_name: str | None
) -> Dataset:
    if path.suffix.lower() != ".npz":
        raise ValueError(f"`{path}` should be an .npz file with features and labels.")
    found, inputs, rows = _features(path, features_name)
    shape, expected = tuple(inputs.shape[1:]), tuple(cast(Tensor, training.inputs).shape[1:])
    if shape != expected:
        raise ValueError(f"Each sample in `{path}` should have the shape {expected}, as in training. Found {shape}.")

    def indices(usual: Sequence[str], asked: str | None) -> Tensor:
        labels = _labels(found, usual, asked, path, rows, len(inputs))
        return class_indices(list(map(str, labels)), training.class_names, f"`{path}`")

    known = found.keys() & {*(TRUE_LABELS if true_name is None else [true_name])}
    ids = [str(i) for i in range(len(inputs))]
    true = indices(TRUE_LABELS, true_name) if known else None
    return Dataset(inputs, indices(LABELS, labels_name), training.class_names, ids, true)


def _features(path: Path, asked: str | None) -> tuple[dict[str, NDArray[Any]], Tensor, str]:
    """Read a file. Return its arrays, the features, and what to call these in messages."""
    found = _load(path)
    rows, values = _pick(found, FEATURES, asked, path)
    inputs = to_inputs(values, path)
    if not len(inputs):
        raise ValueError(f"{rows} has no rows.")
    return found, inputs, rows


def _load(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays by name. The array of a .npy file has the name ``UNNAMED``."""
    with extra("cli", "Arrays need NumPy", "numpy"):
        import numpy as np
    if not path.is_file():
        raise FileNotFoundError(f"The file `{path}` is {'a folder' if path.is_dir() else 'missing'}.")
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.lib.npyio.NpzFile):
                return {name: found[name] for name in found.files}
            return {UNNAMED: np.asarray(found)}
    except Exception as error:  # a damaged file fails in many ways: BadZipFile, TokenError, MemoryError, ...
        raise ValueError(f"`{path}` is not a .npy or .npz file of plain arrays, or is truncated.") from error


def _pick(
    found: dict[str, NDArray[Any]], usual: Sequence[str], asked: str | None, path: Path
) -> tuple[str, NDArray[Any]]:
    """Return an array, and what to call it in messages."""
    for name in (UNNAMED, *usual) if asked is None else (UNNAMED, asked):
        if name in found:
            return f"`{name}` in `{path}`" if name else f"`{path}`", found[name]
    wanted = few(usual) if asked is None else f"`{asked}`"
    raise ValueError(f"`{path}` should have an array named {wanted}. Found {few(sorted(found))}.")


def single(path: Path, asked: str | None, usual: Sequence[str]) -> NDArray[Any]:
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


def _labels(
    found: dict[str, NDArray[Any]], usual: Sequence[str], asked: str | None, path: Path, rows: str, count: int
) -> list[Any]:
    """Read one label per row of the features, which messages call ``rows``."""
    column, labels = _pick(found, usual, asked, path)
    if labels.ndim != 1 or labels.dtype.kind not in "iubU":
        raise ValueError(f"{column} should have integers or text, (N,). Found {labels.dtype}, {labels.shape}.")
    if len(labels) != count:
        kind = "true label" if usual is TRUE_LABELS else "label"
        raise ValueError(f"Each row should have a {kind}. {rows} has {count} rows, and {column} has {len(labels)}.")
    return list(labels.tolist())
