import csv
import importlib
import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from edited import edited
from made_up_findings import IDS, NAMES, findings
from ogc.audit.files import AuditError, decided, formula_notes, measures, read_audit, summary, write_audit
from ogc.noise.files import labels_sha256

FILES = ["audit.html", "audit.json", "issues.csv", "issues.parquet", "labels_fixed.csv"]
COLUMNS = ["id", "split", "given_label", "predicted_label", "is_label_issue", "label_score"]
COLUMNS += ["wrong_probability", "predicted_probability", "true_label"]


@pytest.fixture
def audited(tmp_path):
    write_audit(findings(), tmp_path)
    return tmp_path


def rows(path):
    limit = csv.field_size_limit(10**9)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    finally:
        csv.field_size_limit(limit)


def test_all_files_are_there_and_nothing_else(audited):
    assert sorted(path.name for path in audited.iterdir()) == FILES


def test_the_issues_read_back_exactly_the_worst_first(audited):
    made = findings()
    issues, order = made.issues, made.issues.worst_first.tolist()
    found = rows(audited / "issues.csv")
    assert list(found[0]) == COLUMNS
    assert [row["id"] for row in found] == [IDS[i] for i in order]
    assert [row["given_label"] for row in found] == [NAMES[issues.given_label[i]] for i in order]
    assert [row["predicted_label"] for row in found] == [NAMES[issues.predicted_label[i]] for i in order]
    assert [row["true_label"] for row in found] == [NAMES[made.true[i]] for i in order]
    assert [row["split"] for row in found] == [made.splits[i] for i in order]
    assert [row["is_label_issue"] == "True" for row in found] == issues.is_label_issue[order].tolist()
    for name in ("label_score", "wrong_probability", "predicted_probability"):
        values = [float(row[name]) for row in found]
        assert values == pytest.approx(getattr(issues, name)[order].tolist(), rel=1e-7)
    assert [float(row["label_score"]) for row in found] == sorted(float(row["label_score"]) for row in found)


def test_parquet_has_the_same_with_types(audited):
    table = parquet.read_table(audited / "issues.parquet")
    assert table.column_names == COLUMNS
    text, number = pa.string(), pa.float64()
    assert table.schema.types == [text, text, text, text, pa.bool_(), number, number, number, text]
    for name in ("id", "given_label", "predicted_label", "true_label"):
        assert table.column(name).to_pylist() == [row[name] for row in rows(audited / "issues.csv")]


def test_without_pyarrow_there_is_a_note_and_no_old_file(audited, monkeypatch):
    real = importlib.import_module
    gone = ModuleNotFoundError("No module named 'pyarrow'")

    def without(name, *rest):
        if name.startswith("pyarrow"):
            raise gone
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    _, notes = write_audit(findings(), audited)
    assert any('pip install "torch-ogc[parquet]"' in note for note in notes)
    assert not (audited / "issues.parquet").exists()
    assert (audited / "issues.csv").exists()


def test_without_true_labels_nothing_is_measured(tmp_path):
    told, _ = write_audit(findings(true=False), tmp_path)
    assert list(rows(tmp_path / "issues.csv")[0]) == COLUMNS[:-1]
    assert (told["measures"], told["true_noise_rate"], told["true_confusion"]) == (None, None, None)


def test_fixed_labels_are_in_the_order_of_the_data(audited):
    made = findings()
    found = rows(audited / "labels_fixed.csv")
    assert list(found[0]) == ["id", "label", "given_label", "changed", "wrong_probability"]
    assert [row["id"] for row in found] == list(IDS)
    assert [row["label"] for row in found] == [NAMES[i] for i in made.issues.suggested_label.tolist()]
    assert [row["given_label"] for row in found] == [NAMES[i] for i in made.issues.given_label.tolist()]
    assert [row["changed"] == "True" for row in found] == made.issues.is_label_issue.tolist()
    assert any(row["changed"] == "True" for row in found)
    assert any(row["changed"] == "False" for row in found)


def test_the_summary_counts(audited):
    made, told = findings(), json.loads((audited / "audit.json").read_bytes())
    assert told["samples"] == len(IDS)
    assert told["splits"] == {"val": 4, "train": 8}
    assert told["issues"] == int(made.issues.is_label_issue.sum()) > 0
    assert sum(pair["count"] for pair in told["pairs"]) == told["issues"]
    counts = [pair["count"] for pair in told["pairs"]]
    assert counts == sorted(counts, reverse=True)
    for pair in told["pairs"]:
        assert pair["given"] != pair["suggested"]
        assert told["confusion"][NAMES.index(pair["given"])][NAMES.index(pair["suggested"])] == pair["count"]
    assert np.sum(told["confusion"]) == np.sum(told["true_confusion"]) == len(IDS)
    assert told["noise_rate"] == pytest.approx(told["issues"] / told["samples"])
    assert told["true_noise_rate"] == pytest.approx(3 / 12)
    assert told["given_sha256"] == labels_sha256(made.issues.given_label.numpy())


def test_measures_by_hand():
    made = findings()
    found, wrong = made.issues.is_label_issue.tolist(), (made.true != made.issues.given_label).tolist()
    scores = made.issues.label_score.tolist()
    told = measures(made.issues, made.true)
    hits = sum(a and b for a, b in zip(found, wrong, strict=True))
    assert told["precision"] == hits / sum(found)
    assert told["recall"] == hits / sum(wrong)
    pairs = [
        (a < b) + (a == b) / 2
        for a, w in zip(scores, wrong, strict=True)
        if w
        for b, v in zip(scores, wrong, strict=True)
        if not v
    ]
    assert told["auroc"] == pytest.approx(sum(pairs) / len(pairs))
    assert told["wrong_after"] == float((made.issues.suggested_label != made.true).double().mean())


