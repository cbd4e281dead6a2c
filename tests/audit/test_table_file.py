import csv
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ogc._csv import csv_cell
from ogc.audit.apply import apply
from ogc.audit.files import AuditError
from ogc.audit.run import audit_run
from ogc.audit.table_file import records, rows_of, with_labels
from ogc.data.rows import TableRows, column_names
from ogc.training import RECIPES, Job, Source, load, override, train

CLASSES = ["plain", "with, comma", 'a "quoted" one', "two\nlines", "tab\there", "ü", "'", "=1+1"]
CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["", '"', '""', ",", "a,b", "\r", "\n", "\r\n", ' " ', "\ufeff", "\u2028", "\x0b", "\x85", 'a"b', "x" * 200_000]
)


def read_as_found(path):
    rows = TableRows.read(path, text=column_names(path))
    return {name: rows.texts(name).tolist() for name in rows.columns}


def quoted(text):
    return '"' + text.replace('"', '""') + '"'


@st.composite
def tables(draw):
    """Draw a table in one of many CSV dialects: delimiter, label column, rows and text."""
    width, at = draw(st.integers(2, 4)), draw(st.integers(0, 1))
    rows = draw(st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=2, max_size=6))
    for number, row in enumerate(rows):
        row[at] = draw(st.sampled_from(CLASSES)) if number > 1 else CLASSES[number]
    delimiter, end = draw(st.sampled_from(",\t")), draw(st.sampled_from(["\n", "\r\n", "\r"]))
    lines = [delimiter.join(f"c{i}" for i in range(width))]
    for row in rows:
        quote_all = draw(st.booleans())
        lines.append(delimiter.join(quoted(text) if quote_all else csv_cell(text, delimiter) for text in row))
        if draw(st.booleans()) and len(row) > 1:
            lines.append("")  # blank lines are not rows
    text = draw(st.sampled_from(["", "\ufeff"])) + end.join(lines) + draw(st.sampled_from(["", end, end + end]))
    return delimiter, at, rows, text


@given(tables(), st.randoms())
def test_changing_a_label_changes_only_its_cell(tmp_path_factory, table, random):
    delimiter, at, rows, text = table
    path = tmp_path_factory.mktemp("table") / ("t.tsv" if delimiter == "\t" else "t.csv")
    path.write_bytes(text.encode())
    assert with_labels(path, f"c{at}", {}) == text.encode()
    new = {number: random.choice(CLASSES) for number in range(1, len(rows) + 1) if random.random() < 0.5}
    after = with_labels(path, f"c{at}", new).decode()
    before, found = ([r for r in records(t.removeprefix("\ufeff"), delimiter) if r[1]] for t in (text, after))
    assert len(before) == len(found) == len(rows) + 1
    for number, (row, (_, _, old_text), (_, cells, new_text)) in enumerate(
        zip(rows, before[1:], found[1:], strict=True), 1
    ):
        assert cells == [*row[:at], new.get(number, row[at]), *row[at + 1 :]]
        assert number in new or new_text == old_text


def test_everything_but_the_labels_is_unchanged(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'a, label ,b\r\n"1", cat ,""\r\n\r\n2,"cat","x,y"\r\n3,dog,"\xc3\xa9"')
    changed = with_labels(path, "label", {1: "dog", 2: "dog", 3: "cat"})
    assert changed == b'a, label ,b\r\n"1",dog,""\r\n\r\n2,dog,"x,y"\r\n3,cat,"\xc3\xa9"'


