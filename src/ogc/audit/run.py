"""Audit a run: combine the surveys in its folder with its data, which is loaded again."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .._require import counted
from ..data import Dataset, Loaded
from ..data.arrays import LABEL_NAMES, read_array
from ..data.folder import class_folders, images_in, training_folder
from ..data.images import ImageFiles
from ..data.split import stratified_split
from ..rival_label import class_confidence
from ..training.digests import digests, ids_sha256
from ..training.run_folder import AUDIT, SAMPLES, StoredRun, how_to_resume, read
from ..training.source import Source, load
from ..training.survey import LARGEST, points_of
from .files import write_audit
from .findings import Findings
from .page import SIDE
from .suspicion import from_surveys
from .table_file import Rows, rows_of


def audit_run(folder: str | Path, data: Loaded | None = None) -> Findings:
    """Find label issues in the data of a finished run, and write them to ``audit`` in its folder.

    :param data: the run's data, if it came from Python: the training set, and the other sets by name.
    """
    findings = findings_of(Path(folder), data)
    write_audit(findings, Path(folder) / AUDIT)
    return findings


def findings_of(folder: Path, data: Loaded | None = None) -> Findings:
    """Find label issues among the samples of ``train`` and ``val``, without writing anything."""
    run = _finished(folder)
    added = run.recipe.noise is not None
    if data is None:
        if run.source is None:
            raise ValueError(
                f"The data of {folder} came from Python. Pass it to the audit: "
                f"ogc.audit.run.audit_run({str(folder)!r}, (train, sets))."
            )
        with warnings.catch_warnings(action="ignore"):  # already shown when the run was trained
            data, info = load(run.source.model_copy(update={"test": None}), run.recipe)
        added = info is not None
    train, sets = data
    surveyed = {"train": train}
    if "val" in sets and "survey.val.margin" in run.samples:
        surveyed["val"] = sets["val"]
    before, now = run.digests, digests(run.source, surveyed)
    same = torch.equal(run.samples["given"], train.given) and all(
        len(run.samples[f"survey.{name}.margin"]) == len(part) for name, part in surveyed.items()
    )
    other = [what for what in now if what in before and now[what] != before[what]]
    if other or not same:
        what = f" ({other[0]})" if other else ""
        raise ValueError(f"The data of {folder} has changed since training{what}. Train again, and audit the new run.")

    parts = list(surveyed.values())
    table = rows_of(run.source) if run.source is not None and run.source.kind == "table" else None
    order = _order(run.source, parts, table)
    given = torch.cat([part.given for part in parts])[order]
    margin, probabilities = (
        torch.cat([run.samples[f"survey.{name}.{what}"] for name in surveyed])[order]
        for what in ("margin", "probabilities")
    )
    confidence = class_confidence(run.samples["survey.train.probabilities"], train.given)
    issues = from_surveys(given, margin=margin, probabilities=probabilities, confidence=confidence)
    # if noise was added, the original labels are the true ones
    known = [part.given if part.true is None and added else part.true for part in parts]
    sure = [labels for labels in known if labels is not None]
    samples = [(name, part, index) for name, part in surveyed.items() for index in range(len(part))]
    samples = [samples[i] for i in order.tolist()]
    numbers = range(1, len(samples) + 1) if table is None else table.numbers
    ids = _unique([part.ids[index] for _, part, index in samples], numbers)
    title = (run.recipe.name if run.source is None else run.source.name, run.recipe.method, run.recipe.noise)
    return Findings(
        title=", ".join(filter(None, title)),
        ids=ids,
        class_names=train.class_names,
        issues=issues,
        image=lambda i: _image(run.source, *samples[i][1:]),
        columns={} if table is None else table.columns,
        splits=[name for name, _, _ in samples],
        true=torch.cat(sure)[order] if len(sure) == len(parts) else None,
        key=_key(run, ids, given, issues.predicted_label),
        surveys=points_of(run.samples.get("survey.history")),
        run={
            "id": run.id,
            "folder": str(folder),
            "recipe": run.recipe.model_dump(mode="json"),
            "source": None if run.source is None else run.source.model_dump(mode="json"),
            "facts": {name: value for name, value in run.facts.items() if name != "classes"},
            "sha256": now,
        },
    )


def _finished(folder: Path) -> StoredRun:
    """Read a run. Raises ``ValueError`` if it is not finished or has no surveys."""
    run = read(folder)
    if not run.finished or not run.samples:
        raise ValueError(f"The run in {folder} is not finished. Resume it first: {how_to_resume(folder)}")
    if "survey.train.margin" not in run.samples:
        raise ValueError(
            f"{folder / SAMPLES} has no surveys, which an audit needs. Train again with --set surveys=10, with at "
            f"most {LARGEST:,} samples times classes."
        )
    return run


def check_size(source: Source) -> None:
    """Refuse data with too many samples and classes for surveys, before training on it."""
    assert source.path is not None
    if source.kind == "folder":
        names = class_folders(training_folder(source.path))
        classes, samples = len(names), sum(1 for name in names for _ in images_in(name))
    elif source.kind == "arrays":
        found = read_array(source.labels or source.path, source.label, LABEL_NAMES)
        classes, samples = len(set(found.ravel().tolist())), found.size
    else:
        try:
            labels = rows_of(source).columns[source.label or ""]
        except (ValueError, OSError, KeyError, ImportError):  # reported by training
            return
        classes, samples = len(set(labels)), len(labels)
    if samples * classes > LARGEST:
        raise ValueError(
            f"{source.path} has {samples:,} samples and {classes:,} classes. An audit is limited to a product of "
            f"{LARGEST:,}."
        )


def _order(source: Source | None, parts: Sequence[Dataset], table: Rows | None) -> Tensor:
    """Return indices that sort the concatenated samples of all parts into the order of the data: (N,)."""
    ids = [name for part in parts for name in part.ids]
    if source is not None and source.kind == "folder":
        return torch.tensor(sorted(range(len(ids)), key=ids.__getitem__))
    if source is not None and source.kind == "arrays":
        return torch.tensor(sorted(range(len(ids)), key=lambda i: int(ids[i])))
    if source is None or table is None:
        return torch.arange(len(ids))
    class_names = parts[0].class_names
    index = {name: i for i, name in enumerate(class_names)}
    labels = torch.tensor([index[name] for name in table.columns[source.label or ""]])
    with warnings.catch_warnings(action="ignore"):  # already shown when the data was loaded
        return torch.cat(stratified_split(labels, class_names, val=source.val, seed=0)).argsort()


def _unique(ids: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Add the row number to ids that occur more than once."""
    counts = Counter(ids)
    if len(counts) == len(ids):
        return list(ids)
    repeated = [name for name, times in counts.items() if times > 1]
    warnings.warn(
        f"{counted(len(repeated), 'id')} {'occurs' if len(repeated) == 1 else 'occur'} more than once, for example "
        f"{repeated[0][:40]!r}. The row numbers are added.",
        stacklevel=3,
    )
    taken, found = set(ids), []
    for row, name in zip(numbers, ids, strict=True):
        new = name
        while counts[name] > 1 and new in taken:
            new = f"{new} (row {row})"
        taken.add(new)
        found.append(new)
    return found


def _key(run: StoredRun, ids: Sequence[str], given: Tensor, predicted: Tensor) -> str:
    """Hash the samples, labels and predictions of a run."""
    digest = hashlib.sha256(str(run.facts["started"]).encode())
    digest.update(ids_sha256(ids).encode())
    for labels in (given, predicted):
        digest.update(labels.numpy().astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def _image(source: Source | None, data: Dataset, index: int) -> Tensor | None:
    """Return an image as the network saw it, or from its file in a folder; ``None`` if there is none."""
    inputs, kind = data.inputs, None if source is None else source.kind
    if kind == "folder" and source is not None and source.path is not None:
        inputs, index = ImageFiles([source.path / data.ids[index]], SIDE), 0
    try:
        found = inputs[torch.tensor([index])][0]
    except (ValueError, OSError):
        return None
    if kind == "digits":
        return (255 * found).round().to(torch.uint8).view(1, 8, 8)
    return found if found.dtype == torch.uint8 and found.dim() == 3 else None
