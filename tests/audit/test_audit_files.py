import csv
import importlib
import json
import re
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from edited import edited
from made_up_findings import IDS, NAMES, make_findings
from ogc.audit.files import AuditError, decided, formula_notes, measures, read_audit, summary, write_audit
from ogc.noise.files import labels_sha256

FILES = ["audit.html", "audit.json", "issues.csv", "issues.parquet", "labels_fixed.csv"]
COLUMNS = ["id", "split", "given_label", "predicted_label", "is_label_issue", "label_score"]
COLUMNS += ["wrong_probability", "predicted_probability", "true_label"]


@pytest.fixture
def audited(tmp_path):
    write_audit(make_findings(), tmp_path)
    return tmp_path


def rows(path):
    limit = csv.field_size_limit(10**9)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    finally:
        csv.field_size_limit(limit)


def test_writes_exactly_the_expected_files(audited):
    assert sorted(path.name for path in audited.iterdir()) == FILES


def test_issues_csv_has_all_columns_worst_first(audited):
    findings = make_findings()
    issues, order = findings.issues, findings.issues.worst_first.tolist()
    found = rows(audited / "issues.csv")
    assert list(found[0]) == COLUMNS
    assert [row["id"] for row in found] == [IDS[i] for i in order]
    assert [row["given_label"] for row in found] == [NAMES[issues.given_label[i]] for i in order]
    assert [row["predicted_label"] for row in found] == [NAMES[issues.predicted_label[i]] for i in order]
    assert [row["true_label"] for row in found] == [NAMES[findings.true[i]] for i in order]
    assert [row["split"] for row in found] == [findings.splits[i] for i in order]
    assert [row["is_label_issue"] == "True" for row in found] == issues.is_label_issue[order].tolist()
    for name in ("label_score", "wrong_probability", "predicted_probability"):
        values = [float(row[name]) for row in found]
        assert values == pytest.approx(getattr(issues, name)[order].tolist(), rel=1e-7)
    placed = [(row["is_label_issue"] != "True", float(row["label_score"])) for row in found]
    assert placed == sorted(placed), "issues first"


def test_parquet_matches_csv_and_has_types(audited):
    table = parquet.read_table(audited / "issues.parquet")
    assert table.column_names == COLUMNS
    text, number = pa.string(), pa.float64()
    assert table.schema.types == [text, text, text, text, pa.bool_(), number, number, number, text]
    for name in ("id", "given_label", "predicted_label", "true_label"):
        assert table.column(name).to_pylist() == [row[name] for row in rows(audited / "issues.csv")]


def test_without_pyarrow_a_stale_parquet_file_is_removed(audited, monkeypatch):
    real = importlib.import_module

    def import_without_pyarrow(name, *rest):
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError("No module named 'pyarrow'")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", import_without_pyarrow)
    write_audit(make_findings(), audited)
    assert not (audited / "issues.parquet").exists()
    assert (audited / "issues.csv").exists()


def test_no_measures_without_true_labels(tmp_path):
    result, _ = write_audit(make_findings(true=False), tmp_path)
    assert list(rows(tmp_path / "issues.csv")[0]) == COLUMNS[:-1]
    assert (result["measures"], result["true_noise_rate"]) == (None, None)


def test_fixed_labels_keep_the_order_of_the_data(audited):
    findings = make_findings()
    found = rows(audited / "labels_fixed.csv")
    assert list(found[0]) == ["id", "label", "given_label", "changed", "wrong_probability"]
    assert [row["id"] for row in found] == list(IDS)
    assert [row["label"] for row in found] == [NAMES[i] for i in findings.issues.suggested_label.tolist()]
    assert [row["given_label"] for row in found] == [NAMES[i] for i in findings.issues.given_label.tolist()]
    assert [row["changed"] == "True" for row in found] == findings.issues.is_label_issue.tolist()
    assert any(row["changed"] == "True" for row in found)
    assert any(row["changed"] == "False" for row in found)


