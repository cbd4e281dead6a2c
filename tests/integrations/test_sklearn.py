"""OGCClassifier with scikit-learn: all of its estimator checks, its tools, and what OGC guarantees."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import re
import statistics
import sys
import tracemalloc
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.utils._pytree import tree_map

from ogc._tensors import read_tensors, write_tensors
from ogc.clipping import Default
from ogc.integrations._weighted_rows import batches as batches_of
from ogc.integrations._weighted_rows import distinct, hold_out
from ogc.integrations.sklearn import OGCClassifier
from ogc.losses import CLIPPABLE, GCE, Pointwise


@parametrize_with_checks([OGCClassifier(max_iter=3)])  # no expected_failed_checks
def test_scikit_learn_estimator_checks(
    estimator: OGCClassifier, check: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run all of them. Two are skipped if pandas is missing, and none for any other reason."""
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    try:
        check(estimator)
    except unittest.SkipTest as error:
        if "pandas is not installed" not in str(error):
            raise RuntimeError(f"skipped: {error}") from error
        raise


def test_tags_disable_no_checks() -> None:
    tags = OGCClassifier().__sklearn_tags__()
    assert not tags.non_deterministic
    assert not tags.no_validation
    assert not tags._skip_test
    assert not tags.classifier_tags.poor_score
    assert tags.classifier_tags.multi_class
    assert tags.requires_fit


@pytest.fixture(scope="module")
def blobs() -> tuple[Any, Any, Any]:
    """Return X, labels of which 30 % are wrong, and the true labels."""
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


@pytest.fixture(scope="module")
def short_fit(blobs: tuple[Any, Any, Any]) -> OGCClassifier:
    """Classifier fitted for only a few iterations."""
    X, given, _ = blobs
    return OGCClassifier(max_iter=3, random_state=0).fit(X, given)


def same(a: OGCClassifier, b: OGCClassifier) -> bool:
    """Return True if weights and criterion buffers are equal bit for bit."""
    for x, y in ((a.network_, b.network_), (a.criterion_, b.criterion_)):
        x, y = x.state_dict(), y.state_dict()
        values = [(x[name], y[name]) for name in x if isinstance(x[name], torch.Tensor)]
        if x.keys() != y.keys() or not all(torch.equal(p.nan_to_num(-1), q.nan_to_num(-1)) for p, q in values):
            return False
    return bool(np.array_equal(a.mean_, b.mean_) and np.array_equal(a.scale_, b.scale_))


# --- training ----------------------------------------------------------------------------------------------------


def test_trains_and_tau_moves(blobs: tuple[Any, Any, Any], fitted: OGCClassifier) -> None:
    X, given, true = blobs
    assert fitted.score(X, true) > 0.97
    assert fitted.score(X, given) < 0.75
    assert float(fitted.criterion_.tau) < 10 < fitted.criterion_.slopes.steepest
    assert fitted.n_iter_ == len(fitted.loss_curve_) > 1
    assert fitted.loss_curve_[-1] == fitted.loss_ < fitted.loss_curve_[0]
    assert fitted.noise_rate_ == pytest.approx(0.3, abs=0.1)


def test_label_quality_in_row_order_is_low_for_wrong_labels(blobs: tuple[Any, Any, Any], fitted: OGCClassifier) -> None:
    _, given, true = blobs
    quality, wrong = fitted.label_quality_, given != true
    assert quality.shape == (400,)
    assert ((quality >= 0) & (quality <= 1)).all()
    above = (quality[~wrong][:, None] > quality[wrong]).mean()  # the area under the ROC curve
    assert above > 0.97


def test_digits_with_40_percent_wrong_labels() -> None:
    X, true = load_digits(return_X_y=True)
    X, X_test, true, y_test = train_test_split(X, true, test_size=0.25, stratify=true, random_state=7)
    rng = np.random.default_rng(7)
    given = np.where(rng.random(len(true)) < 0.4, (true + rng.integers(1, 10, len(true))) % 10, true)
    assert OGCClassifier(random_state=7).fit(X, given).score(X_test, y_test) > 0.9


