"""Checksums of the data, which detect samples that have changed or moved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..data.dataset import Dataset
from ..noise.files import labels_sha256

if TYPE_CHECKING:
    from .source import Source


def digests(source: Source | None, parts: Mapping[str, Dataset]) -> dict[str, str]:
    """Return the sha256 of the files that the data came from, and of each part's labels, class names and ids in order.

    Rows of tables and arrays may have no id except their number. Only the file's checksum shows that they have moved.
    """
    found = {}
    for name, part in parts.items():
        found[f"labels of {name}"] = labels_sha256(part.given.cpu().numpy())
        found[f"classes of {name}"] = ids_sha256(part.class_names)
        found[f"ids of {name}"] = ids_sha256(part.ids)
    if source is not None and source.kind in ("table", "arrays") and source.path is not None:
        found["file"] = file_sha256(source.path)
    if source is not None and source.test is not None and source.kind != "folder" and "test" in parts:
        found["test file"] = file_sha256(source.test)
    return found


def ids_sha256(ids: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for name in ids:
        content = str(name).encode("utf-8", "surrogatepass")  # file names may be invalid UTF-8
        digest.update(b"%d:%b" % (len(content), content))
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
