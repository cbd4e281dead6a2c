"""Tables as data sets: roles of columns, splits, other files, labels, and warnings."""

from random import Random

import pytest
import torch

from ogc.data import read_table
from ogc.data.columns import Category
from ogc.data.encoder import Encoder


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def letters(count, line):
    """Lines of a table: ``line(i)`` with the labels a and b in turn."""
    return [f"{line(i)},{'ab'[i % 2]}" for i in range(count)]


@pytest.fixture
def iris(tmp_path):
    rows = [f"{i},{i * 0.5},{'red' if i % 3 else 'blue'},same,{'setosa' if i % 2 else 'virginica'}" for i in range(20)]
    return write(tmp_path / "iris.csv", "key,width,colour,constant,kind", *rows)


def test_features_labels_names_and_ids(iris):
    train, sets = read_table(iris, "kind", id="key")
    assert train.class_names == ("setosa", "virginica")
    assert train.inputs.shape == (16, 1 + 3)  # width; blue, red, other
    assert sets["val"].given.bincount().tolist() == [2, 2]
    assert train.inputs[:, 0].mean().abs() < 1e-6
    assert (train.inputs[:, 0].std(correction=0) - 1).abs() < 1e-6
    assert sets["val"].encoder is None
    for part in (train, sets["val"]):
        for features, label, key in zip(part.inputs, part.given, part.ids, strict=True):
            assert part.class_names[label] == ("setosa" if int(key) % 2 else "virginica")
            assert features[1:].tolist() == ([0, 1, 0] if int(key) % 3 else [1, 0, 0])
    assert read_table(iris, "kind", val=0)[0].ids[:2] == ["1", "2"], "row numbers"


def test_encoder_is_fitted_on_training_rows_only(tmp_path):
    train = write(tmp_path / "train.csv", "x,c,y", "0,a,n", "2,b,p", "0,a,n", "2,b,p")
    test = write(tmp_path / "test.csv", "extra,y,c,x", "1,p,never seen,1", "1,n,,")
    found, sets = read_table(train, "y", val=0, test=test)
    assert found.inputs.tolist() == [[-1, 1, 0, 0], [1, 0, 1, 0]] * 2
    assert sets["test"].inputs.tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]
    assert sets["test"].given.tolist() == [1, 0]
    assert list(sets) == ["test"]


def test_an_earlier_encoder_is_used_as_it_is(tmp_path):
    earlier = Encoder({"version": Category(("01", "1,5"))}, {})
    path = write(tmp_path / "n.csv", "version;y", "01;a", "1,5;b", "1;b")
    train, _ = read_table(path, "y", val=0, encoder=earlier)
    assert train.inputs.argmax(1).tolist() == [0, 1, 2]
    assert train.encoder is earlier


@pytest.mark.filterwarnings("ignore:Column `x` of", "ignore:.* have the same features as a row of")
def test_decimal_commas_are_encoded_the_same_way_in_training_and_later(tmp_path):
    """With 9 of 200 values that are no numbers, the file is just above the limit and the training rows may not be."""
    kinds = set()
    for seed in range(8):
        odd = set(torch.randperm(200, generator=torch.Generator().manual_seed(seed))[:9].tolist())
        rows = [f"{'unknown' if i in odd else f'{i % 40},5'};{i % 7};{'ab'[i % 40 > 20]}" for i in range(200)]
        path = write(tmp_path / "x.csv", "x;z;y", *rows)
        train, sets = read_table(path, "y", test=write(tmp_path / "t.csv", "x;z;y", *rows))
        kinds.add(train.encoder.columns["x"].kind)
        assert torch.equal(read_table(path, "y", encoder=train.encoder)[0].inputs, train.inputs)
        assert torch.equal(sets["test"].inputs[[int(row) - 1 for row in train.ids]], train.inputs)
    assert kinds == {"number", "category"}


def test_val_and_test_may_be_files(iris, tmp_path):
    with pytest.warns(UserWarning, match=r"iris\.csv` is also the training file"):
        train, sets = read_table(iris, "kind", val=iris, test=iris)
    assert len(train) == 20
    assert torch.equal(sets["val"].inputs, train.inputs)
    assert list(sets) == ["val", "test"]
    other = write(tmp_path / "t.csv", "key,width,colour,constant,kind", "1,1,red,same,setosa", "2,1,red,same,tulip")
    for files in ({"val": other}, {"test": other}):
        with pytest.raises(ValueError, match=r"`tulip` in row 2 of `.*t\.csv`"):
            read_table(iris, "kind", **files)
    with pytest.raises(ValueError, match="columns `key`, `width`, `colour`"):
        read_table(iris, "kind", test=write(other, "kind", "setosa"))


