import csv
import json
import math
import sys
import types
from dataclasses import replace
from random import Random

import pytest
import torch

from ogc.data import table
from ogc.data.columns import TEXT_SCALE, Category, Encoder, Number, fit
from ogc.data.table import read
from tickets import write_tickets


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


def test_rows_without_id_are_numbered_from_one(iris):
    train, _ = table(iris, "kind", val=0)
    assert train.ids[:2] == ["1", "2"]


def test_encoder_is_fitted_on_training_rows_only(tmp_path):
    train = write(tmp_path / "train.csv", ["x,c,y", "0,a,n", "2,b,p", "0,a,n", "2,b,p"])
    test = write(tmp_path / "test.csv", ["extra,y,c,x", "1,p,never seen,1", "1,n,,"])
    found, others = table(train, "y", val=0, test=test)
    assert found.inputs.tolist() == [[-1, 1, 0, 0], [1, 0, 1, 0]] * 2
    assert others["test"].inputs.tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]
    assert others["test"].given.tolist() == [1, 0]
    assert list(others) == ["test"]


def test_warns_if_most_rows_of_a_file_are_training_rows(tmp_path):
    train = write(tmp_path / "train.csv", ["row,x,y", *(f"{i},{i}.50,{'pq'[i % 2]}" for i in range(30))])
    others = [f"{i},{i}.75,p" for i in range(10)]
    few, many = (  # in another format
        write(tmp_path / f"{count}.csv", ["row,x,y", *others, *(f"{i + 500},{i}.5,p" for i in range(count))])
        for count in (10, 11)
    )
    table(train, "y", id="row", test=few)
    message = r"11 of 21 rows of `.*11\.csv` have the same features as a row of `.*train\.csv`\. If they are the same"
    with pytest.warns(UserWarning, match=message):
        table(train, "y", id="row", test=many)


def test_independent_rows_that_are_often_the_same_cause_no_warning(tmp_path):
    draw = Random(0).choice
    files = [
        write(tmp_path / name, ["x,z,y", *(f"{draw('abcd')},{draw('efg')},p" for _ in range(40)), end])
        for name, end in (("train.csv", "a,e,q"), ("test.csv", "b,f,q"))
    ]
    train, sets = table(files[0], "y", val=0.0, test=files[1])
    seen = {row.tobytes() for row in train.inputs.numpy()}
    assert all(row.tobytes() in seen for row in sets["test"].inputs.numpy())


def test_a_column_whose_values_hardly_repeat_is_no_label(tmp_path):
    path = write(tmp_path / "x.csv", ["x,y", *(f"{i * i},{i % 21}" for i in range(41))])
    with pytest.raises(ValueError, match=r"`y` of `.*x\.csv` should have .* Found 21 different values in 41 rows\."):
        table(path, "y")
    assert table(write(path, ["x,y", *(f"{i * i},{i % 21}" for i in range(42))]), "y", val=0)[0].num_classes == 21


@pytest.mark.parametrize("name", ["id", "true"])
def test_label_column_has_no_other_role(iris, name):
    with pytest.raises(ValueError, match=f"Parameter `{name}` should be a different column from the labels, `kind`"):
        table(iris, "kind", **{name: "kind"})


def test_folder_is_no_table(iris):
    with pytest.raises(FileNotFoundError, match=r"The table `.*` is a folder\."):
        table(iris, "kind", test=iris.parent)


def test_warns_if_the_id_does_not_identify_rows(tmp_path):
    def load(ids):
        rows = (f"{i * i},{'pq'[i % 2]},r{i % ids}" for i in range(30))
        return table(write(tmp_path / "x.csv", ["x,y,region", *rows]), "y", id="region")

    load(15)
    for ids, found in ((14, "14 different values"), (1, "1 different value")):
        message = rf"The column `region` has only {found} in 30 rows, so it does not identify rows\."
        with pytest.warns(UserWarning, match=message):
            load(ids)


def test_warns_if_classes_differ_only_in_case(tmp_path):
    def load(*names):
        return table(write(tmp_path / "x.csv", ["x,y", *(f"{i * i},{names[i % len(names)]}" for i in range(30))]), "y")

    load("yes", "no")
    with pytest.warns(UserWarning, match="differ only in case") as found:
        train, _ = load("True", "False", "true", "TRUE", "no", "No")
    assert train.class_names == ("False", "No", "TRUE", "True", "no", "true")  # not merged
    assert [str(each.message) for each in found] == [
        "The classes `No` and `no`, `TRUE` and `True` and `true` in the column `y` differ only in case. "
        "If they are the same class, give all their rows the same spelling."
    ]
    with pytest.warns(UserWarning, match=r"`C` and `c` \(and 1 more\) in the column"):
        load(*"aAbBcCdD")