def test_labels_are_quoted_if_needed(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('x,label,y\n1, a ,2\n3,"b"c,4\n5,"q, ""r""",6\n')
    changed = with_labels(path, "label", {1: 'q, "r"', 2: "a", 3: "bc"})
    assert changed.decode() == 'x,label,y\n1,"q, ""r""",2\n3,a,4\n5,bc,6\n'


def test_only_the_label_column_changes_if_other_cells_are_equal(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('x,label,y\n"a,""a",a,a\nb,b,b\n')
    assert with_labels(path, "label", {1: "b", 2: "a"}) == b'x,label,y\n"a,""a",b,a\nb,a,b\n'


def test_reads_long_cells_without_changing_the_csv_field_limit(tmp_path):
    path = tmp_path / "t.csv"
    before = csv.field_size_limit()
    path.write_text(f"text,label\n{'x' * 1_000_000},a\n")
    assert with_labels(path, "label", {1: "b"}).endswith(b"x,b\n")
    assert csv.field_size_limit() == before


@pytest.mark.parametrize("text", ["plain", "", " a", "a ", "a,b", 'a"b', "a\nb", "a\rb", "=1", "\t", "ü\u2028"])
def test_cell_round_trip(text):
    assert next(csv.reader(io.StringIO(f"{csv_cell(text)},x\n", newline=""))) == [text, "x"]


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
    original = pa.table({"n": others["n"], "label": labels, "t": others["t"]}).replace_schema_metadata({"who": "me"})
    parquet.write_table(original, tmp_path / "t.parquet")
    names = read_as_found(tmp_path / "t.parquet")["label"]
    assert names == [str(value).strip() for value in labels.to_pylist()]
    (tmp_path / "out.parquet").write_bytes(with_labels(tmp_path / "t.parquet", "label", {1: names[1], 4: names[0]}))
    found = parquet.read_table(tmp_path / "out.parquet")
    assert found.schema.equals(original.schema, check_metadata=True)
    values = labels.to_pylist()
    assert found.column("label").to_pylist() == [values[1], values[1], values[2], values[0]]
    assert found.select(["n", "t"]).equals(original.select(["n", "t"]))


@pytest.mark.parametrize("ordered", [False, True])
def test_parquet_keeps_all_categories_in_their_order(tmp_path, ordered):
    categories, indices = pa.array(["fraud", "leaves", "stays"]), pa.array([2, 1, None, 2, 1], pa.int8())
    labels = pa.DictionaryArray.from_arrays(indices, categories, ordered=ordered)
    parquet.write_table(pa.table({"label": labels}), tmp_path / "t.parquet", row_group_size=2)
    (tmp_path / "out.parquet").write_bytes(with_labels(tmp_path / "t.parquet", "label", {1: "leaves"}))
    found = parquet.read_table(tmp_path / "out.parquet").column("label")
    assert found.type == labels.type
    assert found.to_pylist() == ["leaves", "leaves", None, "stays", "leaves"]
    assert found.combine_chunks().dictionary.equals(categories)


def test_parquet_class_named_none_is_not_a_missing_label(tmp_path):
    parquet.write_table(pa.table({"label": [None, "a", "None"]}), tmp_path / "t.parquet")
    (tmp_path / "out.parquet").write_bytes(with_labels(tmp_path / "t.parquet", "label", {2: "None"}))
    assert parquet.read_table(tmp_path / "out.parquet")["label"].to_pylist() == [None, "None", "None"]


def test_semicolons_are_kept_and_labels_with_one_are_quoted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x;note;y\n1,5;a, b;p\n2,5;c;q;\n".replace("q;", "q"))
    assert rows_of(Source.parse(str(path), label="y")).columns == {
        "x": ["1,5", "2,5"],
        "note": ["a, b", "c"],
        "y": ["p", "q"],
    }
    assert with_labels(path, "y", {1: "p;q"}) == b'x;note;y\n1,5;a, b;"p;q"\n2,5;c;q\n'


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_rows_without_a_label_are_skipped_and_kept_in_the_copy(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    if suffix == ".csv":
        path.write_text("x,y\n1,\n2,0\n3, \n4,1\n")
    else:
        parquet.write_table(pa.table({"x": [1, 2, 3, 4], "y": [None, 0, None, 1]}), path)
    assert rows_of(Source.parse(str(path), label="y", skip_bad=True)) == ([2, 4], {"x": ["2", "4"], "y": ["0", "1"]})
    path.write_bytes(with_labels(path, "y", {2: "1"}))
    assert read_as_found(path) == {"x": ["1", "2", "3", "4"], "y": [None, "1", None, "1"]}


def test_unclosed_quote_ends_with_the_file(tmp_path):
    (tmp_path / "t.csv").write_text('x;y\n1;q\n3;"p;z\n')
    assert with_labels(tmp_path / "t.csv", "y", {2: "q"}) == b"x;y\n1;q\n3;q"


def test_audit_of_table_with_semicolons_and_unlabelled_rows(tmp_path):
    """Suggestions apply to the right rows, and rows without a label are unchanged."""
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
    with pytest.warns(UserWarning, match="1 id occurs more than once") as found:
        findings = audit_run(tmp_path / "run")
    assert len(found) == 1, "the rows without a label were reported in training"
    ids[49:51] = ["s49 (row 50)", "s49 (row 51)"]  # rows without a label are counted
    assert findings.ids == [name for name, label in zip(ids, given, strict=True) if label]
    apply(tmp_path / "run", tmp_path / "fixed.csv")
    fixed = read_as_found(tmp_path / "fixed.csv")["y"]
    assert [label or "" for label in fixed] == [old and new for old, new in zip(given, true, strict=True)]
    path.write_text(path.read_text().replace("s60;1,5;a", "s60;1,5;b"))
    with pytest.raises(AuditError, match=r"t\.csv` has changed since it was audited"):
        apply(tmp_path / "run", tmp_path / "again.csv")
