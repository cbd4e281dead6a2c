"""The files of an audit: writing them and reading them back.

CSV files are read back exactly as written. Ids are never changed, not even those that begin with =, +, - or @, which
spreadsheets interpret as formulas. ``ogc audit`` prints a note about such ids.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from .._csv import csv_bytes
from .._files import checked_fields, json_lines, read_json, remove_leftovers, with_checksum, write_whole
from .._provenance import commit
from .._require import cut_middle, few, printable
from ..data.cells import to_number
from ..data.rows import DELIMITERS, import_library
from ..noise.files import labels_sha256
from ..training.digests import ids_sha256
from ..training.source import Source
from ..training.survey import memorised_from
from .findings import Findings
from .page import page
from .suspicion import Issues
from .table_file import BOM, records

ISSUES, ISSUES_CSV, FIXED = "issues.parquet", "issues.csv", "labels_fixed.csv"
SUMMARY, PAGE = "audit.json", "audit.html"
FORMAT = 3  # of audit.json
DECISIONS = ("accept", "keep", "skip")
FIXED_COLUMNS = {  # of the fixed labels, and the columns of the issues that they come from
    "id": "id",
    "label": "predicted_label",
    "given_label": "given_label",
    "changed": "is_label_issue",
    "wrong_probability": "wrong_probability",
}
COLUMNS = ("id", "decision", "given_label", "suggested_label")  # of a file of decisions, as the page exports it


class AuditError(ValueError):
    """Raised if a file of an audit is damaged or does not belong to it."""


def write_audit(findings: Findings, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Write all files. Return the contents of ``audit.json`` and notes for the user."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder, (ISSUES, ISSUES_CSV, FIXED, SUMMARY, PAGE))
    facts = summary(findings)
    # written last: if it exists, the others are complete and of the same audit
    (folder / SUMMARY).unlink(missing_ok=True)
    columns, worst = columns_of(findings), findings.issues.worst_first.tolist()
    fixed = csv_bytes(FIXED_COLUMNS, zip(*(columns[name] for name in FIXED_COLUMNS.values()), strict=True))
    facts["fixed_sha256"] = hashlib.sha256(fixed).hexdigest()
    write_whole(folder / FIXED, fixed)
    columns = {name: [cells[i] for i in worst] for name, cells in columns.items()}
    write_whole(folder / ISSUES_CSV, csv_bytes(columns, zip(*columns.values(), strict=True)))
    write_parquet(columns, folder / ISSUES)
    write_whole(folder / PAGE, page(findings).encode("utf-8", "replace"))
    write_whole(folder / SUMMARY, json_lines(with_checksum(facts), ("pairs", "surveys")))
    return facts, formula_notes([*findings.ids, *findings.class_names])


# --- the tables ------------------------------------------------------------------------------------------------------


def columns_of(findings: Findings) -> dict[str, list[Any]]:
    """Return the columns of the issues, in the order of the data. Names are cleanlab's where it has them."""
    issues = findings.issues

    def named(labels: torch.Tensor) -> list[str]:
        return [findings.class_names[label] for label in labels.tolist()]

    columns: dict[str, list[Any]] = {
        "id": list(findings.ids),
        "split": list(findings.splits or ["train"] * len(issues)),
        "given_label": named(issues.given_label),
        "predicted_label": named(issues.predicted_label),
        "is_label_issue": issues.is_label_issue.tolist(),
        "label_score": issues.label_score.tolist(),
        "wrong_probability": issues.wrong_probability.tolist(),
        "predicted_probability": issues.predicted_probability.tolist(),
    }
    return columns if findings.true is None else columns | {"true_label": named(findings.true)}


def write_parquet(columns: Mapping[str, list[Any]], path: Path) -> None:
    """Write a Parquet file, if pyarrow is installed."""
    path.unlink(missing_ok=True)  # an older file would belong to another audit
    try:
        pyarrow, parquet = import_library("pyarrow"), import_library("pyarrow.parquet")
    except ImportError:
        return

    def readable(value: Any) -> Any:  # Parquet's text is UTF-8; names of files and classes may be any bytes
        return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table({name: list(map(readable, cells)) for name, cells in columns.items()}), buffer)
    write_whole(path, buffer.getvalue())


def formula_notes(names: Sequence[str]) -> list[str]:
    """Return a note if a spreadsheet would run ids or classes as formulas."""
    found = [name for name in names if name[:1] in ("=", "+", "-", "@", "\t", "\r") and math.isnan(to_number(name))]
    if not found:
        return []
    return [
        f"{len(found):,} ids or classes look like formulas, for example {found[0][:40]!r}. They are written "
        "unchanged, so that the CSV files read back exactly. Import the files into a spreadsheet as text."
    ]


# --- the summary -----------------------------------------------------------------------------------------------------