def test_val_may_be_a_file(iris):
    with pytest.warns(UserWarning, match=r"iris\.csv` is also the training file, so the accuracy on it is too high\."):
        train, others = table(iris, "kind", val=iris, test=iris)
    assert len(train) == 20
    assert torch.equal(others["val"].inputs, train.inputs)
    assert list(others) == ["val", "test"]


def test_column_of_true_labels_is_not_a_feature(tmp_path):
    rows = ["x,given,true", "1,a,a", "2,a,b", "3,b,b", "4,b,b"]
    path = write(tmp_path / "x.csv", rows)
    train, _ = table(path, "given", true="true", val=0)
    assert train.inputs.shape == (4, 1)
    assert train.wrong.tolist() == [False, True, False, False]
    assert table(path, "given", val=0)[0].inputs.shape == (4, 1 + 3)  # a feature like any other if it is not named
    path = write(tmp_path / "y.csv", [*rows, "5,b,c"])
    with pytest.raises(ValueError, match=r"`c` in row 5 .*column `true`"):
        table(path, "given", true="true")


def test_unknown_label_error_gives_its_row(iris, tmp_path):
    other = write(tmp_path / "val.csv", ["key,width,colour,constant,kind", "1,1,red,same,setosa", "2,1,red,same,tulip"])
    for sets in ({"val": other}, {"test": other}):
        with pytest.raises(ValueError, match=r"The label `tulip` in row 2 of `.*val.csv`"):
            table(iris, "kind", **sets)


def test_numeric_class_names_sort_as_numbers_and_none_is_a_class(tmp_path):
    numbers = write(tmp_path / "n.csv", ["x,y", *(f"{i},{i}" for i in range(12))])
    assert table(numbers, "y", val=0)[0].class_names == tuple(str(i) for i in range(12))
    words = write(tmp_path / "w.csv", ["x,y", "1,none", "2,NA", "3,some"])
    with pytest.warns(UserWarning, match=r"In the column `y`, `NA`, `none` count as classes\. If .* --skip-bad"):
        assert table(words, "y", val=0)[0].class_names == ("NA", "none", "some")