def test_measures_of_labels_that_are_all_right_are_not_made_up():
    made = findings()
    told = measures(made.issues, made.issues.given_label)
    assert (told["auroc"], told["average_precision"], told["recall"]) == (None, None, None)
    assert told["precision"] == 0


def test_ids_like_formulas_are_noted_and_numbers_are_not():
    noted = {name for name in IDS if name[:1] in "=@-" and name and name != "-5"}
    [note] = formula_notes(IDS)
    assert note.startswith(f"{len(noted)} ids or classes look like formulas")
    assert formula_notes(["-5", "+1e3", "a=b", ""]) == []


def test_names_that_are_no_text_keep_their_bytes(tmp_path):
    odd = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    ids = (odd, *IDS[1:])
    write_audit(findings(ids=ids), tmp_path)
    assert b"caf\xe9.png" in (tmp_path / "labels_fixed.csv").read_bytes()
    assert read_audit(tmp_path).ids == list(ids)
    assert "caf\\udce9.png" in parquet.read_table(tmp_path / "issues.parquet").column("id").to_pylist()


def test_classes_that_are_no_text_keep_their_bytes(tmp_path):
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    made = replace(findings(), class_names=(odd, *NAMES[1:]))
    write_audit(made, tmp_path)
    given = [made.class_names[i] for i in made.issues.given_label.tolist()]
    assert odd in given
    assert read_audit(tmp_path).given == given
    table = parquet.read_table(tmp_path / "issues.parquet")
    for name in ("given_label", "predicted_label", "true_label"):
        assert "caf\\udce9" in table.column(name).to_pylist()


# --- reading back ----------------------------------------------------------------------------------------------------


def test_an_audit_reads_back(audited):
    made, audit = findings(), read_audit(audited)
    assert audit.ids == list(IDS)
    assert audit.given == [NAMES[i] for i in made.issues.given_label.tolist()]
    assert audit.fixed == [NAMES[i] for i in made.issues.suggested_label.tolist()]
    assert audit.summary["key"] == summary(made)["key"]


def test_a_changed_or_broken_audit_is_refused(audited):
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


def decisions(folder, *lines, header="id,decision,given_label,suggested_label", start=""):
    path = folder.parent / "decisions.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(start + header + "\r\n")
        csv.writer(file).writerows(lines)
    return path


def test_accepted_decisions_change_labels_and_no_others(audited):
    audit = read_audit(audited)
    other = [next(name for name in NAMES if name != label) for label in audit.given]
    lines = [
        (IDS[0], "accept", audit.given[0], other[0]),
        (IDS[4], "keep", audit.given[4], other[4]),
        (IDS[10], "accept", audit.given[10], other[10]),
        (IDS[11], "skip", audit.given[11], other[11]),
    ]
    for start in ("", "\ufeff"):
        found = decided(audit, decisions(audited, *lines, start=start))
        assert found == [other[i] if i in (0, 10) else label for i, label in enumerate(audit.given)]
    assert decided(audit, decisions(audited)) == audit.given


@pytest.mark.parametrize("index", [4, 5])
def test_a_bad_decision_is_named_with_its_line(audited, index):
    audit = read_audit(audited)
    good = (IDS[index], "keep", audit.given[index], NAMES[3])  # of several lines
    lines = 1 + 1 + sum(text.count("\n") + text.count("\r") - text.count("\r\n") for text in good)
    other = next(name for name in NAMES if name != audit.given[1])
    expected = "there should be a sample of "
    for bad, why in (
        (("nobody", "keep", NAMES[0], NAMES[0]), expected),
        ((IDS[1], "keep", other, NAMES[0]), expected),
        ((IDS[1], "Accept", audit.given[1], NAMES[0]), expected),
        ((IDS[1], "accept", audit.given[1], "unheard of"), expected),
        (good, "already has a decision in line 2"),
        ((IDS[1], "keep", audit.given[1]), "there should be 4 cells, found 3"),
    ):
        with pytest.raises(AuditError, match=rf"decisions\.csv, line {lines + 1}: ") as error:
            decided(audit, decisions(audited, good, bad))
        assert why in str(error.value)
        assert len(str(error.value)) < 500
    with pytest.raises(AuditError, match="has no column id; it has id;decision"):
        decided(audit, decisions(audited, header="id;decision;given_label;suggested_label"))
    with pytest.raises(AuditError, match=r"has no column id; it has none\."):
        decided(audit, decisions(audited, header=""))


def test_an_audit_that_breaks_off_leaves_no_summary_of_another(audited, monkeypatch):
    monkeypatch.setattr("ogc.audit.files.page", lambda found: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_audit(findings(seed=1), audited)
    assert not (audited / "audit.json").exists()


def test_fifty_thousand_samples_read_back(tmp_path):
    N = 50_000
    made = findings(ids=tuple(f"train/{i:05}" for i in range(N)))
    write_audit(made, tmp_path)
    assert len(read_audit(tmp_path).ids) == N
    assert torch.equal(made.issues.given_label, torch.tensor([NAMES.index(n) for n in read_audit(tmp_path).given]))