def test_most_rows_of_a_file_that_are_training_rows_cause_a_warning(tmp_path):
    train = write(tmp_path / "train.csv", "row,x,y", *(f"{i},{i}.50,{'pq'[i % 2]}" for i in range(30)))
    others = [f"{i},{i}.75,p" for i in range(10)]
    few, many = (  # in another format
        write(tmp_path / f"{count}.csv", "row,x,y", *others, *(f"{i + 500},{i}.5,p" for i in range(count)))
        for count in (10, 11)
    )
    read_table(train, "y", id="row", test=few)
    with pytest.warns(UserWarning, match=r"11 of 21 rows of `.*11\.csv`"):
        read_table(train, "y", id="row", test=many)


def test_independent_rows_that_are_often_the_same_cause_no_warning(tmp_path):
    draw = Random(0).choice
    files = [
        write(tmp_path / name, "x,z,y", *(f"{draw('abcd')},{draw('efg')},p" for _ in range(40)), end)
        for name, end in (("train.csv", "a,e,q"), ("test.csv", "b,f,q"))
    ]
    train, sets = read_table(files[0], "y", val=0.0, test=files[1])
    seen = {row.tobytes() for row in train.inputs.numpy()}
    assert all(row.tobytes() in seen for row in sets["test"].inputs.numpy())


def test_column_of_true_labels_is_not_a_feature(tmp_path):
    rows = ["1,a,a", "2,a,b", "3,b,b", "4,b,b"]
    path = write(tmp_path / "x.csv", "x,given,true", *rows)
    train, _ = read_table(path, "given", true="true", val=0)
    assert train.inputs.shape == (4, 1)
    assert train.wrong.tolist() == [False, True, False, False]
    assert read_table(path, "given", val=0)[0].inputs.shape == (4, 1 + 3)  # a feature if it is not named
    for row, cell in (("5,b,c", "c"), ("5,b,", "")):
        with pytest.raises(ValueError, match=f"`{cell}` in row 5 .*column `true`"):
            read_table(write(path, "x,given,true", *rows, row), "given", true="true")


@pytest.mark.parametrize(
    ("lines", "options", "found"),
    [
        (["x,y", "1,a", "2,a"], {}, "Found 1"),
        (["x,y", *(f"{i * i},{i % 21}" for i in range(41))], {}, "column `y` .* 21 different values in 41 rows"),
        (["x,y", "1,a", "1,b"], {}, "`y`"),  # no feature
        (["key,y", *letters(40, lambda i: f"row{i}")], {}, "key: dropped, unique"),
        (["x,y", "1,a", "2,", "3,b"], {}, "1 of 3 rows .* `y`.* row 2.* --skip-bad"),
        (["x,Y", "1,a"], {}, r"no column `y`\. Found `x`, `Y`\. Did you mean Y\?"),
        (["x,y", "1,a", "2,b"], {"id": "key"}, "no column `key`"),
        (["x,y", "1,a", "2,b"], {"id": "y"}, "Parameter `id`"),
        (["x,y", "1,a", "2,b"], {"true": "y"}, "Parameter `true`"),
    ],
)
def test_tables_that_cannot_be_learned_from(tmp_path, lines, options, found):
    with pytest.raises(ValueError, match=found):
        read_table(write(tmp_path / "x.csv", *lines), "y", val=0, **options)


def test_repeating_labels_of_many_classes_are_accepted(tmp_path):
    path = write(tmp_path / "x.csv", "x,y", *(f"{i * i},{i % 21}" for i in range(42)))
    assert read_table(path, "y", val=0)[0].class_names == tuple(str(i) for i in range(21)), "sorted as numbers"


def test_labels_that_look_missing_are_classes_with_a_warning(tmp_path):
    path = write(tmp_path / "w.csv", "x,y", "1,none", "2,NA", "3,some", "4,10", "5,nan")
    with pytest.warns(UserWarning, match=r"`y`.* `NA`, `nan`, `none`.* --skip-bad"):
        assert read_table(path, "y", val=0)[0].class_names == ("10", "NA", "nan", "none", "some")


def test_labels_keep_their_spelling(tmp_path):
    path = write(
        tmp_path / "x.csv", "x,y", *(f"{i * i},{['01', '1', '1.0', 'True', 'true'][i % 5]}" for i in range(30))
    )
    with pytest.warns(UserWarning, match="`True`, `true`"):
        train, _ = read_table(path, "y", val=0)
    assert train.class_names == ("01", "1", "1.0", "True", "true")


