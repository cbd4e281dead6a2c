"""What kind each column is, how it is encoded, and that a stored encoding gives the same bits."""

import json
import sys

import numpy as np
import pytest
import torch

from ogc.data import read_table
from ogc.data.cells import Numbers
from ogc.data.columns import Category, Number
from ogc.data.encoder import Encoder, fit_column
from ogc.data.rows import TableRows
from ogc.data.text import TEXT_SCALE, Text, TfIdf
from tickets import write_tickets


def cells(values, **options):
    """The cells of one column, as the reader of files has them."""
    return TableRows.of({"x": values}, "the table", **options).columns["x"]


def fit(values, name=""):
    return fit_column(cells(values), name)


def sentences(n=40):
    return [f"the {'good' if i % 2 else 'bad'} thing number{i} of all" for i in range(n)]


@pytest.mark.parametrize(
    ("name", "values", "use"),
    [
        ("age", [str(i % 7) for i in range(40)], "number"),
        ("size", [float(i) for i in range(40)], "number"),  # unique, but the name does not suggest an id
        ("store_id", [i % 5 for i in range(40)], "number"),  # repeats
        ("id", [i / 8 for i in range(40)], "number"),  # fractions
        ("x", [1.0, None, 1.0], "number, present or missing"),
        ("x", ["1"] * 20 + [str(i) for i in range(20)] + ["unknown"], "number"),
        ("x", ["0"] * 98 + ["summer", "winter"], "3 categories"),
        ("x", ["a", None, "n/a"], "1 category, present or missing"),
        ("city", ["Bern", "Rome", None, "Oslo"] * 10, "3 categories"),
        ("key", [f"row{i}" for i in range(10)], "10 categories"),  # too few rows to tell
        ("when", [f"2026-01-{day:02}" for day in range(1, 29)], "date (year, month, weekday)"),
        ("when", ["2026-01-01T05:00:00Z", "2025-02-03 06:07"] * 10, "date (year, month, weekday)"),
        ("when", ["2026/01/31", "2025/12/01"] * 10, "date (year, month, weekday)"),
        ("when", ["31.1.2026", "01.12.2025 14:05"] * 10, "date, day first (year, month, weekday)"),
        ("when", ["1/2/2026", "3/4/2025"] * 10, "date, day first (year, month, weekday)"),
        ("when", ["1/2/2026 1:05 PM", "3/14/2025 11:00 AM"] * 10, "date, month first (year, month, weekday)"),
        ("when", ["2026-01-01", "2026-02-30"] * 10, "2 categories"),  # not a valid date
        ("when", ["2026-01-01", "9999-12-31"] * 10, "date (year, month, weekday)"),
        ("comment", sentences(), "text, 6 words"),
        ("comment", [" ".join(f"w{(i * 31 + j) % 900}" for j in range(20)) for i in range(200)], "text, 500 words"),
        ("answer", ["I do not know", "yes, of course it is"] * 20, "text, 8 words and 2 values"),
        ("key", [f"row{i}" for i in range(40)], "unique"),
        ("name", [f"Person Number{i}" for i in range(40)] + [None], "unique"),
        ("key", [f"row{max(i, 1)}" for i in range(40)], "nearly unique"),
        ("id", list(range(40)), "unique"),
        ("customer_id", [str(7 * i % 41) for i in range(40)], "unique"),
        ("orderId", [float(i) for i in range(40)], "unique"),
        ("comment", [f"one{i} two{i} three{i}" for i in range(40)], "no repeated words"),
        ("unit", ["kg"] * 40, "constant"),
        ("x", ["1", "1.0", "1"], "constant"),
        ("x", [2.0, 2.0], "constant"),
        ("note", [None, "n/a"] * 20, "empty"),
        ("x", [1e308, -1e308, 0.0], "constant"),  # the deviation is no float
    ],
)
def test_kind_of_a_column_or_the_reason_to_drop_it(name, values, use):
    found = fit(values, name)
    assert (found if isinstance(found, str) else found.use) == use


def test_numbers_are_standardised_and_missing_ones_flagged():
    column = fit([1.0, 3.0, None])
    assert column == Number(2.0, 1.0, flagged=True)
    assert column.features(cells([1.0, None, 5.0])).tolist() == [[-1, 0], [0, 1], [3, 0]]
    texts = cells(["1", "unknown", "n/a", None])
    assert column.features(texts).tolist() == [[-1, 0], [0, 1], [0, 1], [0, 1]]
    assert column.odd(texts).tolist() == [False, True, False, False]
    assert Number(0.0, 1e-300, flagged=False).features(cells([1.0])).tolist() == [[1e6]]


def test_categories_are_one_hot_with_a_slot_for_the_others():
    column = fit(["b", "a", "b", None])
    assert column == Category(("a", "b"))
    texts = cells(["a", "b", "new", None, "n/a"])
    assert column.features(texts).argmax(1).tolist() == [0, 1, 2, 2, 2]
    assert column.odd(texts).tolist() == [False, False, True, False, False]
    many = fit([f"{i}x" for i in range(300)] * 2 + ["top"] * 5)
    assert len(many.values) == 100
    assert "top" in many.values


