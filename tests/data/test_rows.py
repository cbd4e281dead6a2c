"""Cells as found in files: delimiters, quotes, blank lines, types, and files that cannot be read."""

import csv
import math

import numpy as np
import pandas
import pytest

from ogc.data.cells import Numbers, Texts
from ogc.data.rows import TableRows, column_names


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def as_text(path):
    rows = TableRows.read(path, text=column_names(path))
    return {name: rows.texts(name).tolist() for name in rows.columns}


def numbers(path, name, **options):
    return TableRows.read(path, **options).columns[name].numbers().tolist()


@pytest.mark.parametrize(
    ("suffix", "delimiter"), [(".csv", ","), (".csv", ";"), (".csv", "\t"), (".csv", "|"), (".tsv", "\t")]
)
def test_delimiter_is_detected(tmp_path, suffix, delimiter):
    rows = [["x", "note", "y"], ["1", "a, b; c", "p"], ["2", 'say "no"', "q"], ["3", "two\nlines", "p"]]
    with (tmp_path / f"x{suffix}").open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    found = as_text(tmp_path / f"x{suffix}")
    assert found == {"x": ["1", "2", "3"], "note": ["a, b; c", 'say "no"', "two\nlines"], "y": ["p", "q", "p"]}


def test_byte_order_mark_carriage_returns_blank_lines_and_spaces(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_bytes(b'\xef\xbb\xbfx \ty\r\n"1"\t a, b \r\n\r\n  \r\n2\tc\r\n\t\r\n')
    rows = TableRows.read(path)
    assert rows.columns["x"].numbers()[:2].tolist() == [1, 2]
    assert rows.columns["y"].tolist() == ["a, b", "c", None]
    assert rows.numbers.tolist() == [1, 2, 3]
    assert as_text(write(tmp_path / "one.csv", "x", "1", "", "2")) == {"x": ["1", "2"]}


def test_columns_of_numbers_are_typed_and_others_keep_their_spelling(tmp_path):
    path = write(tmp_path / "x.csv", "n,i,t,b,m,big", "1.5,1,01,True,1,9", "nan,,7,true,x,99999999999999999999")
    rows = TableRows.read(path, text={"t"})
    assert isinstance(rows.columns["n"], Numbers)
    assert isinstance(rows.columns["i"], Numbers)
    assert rows.columns["n"].missing().tolist() == rows.columns["i"].missing().tolist() == [False, True]
    assert [rows.columns[name].tolist() for name in "tbm"] == [["01", "7"], ["True", "true"], ["1", "x"]]
    assert rows.columns["big"].numbers().tolist() == [9, 1e20]
    assert rows[np.array([1])].columns["t"].values == ["7"], "each selection has its own values only"


def test_words_for_missing_numbers_and_numbers_that_are_infinite(tmp_path):
    words = ["", "NA", "n/a", "NULL", "None", "?", "-", "inf", "-Infinity", "1e999", "nan"]
    path = write(tmp_path / "x.csv", "x,y", *(f"{word},a" for word in words), "2,b")
    column = TableRows.read(path).columns["x"]
    assert column.missing().tolist() == [True] * len(words) + [False]
    assert np.isnan(column.numbers()).tolist() == [True] * len(words) + [False]
    assert as_text(path)["x"][1:4] == ["NA", "n/a", "NULL"], "as labels, they are words"


def test_numbers_equal_pythons(tmp_path):
    texts = [repr(x) for x in (np.random.default_rng(0).normal(size=500) * 10.0 ** (np.arange(500) % 17 - 8)).tolist()]
    path = write(tmp_path / "x.csv", "x,y", *(f"{text},1" for text in texts))
    assert numbers(path, "x") == numbers(path, "x", text={"x"}) == [float(text) for text in texts]


def test_decimal_commas_only_in_files_with_semicolons(tmp_path):
    lines = ["1,5;1,5;1.5", "-2;beta;2", "n/a;2,0;0.5", ";;"]
    rows = TableRows.read(write(tmp_path / "x.csv", "x;version;point", *lines))
    assert rows.columns["x"].numbers()[:2].tolist() == [1.5, -2]
    assert rows.columns["version"].tolist() == ["1,5", "beta", "2,0", None]
    assert rows.columns["version"].numbers()[[0, 2]].tolist() == [1.5, 2]
    assert rows.columns["point"].numbers()[:3].tolist() == [1.5, 2, 0.5]
    quoted = write(tmp_path / "quoted.csv", "x,y", '"1,500",a', '"2,500",b')
    assert all(map(math.isnan, numbers(quoted, "x"))), "could be thousands"


def test_lines_that_end_with_a_carriage_return(tmp_path):
    """pandas 3.1 loses the empty cell at the start of a line after a blank one."""
    (tmp_path / "x.csv").write_bytes(b"x,y\r1,a\r\r,b\r")
    assert as_text(tmp_path / "x.csv") == {"x": ["1", None], "y": ["a", "b"]}
    assert numbers(tmp_path / "x.csv", "x")[0] == 1
    (tmp_path / "x.csv").write_bytes(b"x,y\r1,a\r\r,b,c\r")
    with pytest.raises(ValueError, match="Row 2"):
        TableRows.read(tmp_path / "x.csv")


def test_cells_of_a_million_characters(tmp_path):
    path = write(tmp_path / "x.csv", "x,y", f"1,{'y' * 10**6}", "2,", "3,z")
    assert list(map(len, filter(None, as_text(path)["y"]))) == [10**6, 1]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["x,y", "1,a", "2"], "Row 2 of .* 2 cells. Found 1"),
        (["x;y;z", "1;a;b", "2;c"], "Row 2 of .* 3 cells. Found 2"),
        (["x,y", "1,a", "2,b,c"], "Row 2 of .* 2 cells. Found 3"),
        (["x,y", "1,a,z", "2,b,z"], "Row 1 of .* 2 cells. Found 3"),
        (["x,y", '1,"a', "2,b"], "x.csv"),
        (["x,y", '" '], "x.csv"),
        (["x,x,y", "1,2,a"], "`x`"),
        ([",x,y", "0,1,a"], "Column 1"),
        (["x,y"], "no rows"),
        ([""], "no rows"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, lines, found):
    with pytest.raises(ValueError, match=found):
        TableRows.read(write(tmp_path / "x.csv", *lines))