def fitted_state(classifier: OGCClassifier) -> list[dict[str, Any]]:
    parts = classifier.network_, classifier.criterion_, classifier._optimizer
    return [copy.deepcopy(part.state_dict()) for part in parts]


class RecordingClassifier(OGCClassifier):
    """Record the state after every iteration, and its weighted and unweighted accuracy on held-out rows."""

    def _score_held_out(self, held_out: Any) -> bool:
        with torch.no_grad():
            right = (self.network_(self._standardise(held_out.X).float()).argmax(1) == held_out.y).numpy()
        self.iterations = [*getattr(self, "iterations", []), fitted_state(self)]
        self.plain = [*getattr(self, "plain", []), right.mean()]
        self.weighted = [*getattr(self, "weighted", []), np.average(right, weights=held_out.weight.numpy())]
        return super()._score_held_out(held_out)


def full_repr(state: object) -> str:
    return repr(tree_map(lambda leaf: leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf, state))


def test_early_stopping_restores_complete_state_of_best_iteration(blobs: tuple[Any, Any, Any]) -> None:
    X, given, _ = blobs
    weight = np.random.default_rng(4).uniform(0.1, 5.0, 400)
    parameters = {"early_stopping": True, "n_iter_no_change": 3, "max_iter": 50, "random_state": 0}
    classifier = RecordingClassifier(**parameters).fit(X, given, weight)
    assert classifier.validation_scores_ == pytest.approx(classifier.weighted)
    assert classifier.validation_scores_ != pytest.approx(classifier.plain)
    best = int(np.argmax(classifier.validation_scores_))
    assert best == classifier.n_iter_ - 4
    states = (fitted_state(classifier), classifier.iterations[best], classifier.iterations[-1])
    for found, expected, last in zip(*states, strict=True):  # of network, criterion and optimizer
        assert full_repr(found) == full_repr(expected) != full_repr(last)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.98])
def test_every_class_keeps_a_training_row(fraction: float, blobs: tuple[Any, Any, Any]) -> None:
    X, _, true = blobs
    kept = np.flatnonzero((true < 3) | (np.cumsum(true == 3) == 1))  # one row of class 3
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        rows, held_out = hold_out(distinct(X[kept], true[kept], np.ones(len(kept))), fraction, generator)
        assert rows.y.unique().tolist() == [0, 1, 2, 3]
        assert len(held_out.y) == np.ceil(fraction * len(kept))
    with pytest.raises(ValueError, match="`validation_fraction` should be small enough"):
        OGCClassifier(early_stopping=True).fit(X[:2], [0, 1])


CHANGES = {
    "hidden_layer_sizes": np.array([7, 5]),
    "base": "gce",
    "epsilon": 5.0,
    "learning_rate_init": 0.01,
    "weight_decay": 1.0,
    "batch_size": 32,
    "max_iter": 3,
    "early_stopping": False,
    "validation_fraction": 0.3,
    "n_iter_no_change": 1,
    "random_state": 1,
}


@pytest.mark.parametrize("parameter", OGCClassifier().get_params())
def test_every_parameter_affects_training(parameter: str, blobs: tuple[Any, Any, Any]) -> None:
    X, given, _ = blobs
    make = OGCClassifier(early_stopping=True, max_iter=8, n_iter_no_change=5, random_state=0)
    one, two = clone(make).fit(X, given), clone(make).set_params(**{parameter: CHANGES[parameter]}).fit(X, given)
    assert one.loss_curve_ != two.loss_curve_


def test_early_stopping_selects_the_best_iteration(blobs: tuple[Any, Any, Any]) -> None:
    X, given, true = blobs
    classifier = OGCClassifier(early_stopping=True, n_iter_no_change=3, max_iter=50, random_state=0).fit(X, given)
    scores = classifier.validation_scores_
    assert len(scores) == classifier.n_iter_ < 50
    assert max(scores) == classifier.best_validation_score_ == scores[-4] > max(scores[-3:], default=0) - 1e-9
    assert classifier.label_quality_.shape == (400,)
    assert classifier.score(X, true) > 0.9


# --- weights, order, randomness --------------------------------------------------------------------------------------