def test_summary_counts(audited):
    findings, result = make_findings(), json.loads((audited / "audit.json").read_bytes())
    assert result["samples"] == len(IDS)
    assert result["splits"] == {"val": 4, "train": 8}
    assert result["issues"] == int(findings.issues.is_label_issue.sum()) > 0
    assert sum(pair["count"] for pair in result["pairs"]) == result["issues"]
    counts = [pair["count"] for pair in result["pairs"]]
    assert counts == sorted(counts, reverse=True)
    given, suggested = findings.issues.given_label.tolist(), findings.issues.suggested_label.tolist()
    moved = Counter((NAMES[i], NAMES[j]) for i, j in zip(given, suggested, strict=True) if i != j)
    assert {(pair["given"], pair["suggested"]): pair["count"] for pair in result["pairs"]} == moved
    assert result["noise_rate"] == pytest.approx(result["issues"] / result["samples"])
    assert result["true_noise_rate"] == pytest.approx(3 / 12)
    assert result["given_sha256"] == labels_sha256(findings.issues.given_label.numpy())


def test_measures_match_manual_computation():
    findings = make_findings()
    found, wrong = findings.issues.is_label_issue.tolist(), (findings.true != findings.issues.given_label).tolist()
    scores = findings.issues.label_score.tolist()
    result = measures(findings.issues, findings.true)
    hits = sum(a and b for a, b in zip(found, wrong, strict=True))
    assert result["precision"] == hits / sum(found)
    assert result["recall"] == hits / sum(wrong)
    pairs = [
        (a < b) + (a == b) / 2
        for a, w in zip(scores, wrong, strict=True)
        if w
        for b, v in zip(scores, wrong, strict=True)
        if not v
    ]
    assert result["auroc"] == pytest.approx(sum(pairs) / len(pairs))
    assert result["wrong_after"] == float((findings.issues.suggested_label != findings.true).double().mean())


def test_undefined_measures_are_none_if_all_labels_are_correct():
    findings = make_findings()
    result = measures(findings.issues, findings.issues.given_label)
    assert (result["auroc"], result["average_precision"], result["recall"]) == (None, None, None)
    assert result["precision"] == 0


def test_notes_ids_that_look_like_formulas_but_not_numbers():
    noted = {name for name in IDS if name[:1] in "=@-" and name and name != "-5"}
    [note] = formula_notes(IDS)
    assert note.startswith(f"{len(noted)} ids or classes look like formulas")
    assert formula_notes(["-5", "+1e3", "a=b", ""]) == []


def test_ids_that_are_not_utf8_keep_their_bytes(tmp_path):
    odd = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    ids = (odd, *IDS[1:])
    write_audit(make_findings(ids=ids), tmp_path)
    assert b"caf\xe9.png" in (tmp_path / "labels_fixed.csv").read_bytes()
    assert read_audit(tmp_path).ids == list(ids)
    assert "caf\\udce9.png" in parquet.read_table(tmp_path / "issues.parquet").column("id").to_pylist()


def test_class_names_that_are_not_utf8_keep_their_bytes(tmp_path):
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    findings = replace(make_findings(), class_names=(odd, *NAMES[1:]))
    write_audit(findings, tmp_path)
    given = [findings.class_names[i] for i in findings.issues.given_label.tolist()]
    assert odd in given
    assert read_audit(tmp_path).given == given
    table = parquet.read_table(tmp_path / "issues.parquet")
    for name in ("given_label", "predicted_label", "true_label"):
        assert "caf\\udce9" in table.column(name).to_pylist()


# --- reading back ----------------------------------------------------------------------------------------------------


def test_audit_round_trip(audited):
    findings, audit = make_findings(), read_audit(audited)
    assert audit.ids == list(IDS)
    assert audit.given == [NAMES[i] for i in findings.issues.given_label.tolist()]
    assert audit.fixed == [NAMES[i] for i in findings.issues.suggested_label.tolist()]
    assert audit.summary["key"] == summary(findings)["key"]


def test_modified_or_corrupt_audit_is_rejected(audited):
    path = audited / "labels_fixed.csv"
    before = path.read_bytes()
    path.write_bytes(b"".join(before.splitlines(keepends=True)[:-1]))
    with pytest.raises(AuditError, match=r"labels_fixed\.csv has changed"):
        read_audit(audited)
    path.write_bytes(b"")
    with pytest.raises(AuditError, match=r"labels_fixed\.csv has changed"):
        read_audit(audited)
    path.write_bytes(before)
    edited(audited / "audit.json", format=9)
    with pytest.raises(AuditError, match=r"cannot be used: expected format 3, found 9\."):
        read_audit(audited)
    for change, reason in (
        ({"run": {}}, "it has no 'source'."),
        ({"run": {"source": {"kind": "digits", "zz": 1}}}, "There is no parameter 'zz'."),
    ):
        edited(audited / "audit.json", format=3, **change)
        with pytest.raises(AuditError, match=re.escape(f"audit.json cannot be used: {reason}")):
            read_audit(audited)
    (audited / "audit.json").write_text("[]")
    with pytest.raises(AuditError, match=r"audit\.json cannot be used"):
        read_audit(audited)


