import csv
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ogc.audit.apply import apply
from ogc.audit.files import AuditError
from ogc.audit.run import audit_run
from ogc.audit.table_file import cell, read_table, records
from ogc.training import RECIPES, Job, Source, load, override, train

CLASSES = ["plain", "with, comma", 'a "quoted" one', "two\nlines", "tab\there", "ü", "'", "=1+1"]
CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["", '"', '""', ",", "a,b", "\r", "\n", "\r\n", ' " ', "\ufeff", "\u2028", "\x0b", "\x85", 'a"b', "x" * 200_000]
)


def quoted(text):
    return '"' + text.replace('"', '""') + '"'


@st.composite
def tables(draw):
    """Rows of cells, the label somewhere among them, written in one of the ways that people and programs write."""
    width, at = draw(st.integers(2, 4)), draw(st.integers(0, 1))
    rows = draw(st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=2, max_size=6))
    for number, row in enumerate(rows):
        row[at] = draw(st.sampled_from(CLASSES)) if number > 1 else CLASSES[number]
    delimiter, end = draw(st.sampled_from(",\t")), draw(st.sampled_from(["\n", "\r\n", "\r"]))
    lines = [delimiter.join(f"c{i}" for i in range(width))]
    for row in rows:
        loud = draw(st.booleans())
        lines.append(delimiter.join(quoted(text) if loud else cell(text, delimiter) for text in row))
        if draw(st.booleans()) and len(row) > 1:
            lines.append("")  # a blank line is no row
    text = draw(st.sampled_from(["", "\ufeff"])) + end.join(lines) + draw(st.sampled_from(["", end, end + end]))
    return delimiter, at, rows, text


@given(tables(), st.randoms())
def test_another_label_changes_its_cell_and_not_a_byte_besides(tmp_path_factory, made, random):
    delimiter, at, rows, text = made
    path = tmp_path_factory.mktemp("table") / ("t.tsv" if delimiter == "\t" else "t.csv")
    path.write_bytes(text.encode())
    table = read_table(path)
    assert table.labels(f"c{at}") == [row[at].strip() for row in rows]
    assert [list(table.row(i).values()) for i in range(len(table))] == rows
    assert table.with_labels(f"c{at}", {}) == text.encode()
    new = {i: random.choice(CLASSES) for i in range(len(rows)) if random.random() < 0.5}
    after = table.with_labels(f"c{at}", new).decode()
    found = [cells for cells, _ in records(after.removeprefix("\ufeff"), delimiter) if cells][1:]
    assert [row[at].strip() for row in found] == [new.get(i, row[at]).strip() for i, row in enumerate(rows)]
    before = [piece for cells, piece in records(text.removeprefix("\ufeff"), delimiter) if cells][1:]
    pieces = [piece for cells, piece in records(after.removeprefix("\ufeff"), delimiter) if cells][1:]
    for i, row in enumerate(rows):
        assert [c for k, c in enumerate(found[i]) if k != at] == [c for k, c in enumerate(row) if k != at]
        if i not in new or new[i] == row[at]:
            assert pieces[i] == before[i]
    if new:  # and back again
        path.write_bytes(after.encode())
        back = read_table(path).with_labels(f"c{at}", {i: rows[i][at] for i in new}).decode()
        assert [c for c, _ in records(back, delimiter)] == [c for c, _ in records(text, delimiter)]


def test_quotes_and_blanks_stay(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'a, label ,b\r\n"1", cat ,""\r\n\r\n2,"cat","x,y"\r\n3,dog,"\xc3\xa9"')
    table = read_table(path)
    assert table.columns == ["a", "label", "b"]
    assert table.labels("label") == ["cat", "cat", "dog"]
    changed = table.with_labels("label", {0: "dog", 1: "dog", 2: "cat"})
    assert changed == b'a, label ,b\r\n"1", dog ,""\r\n\r\n2,"dog","x,y"\r\n3,cat,"\xc3\xa9"'


