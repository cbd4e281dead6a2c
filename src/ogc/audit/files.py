"""What an audit writes, and what is read back of it.

CSV files read back exactly: an id is never altered, also where it begins with =, +, - or @, as what spreadsheets take
for a formula does. ``ogc audit`` says so where there are such ids.
"""

from __future__ import annotations

import hashlib
import importlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from .._files import json_lines, read_json, remove_leftovers, sealed, write_whole
from .._provenance import commit
from ..noise.files import labels_sha256
from ..training.digests import ids_sha256
from ..training.survey import memorised_from, unsettled
from .findings import Findings
from .page import page
from .table_file import BOM, cell, records

ISSUES, ISSUES_CSV, FIXED, SUMMARY, PAGE = (
    "issues.parquet",
    "issues.csv",
    "labels_fixed.csv",
    "audit.json",
    "audit.html",
)
FORMAT = 2  # of audit.json
DECISIONS = ("accept", "keep", "skip")
COLUMNS = ("id", "decision", "given_label", "suggested_label")  # of a file of decisions, as the page exports it


class AuditError(ValueError):
    """An audit's file that is broken, or not what it should be: one sentence that names it."""


def write_audit(findings: Findings, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """All files: -> what ``audit.json`` holds, and notes to be said."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder, (ISSUES, ISSUES_CSV, FIXED, SUMMARY, PAGE))
    told = summary(findings)
    (folder / SUMMARY).unlink(missing_ok=True)  # written last: with it the others are whole, and of one audit
    columns = issue_columns(findings)
    write_whole(folder / ISSUES_CSV, csv(columns, zip(*map(texts, columns.values()), strict=True)))
    names, suggested = findings.class_names, findings.issues.suggested_label.tolist()
    given = findings.issues.given_label.tolist()
    fixed = zip(
        findings.ids,
        (names[label] for label in suggested),
        (names[label] for label in given),
        texts([old != new for old, new in zip(given, suggested, strict=True)]),
        strict=True,
    )
    content = csv(("id", "label", "given_label", "changed"), fixed)
    told["fixed_sha256"] = hashlib.sha256(content).hexdigest()
    write_whole(folder / FIXED, content)
    notes = write_parquet(columns, folder / ISSUES)
    notes += formula_notes([*findings.ids, *findings.class_names])
    write_whole(folder / PAGE, page(findings).encode("utf-8", "replace"))
    write_whole(folder / SUMMARY, json_lines(sealed(told), ("confusion", "true_confusion", "pairs", "surveys")))
    return told, notes


# --- the tables ------------------------------------------------------------------------------------------------------


def issue_columns(findings: Findings) -> dict[str, list[Any]]:
    """cleanlab's names and our own, the worst first."""
    issues, names, order = findings.issues, findings.class_names, findings.issues.worst_first

    def named(labels: torch.Tensor) -> list[str]:
        return [names[label] for label in labels[order].tolist()]

    columns: dict[str, list[Any]] = {
        "id": [findings.ids[i] for i in order.tolist()],
        "split": [findings.splits[i] if findings.splits else "train" for i in order.tolist()],
        "given_label": named(issues.given_label),
        "predicted_label": named(issues.predicted_label),
        "is_label_issue": issues.is_label_issue[order].tolist(),
        "label_score": issues.label_score[order].tolist(),
        "wrong_probability": issues.wrong_probability[order].tolist(),
        "predicted_probability": issues.predicted_probability[order].tolist(),
    }
    return columns if findings.true is None else columns | {"true_label": named(findings.true)}


def texts(values: Iterable[Any]) -> Iterator[str]:
    """As they stand in a CSV file."""
    for value in values:
        yield value if isinstance(value, str) else f"{value:.8g}" if isinstance(value, float) else str(value)


def csv(header: Iterable[str], rows: Iterable[Sequence[str]]) -> bytes:
    """File names that are no text keep their bytes."""
    lines = (",".join(map(cell, row)) + "\n" for row in (header, *rows))
    return "".join(lines).encode("utf-8", "surrogateescape")


def write_parquet(columns: Mapping[str, list[Any]], path: Path) -> list[str]:
    """With types; without pyarrow a note."""
    path.unlink(missing_ok=True)  # an older one would belong to other findings
    try:
        pyarrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    except ImportError:
        return [
            f'{path.name} needs pyarrow, which is missing: pip install "torch-ogc[parquet]". {ISSUES_CSV} has the same.'
        ]
    readable = {  # Parquet's text is UTF-8, names of files, and so of classes, may be anything
        name: [
            value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value for value in cells
        ]
        for name, cells in columns.items()
    }
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(readable), buffer)
    write_whole(path, buffer.getvalue())
    return []


def formula_notes(names: Sequence[str]) -> list[str]:
    """Spreadsheets run what begins like a formula, wherever it comes from."""
    found = [name for name in names if name[:1] in ("=", "+", "-", "@", "\t", "\r") and not _number(name)]
    if not found:
        return []
    return [
        f"{len(found):,} ids or classes begin like a formula, {found[0][:40]!r} for one. They are written as they are, "
        "so that the CSV files read back exactly: import them into a spreadsheet as text, do not open them there."
    ]


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# --- the summary -----------------------------------------------------------------------------------------------------