@pytest.mark.parametrize("early_stopping", [False, True])
def test_weights_equal_repeated_rows_in_any_order(blobs: tuple[Any, Any, Any], early_stopping: bool) -> None:
    X, y, _ = blobs
    weight = np.random.default_rng(1).integers(0, 4, 400)
    make = OGCClassifier(max_iter=3, early_stopping=early_stopping, random_state=0)
    weighted = clone(make).fit(X, y, weight)
    order = np.random.default_rng(2).permutation(weight.sum())
    repeated = clone(make).fit(X.repeat(weight, 0)[order], y.repeat(weight)[order])
    assert same(weighted, repeated)
    assert same(weighted, clone(make).fit(X, y, weight * 4.0))
    assert not same(weighted, clone(make).fit(X, y))


def test_weight_0_equals_removing_rows_and_their_labels(blobs: tuple[Any, Any, Any]) -> None:
    X, given, _ = blobs
    weight = np.where(given == 2, 0.0, np.random.default_rng(1).uniform(0.5, 5, 400))
    make = OGCClassifier(max_iter=3, random_state=0)
    with_zeros, without = (
        clone(make).fit(X, given, weight),
        clone(make).fit(X[weight > 0], given[weight > 0], weight[weight > 0]),
    )
    assert same(with_zeros, without)
    assert with_zeros.classes_.tolist() == [0, 1, 3]
    assert with_zeros.noise_rate_ == pytest.approx(without.noise_rate_)
    assert without.noise_rate_ == pytest.approx(np.average(without.label_quality_ < 0.5, weights=weight[weight > 0]))
    assert (with_zeros.label_quality_[given == 2] == 0).all()
    assert np.allclose(with_zeros.label_quality_[weight > 0], without.label_quality_)
    with pytest.raises(ValueError, match=r"at least two classes\. Found one class, 0"):
        make.fit(X, given, given == 0)


