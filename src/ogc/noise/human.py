"""Human noise: CIFAR-10N and CIFAR-100N, the labels that people gave to CIFAR's training images.

*Learning with Noisy Labels Revisited: A Study Using Real-World Human Annotations*, Wei et al., ICLR 2022,
https://arxiv.org/abs/2110.12088. The files are at ``CIFAR_N_SITE``, under CC BY-NC 4.0, and not part of this package.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from .._require import require
from .files import LabelFileError

CIFAR_N_SITE = "https://github.com/UCSC-REAL/cifar-10-100n"


class Published(NamedTuple):
    """A published file: its name and checksum, and the key of each kind of labels in it."""

    name: str
    sha256: str
    keys: dict[str, str]


_RANDOM = {f"random{i}": f"random_label{i}" for i in (1, 2, 3)}
PUBLISHED = {
    "cifar10": Published(
        "CIFAR-10_human.pt",
        "873e69c39cb9b5e97fb6bae2d60bb59b38a5cbc31d2b868f7903dcb2b9dd2310",
        {"clean": "clean_label", "aggregate": "aggre_label", **_RANDOM, "worse": "worse_label"},
    ),
    "cifar100": Published(
        "CIFAR-100_human.pt",
        "bd2d80409754d420292d622e15e25248ba21e37d27429efac49c8da723f44394",
        {"clean": "clean_label", "noisy": "noisy_label"},
    ),
}
HUMAN_KINDS = tuple(dict.fromkeys(kind for file in PUBLISHED.values() for kind in file.keys))


def cifar_n(path: str | Path, kind: str, *, clean: ArrayLike | None = None) -> NDArray[np.int64]:
    """Read the given labels of CIFAR's training images, in the order of the official files: -> (N,).

    The file must equal the published one byte for byte.

    :param kind: clean, aggregate, random1, random2, random3 or worse for CIFAR-10, clean or noisy for CIFAR-100.
    :param clean: true labels of the images, to check the order of the file.
    """
    require(kind in HUMAN_KINDS, "kind", f"one of {', '.join(HUMAN_KINDS)}", kind)
    content = Path(path).read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    published = next((file for file in PUBLISHED.values() if file.sha256 == sha256), None)
    if published is None:
        expected = " or ".join(f"{file.sha256} ({file.name})" for file in PUBLISHED.values() if kind in file.keys)
        raise LabelFileError(f"{path} is not the published file: its sha256 is {sha256}, expected {expected}.")
    require(kind in published.keys, "kind", f"one of {', '.join(published.keys)} with {published.name}", kind)
    labels = _load(content)
    if clean is not None:
        theirs, ours = labels["clean_label"], np.asarray(clean)
        if theirs.shape != ours.shape:
            raise LabelFileError(f"{path} has {len(theirs)} labels, but there are {len(ours)} images.")
        for i in np.flatnonzero(theirs != ours)[:1]:
            found = f"its clean label {i} is {theirs[i]}, the images' is {ours[i]}"
            raise LabelFileError(f"{path} is not in the order of the images: {found}.")
    return labels[published.keys[kind]].astype(np.int64)


def _load(content: bytes) -> dict[str, NDArray[Any]]:
    """Load the arrays of the file by name. Only the types in pickled integer arrays are allowed."""
    reconstruct = np.zeros(0).__reduce__()[0]
    needed: list[Any] = [
        (reconstruct, "numpy.core.multiarray._reconstruct"),  # as NumPy 1 wrote it, and as NumPy 2 does
        (reconstruct, "numpy._core.multiarray._reconstruct"),
        *(np.ndarray, np.dtype, np.dtypes.Int64DType),
    ]
    with torch.serialization.safe_globals(needed):
        labels: dict[str, NDArray[Any]] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return labels