def summary(findings: Findings) -> dict[str, Any]:
    """What ``audit.json`` holds; shares are in [0, 1]."""
    issues, names = findings.issues, findings.class_names
    confusion = issues.confusion()
    counts = confusion.clone().fill_diagonal_(0).flatten()
    order = counts.argsort(descending=True, stable=True)
    pairs = [
        {"given": names[at // len(names)], "suggested": names[at % len(names)], "count": int(counts[at])}
        for at in order[: int((counts > 0).sum())].tolist()
    ]
    splits = findings.splits or ["train"] * len(issues)
    told: dict[str, Any] = {
        "format": FORMAT,
        "title": findings.title,
        "key": findings.key,
        "samples": len(issues),
        "splits": {name: splits.count(name) for name in dict.fromkeys(splits)},
        "issues": int(issues.is_label_issue.sum()),
        "noise_rate": issues.noise_rate,
        "unsettled": unsettled(findings.surveys),
        "memorised_from": memorised_from(findings.surveys),
        "surveys": [point._asdict() for point in findings.surveys],
        "true_noise_rate": None,
        "measures": None,
        "pairs": pairs,
        "classes": list(names),
        "confusion": confusion.tolist(),
        "true_confusion": None,
        "given_sha256": labels_sha256(issues.given_label.numpy()),
        "ids_sha256": ids_sha256(findings.ids),
        "run": dict(findings.run),
        "made": {
            "ogc": __version__,
            "commit": commit(),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    }
    if findings.true is not None:
        told["true_noise_rate"] = float((findings.true != issues.given_label).double().mean())
        told["true_confusion"] = issues.confusion(findings.true).tolist()
        told["measures"] = measures(findings)
    return told


def measures(findings: Findings) -> dict[str, float | None]:
    """How good the findings are by the true labels; ``None`` where that is not defined."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    issues, true = findings.issues, findings.true
    assert true is not None
    wrong, found = true != issues.given_label, issues.is_label_issue
    suspicion, both = -issues.label_score.numpy(), bool(wrong.any()) and not bool(wrong.all())
    hits = int((wrong & found).sum())
    return {
        "auroc": float(roc_auc_score(wrong.numpy(), suspicion)) if both else None,
        "average_precision": float(average_precision_score(wrong.numpy(), suspicion)) if bool(wrong.any()) else None,
        "precision": hits / int(found.sum()) if bool(found.any()) else None,
        "recall": hits / int(wrong.sum()) if bool(wrong.any()) else None,
        "wrong_after": float((issues.suggested_label != true).double().mean()),
    }


# --- reading back ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Audit:
    """What ``ogc audit apply`` needs of one: labels by class name, in the data's order."""

    folder: Path
    summary: dict[str, Any]
    ids: list[str]
    given: list[str]
    fixed: list[str]
    run: str  # the identifier of the audited run
    noise: str | None  # that was added to the labels
    source: dict[str, Any] | None
    sha256: dict[str, str]  # of the data, as when they were trained on


def read_audit(folder: Path) -> Audit:
    """Read ``audit.json`` and ``labels_fixed.csv``, which have to belong together."""
    path, fix = folder / SUMMARY, "Audit the run again."
    told = read_json(path, error=AuditError, fix=fix)
    if told.get("format") != FORMAT:
        raise AuditError(f"{path} has format {told.get('format')}; this version of ogc reads {FORMAT}. {fix}")
    path = folder / FIXED
    if hashlib.sha256(path.read_bytes()).hexdigest() != told["fixed_sha256"]:
        raise AuditError(f"{path} has changed since {SUMMARY} was written. {fix}")
    rows = [cells for _, cells in read_rows(path, ("id", "label", "given_label", "changed"))]
    ids, fixed, given = ([row[i] for row in rows] for i in range(3))
    run = told["run"]
    return Audit(folder, told, ids, given, fixed, run["id"], run["recipe"]["noise"], run["source"], run["sha256"])


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """The line that each row begins in, from 1, and its cells of these columns, whatever else there is."""
    text = path.read_bytes().decode("utf-8", "surrogateescape").removeprefix(BOM)
    line, at = 1, None
    for cells, piece in records(text):
        if cells and at is None:
            header = [name.strip() for name in cells]
            if missing := [name for name in columns if name not in header]:
                raise AuditError(f"{path} has no column {missing[0]}; it has {', '.join(header)[:200]}.")
            at = [header.index(name) for name in columns]
        elif cells and at is not None:
            if len(cells) != len(header):
                raise AuditError(f"{path}, line {line}: there should be {len(header)} cells, found {len(cells)}.")
            yield line, [cells[i] for i in at]
        line += piece.count("\n") or 1
    if at is None:
        raise AuditError(f"{path} is empty.")


def decided(audit: Audit, path: Path) -> list[str]:
    """The labels with those decisions of a person applied that are ``accept``: (N,) class names."""
    at, labels = {name: i for i, name in enumerate(audit.ids)}, audit.given.copy()
    classes, seen = set(audit.summary["classes"]), dict[int, int]()
    for line, (name, decision, given, suggested) in read_rows(path, COLUMNS):

        def bad(why: str, line: int = line) -> AuditError:
            return AuditError(f"{path}, line {line}: {why}.")

        if name not in at:
            raise bad(f"the audit in {audit.folder} has no sample {_short(name)}")
        i = at[name]
        if given != audit.given[i]:
            raise bad(f"{_short(name)} is given {_short(given)}, but {_short(audit.given[i])} in {audit.folder}")
        if decision not in DECISIONS:
            raise bad(f"the decision should be accept, keep or skip, found {_short(decision)}")
        if suggested not in classes:
            raise bad(f"{_short(suggested)} is no class of {audit.folder}")
        if i in seen:
            raise bad(f"{_short(name)} was decided in line {seen[i]} already")
        seen[i] = line
        if decision == "accept":
            labels[i] = suggested
    return labels


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