def test_dates_are_encoded_as_year_month_and_weekday():
    column = fit(["2024-01-01", "2026-12-06", None, "2024-01-01"])
    texts = cells(["2024-01-01", "2026-12-06", None, "soon"])
    first, second, missing, unreadable = column.features(texts).tolist()
    assert first[:2] == pytest.approx([-(0.5**0.5), 0])  # (year - mean) / std; not missing
    assert [i for i, value in enumerate(first[2:]) if value] == [0, 12]  # January, Monday
    assert [i for i, value in enumerate(second[2:]) if value] == [11, 12 + 6]  # December, Sunday
    assert missing == unreadable == [0, 1] + [0] * 19
    assert column.odd(texts).tolist() == [False, False, False, True]
    assert fit(["2026-01-01", "2026-01-02"]).features(cells(["2026-01-01"])).shape == (1, 19)  # no constant year


@pytest.mark.parametrize("size", [40, 60])
def test_text_features_equal_scikit_learn_tf_idf(size):
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [f"{text} Äpfel café x\0 {'naïve ﬁn' * (i % 3)}" for i, text in enumerate(sentences(size))]
    new = ["a good, GOOD thing", "nothing known", "", "CAFE apfel\nfin"]
    vectorizer = TfidfVectorizer(sublinear_tf=True, strip_accents="unicode", min_df=2, max_features=10).fit(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ogc.data.text.MOST_WORDS", 10)
        encoder = TfIdf.fit(texts)
    assert encoder.words == tuple(vectorizer.get_feature_names_out())
    for rows in (texts, new):
        expected = TEXT_SCALE * vectorizer.transform(rows).astype("float32").toarray()
        assert (encoder.features(rows) == expected).all()


def test_words_are_fitted_to_a_sample_of_many_rows(monkeypatch):
    monkeypatch.setattr("ogc.data.text.MOST_ROWS_FITTED", 10)
    assert TfIdf.fit(sentences(40)) == TfIdf.fit(sentences(40)[::4])


def test_repeated_text_is_one_hot_and_its_words_are_kept():
    """480 rows with few different texts, as in a form: seen texts are categories, others are read by their words."""
    texts = [f"item {'broken' if i % 2 else 'late'} on day {i % 60 // 2}" for i in range(480)]
    column = fit(texts)
    assert isinstance(column, Text)
    seen, unseen = column.features(cells([texts[0], "late on day 77"]))
    words = len(column.encoder.words)
    assert seen[words:].sum() == unseen[words:].sum() == 1
    assert unseen[words:].argmax() == len(column.values.values)
    assert unseen[column.encoder.words.index("late")] > 0
    assert column.features(cells([None]))[0, :words].sum() == 0


def test_a_stored_encoding_gives_the_same_bits(tmp_path):
    write_tickets(tmp_path / "train.csv", 200, seed=0)
    train, _ = read_table(tmp_path / "train.csv", "kind", true="true")
    again = Encoder.from_json(json.loads(json.dumps(train.encoder.to_json(), allow_nan=False)))
    assert again == train.encoder
    rows = TableRows.read(tmp_path / "train.csv", text=again.text_columns)
    at = [int(number) - 1 for number in train.ids]
    assert torch.equal(again.features(rows)[at], train.inputs)
    steps = []
    assert torch.equal(again.features(rows[np.array(at)], progress=lambda *step: steps.append(step)), train.inputs)
    assert steps == [(160, 160)]
    assert {column.kind for column in again.columns.values()} == {"number", "category", "date", "text"}
    assert again.use == (
        "opened: date (year, month, weekday); city: 4 categories; age: number; comment: text, 84 words; "
        "ticket: dropped, unique; customer: dropped, unique"
    )


def test_rows_are_encoded_in_parts(monkeypatch):
    columns = {"x": list(np.arange(10.0)), "c": list("abcde") * 2}
    rows = TableRows.of(columns, "the table")
    encoder = Encoder.fit(rows)
    whole = encoder.features(rows)
    monkeypatch.setattr("ogc.data.encoder.ROWS_AT_ONCE", 3)
    assert torch.equal(encoder.features(rows), whole)
    assert len(encoder.features(rows[:0])) == 0
    assert isinstance(rows[:0].columns["x"], Numbers)


def test_values_that_cannot_be_encoded_are_reported():
    train = {"n": [1.0, 2.0], "c": ["a", "b"], "d": ["2026-01-01", "2025-01-01"]}
    encoder = Encoder.fit(TableRows.of(train, "the table"))

    def check(columns, **options):
        encoder.check(TableRows.of({**train, **columns}, "`new`", text=encoder.text_columns), **options)

    check({"n": ["n/a", None], "c": [None, "b"], "d": ["?", "2024-01-01"]})
    for name, cell in (("n", "1 2"), ("c", "z"), ("d", "soon")):
        good = str(train[name][0])
        with pytest.warns(UserWarning, match=rf"`{name}` of `new`: 1 of 3 .* `{cell}` in row 2"):
            encoder.check(TableRows.of({**{key: [None] * 3 for key in train}, name: [good, cell, good]}, "`new`"))
    for name in ("n", "d"):
        with pytest.raises(ValueError, match=rf"`{name}` of `new`.*`x` in row 1"):
            check({name: ["x", "y"]})
    check({"c": ["x", "y"]}, categories=False)
    with pytest.raises(ValueError, match=r"columns `n`, `c`.* Did you mean N\?"):
        encoder.check(TableRows.of({"N": [1], "d": ["2026-01-01"]}, "`new`"))


def test_text_needs_no_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert fit(sentences()).kind == "text"
