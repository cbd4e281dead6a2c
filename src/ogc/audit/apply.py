"""Apply an audit: copy a table or a folder with new labels, list the files to move, or write a file of labels.

The original is read, compared with what was audited, and never written to.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from .._csv import csv_bytes
from .._files import write_whole
from .._require import require
from ..data.folder import inside, training_folder
from ..noise.files import LABEL_FILE_SUFFIXES, LabelInfo, labels_sha256, npy_bytes, write_labels
from ..training.digests import file_sha256
from ..training.run_folder import AUDIT, RUN, read_description
from ..training.source import Source
from .files import SUMMARY, Audit, AuditError, decided, read_audit
from .table_file import rows_of, with_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Applied(NamedTuple):
    """The outcome: where it was written, and how many labels are new."""

    path: Path
    kind: str  # of the source; "python" for data from Python
    changed: int
    samples: int
    emptied: dict[str, int]  # classes without a label left, and how many they had
    copied: int | None = None  # files, if a folder was copied


def apply(
    folder: Path,
    out: Path | None = None,
    decisions: Path | None = None,
    *,
    copy: Path | None = None,
    accept_above: float | None = None,
) -> Applied:
    """Write the labels of an audited run, with all suggestions applied, or with those that a person accepted.

    :param out: file to write. For a folder of images it is the list of files to move.
    :param copy: folder to write instead: a copy of the folder of images, with every file under its new label.
    :param accept_above: apply the suggestions without a decision where P(wrong) is at least this.
    """
    target = copy if out is None else out
    if target is None or (out is not None and copy is not None):
        raise ValueError("Pass either --out FILE or --copy DIR, and not both (out=... or copy=... in Python).")
    proper = accept_above is None or 0 <= accept_above <= 1
    require(proper, "accept_above", "a probability in [0, 1]", accept_above)
    if not (folder / AUDIT / SUMMARY).is_file():
        if not (folder / RUN).is_file():
            raise FileNotFoundError(
                f"There is no run in {folder}. Pass the folder of a run that ogc audit has audited."
            )
        raise FileNotFoundError(f"{folder} has no audit. To make one: ogc audit {folder}.")
    audit = read_audit(folder / AUDIT)
    run, source = audit.summary["run"], audit.source
    if read_description(folder).id != run["id"]:
        raise AuditError(
            f"{audit.folder / SUMMARY} belongs to a different run than {folder / RUN}. To fix this: ogc audit {folder}."
        )
    name, what = ("copy", "folder") if out is None else ("out", "file")
    for path in filter(None, (folder, None if source is None else source.path)):
        within = path.is_dir() and inside(path, target)
        require(not within, name, f"outside of {path}, which is not changed", str(target))
    new = not target.exists() and not target.is_symlink()
    require(new, name, f"a new {what}: nothing is overwritten", str(target))
    labels = decided(audit, decisions, accept_above)
    kind = "python" if source is None else source.kind
    noise = run["recipe"]["noise"]
    if noise is not None and kind in WRITERS:
        raise ValueError(
            f"{noise} was added to the labels of {folder} for training. Its data does not contain these labels, "
            "so there is nothing to fix."
        )
    changed = sum(old != new for old, new in zip(audit.given, labels, strict=True))
    copied = None
    if out is None:
        require(
            kind == "folder",
            "copy",
            "omitted: only folders of images are copied. Use --out (out=... in Python)",
            str(target),
        )
        assert source is not None
        copied = copy_folder(audit, labels, source, target)
    elif source is not None and kind in WRITERS:
        content = WRITERS[kind](audit, labels, source, out)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, content)
    else:
        write_labels(out, *class_indices(audit, labels, out))
    emptied = {name: count for name, count in Counter(audit.given).items() if name not in labels}
    return Applied(target, kind, changed, len(labels), emptied, copied)


def _check_file(audit: Audit, path: Path) -> None:
    """Check that the file is unchanged. Suggestions go by row, and rows can move without a change of labels."""
    if file_sha256(path) != audit.summary["run"]["sha256"].get("file"):
        raise AuditError(f"`{path}` has changed since it was audited. Train and audit again.")


def table_copy(audit: Audit, labels: Sequence[str], source: Source, out: Path) -> bytes:
    """Return the table with new labels. All other cells are unchanged."""
    assert source.path is not None
    assert source.label is not None
    kinds = {".pq": ".parquet"}
    endings = [kinds.get(path.suffix.lower(), path.suffix.lower()) for path in (source.path, out)]
    require(endings[0] == endings[1], "out", f"a {source.path.suffix} file, like {source.path}", str(out))
    _check_file(audit, source.path)
    rows = zip(rows_of(source).numbers, audit.given, labels, strict=True)
    return with_labels(source.path, source.label, {number: new for number, old, new in rows if old != new})


def moves(audit: Audit, labels: Sequence[str], source: Source, out: Path) -> bytes:
    """Return a CSV list of files and where they should be, both relative to the folder."""
    require(out.suffix.lower() == ".csv", "out", "a .csv file: a list of files to move", str(out))
    return csv_bytes(("from", "to"), new_paths(audit, labels, source).items())


def new_paths(audit: Audit, labels: Sequence[str], source: Source) -> dict[str, str]:
    """Map the files with new labels to their new paths. No two files get the same path."""
    assert source.path is not None
    root, moved = source.path, {}
    deep = training_folder(root) != root  # class folders are in train and val
    taken = set(audit.ids)
    for name, old, new in zip(audit.ids, audit.given, labels, strict=True):
        if old == new:
            continue
        if not (root / name).is_file():
            raise AuditError(f"`{root}` has changed: {name} is missing. Train and audit again.")
        parts = list(PurePosixPath(name).parts)
        parts[1 if deep else 0] = new
        target = free = PurePosixPath(*parts)
        number = 1
        while str(free) in taken or (root / free).exists():
            number += 1
            free = target.with_name(f"{target.stem}-{number}{target.suffix}")
        taken.add(str(free))
        moved[name] = str(free)
    return moved


def copy_folder(audit: Audit, labels: Sequence[str], source: Source, target: Path) -> int:
    """Copy all files of a folder, those with new labels to their new paths. Return the number of files.

    Links to files inside the folder are followed, so that the copy stands alone. Links that lead out of it are left
    out. The copy is made under a temporary name beside ``target``, so that an interrupted one leaves nothing behind.
    """
    assert source.path is not None
    root, moved = source.path, new_paths(audit, labels, source)
    paths = (Path(parent, file) for parent, _, files in os.walk(root) for file in files)
    found = {path.relative_to(root).as_posix() for path in paths if path.is_file() and inside(root, path)}
    names = sorted({*found, *audit.ids})
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        for name in names:
            if not ((root / name).is_file() and inside(root, root / name)):
                raise AuditError(f"`{root}` has changed: {name} is missing. Train and audit again.")
            there = temporary / moved.get(name, name)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, there)
            with there.open("r+b") as file:
                os.fsync(file.fileno())
            shutil.copystat(root / name, there)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return len(names)


def array_labels(audit: Audit, labels: Sequence[str], source: Source, out: Path) -> bytes:
    """Return an .npy file of labels with the original dtype, for ``ogc train --labels``."""
    import numpy as np

    from ..data.arrays import LABEL_NAMES, read_array

    assert source.path is not None
    require(out.suffix.lower() == ".npy", "out", "a .npy file of labels", str(out))
    raw = read_array(source.labels or source.path, source.label, LABEL_NAMES)
    named = {str(value): value for value in raw.tolist()}
    if [str(value) for value in raw.tolist()] != audit.given:
        raise AuditError(f"The labels in `{source.labels or source.path}` have changed. Train and audit again.")
    _check_file(audit, source.path)
    return npy_bytes(np.array([named[name] for name in labels], dtype=raw.dtype))


def class_indices(audit: Audit, labels: Sequence[str], out: Path) -> tuple[NDArray[Any], LabelInfo]:
    """Return class indices and their description, to be written as a label file for ``ogc train --labels``."""
    import numpy as np

    require(out.suffix in LABEL_FILE_SUFFIXES, "out", "a .npy or .csv file of labels", str(out))
    index = {name: i for i, name in enumerate(audit.summary["classes"])}
    found = np.array([index[name] for name in labels], dtype=np.int64)
    return found, LabelInfo("audit", None, None, None, len(index), None, labels_sha256(found))


WRITERS: dict[str, Callable[[Audit, Sequence[str], Source, Path], bytes]] = {
    "table": table_copy,
    "folder": moves,
    "arrays": array_labels,
}
