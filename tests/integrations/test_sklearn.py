"""OGCClassifier with scikit-learn itself: its own checks in full, its tools, and what OGC promises."""

from __future__ import annotations

import json
import pickle
import statistics
import subprocess
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from ogc.integrations.sklearn import OGCClassifier, _batches, _different


@parametrize_with_checks([OGCClassifier()])  # no expected_failed_checks
def test_scikit_learns_own_checks(
    estimator: OGCClassifier, check: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them: two are skipped where pandas is missing, and none for any other reason."""
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    try:
        check(estimator)
    except unittest.SkipTest as error:
        if "pandas is not installed" not in str(error):
            raise RuntimeError(f"skipped: {error}") from error
        raise


def test_tags_switch_no_check_off() -> None:
    tags = OGCClassifier().__sklearn_tags__()
    assert not tags.non_deterministic
    assert not tags.no_validation
    assert not tags._skip_test
    assert not tags.classifier_tags.poor_score
    assert tags.classifier_tags.multi_class
    assert tags.requires_fit


@pytest.fixture(scope="module")
def blobs() -> tuple[Any, Any, Any]:
    """X, labels of which three in ten are wrong, and the true ones."""
    X, true = make_blobs(400, n_features=5, centers=4, cluster_std=2.0, random_state=3)
    rng = np.random.default_rng(0)
    given = true.copy()
    wrong = rng.permutation(400)[:120]
    given[wrong] = (given[wrong] + rng.integers(1, 4, 120)) % 4
    return X, given, true


@pytest.fixture(scope="module")
def fitted(blobs: tuple[Any, Any, Any]) -> OGCClassifier:
    X, given, _ = blobs
    return OGCClassifier(random_state=0).fit(X, given)


def same(a: OGCClassifier, b: OGCClassifier) -> bool:
    """To the bit: weights, and every buffer of the criterion."""
    for x, y in ((a.network_, b.network_), (a.criterion_, b.criterion_)):
        x, y = x.state_dict(), y.state_dict()
        values = [(x[name], y[name]) for name in x if isinstance(x[name], torch.Tensor)]
        if x.keys() != y.keys() or not all(torch.equal(p.nan_to_num(-1), q.nan_to_num(-1)) for p, q in values):
            return False
    return bool(np.array_equal(a.mean_, b.mean_) and np.array_equal(a.scale_, b.scale_))


# --- what it learns ----------------------------------------------------------------------------------------------


def test_trains_and_tau_moves(blobs: tuple[Any, Any, Any], fitted: OGCClassifier) -> None:
    X, given, true = blobs
    assert fitted.score(X, true) > 0.97
    assert fitted.score(X, given) < 0.75
    assert float(fitted.criterion_.tau) < 10 < fitted.criterion_.slopes.steepest
    assert fitted.n_iter_ == len(fitted.loss_curve_) > 1
    assert fitted.loss_curve_[-1] == fitted.loss_ < fitted.loss_curve_[0]
    assert fitted.noise_rate_ == pytest.approx(0.3, abs=0.1)


def test_label_quality_is_low_for_wrong_labels_in_the_order_of_x(
    blobs: tuple[Any, Any, Any], fitted: OGCClassifier
) -> None:
    _, given, true = blobs
    quality, wrong = fitted.label_quality_, given != true
    assert quality.shape == (400,)
    assert ((quality >= 0) & (quality <= 1)).all()
    above = (quality[~wrong][:, None] > quality[wrong]).mean()  # the area under the ROC curve
    assert above > 0.97


def test_digits_with_two_labels_in_five_wrong() -> None:
    X, true = load_digits(return_X_y=True)
    X, X_test, true, y_test = train_test_split(X, true, test_size=0.25, stratify=true, random_state=7)
    rng = np.random.default_rng(7)
    given = np.where(rng.random(len(true)) < 0.4, (true + rng.integers(1, 10, len(true))) % 10, true)
    assert OGCClassifier(random_state=7).fit(X, given).score(X_test, y_test) > 0.9


def test_early_stopping_takes_the_best_iteration(blobs: tuple[Any, Any, Any]) -> None:
    X, given, true = blobs
    classifier = OGCClassifier(early_stopping=True, n_iter_no_change=3, max_iter=50, random_state=0).fit(X, given)
    scores = classifier.validation_scores_
    assert len(scores) == classifier.n_iter_ < 50
    assert max(scores) == classifier.best_validation_score_ == scores[-4] > max(scores[-3:], default=0) - 1e-9
    assert classifier.label_quality_.shape == (400,)
    assert classifier.score(X, true) > 0.9


# --- weights, order, chance ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("early_stopping", [False, True])
def test_weights_are_repetitions_whatever_the_order(blobs: tuple[Any, Any, Any], early_stopping: bool) -> None:
    X, y, _ = blobs
    weight = np.random.default_rng(1).integers(0, 4, 400)
    make = OGCClassifier(max_iter=3, early_stopping=early_stopping, random_state=0)
    weighted = clone(make).fit(X, y, weight)
    order = np.random.default_rng(2).permutation(weight.sum())
    repeated = clone(make).fit(X.repeat(weight, 0)[order], y.repeat(weight)[order])
    assert same(weighted, repeated)
    assert same(weighted, clone(make).fit(X, y, weight * 4.0))
    assert not same(weighted, clone(make).fit(X, y))


def test_rows_that_are_there_twice_are_trained_on_once() -> None:
    """Ten rows a hundred times over are ten rows; batches are no larger than asked for."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(10, 3)), np.arange(10) % 2
    for size, batch in ((200, 64), (16, 16)):
        rows = _different(X.repeat(100, 0), y.repeat(100), np.ones(1000))
        assert rows.X.shape == (10, 3)
        batches = list(_batches(rows.weight, size, torch.Generator()))
        assert [len(b) for b in batches] == [batch]
        counts = torch.bincount(batches[0], minlength=10)
        assert counts.min() >= batch // 10
        assert counts.max() <= batch // 10 + 1


def test_a_pass_sees_every_row() -> None:
    batches = list(_batches(torch.ones(1347, dtype=torch.float64), 200, torch.Generator()))
    assert [len(b) for b in batches] == [193] * 7
    assert len(torch.cat(batches).unique()) == 1347


def test_partial_fit_takes_weights_as_repetitions(blobs: tuple[Any, Any, Any]) -> None:
    X, y, _ = blobs
    weight = np.random.default_rng(1).integers(0, 4, 400)
    weighted, repeated = OGCClassifier(random_state=0), OGCClassifier(random_state=0)
    for _ in range(3):
        weighted.partial_fit(X, y, [0, 1, 2, 3], weight)
        repeated.partial_fit(X.repeat(weight, 0), y.repeat(weight), [0, 1, 2, 3])
    assert same(weighted, repeated)


def test_two_fits_are_equal_and_torch_is_left_as_it_was(blobs: tuple[Any, Any, Any], fitted: OGCClassifier) -> None:
    X, given, _ = blobs
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    again = OGCClassifier(random_state=0).fit(X, given)
    again.predict(X)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert same(fitted, again)
    assert np.array_equal(fitted.label_quality_, again.label_quality_)
    assert not same(fitted, OGCClassifier(random_state=1).fit(X, given))
    with torch.no_grad():
        assert same(fitted, clone(again).fit(X, given))


# --- stopping and going on ---------------------------------------------------------------------------------------


def through_pickle(classifier: OGCClassifier, tmp_path: Path) -> OGCClassifier:
    return pickle.loads(pickle.dumps(classifier))


def through_joblib(classifier: OGCClassifier, tmp_path: Path) -> OGCClassifier:
    joblib.dump(classifier, tmp_path / "it.joblib")
    return joblib.load(tmp_path / "it.joblib")


def through_file(classifier: OGCClassifier, tmp_path: Path) -> OGCClassifier:
    classifier.save(tmp_path / "it.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["it.safetensors"]
    return OGCClassifier.load(tmp_path / "it.safetensors")


THROUGH = [through_pickle, through_joblib, through_file]


@pytest.mark.parametrize("through", THROUGH)
def test_partial_fit_goes_on_to_the_same_bits(through: Any, blobs: tuple[Any, Any, Any], tmp_path: Path) -> None:
    X, given, _ = blobs

    def train(stop_after: int | None) -> OGCClassifier:
        classifier = OGCClassifier(random_state=0)
        for i in range(30):
            part = slice(20 * i % 400, 20 * i % 400 + 20)
            classifier.partial_fit(X[part], given[part], classes=range(4) if i == 0 else None)
            if i == stop_after:
                classifier = through(classifier, tmp_path)
        return classifier

    whole = train(None)
    assert float(whole.criterion_.tau) < whole.criterion_.slopes.steepest
    assert same(whole, train(19))
    assert whole.n_iter_ == 30


@pytest.mark.parametrize("through", THROUGH)
@pytest.mark.parametrize("names", [["a", "bb", "c", "ddd"], [True, False, True, False], [1.0, 2.0, -3.0, 4.0]])
def test_kept_whole(through: Any, names: list[Any], blobs: tuple[Any, Any, Any], tmp_path: Path) -> None:
    X, given, _ = blobs
    y = np.array(names)[given]
    classifier = OGCClassifier((32, 8), max_iter=2, random_state=0).fit(X, y)
    back = through(classifier, tmp_path)
    assert back.get_params() == classifier.get_params()
    assert back.classes_.dtype == classifier.classes_.dtype
    assert np.array_equal(back.predict(X), classifier.predict(X))
    assert np.array_equal(back.predict_proba(X), classifier.predict_proba(X))
    assert np.array_equal(back.label_quality_, classifier.label_quality_)
    public = {name for name in vars(classifier) if name.endswith("_")}
    assert public == {name for name in vars(back) if name.endswith("_")}
    assert same(back.partial_fit(X, y), classifier.partial_fit(X, y))


def test_files_that_are_no_classifier_are_refused_in_a_sentence(tmp_path: Path, fitted: OGCClassifier) -> None:
    broken = tmp_path / "it.safetensors"
    broken.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"it\.safetensors was not saved by this version of OGCClassifier"):
        OGCClassifier.load(broken)
    fitted.save(broken)
    broken.write_bytes(broken.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"it\.safetensors was not saved by this version of OGCClassifier"):
        OGCClassifier.load(broken)
    with pytest.raises(NotFittedError):
        OGCClassifier().save(broken)


# --- among scikit-learn's tools ----------------------------------------------------------------------------------


def test_pipeline_grid_search_and_two_processes(blobs: tuple[Any, Any, Any]) -> None:
    X, given, true = blobs
    pipeline = make_pipeline(PolynomialFeatures(include_bias=False), OGCClassifier(max_iter=8, random_state=0))
    grid = {"ogcclassifier__epsilon": [0.1, 0.5]}
    alone = GridSearchCV(pipeline, grid, cv=2).fit(X, given)
    search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2).fit(X, given)
    assert search.score(X, true) > 0.9
    assert same(alone.best_estimator_[-1], search.best_estimator_[-1])
    assert np.array_equal(alone.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"])


def test_cross_val_predict_and_clone(blobs: tuple[Any, Any, Any]) -> None:
    X, given, true = blobs
    classifier = clone(OGCClassifier(max_iter=15, random_state=0))
    found = cross_val_predict(classifier, X, given, cv=3, method="predict_proba")
    assert found.shape == (400, 4)
    assert (found.argmax(1) == true).mean() > 0.9
    assert not hasattr(classifier, "classes_")


# --- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("hidden_layer_sizes", (100, 0)),
        ("base", "mse"),
        ("epsilon", 0.0),
        ("learning_rate_init", 0.0),
        ("weight_decay", -1.0),
        ("batch_size", 0),
        ("max_iter", 0),
        ("validation_fraction", 1.0),
        ("n_iter_no_change", 0),
    ],
)
def test_wrong_parameters_are_named(parameter: str, value: object, blobs: tuple[Any, Any, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{parameter}|{value}"):
        OGCClassifier(**{parameter: value}).fit(*blobs[:2])


def test_partial_fit_refuses_labels_that_it_was_not_told_of(blobs: tuple[Any, Any, Any]) -> None:
    X, given, _ = blobs
    with pytest.raises(ValueError, match="`classes` should be all labels, at the first call"):
        OGCClassifier().partial_fit(X, given)
    with pytest.raises(ValueError, match=r"`y` should hold labels among \[0 1 2\]. Found \[3\]"):
        OGCClassifier().partial_fit(X, given, [0, 1, 2])
    classifier = OGCClassifier().partial_fit(X, given, range(4))
    with pytest.raises(ValueError, match="those of the first call"):
        classifier.partial_fit(X, given, range(5))


def test_says_which_extra_is_missing() -> None:
    code = "import sys; sys.modules['sklearn'] = None; import ogc.integrations.sklearn"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == (
        'ImportError: ogc.integrations.sklearn needs scikit-learn, which is missing: pip install "ogc[sklearn]"'
    )


# --- the recorded comparison -----------------------------------------------------------------------------------------


def test_the_recorded_comparison_holds_what_is_said_of_it() -> None:
    """Two labels in five wrong: ahead where there are many rows, elsewhere not behind by a standard deviation."""
    import classifiers

    result = json.loads(classifiers.RESULTS.read_text())
    assert len(result["seeds"]) >= 5
    assert classifiers.time_ratio(result) <= 3
    for name in classifiers.SETS:
        found = classifiers.accuracies(result, name, 0.4)
        best = max((found[method] for method in classifiers.THEIRS), key=statistics.fmean)
        allowed = statistics.stdev(best) if name in ("iris", "wine", "breast cancer") else 0.0
        assert statistics.fmean(found["OGCClassifier"]) > statistics.fmean(best) - allowed, name


def test_the_tables_go_between_their_marks() -> None:
    import classifiers

    result = json.loads(classifiers.RESULTS.read_text())
    text = classifiers.with_tables(f"before\n{classifiers.BEGIN}\nold\n{classifiers.END}\nafter", result)
    assert text.startswith(f"before\n{classifiers.BEGIN}\n")
    assert text.endswith(f"\n{classifiers.END}\nafter")
    assert all(f"\n| {name} | " in text for name in classifiers.SETS)
    assert "old" not in text
    assert classifiers.with_tables(text, result) == text
