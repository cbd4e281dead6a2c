"""Human noise: CIFAR-10N and CIFAR-100N, the labels that people gave to CIFAR's training images.

*Learning with Noisy Labels Revisited: A Study Using Real-World Human Annotations*, Wei et al., ICLR 2022,
https://arxiv.org/abs/2110.12088. The files are at ``SITE``, under CC BY-NC 4.0. They are not part of this package.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from .._require import require
from .files import LabelFileError

SITE = "https://github.com/UCSC-REAL/cifar-10-100n"


@dataclass(frozen=True)
class Published:
    """A published file: its name, checksum and classes, and the key of each kind of labels in it."""

    name: str
    sha256: str
    num_classes: int
    keys: dict[str, str]


PUBLISHED = (
    Published(
        "CIFAR-10_human.pt",
        "873e69c39cb9b5e97fb6bae2d60bb59b38a5cbc31d2b868f7903dcb2b9dd2310",
        10,
        {
            "clean": "clean_label",
            "aggregate": "aggre_label",
            "random1": "random_label1",
            "random2": "random_label2",
            "random3": "random_label3",
            "worse": "worse_label",
        },
    ),
    Published(
        "CIFAR-100_human.pt",
        "bd2d80409754d420292d622e15e25248ba21e37d27429efac49c8da723f44394",
        100,
        {"clean": "clean_label", "noisy": "noisy_label"},
    ),
)
KINDS = tuple(dict.fromkeys(kind for file in PUBLISHED for kind in file.keys))


def cifar_n(path: str | Path, kind: str, *, clean: ArrayLike | None = None, check: bool = True) -> NDArray[np.int64]:
    """Read the given labels of CIFAR's training images, in the order of the official files: -> (N,).

    ``kind`` is clean, aggregate, random1, random2, random3 or worse for CIFAR-10, clean or noisy for CIFAR-100.
    The file must equal the published one byte for byte, unless ``check=False``. Nothing in it is ever executed.
    ``clean`` are the true labels of the images; if given, the order of the labels is checked against them.
    """
    require(kind in KINDS, "kind", f"one of {', '.join(KINDS)}", kind)
    path = Path(path)
    content = path.read_bytes()
    if check:
        _check_published(path, content, kind)
    labels = _load(path, content)

    keys = [file.keys[kind] for file in PUBLISHED if kind in file.keys]
    given = _column(path, labels, keys[0])
    if clean is not None:
        _check_order(path, _column(path, labels, "clean_label"), np.asarray(clean))
    return given


def _check_published(path: Path, content: bytes, kind: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    for file in PUBLISHED:
        if found == file.sha256:
            require(kind in file.keys, "kind", f"one of {', '.join(file.keys)} with {file.name}", kind)
            return
    expected = " or ".join(f"{file.sha256} ({file.name})" for file in PUBLISHED if kind in file.keys)
    raise LabelFileError(f"{path} is not the published file: its sha256 is {found}, expected {expected}.")


def _load(path: Path, content: bytes) -> dict[str, Any]:
    """Load the arrays of the file by name. Only the parts of integer arrays can be unpickled."""
    reconstruct = np.zeros(0).__reduce__()[0]
    needed: list[Any] = [
        (reconstruct, "numpy.core.multiarray._reconstruct"),  # as NumPy 1 wrote it, and as NumPy 2 does
        (reconstruct, "numpy._core.multiarray._reconstruct"),
        np.ndarray,
        np.dtype,
        np.dtypes.Int64DType,
    ]
    try:
        with torch.serialization.safe_globals(needed):
            labels = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).split("GLOBAL ")[-1].split(" was not")[0] if "GLOBAL " in str(error) else "a broken pickle"
        raise LabelFileError(f"{path} was not loaded: it holds more than arrays of labels ({reason}).") from None
    except Exception as error:  # a damaged archive fails in many ways
        raise LabelFileError(f"{path} is damaged, or is not a PyTorch file ({type(error).__name__}).") from None
    if not isinstance(labels, dict):
        raise LabelFileError(f"{path} should hold a dict of label arrays, not a {type(labels).__name__}.")
    return labels


def _column(path: Path, labels: dict[str, Any], key: str) -> NDArray[np.int64]:
    if key not in labels:
        raise LabelFileError(f"{path} has no `{key}`; it has {', '.join(map(str, labels)) or 'nothing'}.")
    column = labels[key]
    if not (isinstance(column, np.ndarray) and column.ndim == 1 and np.issubdtype(column.dtype, np.integer)):
        raise LabelFileError(f"`{key}` in {path} should be a one-dimensional array of integers.")
    return column.astype(np.int64)


def _check_order(path: Path, theirs: NDArray[np.int64], clean: NDArray[Any]) -> None:
    if theirs.shape != clean.shape:
        raise LabelFileError(f"{path} has {len(theirs)} labels, but there are {len(clean)} images.")
    differing = np.flatnonzero(theirs != clean)
    if len(differing):
        i = differing[0]
        raise LabelFileError(
            f"{path} is not in the order of the images: its clean label {i} is {theirs[i]}, the images' is {clean[i]}."
        )
