import math
import sys
import types

import pytest
import torch

from ogc.data import table
from ogc.data.columns import Category, Number, fit


def write(path, rows):
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def iris(tmp_path):
    rows = [f"{i},{i * 0.5},{'red' if i % 3 else 'blue'},same,{'setosa' if i % 2 else 'virginica'}" for i in range(20)]
    return write(tmp_path / "iris.csv", ["key,width,colour,constant,kind", *rows])


def test_features_labels_names_and_ids(iris):
    train, others = table(iris, "kind", id="key")
    val = others["val"]
    assert train.class_names == ("setosa", "virginica")
    assert train.inputs.dtype == torch.float32
    assert train.inputs.shape == (16, 1 + 3)  # width; blue, red, other
    assert val.given.bincount().tolist() == [2, 2]
    assert train.inputs[:, 0].mean().abs() < 1e-6
    assert (train.inputs[:, 0].std(correction=0) - 1).abs() < 1e-6
    for part in (train, val):
        for features, label, key in zip(part.inputs, part.given, part.ids, strict=True):
            assert part.class_names[label] == ("setosa" if int(key) % 2 else "virginica")
            assert features[1:].tolist() == ([0, 1, 0] if int(key) % 3 else [1, 0, 0])
            width = train.inputs[0, 0] + (int(key) - int(train.ids[0])) * (train.inputs[1, 0] - train.inputs[0, 0]) / (
                int(train.ids[1]) - int(train.ids[0])
            )
            assert torch.allclose(features[0], width, atol=1e-5)


def test_without_an_id_rows_are_counted_from_one(iris):
    train, _ = table(iris, "kind", val=0)
    assert train.ids[:2] == ["1", "2"]


def test_only_training_rows_are_learnt_from(tmp_path):
    train = write(tmp_path / "train.csv", ["x,c,y", "0,a,n", "2,b,p", "0,a,n", "2,b,p"])
    test = write(tmp_path / "test.csv", ["extra,y,c,x", "1,p,never seen,1", "1,n,,"])
    found, others = table(train, "y", val=0, test=test)
    assert found.inputs.tolist() == [[-1, 1, 0, 0], [1, 0, 1, 0]] * 2
    assert others["test"].inputs.tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]
    assert others["test"].given.tolist() == [1, 0]
    assert list(others) == ["test"]


def test_val_may_be_a_file(iris):
    train, others = table(iris, "kind", val=iris, test=iris)
    assert len(train) == 20
    assert torch.equal(others["val"].inputs, train.inputs)
    assert list(others) == ["val", "test"]


def test_the_column_of_true_labels_is_no_feature(tmp_path):
    rows = ["x,given,true", "1,a,a", "2,a,b", "3,b,b", "4,b,b"]
    path = write(tmp_path / "x.csv", rows)
    train, _ = table(path, "given", true="true", val=0)
    assert train.inputs.shape == (4, 1)
    assert train.wrong.tolist() == [False, True, False, False]
    assert table(path, "given", val=0)[0].inputs.shape == (4, 1 + 3)  # not named, it is a column like others
    path = write(tmp_path / "y.csv", [*rows, "5,b,c"])
    with pytest.raises(ValueError, match=r"`c` in row 5 .*column `true`"):
        table(path, "given", true="true")


def test_an_unknown_label_is_named_with_its_row(iris, tmp_path):
    other = write(tmp_path / "val.csv", ["key,width,colour,constant,kind", "1,1,red,same,setosa", "2,1,red,same,tulip"])
    for sets in ({"val": other}, {"test": other}):
        with pytest.raises(ValueError, match=r"The label `tulip` in row 2 of `.*val.csv`"):
            table(iris, "kind", **sets)


def test_class_names_sort_as_numbers_if_they_are_and_words_like_none_are_classes(tmp_path):
    numbers = write(tmp_path / "n.csv", ["x,y", *(f"{i},{i}" for i in range(12))])
    assert table(numbers, "y", val=0)[0].class_names == tuple(str(i) for i in range(12))
    words = write(tmp_path / "w.csv", ["x,y", "1,none", "2,NA", "3,some"])
    assert table(words, "y", val=0)[0].class_names == ("NA", "none", "some")