def test_class_with_one_row_stays_in_training_with_warning(tmp_path):
    path = write(tmp_path / "x.csv", ["x,y", *(f"{i},a" for i in range(5)), "9,rare"])
    with pytest.warns(UserWarning, match="`rare`"):
        train, _ = table(path, "y")
    assert train.given.bincount().tolist() == [4, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["x,y", "1,a", "2"], "Row 2 of .* should have 2 cells. Found 1"),
        (
            ["x,y", "1,a", "2,", "3,b"],
            "1 of 3 rows of .* has no label in the column `y`; the first is row 2. Fill it in, or skip it with",
        ),
        (["x,x,y", "1,2,a"], "`x` more than once"),
        (["x,z", "1,a"], "no column `y`. Found `x`, `z`"),
        (["x,y", "1,a", "2,a"], "two classes or more. Found 1"),
        (["x,y", "1,a", "1,b"], "no column to learn from"),
        (["x,y"], "has no rows"),
        ([""], "has no rows"),
    ],
)
def test_invalid_tables_raise_a_clear_error(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        table(write(tmp_path / "x.csv", rows), "y", val=0)


def test_other_encodings_missing_files_and_missing_columns(iris, tmp_path):
    (tmp_path / "x.csv").write_bytes(b"x,y\n1,\xff\n")
    with pytest.raises(ValueError, match="UTF-8"):
        table(tmp_path / "x.csv", "y")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        table(tmp_path / "nowhere.csv", "y")
    with pytest.raises(ValueError, match="no columns `key`, `width`, `colour`, which"):
        table(iris, "kind", test=write(tmp_path / "t.csv", ["kind", "setosa"]))
    with pytest.raises(ValueError, match="no column `colour`, which"):
        table(iris, "kind", test=write(tmp_path / "t.csv", ["kind,key,width", "setosa,1,2"]))


def test_byte_order_mark_tabs_quotes_and_blank_lines(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_bytes(b'\xef\xbb\xbfx\ty\r\n"1"\ta, b\r\n\r\n2\tc\r\n')
    train, _ = table(path, "y", val=0)
    assert train.class_names == ("a, b", "c")
    assert train.inputs.tolist() == [[-1], [1]]


def test_parquet_error_names_missing_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(ImportError, match="pyarrow"):
        table(tmp_path / "x.parquet", "y")


def test_parquet_columns_are_read_like_csv_columns(tmp_path, monkeypatch):
    """Use a fake pyarrow, since it is optional. The next test uses the real one."""
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


def test_fit_of_number_and_category_columns():
    assert fit(["1", "1", "1"]) == fit(["1", "1.0"]) == "constant"
    assert fit([None, "NA", "?", "-"]) == "empty"
    assert fit(["1", "3"]) == Number(2, 1, flagged=False)
    assert fit(["1", "3", "nan", "inf"]) == Number(2, 1, flagged=True)
    assert fit(["1", "x", None]) == Category(("1", "x"))
    few = [str(i % 30) for i in range(57)]
    assert fit([*few, "unknown", "?", "old", "old"]) == replace(fit(few), flagged=True)
    assert fit([*few, "unknown", "old", "old", "old"]).kind == "category"  # more than 5 % are not numbers
    assert fit(["0"] * 98 + ["summer", "winter"]) == Category(("0", "summer", "winter"))
    assert fit([*map(str, range(57)), "unknown"], "id") == "unique"
    only_missing = fit(["5", None])
    assert only_missing.features(["5", None, "6"]).tolist() == [[0], [1], [0]]
    many = fit([str(i // 2) + "x" for i in range(300)] + ["top"] * 5)
    assert len(many.values) == 100
    assert "top" in many.values
    assert many.features(["top", "unseen", None]).sum(1).tolist() == [1, 1, 1]


def test_infinities_are_missing_values_of_a_numeric_column(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{i},{'ab'[i % 2]}" for i in range(20)]
    path.write_text("x,y\n" + "\n".join([*rows, "-Infinity,a", "1e999,b", "nan,a"]) + "\n")
    train, _ = table(path, "y", val=0)
    features = train.inputs[torch.arange(len(train))]
    assert features.shape == (23, 2)  # the number, and a flag for missing values
    assert features[-3:, 1].tolist() == [1, 1, 1]


def test_other_values_among_numbers_are_missing_and_reported(tmp_path):
    def rows(*others):
        return ["x,y,skipped", *(f"{i % 40},{'ab'[i % 2]}," for i in range(78)), *others]

    path = write(tmp_path / "train.csv", [*rows("1,,", "unknown,a,", "?,b,", "n.a.,a,")])
    test = write(tmp_path / "test.csv", [*rows("x,b,")])
    with pytest.warns() as found:
        train, others = table(path, "y", test=test, skip_bad=True, val=0)
    assert [str(each.message).replace(f"{tmp_path}/", "") for each in found] == [
        "Skipped 1 of 82 rows of `train.csv` without a label.",
        "Column `x` of `train.csv`: 2 of 81 values are not numbers, for example `unknown` in row 80. They count as "
        "missing.",
        "Column `x` of `test.csv`: 1 of 79 values is not a number: `x` in row 79. It counts as missing.",
    ]
    assert train.inputs[-3:].tolist() == [[0, 1]] * 3
    assert others["test"].inputs[-1].tolist() == [0, 1]
    write(test, ["x,y", "1;2,a", "2;3,b"])
    with pytest.warns(), pytest.raises(ValueError, match=r"`x` of `.*test\.csv` should have numbers, as in training"):
        table(path, "y", test=test, skip_bad=True)


def test_class_may_be_named_nan(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "\n".join(f"{i},{name}" for i, name in enumerate(["10", "nan", "2", "1"] * 3)) + "\n")
    with pytest.warns(UserWarning, match=r"`nan` counts as a class\."):
        train, _ = table(path, "y", val=0)
    assert train.class_names == ("1", "10", "2", "nan")


def test_unnamed_column_is_rejected(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",x,y\n0,1,a\n1,2,b\n")
    with pytest.raises(ValueError, match=r"Column 1 of .* has no name"):
        table(path, "y")


def test_cells_of_a_million_characters(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text(
        "x,note,label\n" + "".join(f"{i},{'y' * 10**6 if i == 3 else 'no'},{'ab'[i % 2]}\n" for i in range(20))
    )
    data, _ = table(path, "label", val=0.0)
    assert len(data) == 20


# --- column types ----------------------------------------------------------------------------------------------------


def sentences(n=40):
    return [f"the {'good' if i % 2 else 'bad'} thing number{i} of all" for i in range(n)]


@pytest.mark.parametrize(
    ("name", "cells", "use"),
    [
        ("age", [str(i % 7) for i in range(40)], "number"),
        ("size", [str(i) for i in range(40)], "number"),  # unique, but the name does not suggest an id
        ("city", ["Bern", "Rome", None, "Oslo"] * 10, "3 categories"),
        ("when", [f"2026-01-{day:02}" for day in range(1, 29)], "date (year, month, weekday)"),
        ("when", ["2026-01-01T05:00:00Z", "2025-02-03 06:07"] * 10, "date (year, month, weekday)"),
        ("when", ["2026/01/31", "2025/12/01"] * 10, "date (year, month, weekday)"),
        ("when", ["31.1.2026", "01.12.2025 14:05"] * 10, "date, day first (year, month, weekday)"),
        ("when", ["1/2/2026", "3/4/2025"] * 10, "date, day first (year, month, weekday)"),
        ("when", ["1/2/2026 1:05 PM", "3/14/2025 11:00 AM"] * 10, "date, month first (year, month, weekday)"),
        ("when", ["2026-01-01", "2026-02-30"] * 10, "2 categories"),  # not a valid date
        ("comment", sentences(), "text, 6 words"),
        ("answer", ["I do not know", "yes, of course it is"] * 20, "2 categories"),  # several words, but few values
    ],
)
def test_column_type_is_inferred(name, cells, use):
    assert fit(cells, name).use == use


@pytest.mark.parametrize(
    ("name", "cells", "reason"),
    [
        ("key", [f"row{i}" for i in range(40)], "unique"),
        ("name", [f"Person Number{i}" for i in range(40)] + [None], "unique"),
        ("key", [f"row{max(i, 1)}" for i in range(40)], "nearly unique"),
        ("id", [str(i) for i in range(40)], "unique"),
        ("customer_id", [str(7 * i % 41) for i in range(40)], "unique"),
        ("orderId", [str(i) for i in range(40)], "unique"),
        ("comment", [f"one{i} two{i} three{i}" for i in range(40)], "no repeated words"),
        ("unit", ["kg"] * 40, "constant"),
        ("note", [None, "n/a"] * 20, "empty"),
    ],
)
def test_reasons_for_dropped_columns(name, cells, reason):
    assert fit(cells, name) == reason


def test_ids_that_repeat_or_are_fractions_are_numbers():
    assert fit([str(i % 5) for i in range(40)], "store_id").use == "number"
    assert fit([str(i / 8) for i in range(40)], "id").use == "number"
    assert fit([f"row{i}" for i in range(10)], "key").use == "10 categories"  # too few rows to tell


def test_dates_are_encoded_as_year_month_and_weekday():
    column = fit(["2024-01-01", "2026-12-06", None, "2024-01-01"])
    first, second, missing, unreadable = column.features(["2024-01-01", "2026-12-06", None, "soon"]).tolist()
    assert first[:2] == pytest.approx([-(0.5**0.5), 0])  # (year - mean) / std; not missing
    assert [i for i, value in enumerate(first[2:]) if value] == [0, 12]  # January, Monday
    assert [i for i, value in enumerate(second[2:]) if value] == [11, 12 + 6]  # December, Sunday
    assert missing == unreadable == [0, 1] + [0] * 19
    assert column.unexpected(["2024-01-01", None, "soon"]) == [2]
    assert fit(["2026-01-01", "2026-01-02"]).features(["2026-01-01"]).shape == (1, 19)  # a constant year is dropped


def test_text_features_equal_scikit_learn_tf_idf():
    from sklearn.feature_extraction.text import TfidfVectorizer

    column, rows = fit(sentences()), ["a good, GOOD thing", "nothing known", None]
    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=500).fit(sentences())
    expected = torch.from_numpy(vectorizer.transform([row or "" for row in rows]).toarray()).float()
    assert column.words == tuple(vectorizer.get_feature_names_out())
    torch.testing.assert_close(column.features(rows), TEXT_SCALE * expected)
    assert column.features(rows)[1:].count_nonzero() == 0


def test_number_of_words_is_limited():
    rows = [" ".join(f"w{(i * 31 + j) % 900}" for j in range(20)) for i in range(200)]
    assert fit(rows).use == "text, 500 words"


def test_text_column_error_names_the_extra_for_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(ImportError, match=r'Text columns need scikit-learn.*"torch-ogc\[cli\]"'):
        fit(sentences())


def test_encoder_json_round_trip_is_exact(tmp_path):
    write_tickets(tmp_path / "train.csv", 200, seed=0)
    train, _ = table(tmp_path / "train.csv", "kind", true="true")
    stored = json.loads(json.dumps(train.encoder.to_json(), allow_nan=False))
    again = Encoder.from_json(stored)
    assert again == train.encoder
    rows = read(tmp_path / "train.csv")
    assert torch.equal(again.features(rows), train.encoder.features(rows))
    at = [int(number) - 1 for number in train.ids]
    assert torch.equal(again.features(rows)[at], train.inputs)
    assert {column.kind for column in again.columns.values()} == {"number", "category", "date", "text"}


def test_encoder_summary_lists_the_use_of_each_column(tmp_path):
    write_tickets(tmp_path / "train.csv", 200, seed=0)
    train, _ = table(tmp_path / "train.csv", "kind", true="true")
    assert train.encoder.use == (
        "opened: date (year, month, weekday); city: 4 categories; age: number; comment: text, 84 words; "
        "ticket: dropped, unique; customer: dropped, unique"
    )


def test_table_of_ids_alone_is_rejected(tmp_path):
    path = write(tmp_path / "x.csv", ["key,y", *(f"row{i},{'ab'[i % 2]}" for i in range(40))])
    with pytest.raises(ValueError, match=r"no column to learn from\. .* Found key: dropped, unique\."):
        table(path, "y")


# --- delimiters, decimal commas and missing labels -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "delimiter"), [(".csv", ","), (".csv", ";"), (".csv", "\t"), (".csv", "|"), (".tsv", "\t")]
)
def test_delimiter_is_detected(tmp_path, suffix, delimiter):
    rows = [["x", "note", "y"], ["1", "a, b; c", "p"], ["2", 'say "no"', "q"], ["3", "two\nlines", "p"]]
    with (tmp_path / f"x{suffix}").open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    found = read(tmp_path / f"x{suffix}")
    assert found == {"x": ["1", "2", "3"], "note": ["a, b; c", 'say "no"', "two\nlines"], "y": ["p", "q", "p"]}


def test_header_sets_the_number_of_cells(tmp_path):
    path = write(tmp_path / "x.csv", ["x;y;z", "1;a;b", "2;c"])
    with pytest.raises(ValueError, match=r"Row 2 of .* should have 3 cells. Found 2"):
        read(path)
    one = write(tmp_path / "one.csv", ["x", "1", "2"])
    assert read(one) == {"x": ["1", "2"]}


def test_decimal_commas_in_files_with_semicolons(tmp_path):
    path = write(tmp_path / "x.csv", ["x;id;version;y", "1,5;1,5;1,5;a", "-2;7;beta;b", "n/a;8;2,0;a", ";9;;b"])
    found = read(path, as_found=("id", "y"))
    assert found["x"] == ["1.5", "-2", "n/a", None]
    assert found["id"] == ["1,5", "7", "8", "9"]
    assert found["version"] == ["1,5", "beta", "2,0", None]  # not only numbers
    mostly = write(tmp_path / "mostly.csv", ["x;y", "unknown;a", *(f"{i},5;b" for i in range(30))])
    assert read(mostly)["x"][:2] == ["unknown", "0.5"]
    quoted = write(tmp_path / "quoted.csv", ["x,y", '"1,500",a', '"2,500",b'])
    assert read(quoted)["x"] == ["1,500", "2,500"]  # could be thousands


def test_decimal_commas_in_strings_stay_in_every_file(tmp_path):
    path = write(tmp_path / "x.csv", ["version;y", *(f"{version};a" for version in ("1,5", "2,0", "beta")), "beta;b"])
    test = write(tmp_path / "t.csv", ["version;y", "2,0;b"])
    train, others = table(path, "y", val=0, test=test)
    assert train.inputs[1].tolist() == others["test"].inputs[0].tolist() == [0, 1, 0, 0]
    older = Encoder({"version": Category(("1,5", "2,0", "beta"))}, {})
    numbers = write(tmp_path / "n.csv", ["version;y", "1,5;a", "2,0;b"])
    assert table(numbers, "y", val=0, encoder=older)[0].inputs.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]


@pytest.mark.filterwarnings("ignore:Column `x` of")
@pytest.mark.filterwarnings("ignore:.* have the same features as a row of")
def test_decimal_commas_are_encoded_the_same_way_in_training_and_later(tmp_path):
    """With 9 of 200 values that are no numbers, the file is just above the limit and the training rows may not be."""
    kinds = set()
    for seed in range(8):
        odd = set(torch.randperm(200, generator=torch.Generator().manual_seed(seed))[:9].tolist())
        rows = [f"{'unknown' if i in odd else f'{i % 40},5'};{i % 7};{'ab'[i % 40 > 20]}" for i in range(200)]
        path = write(tmp_path / "x.csv", ["x;z;y", *rows])
        train, others = table(path, "y", test=write(tmp_path / "t.csv", ["x;z;y", *rows]))
        kinds.add(train.encoder.columns["x"].kind)
        again, _ = table(path, "y", encoder=train.encoder)
        assert torch.equal(again.inputs, train.inputs)
        assert torch.equal(others["test"].inputs[[int(row) - 1 for row in train.ids]], train.inputs)
    assert kinds == {"number", "category"}


def test_values_of_a_later_file_that_are_no_dates_are_reported(tmp_path):
    days = [f"2026-01-{day:02}" for day in range(1, 21)]
    path = write(tmp_path / "x.csv", ["day,y", *(f"{day},{'ab'[i % 2]}" for i, day in enumerate(days))])
    test = write(tmp_path / "t.csv", ["day,y", "2026-02-01,a", "soon,b"])
    with pytest.warns(
        UserWarning, match=r"Column `day` of .*t\.csv`: 1 of 2 values is not a date: `soon` in row 2"
    ) as found:
        table(path, "y", test=test)
    assert found[0].filename == __file__, "the line of the caller"


def test_note_on_values_that_are_no_numbers_points_at_the_caller(tmp_path):
    path = write(tmp_path / "x.csv", ["x,y", "unknown,a", *(f"{i},{'ab'[i % 2]}" for i in range(30))])
    with pytest.warns(UserWarning, match=r"Column `x` of .*x\.csv`: 1 of 31 values is not a number") as found:
        table(path, "y")
    assert found[0].filename == __file__


def test_decimal_commas_in_a_known_column_of_numbers_are_replaced_in_any_file(tmp_path):
    path = write(tmp_path / "x.csv", ["x;y", *(f"{i},5;{'ab'[i % 2]}" for i in range(20))])
    test = write(tmp_path / "t.csv", ["x;y", "1,5;a", "unknown;b"])
    with pytest.warns(UserWarning, match=r"Column `x` of .*t\.csv`: 1 of 2 values is not a number: `unknown` in row 2"):
        train, others = table(path, "y", val=0, test=test)
    assert torch.equal(others["test"].inputs[0], train.inputs[1])


def test_rows_without_label_raise_unless_skip_bad(tmp_path):
    rows = [f"{i},{'' if i % 5 == 1 else 'ab'[i % 2]},{'ab'[i % 2]}" for i in range(20)]
    path = write(tmp_path / "x.csv", ["x,y,t", *rows])
    message = r"4 of 20 rows of `.*x\.csv` have no label in the column `y`; the first is row 2\..* --skip-bad"
    with pytest.raises(ValueError, match=message):
        table(path, "y")
    with pytest.warns(UserWarning, match=r"Skipped 4 of 20 rows of `.*x\.csv` without a label\."):
        train, others = table(path, "y", true="t", skip_bad=True)
    assert len(train) + len(others["val"]) == 16
    for part in (train, others["val"]):
        assert all(int(name) % 5 != 2 for name in part.ids)  # row numbers in the file
        assert [part.class_names[label] for label in part.given] == ["ab"[(int(name) - 1) % 2] for name in part.ids]
        assert torch.equal(part.true, part.given)
    clean = write(tmp_path / "clean.csv", ["x,y,t", *(f"{i}.5,{'ab'[i % 2]},a" for i in range(20))])
    with pytest.raises(ValueError, match=r"4 of 20 rows of `.*x\.csv`"):
        table(clean, "y", test=path)
    with pytest.warns(UserWarning, match="Skipped 4 of 20"):
        assert len(table(clean, "y", test=path, skip_bad=True)[1]["test"]) == 16


def test_missing_true_label_error_gives_its_row_in_the_file(tmp_path):
    path = write(tmp_path / "x.csv", ["x,y,t", "1,,a", "2,a,a", "3,b,", "4,b,b"])
    with pytest.warns(UserWarning, match="Skipped 1"), pytest.raises(ValueError, match=r"row 3 of .* column `t`"):
        table(path, "y", true="t", skip_bad=True)


def test_misspelt_column_error_suggests_closest_name(iris):
    with pytest.raises(ValueError, match=r"no column `Kinds`\. Found .* Did you mean kind\?"):
        table(iris, "Kinds")
