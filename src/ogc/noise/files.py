"""Label files: given labels as .npy or .csv, with their provenance in a JSON file of the same name.

The same labels give the same bytes on every machine.
"""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from .._files import checked_fields, json_lines, parse_json, write_whole
from .._require import require

AnyLabels = NDArray[Any]
LABEL_FILE_SUFFIXES = (".npy", ".csv")
LABEL_COLUMNS = ("given_label", "label", "noisy_label")  # of a CSV file; the first that exists is read


class LabelFileError(ValueError):
    """A label file is damaged, or does not have the expected contents."""


@dataclass(frozen=True)
class LabelInfo:
    """Provenance of given labels. ``confusion[i][j]`` counts samples of true class i with given label j."""

    kind: str
    rate_asked: float | None
    rate_got: float | None
    seed: int | None
    num_classes: int
    confusion: list[list[int]] | None
    sha256: str  # of the labels as little-endian int64
    ogc_version: str = __version__

    @classmethod
    def measure(
        cls,
        true: AnyLabels,
        given: AnyLabels,
        kind: str,
        *,
        num_classes: int,
        rate: float | None = None,
        seed: int | None = None,
    ) -> LabelInfo:
        """Compare given labels with the true ones: (N,), (N,) -> info."""
        require(given.shape == true.shape, "given", f"of shape {true.shape}, like the true labels", given.shape)
        confusion = confusion_matrix(true, given, num_classes=num_classes)
        wrong = float((true != given).mean()) if len(true) else 0.0
        return cls(kind, rate, wrong, seed, num_classes, confusion.tolist(), labels_sha256(given))


def confusion_matrix(true: AnyLabels, given: AnyLabels, *, num_classes: int) -> NDArray[np.int64]:
    """Count the samples of true class i with given label j: (N,), (N,) -> (C, C).

    >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), num_classes=2)
    array([[1, 1],
           [0, 1]])
    """
    for name, labels in (("true", true), ("given", given)):
        outside = labels[(labels < 0) | (labels >= num_classes)]
        require(len(outside) == 0, name, f"in [0, {num_classes})", np.unique(outside)[:5].tolist())
    cells = true.astype(np.int64) * num_classes + given.astype(np.int64)
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def labels_sha256(labels: AnyLabels) -> str:
    """Return the SHA-256 of the labels as little-endian int64, independent of their type and the byte order."""
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


def info_path(path: str | Path) -> Path:
    """Return the path of the JSON file that belongs to a label file: its name with .json added."""
    return Path(f"{path}.json")


def write_labels(path: str | Path, given: AnyLabels, info: LabelInfo) -> None:
    """Write given labels, (N,), as .npy or .csv, and their info next to them. Create folders as needed."""
    path = Path(path)
    require(path.suffix in LABEL_FILE_SUFFIXES, "path", "a .npy or .csv file", str(path))
    require(given.ndim == 1 and np.issubdtype(given.dtype, np.integer), "given", "(N,) integers", given.shape)
    require(info.sha256 == labels_sha256(given), "info", "the info of these labels, with their checksum", info.sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (f"{index},{label}\n" for index, label in enumerate(given.tolist()))
    text = "".join((f"index,{LABEL_COLUMNS[0]}\n", *rows))
    write_whole(path, npy_bytes(given.astype("<i8")) if path.suffix == ".npy" else text.encode())
    write_whole(info_path(path), json_lines(asdict(info), ("confusion",)))


def read_labels(path: str | Path) -> NDArray[np.int64]:
    """Read labels from a .npy file, or from a .csv file with a column given_label, label or noisy_label: -> (N,).

    If there is a JSON file from ``write_labels``, the labels must match its checksum.
    """
    path = Path(path)
    require(path.suffix in LABEL_FILE_SUFFIXES, "path", "a .npy or .csv file", str(path))
    labels = (_from_npy if path.suffix == ".npy" else _from_csv)(path, path.read_bytes())
    if info_path(path).exists() and (expected := read_info(path).sha256) != (sha256 := labels_sha256(labels)):
        raise LabelFileError(
            f"{path} has changed: its labels' sha256 is {sha256}, but {path.name}.json has {expected}."
        )
    return labels


def read_info(path: str | Path) -> LabelInfo:
    """Read the info of a label file."""
    beside = info_path(path)
    with checked_fields(beside, error=LabelFileError, again="remove it to use labels of unknown origin"):
        info = LabelInfo(**parse_json(beside.read_bytes()))
        require(isinstance(info.num_classes, int), "num_classes", "a whole number", info.num_classes)
        require(isinstance(info.rate_got, float | int | None), "rate_got", "a number or null", info.rate_got)
        return info


def npy_bytes(labels: AnyLabels) -> bytes:
    """Return the contents of an .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, labels, allow_pickle=False)
    return buffer.getvalue()


def _from_npy(path: Path, content: bytes) -> NDArray[np.int64]:
    try:
        array: AnyLabels = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except Exception:  # a damaged header fails in many ways: TokenError, SyntaxError, MemoryError, ...
        raise LabelFileError(f"{path} is damaged, or is not a .npy file of numbers.") from None
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise LabelFileError(f"{path} should have integers of shape (N,). Found {array.dtype} of shape {array.shape}.")
    return array.astype(np.int64)


def _from_csv(path: Path, content: bytes) -> NDArray[np.int64]:
    try:
        header, *rows = csv.reader(io.StringIO(content.decode("utf-8-sig").rstrip("\r\n"), newline=""))
    except (UnicodeDecodeError, csv.Error, ValueError):
        raise LabelFileError(f"{path} is empty, damaged, or not a CSV file in UTF-8.") from None
    names = [name.strip() for name in header]
    column = next((name for name in LABEL_COLUMNS if name in names), " or ".join(LABEL_COLUMNS))
    if names.count(column) != 1:
        raise LabelFileError(f"{path} should have one column {column}. Found {', '.join(names)}.")
    at, labels = names.index(column), np.empty(len(rows), dtype=np.int64)
    for i, row in enumerate(rows):
        try:
            labels[i] = int(row[at])
        except (ValueError, IndexError, OverflowError):
            raise LabelFileError(f"{path}, row {i + 1}: {column} should be a 64-bit integer. Found {row}.") from None
        if names == ["index", LABEL_COLUMNS[0]] and row[0] != str(i):  # a file of write_labels
            raise LabelFileError(f"{path}, row {i + 1}: the index should be {i}. Found {row[0]}.")
    return labels