def test_other_encodings_folders_and_missing_files(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"x,y\n1,\xff\n")
    with pytest.raises(ValueError, match="UTF-8"):
        TableRows.read(tmp_path / "x.csv")
    for path in (tmp_path, tmp_path / "nowhere.csv"):
        with pytest.raises(FileNotFoundError, match=path.name):
            TableRows.read(path)


def test_parquet_is_read_like_csv(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "n": [1.5, None, math.inf],
        "i": pyarrow.array([1, None, 3], pyarrow.int8()),
        "label": [1, 0, None],
        "flag": [True, False, None],
        "word": pyarrow.array(["a ", " ", None]).dictionary_encode(),
        "when": pyarrow.array([0, 86_400, None], pyarrow.timestamp("s")),
        "list": [[1.0], [2.0], None],
    }
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    rows = TableRows.read(path, text={"label"})
    assert column_names(path) == list(columns)
    assert [rows.columns[name].missing().tolist() for name in "ni"] == [[False, True, True], [False, True, False]]
    assert {name: cells.tolist() for name, cells in rows.columns.items() if isinstance(cells, Texts)} == {
        "label": ["1", "0", None],
        "flag": ["True", "False", None],
        "word": ["a", None, None],
        "when": ["1970-01-01 00:00:00", "1970-01-02 00:00:00", None],
        "list": ["[1.]", "[2.]", None],
    }
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="Parquet"):
        TableRows.read(path)


def test_columns_from_python(tmp_path):
    columns = {"n": [1, None, 3], "t": ["x", None, "y"], "key": [1, 2, 3], "mixed": [1, "a", None]}
    for source in (columns, pandas.DataFrame({name: pandas.Series(cells) for name, cells in columns.items()})):
        rows = TableRows.of(source, "the table", text={"key"})
        assert len(rows) == 3
        assert np.nan_to_num(rows.columns["n"].numbers(), nan=-1).tolist() == [1, -1, 3]
        assert rows.columns["t"].tolist() == ["x", None, "y"]
        assert rows.ids("key") == ["1", "2", "3"]
        assert rows.columns["mixed"].tolist() == ["1", "a", None]


@pytest.mark.parametrize(("name", "package"), [("x.csv", "pandas"), ("x.parquet", "pyarrow")])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}.*torch-ogc\["):
        TableRows.read(write(tmp_path / name, "x,y", "1,a"))