def write_decisions(folder, *lines, header="id,decision,given_label,suggested_label", start="", mark=","):
    path = folder.parent / "decisions.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(start + header.replace(",", mark) + "\r\n")
        csv.writer(file, delimiter=mark).writerows(lines)
    return path


def test_only_accepted_decisions_change_labels(audited):
    audit = read_audit(audited)
    other = [next(name for name in NAMES if name != label) for label in audit.given]
    lines = [
        (IDS[0], "accept", audit.given[0], other[0]),
        (IDS[4], "keep", audit.given[4], other[4]),
        (IDS[10], "accept", audit.given[10], other[10]),
        (IDS[11], "skip", audit.given[11], other[11]),
    ]
    for start, mark in (("", ","), ("\ufeff", ","), ("", ";"), ("", "\t")):
        found = decided(audit, write_decisions(audited, *lines, start=start, mark=mark))
        assert found == [other[i] if i in (0, 10) else label for i, label in enumerate(audit.given)]
    old = write_decisions(audited, *lines[:1], start="\r\n")
    old.write_bytes(old.read_bytes().replace(b"\r\n", b"\r") + b";;;,keep;,a,b\r")  # more semicolons than commas
    with pytest.raises(AuditError, match=r"`id` should be the id of an audited sample\. Found ';;;'\."):
        decided(audit, old)
    assert decided(audit, write_decisions(audited)) == audit.given


@pytest.mark.parametrize("index", [4, 5])
def test_invalid_decision_error_names_the_line(audited, index):
    audit = read_audit(audited)
    good = (IDS[index], "keep", audit.given[index], NAMES[3])  # spans several lines
    lines = 1 + 1 + sum(text.count("\n") + text.count("\r") - text.count("\r\n") for text in good)
    other = next(name for name in NAMES if name != audit.given[1])
    for bad, reason in (
        (
            ("nobody", "keep", NAMES[0], NAMES[0]),
            "`id` should be the id of an audited sample. Found 'nobody'. For this audit, export",
        ),
        (
            (IDS[1], "keep", other, NAMES[0]),
            f"`given_label` should be {audit.given[1]!r}, the given label of {IDS[1]!r}. Found {other!r}. For this",
        ),
        (
            (IDS[1], "Accept", audit.given[1], NAMES[0]),
            "`decision` should be accept, keep or skip. Found 'Accept'. Correct",
        ),
        (
            (IDS[1], "accept", audit.given[1], "unheard of"),
            "`suggested_label` should be one of the classes `plain`, `a ",
        ),
        (good, "already has a decision in line 2"),
        ((IDS[1], "keep", audit.given[1]), "there should be 4 cells, found 3"),
    ):
        with pytest.raises(AuditError, match=rf"decisions\.csv, line {lines + 1}: ") as error:
            decided(audit, write_decisions(audited, good, bad))
        assert reason in str(error.value)
        assert len(str(error.value)) < 500
    expected = r"Expected the file of decisions exported from audit\.html\. Found"
    with pytest.raises(AuditError, match=rf"has no column `decision`\. {expected} `id`, `label`\."):
        decided(audit, write_decisions(audited, header="id;label"))
    with pytest.raises(AuditError, match=rf"has no column `id`\. {expected} an empty file\."):
        decided(audit, write_decisions(audited, header=""))


def test_failed_audit_removes_the_previous_summary(audited, monkeypatch):
    monkeypatch.setattr("ogc.audit.files.page", lambda found: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_audit(make_findings(seed=1), audited)
    assert not (audited / "audit.json").exists()


def test_round_trip_of_fifty_thousand_samples(tmp_path):
    N = 50_000
    findings = make_findings(ids=tuple(f"train/{i:05}" for i in range(N)))
    write_audit(findings, tmp_path)
    assert len(read_audit(tmp_path).ids) == N
    assert torch.equal(findings.issues.given_label, torch.tensor([NAMES.index(n) for n in read_audit(tmp_path).given]))