def test_a_label_that_needs_quotes_gets_them(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('x,label,y\n1, a ,2\n3,"b"c,4\n5,"q, ""r""",6\n')
    changed = read_table(path).with_labels("label", {0: 'q, "r"', 1: "a", 2: "bc"})
    assert changed.decode() == 'x,label,y\n1,"q, ""r""",2\n3,a,4\n5,"bc",6\n'


def test_a_label_that_other_cells_hold_too_is_changed_in_its_own_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('x,label,y\n"a,""a",a,a\nb,b,b\n')
    assert read_table(path).with_labels("label", {0: "b", 1: "a"}) == b'x,label,y\n"a,""a",b,a\nb,a,b\n'


def test_cells_of_any_length_are_read_and_the_limit_of_others_stays(tmp_path):
    path = tmp_path / "t.csv"
    before = csv.field_size_limit()
    path.write_text(f"text,label\n{'x' * 1_000_000},a\n")
    table = read_table(path)
    assert len(table.row(0)["text"]) == 1_000_000
    assert table.with_labels("label", {0: "b"}).endswith(b"x,b\n")
    assert csv.field_size_limit() == before


@pytest.mark.parametrize("text", ["plain", "", " a", "a ", "a,b", 'a"b', "a\nb", "a\rb", "=1", "\t", "ü\u2028"])
def test_a_cell_reads_back(text):
    assert next(csv.reader(io.StringIO(f"{cell(text)},x\n", newline=""))) == [text, "x"]


def test_no_utf8_is_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,label\n\xff,x\n")
    with pytest.raises(ValueError, match=r"t\.csv` cannot be read as CSV in UTF-8"):
        read_table(path)
    with pytest.raises(FileNotFoundError, match="is missing"):
        read_table(tmp_path / "none.csv")


@pytest.mark.parametrize(
    "labels",
    [
        pa.array(["a", "b ", "a", "b "]),
        pa.array([3, 10, 3, 10], pa.int16()),
        pa.array([True, False, True, False]),
        pa.array([0.5, 1.5, 0.5, 1.5], pa.float32()),
        pa.array(["a", "b", "a", "b"]).dictionary_encode(),
    ],
    ids=["text", "int16", "bool", "float32", "dictionary"],
)
def test_parquet_keeps_types_metadata_and_the_other_columns(tmp_path, labels):
    others = {"n": pa.array([1, None, 3, 4], pa.int8()), "t": pa.array(["x", None, "<b>", "y"])}
    whole = pa.table({"n": others["n"], "label": labels, "t": others["t"]}).replace_schema_metadata({"who": "me"})
    parquet.write_table(whole, tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    names = table.labels("label")
    assert names == [str(value).strip() for value in labels.to_pylist()]
    assert table.row(1) == {"n": "", "label": str(labels[1].as_py()), "t": ""}
    (tmp_path / "out.parquet").write_bytes(table.with_labels("label", {0: names[1], 3: names[0]}))
    found = parquet.read_table(tmp_path / "out.parquet")
    assert found.schema.equals(whole.schema, check_metadata=True)
    values = labels.to_pylist()
    assert found.column("label").to_pylist() == [values[1], values[1], values[2], values[0]]
    assert found.select(["n", "t"]).equals(whole.select(["n", "t"]))


def test_semicolons_stay_and_a_label_with_one_is_quoted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x;note;y\n1,5;a, b;p\n2,5;c;q;\n".replace("q;", "q"))
    table = read_table(path)
    assert table.row(0) == {"x": "1,5", "note": "a, b", "y": "p"}
    assert table.with_labels("y", {0: "p;q"}) == b'x;note;y\n1,5;a, b;"p;q"\n2,5;c;q\n'


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_rows_without_a_label_are_skipped_and_kept_in_the_copy(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    if suffix == ".csv":
        path.write_text("x,y\n1,\n2,0\n3, \n4,1\n")
    else:
        parquet.write_table(pa.table({"x": [1, 2, 3, 4], "y": [None, 0, None, 1]}), path)
    table = read_table(path, "y")
    assert len(table) == 2
    assert table.numbers == [2, 4]
    assert table.labels("y") == ["0", "1"]
    assert table.row(1) == {"x": "4", "y": "1"}
    path.write_bytes(table.with_labels("y", {0: "1"}))
    again = read_table(path)
    assert [again.row(i)["x"] for i in range(4)] == ["1", "2", "3", "4"]
    assert [again.row(i)["y"].strip() for i in range(4)] == ["", "1", "", "1"]


def test_a_row_that_cannot_be_changed_is_named_by_its_number_in_the_file(tmp_path):
    """In the last row a quote is not closed, so a new label would end the cell too early."""
    (tmp_path / "t.csv").write_text('x;y\n1;\n2;q\n3;"p;z')
    with pytest.raises(ValueError, match=r"^Row 3 of .* cannot be changed without changing other cells"):
        read_table(tmp_path / "t.csv", "y").with_labels("y", {1: "q"})


def test_an_audit_of_a_table_with_semicolons_and_rows_without_a_label(tmp_path):
    """Suggestions reach the rows that they are about, and rows without a label stay as they are."""
    path, true = tmp_path / "t.csv", ["ab"[i % 2] for i in range(200)]
    given = [
        {"a": "b", "b": "a"}[label] if i in (40, 41) else "" if i % 7 == 3 else label for i, label in enumerate(true)
    ]
    ids = [f"s{49 if i == 50 else i}" for i in range(200)]
    rows = zip(ids, true, given, strict=True)
    path.write_text("id;x;y\n" + "".join(f"{n};{'1,5' if t == 'a' else '-1,5'};{g}\n" for n, t, g in rows))
    source = Source.parse(str(path), label="y", id="id", skip_bad=True)
    recipe = override(RECIPES["table"], {"epochs": 8, "batch_size": 16, "hidden": "16"})
    with pytest.warns(UserWarning, match="Skipped"):
        train([Job(recipe, source, *load(source, recipe), tmp_path / "run")], device="cpu")
    with pytest.warns(UserWarning, match="Skipped"), pytest.warns(UserWarning, match="1 ids occur more than once"):
        findings = audit_run(tmp_path / "run")
    ids[49:51] = ["s49 (row 50)", "s49 (row 51)"]  # rows without a label count
    assert findings.ids == [name for name, label in zip(ids, given, strict=True) if label]
    apply(tmp_path / "run", tmp_path / "fixed.csv")
    fixed = read_table(tmp_path / "fixed.csv").labels("y")
    assert fixed == [old and new for old, new in zip(given, true, strict=True)]
    path.write_text(path.read_text().replace("s60;1,5;a", "s60;1,5;b"))
    with pytest.raises(AuditError, match="row 61 has the label 'b' and had 'a'"):
        apply(tmp_path / "run", tmp_path / "again.csv")