def test_class_with_one_row_stays_in_training_with_a_warning(tmp_path):
    path = write(tmp_path / "x.csv", "x,y", *(f"{i},a" for i in range(5)), "9,rare")
    with pytest.warns(UserWarning, match="`rare`"):
        train, _ = read_table(path, "y")
    assert train.given.bincount().tolist() == [4, 1]


def test_classes_that_differ_in_case_cause_one_warning(tmp_path):
    def load(*names):
        lines = (f"{i * i},{names[i % len(names)]}" for i in range(30))
        return read_table(write(tmp_path / "x.csv", "x,y", *lines), "y")[0].class_names

    load("yes", "no")
    with pytest.warns(UserWarning, match="`No`, `no`, `TRUE`, `True`, `true` in the column `y`") as found:
        assert load("True", "False", "true", "TRUE", "no", "No") == ("False", "No", "TRUE", "True", "no", "true")
    assert len(found) == 1
    with pytest.warns(UserWarning, match="`C` and 3 more"):
        load(*"aAbBcCdD")


def test_an_id_that_does_not_identify_rows_causes_a_warning(tmp_path):
    def load(ids):
        rows = (f"{i * i},{'pq'[i % 2]},r{i % ids}" for i in range(30))
        return read_table(write(tmp_path / "x.csv", "x,y,region", *rows), "y", id="region")

    load(15)
    with pytest.warns(UserWarning, match=r"`region` has only 14 different values in 30 rows"):
        load(14)


def test_rows_without_label_are_skipped_on_request(tmp_path):
    rows = [f"{i},{'' if i % 5 == 1 else 'ab'[i % 2]},{'ab'[i % 2]}" for i in range(20)]
    path = write(tmp_path / "x.csv", "x,y,t", *rows)
    with pytest.warns(UserWarning, match=r"4 of 20 rows of `.*x\.csv`"):
        train, sets = read_table(path, "y", true="t", skip_bad=True)
    assert len(train) + len(sets["val"]) == 16
    for part in (train, sets["val"]):
        assert all(int(name) % 5 != 2 for name in part.ids)  # row numbers in the file
        assert [part.class_names[label] for label in part.given] == ["ab"[(int(name) - 1) % 2] for name in part.ids]
        assert torch.equal(part.true, part.given)
    clean = write(tmp_path / "clean.csv", "x,y,t", *(f"{i}.5,{'ab'[i % 2]},a" for i in range(20)))
    with pytest.raises(ValueError, match=r"4 of 20 rows of `.*x\.csv`"):
        read_table(clean, "y", test=path)
    with pytest.warns(UserWarning, match="4 of 20"):
        assert len(read_table(clean, "y", test=path, skip_bad=True)[1]["test"]) == 16


def test_warnings_name_file_and_row_and_point_at_the_caller(tmp_path):
    lines = ["x,y,skipped", *(f"{i % 40},{'ab'[i % 2]}," for i in range(78))]
    path = write(tmp_path / "train.csv", *lines, "1,,", "unknown,a,", "?,b,", "n.a.,a,")
    with pytest.warns() as found:
        train, sets = read_table(path, "y", test=write(tmp_path / "test.csv", *lines, "x,b,"), skip_bad=True, val=0)
    assert {warning.filename for warning in found} == {__file__}
    for warning, parts in zip(
        found, (["of 82 rows"], ["2 of 81", "`unknown` in row 80"], ["1 of 79", "row 79"]), strict=True
    ):
        assert all(part in str(warning.message) for part in parts)
    assert train.inputs[-3:].tolist() == [[0, 1]] * 3
    assert sets["test"].inputs[-1].tolist() == [0, 1]


def test_a_column_that_gives_the_label_away_causes_a_warning(tmp_path):
    rows = [f"{i * i % 101},{100 + i % 2},{'ab'[i % 2]}" for i in range(200)]
    path = write(tmp_path / "x.csv", "x,code,y", *rows)
    with pytest.warns(UserWarning, match="`code`"):
        train, _ = read_table(path, "y")
    read_table(path, "y", encoder=train.encoder)  # reported once


def test_progress_counts_the_rows_of_each_set(iris):
    steps = []
    read_table(iris, "kind", progress=lambda *step: steps.append(step))
    assert steps == [(4, 4), (16, 16)]