def test_duplicate_rows_are_merged() -> None:
    """Ten rows repeated 100 times are ten rows, and batches are no larger than requested."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(10, 3)), np.arange(10) % 2
    for size, batch in ((200, 64), (16, 16)):
        rows = distinct(X.repeat(100, 0), y.repeat(100), np.ones(1000))
        assert rows.X.shape == (10, 3)
        batches = list(batches_of(rows.weight, size, torch.Generator()))
        assert [len(b) for b in batches] == [batch]
        counts = torch.bincount(batches[0], minlength=10)
        assert counts.min() >= batch // 10
        assert counts.max() <= batch // 10 + 1


def test_duplicate_rows_are_found_in_little_memory() -> None:
    """-0.0 equals 0.0, rows with different labels stay separate, and memory stays below twice the size of X."""
    rows = distinct(np.array([[0.0, 1], [-0.0, 1], [0, 1], [5, 5]]), np.array([0, 0, 1, 0]), np.array([1, 2, 4, 0.0]))
    assert sorted(rows.weight.tolist()) == [3, 4]
    assert rows.X.tolist() == [[0, 1], [0, 1]]
    assert not rows.X.signbit().any()
    X = np.random.default_rng(0).normal(size=(20_000, 100))
    tracemalloc.start()
    distinct(X, np.zeros(20_000, dtype=np.int64), np.ones(20_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * X.nbytes


def test_every_epoch_contains_every_row() -> None:
    batches = list(batches_of(torch.ones(1347, dtype=torch.float64), 200, torch.Generator()))
    assert [len(b) for b in batches] == [193] * 7
    assert len(torch.cat(batches).unique()) == 1347


def test_partial_fit_weights_equal_repeated_rows(blobs: tuple[Any, Any, Any]) -> None:
    X, y, _ = blobs
    weight = np.random.default_rng(1).integers(0, 4, 400)
    weighted, repeated = OGCClassifier(random_state=0), OGCClassifier(random_state=0)
    for _ in range(3):
        weighted.partial_fit(X, y, [0, 1, 2, 3], weight)
        repeated.partial_fit(X.repeat(weight, 0), y.repeat(weight), [0, 1, 2, 3])
    assert same(weighted, repeated)


def test_fit_is_reproducible_and_leaves_torch_state_unchanged(
    blobs: tuple[Any, Any, Any], short_fit: OGCClassifier
) -> None:
    X, given, _ = blobs
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    again = OGCClassifier(max_iter=3, random_state=0).fit(X, given)
    again.predict(X)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert same(short_fit, again)
    assert np.array_equal(short_fit.label_quality_, again.label_quality_)
    assert not same(short_fit, OGCClassifier(max_iter=3, random_state=1).fit(X, given))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.device("meta")])
def test_torch_modes_have_no_effect(
    mode: Any, blobs: tuple[Any, Any, Any], short_fit: OGCClassifier, tmp_path: Path
) -> None:
    X, given, _ = blobs
    with mode():
        again = clone(short_fit).fit(X, given)
        again.save(tmp_path / "it")
        loaded = OGCClassifier.load(tmp_path / "it")
        proba = again.predict_proba(X)
        assert same(again.partial_fit(X, given), clone(short_fit).fit(X, given).partial_fit(X, given))
    assert np.array_equal(proba, short_fit.predict_proba(X))
    assert same(loaded.partial_fit(X, given), again)  # outside the mode, with tensors created inside


@pytest.mark.parametrize("factor", [1e160, 1e-200, 1e300])
def test_feature_scale_has_no_effect(factor: float, blobs: tuple[Any, Any, Any]) -> None:
    X, given, true = blobs
    classifier = OGCClassifier(random_state=0).fit(X * factor, given)
    assert classifier.score(X * factor, true) > 0.97
    parts = OGCClassifier(random_state=0)
    for part in (slice(0, 100), slice(100, 400)):
        parts.partial_fit(X[part] * factor, given[part], range(4))
    assert np.allclose(parts.scale_ / factor, X.std(0))
    assert np.allclose(parts.mean_ / factor, X.mean(0))


@pytest.mark.filterwarnings("ignore:.* encountered in reduce:RuntimeWarning")  # from scikit-learn's sum
def test_features_that_overflow_are_named(blobs: tuple[Any, Any, Any]) -> None:
    X, given, _ = blobs[0].copy(), *blobs[1:]
    X[:, 1] = np.where(X[:, 1] > 0, 1.7e308, -1.7e308)
    with pytest.raises(ValueError, match=r"columns \[1\] of `X` overflows float64"):
        OGCClassifier().fit(X, given)


# --- saving and resuming -----------------------------------------------------------------------------------------


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
def test_partial_fit_resumes_exactly(through: Any, blobs: tuple[Any, Any, Any], tmp_path: Path) -> None:
    X, given, _ = blobs

    def train(stop_after: int | None) -> OGCClassifier:
        classifier = OGCClassifier(random_state=0)
        for i in range(30):
            part = slice(20 * i % 400, 20 * i % 400 + 20)
            classifier.partial_fit(X[part], given[part], classes=range(4) if i == 0 else None)
            if i == stop_after:
                classifier = through(classifier, tmp_path)
        return classifier

    uninterrupted = train(None)
    assert float(uninterrupted.criterion_.tau) < uninterrupted.criterion_.slopes.steepest
    assert same(uninterrupted, train(19))
    assert uninterrupted.n_iter_ == 30


@pytest.mark.parametrize("through", THROUGH)
@pytest.mark.parametrize("names", [["a", "bb", "c", "ddd"], [True, False, True, False], [1.0, 2.0, -3.0, 4.0]])
def test_round_trip_keeps_everything(
    through: Any, names: list[Any], blobs: tuple[Any, Any, Any], tmp_path: Path
) -> None:
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


@pytest.mark.parametrize(
    "changed",
    [{"hidden_layer_sizes": (7,)}, {"base": "gce"}, {"base": GCE(q=0.3)}, {"epsilon": 1.0, "weight_decay": 0.5}],
)
def test_saved_state_is_as_fitted_despite_changed_parameters(
    changed: dict[str, Any], blobs: tuple[Any, Any, Any], tmp_path: Path
) -> None:
    X, given, _ = blobs
    classifier = OGCClassifier(max_iter=3, random_state=0).fit(X, given).set_params(**changed)
    back = through_file(classifier, tmp_path)
    assert same(back, classifier)
    assert str(back.get_params()) == str(classifier.get_params())
    assert back.criterion_.get_extra_state() == classifier.criterion_.get_extra_state()
    assert (back.criterion_.rule, back._optimizer.param_groups[0]["weight_decay"]) == (Default(), 0.01)
    for _ in range(20):
        back.partial_fit(X, given)
        classifier.partial_fit(X, given)
    assert same(back, classifier)


@pytest.mark.parametrize("base", [*CLIPPABLE, GCE(q=0.3)])
def test_every_base_can_be_saved(base: Any, blobs: tuple[Any, Any, Any], tmp_path: Path) -> None:
    X, given, _ = blobs
    classifier = OGCClassifier(np.array([5, 3]), base=base, max_iter=2, random_state=0).fit(X, given)
    back = through_file(classifier, tmp_path)
    assert same(back, classifier)
    assert str(back.base) == str(base)
    assert back.hidden_layer_sizes == (5, 3)


def test_queue_of_another_loss_is_rejected(
    blobs: tuple[Any, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = OGCClassifier(max_iter=2).fit(*blobs[:2])
    own = classifier.criterion_.get_extra_state()
    monkeypatch.setattr(classifier.criterion_, "get_extra_state", lambda: own | {"slope": [1.0, 1.0, 1.0]})
    classifier.save(tmp_path / "it")
    with pytest.raises(ValueError, match="belongs to another OGC"):
        OGCClassifier.load(tmp_path / "it")


def test_custom_loss_cannot_be_saved(blobs: tuple[Any, Any, Any], tmp_path: Path) -> None:
    class Brier(Pointwise):
        def value(self, p: torch.Tensor) -> torch.Tensor:
            return (1 - p) ** 2 / 2

    with pytest.raises(ValueError, match=r"`base` should be one of ce, .*, to be saved"):
        OGCClassifier(base=Brier(), max_iter=2).fit(*blobs[:2]).save(tmp_path / "it")


@pytest.mark.parametrize("changed", [{"learning_rate_init": 0.01}, {"weight_decay": 0.5}, {"epsilon": 5.0}])
def test_partial_fit_uses_changed_parameters(changed: dict[str, Any], blobs: tuple[Any, Any, Any]) -> None:
    X, given, _ = blobs
    one, two = (OGCClassifier(random_state=0).partial_fit(X, given, range(4)) for _ in range(2))
    two.set_params(**changed, hidden_layer_sizes=(7,), base="gce")  # the last two have no effect after the first call
    for _ in range(20):
        one.partial_fit(X, given)
        two.partial_fit(X, given)
    assert not same(one, two)
    assert two.criterion_.get_extra_state()["base"] == one.criterion_.get_extra_state()["base"]


def test_invalid_files_raise_a_clear_error(tmp_path: Path, fitted: OGCClassifier) -> None:
    broken = tmp_path / "it.safetensors"
    for content in (b"nothing", b"customer,churned\n1,yes\n"):
        broken.write_bytes(content)
        with pytest.raises(ValueError, match=r"it\.safetensors is not a file saved by OGCClassifier\.save\."):
            OGCClassifier.load(broken)
    fitted.save(broken)
    broken.write_bytes(broken.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"it\.safetensors cannot be used: .* or fit and save"):
        OGCClassifier.load(broken)
    fitted.save(broken)
    tensors, facts = read_tensors(broken, error=ValueError, again="", format=2)
    for change, reason in (({"format": 1}, "expected format 2, found 1"), ({"classes": ...}, "it has no 'classes'")):
        other = {name: value for name, value in {**facts, **change}.items() if value is not ...}
        write_tensors(broken, tensors, json.dumps(other))
        with pytest.raises(ValueError, match=f"cannot be used: {reason}. .* use the version of ogc that"):
            OGCClassifier.load(broken)
    with pytest.raises(NotFittedError):
        OGCClassifier().save(broken)


# --- scikit-learn's tools ----------------------------------------------------------------------------------------


def test_pipeline_grid_search_and_two_processes(blobs: tuple[Any, Any, Any]) -> None:
    X, given, true = blobs
    pipeline = make_pipeline(PolynomialFeatures(include_bias=False), OGCClassifier(max_iter=8, random_state=0))
    grid = {"ogcclassifier__epsilon": [0.1, 0.5]}
    sequential = GridSearchCV(pipeline, grid, cv=2).fit(X, given)
    search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2).fit(X, given)
    assert search.score(X, true) > 0.9
    assert same(sequential.best_estimator_[-1], search.best_estimator_[-1])
    assert np.array_equal(sequential.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"])


def test_cross_val_predict_and_clone(blobs: tuple[Any, Any, Any]) -> None:
    X, given, true = blobs
    classifier = clone(OGCClassifier(max_iter=15, random_state=0))
    found = cross_val_predict(classifier, X, given, cv=3, method="predict_proba")
    assert found.shape == (400, 4)
    assert (found.argmax(1) == true).mean() > 0.9
    assert not hasattr(classifier, "classes_")


# --- invalid arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        *[("hidden_layer_sizes", value) for value in ((100, 0), 5.0, "many", True, [2.5])],
        *[("base", value) for value in ("mse", "nce_rce", None, 1)],
        *[("epsilon", value) for value in (0.0, "auto", -1)],
        *[("learning_rate_init", value) for value in (0.0, "auto", float("nan"))],
        *[("weight_decay", value) for value in (-1.0, None, "no")],
        *[("batch_size", value) for value in (0, 10.0, "auto")],
        *[("max_iter", value) for value in (0, 2.5)],
        *[("early_stopping", value) for value in ("auto", 1, None)],
        *[("validation_fraction", value) for value in (1.0, 0, "most")],
        *[("n_iter_no_change", value) for value in (0, None)],
    ],
)
def test_invalid_parameters_are_named(parameter: str, value: object, blobs: tuple[Any, Any, Any]) -> None:
    expected = rf"^Parameter `{parameter}` should be .*\. Found `{parameter} = {re.escape(repr(value))}`"
    with pytest.raises(ValueError, match=expected):
        OGCClassifier(**{parameter: value}).fit(*blobs[:2])


@pytest.mark.filterwarnings("ignore:X does not have valid feature names", "ignore:.* in reduce:RuntimeWarning")
@pytest.mark.parametrize(
    "fail",
    [
        lambda it, X, y: it.fit(X[:, :3], np.zeros(400)),
        lambda it, X, y: it.fit(X[:, :3], np.arange(400) % 5, np.arange(400) == 0),
        lambda it, X, y: it.set_params(early_stopping=True, validation_fraction=0.999).fit(X[:, :3], y),
        lambda it, X, y: it.fit(np.where(X > 0, 1e308, -1e308) * 1.7, y),
        lambda it, X, y: it.partial_fit(np.where(X > 0, 1e308, -1e308) * 1.7, y),
    ],
)
def test_failed_fit_leaves_state_unchanged(fail: Any, blobs: tuple[Any, Any, Any]) -> None:
    X, given, _ = blobs
    names = [f"feature {i}" for i in range(5)]
    classifier = OGCClassifier(max_iter=2, random_state=0).fit(pandas.DataFrame(X, columns=names), given)
    before = dict(vars(classifier))
    with pytest.raises(ValueError, match=r"`y`|`validation_fraction`|`X`") as error:
        fail(classifier, X, given)
    assert "np.int64" not in str(error.value)
    after = vars(classifier) | {name: before[name] for name in ("early_stopping", "validation_fraction")}
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


def test_partial_fit_rejects_unknown_labels(blobs: tuple[Any, Any, Any]) -> None:
    X, given, _ = blobs
    with pytest.raises(ValueError, match="`classes` should be all labels, at the first call"):
        OGCClassifier().partial_fit(X, given)
    with pytest.raises(ValueError, match=r"`y` should be labels among \[0, 1, 2\]. Found `y = \[3\]`"):
        OGCClassifier().partial_fit(X, given, [0, 1, 2])
    classifier = OGCClassifier().partial_fit(X, given, range(4))
    with pytest.raises(ValueError, match="those of the first call"):
        classifier.partial_fit(X, given, range(5))


def test_missing_scikit_learn_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ogc.integrations.sklearn")
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError) as error:
        importlib.import_module("ogc.integrations.sklearn")
    assert str(error.value) == (
        'ogc.integrations.sklearn needs scikit-learn, which is missing: pip install "torch-ogc[sklearn]"'
    )


# --- the recorded comparison -----------------------------------------------------------------------------------------


def test_recorded_comparison_supports_the_claims() -> None:
    """With 40 % wrong labels: ahead on large datasets, and less than a standard deviation behind on small ones."""
    import classifiers

    result = json.loads(classifiers.RESULTS.read_text())
    assert len(result["seeds"]) >= 5
    assert classifiers.time_ratio(result) <= 3
    for name in classifiers.SETS:
        found = classifiers.accuracies(result, name, 0.4)
        best = max((found[method] for method in classifiers.THEIRS), key=statistics.fmean)
        allowed = statistics.stdev(best) if name in ("iris", "wine", "breast cancer") else 0.0
        assert statistics.fmean(found["OGCClassifier"]) > statistics.fmean(best) - allowed, name


def test_tables_are_inserted_between_markers() -> None:
    import classifiers
    from marks import renewed

    content = classifiers.tables(json.loads(classifiers.RESULTS.read_text()))
    old = f"before\n{classifiers.BEGIN}\nto be replaced\n{classifiers.END}\nafter"
    text = renewed(old, classifiers.BEGIN, classifiers.END, content)
    assert text.startswith(f"before\n{classifiers.BEGIN}\n")
    assert text.endswith(f"\n{classifiers.END}\nafter")
    assert all(f"\n| {name} | " in text for name in classifiers.SETS)
    assert "to be replaced" not in text
    assert renewed(text, classifiers.BEGIN, classifiers.END, content) == text


@pytest.mark.parametrize(
    "settings", [{}, {"max_iter": 70}, {"epsilon": 2}, {"early_stopping": True, "n_iter_no_change": 99}]
)
def test_warns_if_a_class_is_not_learned(settings):
    """The class cannot be learned: its rows are random, and equal to others."""
    draw = np.random.default_rng(0)
    X = draw.integers(2, size=(3000, 3))
    y = np.where(draw.random(3000) < 0.02, "yes", "no")
    message = rf"almost all labels of the class yes \({(y == 'yes').sum()}\)\. Many of these labels may be right"
    with pytest.warns(UserWarning, match=message) as found:
        fitted = OGCClassifier(random_state=0, **settings).fit(X, y)
    [unhelpful] = {"epsilon", "early_stopping"} & settings.keys() or [""]
    remedy = f"Try it without {unhelpful}." if unhelpful else f"Try max_iter={2 * fitted.n_iter_}."
    assert str(found[0].message).endswith(remedy)
    assert set(fitted.predict(X)) == {"no"}


def test_rule_for_tau_may_change_between_partial_fits():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(600, 4))
    y = (X[:, 0] + 0.5 * draw.normal(size=600) > 1.0).astype(int)
    classifier = OGCClassifier(random_state=0)
    for epsilon in (None, 2, None):
        classifier.set_params(epsilon=epsilon)
        for _ in range(15):
            classifier.partial_fit(X, y, classes=[0, 1])
        assert 0 < classifier.criterion_.thresholds[0].max() <= classifier.criterion_.p0 < 1


def test_a_rare_class_is_learned():
    """5 % of the labels are yes, and none is wrong."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(3000, 8))
    y = X[:, 0] + 0.3 * draw.normal(size=3000) > 1.72
    assert 0.04 < y.mean() < 0.05
    fitted = OGCClassifier(random_state=0).fit(X, y)  # a warning would fail the test
    assert fitted.predict(X[y]).mean() > 0.6


def test_rows_without_weight_do_not_make_a_class_look_unlearned():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(1000, 2))
    y = np.where(X[:, 0] > 0, "b", "a")
    y[400:] = "z"
    OGCClassifier(random_state=0).fit(X, y, sample_weight=np.arange(1000) < 400)  # a warning would fail the test