def summary(findings: Findings) -> dict[str, Any]:
    """Return the contents of ``audit.json``. Shares are in [0, 1]."""
    issues, names, true = findings.issues, findings.class_names, findings.true
    pairs = [{"given": names[given], "suggested": names[other], "count": n} for given, other, n in issues.pairs()]
    splits = findings.splits or ["train"] * len(issues)
    return {
        "format": FORMAT,
        "title": findings.title,
        "key": findings.key,
        "samples": len(issues),
        "splits": {name: splits.count(name) for name in dict.fromkeys(splits)},
        "issues": int(issues.is_label_issue.sum()),
        "noise_rate": issues.noise_rate,
        "unreliable": findings.unreliable,
        "memorised_from": memorised_from(findings.surveys),
        "unlearned": findings.unlearned,
        "surveys": [point._asdict() for point in findings.surveys],
        "true_noise_rate": None if true is None else float((true != issues.given_label).double().mean()),
        "measures": None if true is None else measures(issues, true),
        "pairs": pairs,
        "classes": list(names),
        "given_sha256": labels_sha256(issues.given_label.numpy()),
        "ids_sha256": ids_sha256(findings.ids),
        "run": dict(findings.run),
        "made": {"ogc": __version__, "commit": commit(), "at": datetime.now(UTC).isoformat(timespec="seconds")},
    }


def measures(issues: Issues, true: torch.Tensor) -> dict[str, float | None]:
    """Measure the issues against the true labels, (N,). ``None`` for measures that are not defined."""
    from sklearn.metrics import average_precision_score, roc_auc_score

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
    """An audit that was read back: labels by class name, in the order of the data."""

    folder: Path
    summary: dict[str, Any]
    source: Source | None  # of the run; None for data from Python
    ids: list[str]
    given: list[str]
    fixed: list[str]
    wrong: list[float]  # P(given label is wrong)


def read_audit(folder: Path) -> Audit:
    """Read ``audit.json`` and ``labels_fixed.csv``, which must belong to the same audit."""
    path, again = folder / SUMMARY, "audit the run again"
    facts = read_json(path, error=AuditError, again=again, format=FORMAT)
    with checked_fields(path, error=AuditError, again=again):
        source, checksum = facts["run"]["source"], facts["fixed_sha256"]
        source = None if source is None else Source(**source)
    path = folder / FIXED
    if hashlib.sha256(path.read_bytes()).hexdigest() != checksum:
        raise AuditError(f"{path} has changed since {SUMMARY} was written. Restore it from a backup, or {again}.")
    rows = [cells for _, cells in read_rows(path, list(FIXED_COLUMNS))]
    ids, fixed, given, _, wrong = ([row[i] for row in rows] for i in range(len(FIXED_COLUMNS)))
    return Audit(folder, facts, source, ids, given, fixed, [*map(float, wrong)])


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number of each row, from 1, and its cells in these columns. Other columns are ignored."""
    text = path.read_bytes().decode("utf-8", "surrogateescape").removeprefix(BOM)
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(DELIMITERS, key=first.count)  # spreadsheets may save another than the comma
    rows = ((line, cells) for line, cells, _ in records(text, delimiter) if cells)
    _, header = next(rows, (1, []))
    header = [name.strip() for name in header]
    if missing := [name for name in columns if name not in header]:
        found = few([printable(name) for name in header]) or "an empty file"
        raise AuditError(
            f"{path} has no column `{missing[0]}`. Expected the file of decisions exported from {PAGE}. Found {found}."
        )
    at = [header.index(name) for name in columns]
    for line, cells in rows:
        if len(cells) != len(header):
            raise AuditError(f"{path}, line {line}: there should be {len(header)} cells, found {len(cells)}.")
        yield line, [cells[i] for i in at]


def decided(audit: Audit, path: Path | None, accept_above: float | None = None) -> list[str]:
    """Return the labels with suggestions applied: (N,) class names.

    :param path: a file of decisions, whose accepted suggestions are applied.
    :param accept_above: P(wrong) from which the suggestions without a decision are applied. By default all of them are,
        or none if there are decisions.
    """
    least = accept_above if accept_above is not None else 0.0 if path is None else math.inf
    rows = zip(audit.given, audit.fixed, audit.wrong, strict=True)
    labels = [fixed if wrong >= least else given for given, fixed, wrong in rows]
    if path is None:
        return labels

    def wrong(line: int, column: str, expected: str, found: str) -> AuditError:
        fix = "Correct this cell, or" if column in ("decision", "suggested_label") else "For this audit,"
        fix += f" export the decisions again from {audit.folder / PAGE}."
        return AuditError(f"{path}, line {line}: `{column}` should be {expected}. Found {_short(found)}. {fix}")

    at, classes, seen = {name: i for i, name in enumerate(audit.ids)}, set(audit.summary["classes"]), dict[int, int]()
    for line, cells in read_rows(path, COLUMNS):
        name, decision, given, suggested = cells
        i = at.get(name)
        if i is None:
            raise wrong(line, "id", "the id of an audited sample", name)
        if decision not in DECISIONS:
            raise wrong(line, "decision", "accept, keep or skip", decision)
        if given != audit.given[i]:
            raise wrong(line, "given_label", f"{_short(audit.given[i])}, the given label of {_short(name)}", given)
        if suggested not in classes:
            known = few([printable(label) for label in audit.summary["classes"]])
            raise wrong(line, "suggested_label", f"one of the classes {known}", suggested)
        if i in seen:
            raise AuditError(f"{path}, line {line}: {_short(name)} already has a decision in line {seen[i]}.")
        seen[i] = line
        labels[i] = suggested if decision == "accept" else given
    return labels


def _short(text: str) -> str:
    return repr(cut_middle(text, 60))