def test_a_class_with_one_row_trains_and_is_named(tmp_path):
    path = write(tmp_path / "x.csv", ["x,y", *(f"{i},a" for i in range(5)), "9,rare"])
    with pytest.warns(UserWarning, match="`rare`"):
        train, _ = table(path, "y")
    assert train.given.bincount().tolist() == [4, 1]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (["x,y", "1,a", "2"], "Row 2 of .* should have 2 cells. Found 1"),
        (
            ["x,y", "1,a", "2,", "3,b"],
            "1 of 3 rows of .* have no label in the column `y`, the first is row 2.*--skip-bad",
        ),
        (["x,x,y", "1,2,a"], "`x` more than once"),
        (["x,z", "1,a"], "no column `y`, but `x`, `z`"),
        (["x,y", "1,a", "2,a"], "two classes or more. Found 1"),
        (["x,y", "1,a", "1,b"], "no column to learn from"),
        (["x,y"], "has no rows"),
        ([""], "has no rows"),
    ],
)
def test_broken_tables_are_one_sentence(tmp_path, rows, sentence):
    with pytest.raises(ValueError, match=sentence):
        table(write(tmp_path / "x.csv", rows), "y", val=0)


def test_other_encodings_missing_files_and_missing_columns(iris, tmp_path):
    (tmp_path / "x.csv").write_bytes(b"x,y\n1,\xff\n")
    with pytest.raises(ValueError, match="UTF-8"):
        table(tmp_path / "x.csv", "y")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        table(tmp_path / "nowhere.csv", "y")
    with pytest.raises(ValueError, match="no column `key`, `width`, `colour`"):
        table(iris, "kind", test=write(tmp_path / "t.csv", ["kind", "setosa"]))


def test_excel_marks_tabs_quotes_and_blank_lines(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_bytes(b'\xef\xbb\xbfx\ty\r\n"1"\ta, b\r\n\r\n2\tc\r\n')
    train, _ = table(path, "y", val=0)
    assert train.class_names == ("a, b", "c")
    assert train.inputs.tolist() == [[-1], [1]]


def test_parquet_without_pyarrow_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(ImportError, match="pyarrow"):
        table(tmp_path / "x.parquet", "y")


def test_the_columns_of_parquet_are_read_as_those_of_csv(tmp_path, monkeypatch):
    """With a stand-in for pyarrow, which is optional; the next test has the real one."""
    columns = {"x": [1.0, math.nan, None, 3.0], "flag": [True, False, True, True], "y": [0, 1, 0, 1]}
    reader = types.SimpleNamespace(read_table=lambda path: types.SimpleNamespace(to_pydict=lambda: columns))
    monkeypatch.setitem(sys.modules, "pyarrow", types.SimpleNamespace(ArrowException=OSError, parquet=reader))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", reader)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    train, _ = table(tmp_path / "x.parquet", "y", val=0)
    assert train.inputs.tolist() == [[-1, 0, 0, 1, 0], [0, 1, 1, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 1, 0]]
    assert train.class_names == ("0", "1")


def test_real_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({"x": [1.0, 3.0, None], "y": ["a", "b", "a"]}), path)
    assert table(path, "y", val=0)[0].inputs.tolist() == [[-1, 0], [1, 0], [0, 1]]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        table(path, "y")


def test_columns():
    assert fit(["1", "1", "1"]) == fit(["1", "1.0"]) == "constant"
    assert fit([None, "NA", "?"]) == "empty"
    assert fit(["1", "3"]) == Number(2, 1, flagged=False)
    assert fit(["1", "3", "nan", "inf"]) == Number(2, 1, flagged=True)
    assert fit(["1", "x", None]) == Category(("1", "x"))
    only_missing = fit(["5", None])
    assert only_missing.features(["5", None, "6"]).tolist() == [[0], [1], [0]]
    many = fit([str(i // 2) + "x" for i in range(300)] + ["top"] * 5)
    assert len(many.values) == 100
    assert "top" in many.values
    assert many.features(["top", "unseen", None]).sum(1).tolist() == [1, 1, 1]


def test_infinities_are_missing_and_the_column_stays_numeric(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{i},{'ab'[i % 2]}" for i in range(20)]
    path.write_text("x,y\n" + "\n".join([*rows, "-Infinity,a", "1e999,b", "nan,a"]) + "\n")
    train, _ = table(path, "y", val=0)
    features = train.inputs[torch.arange(len(train))]
    assert features.shape == (23, 2)  # the number, and where it is missing
    assert features[-3:, 1].tolist() == [1, 1, 1]


def test_a_class_named_nan_has_its_place(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "\n".join(f"{i},{name}" for i, name in enumerate(["10", "nan", "2", "1"] * 3)) + "\n")
    train, _ = table(path, "y", val=0)
    assert train.class_names == ("1", "10", "2", "nan")


def test_a_column_without_a_name_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",x,y\n0,1,a\n1,2,b\n")
    with pytest.raises(ValueError, match=r"Column 1 of .* has no name"):
        table(path, "y")


def test_cells_of_a_million_characters(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text(
        "x,note,label\n" + "".join(f"{i},{'y' * 10**6 if i == 3 else i},{'ab'[i % 2]}\n" for i in range(20))
    )
    data, _ = table(path, "label", val=0.0)
    assert len(data) == 20
