"""OGCClassifier compared with scikit-learn's classifiers, with 40 % of the training labels wrong and with none.

    python benchmarks/classifiers.py --run                          # measure: about five minutes on two cores
    python benchmarks/classifiers.py --write docs/integrations.md   # insert the tables

A stratified quarter of each set is held out with its true labels. 40 % of the other labels are changed to another
class, drawn uniformly. All parameters are defaults, except that LogisticRegression gets enough iterations to converge.
MLPClassifier and LogisticRegression are run on raw features and after a StandardScaler; the table shows the better mean
over the reported seeds, which is in their favour.

The generated sets were chosen before anything was run on them. OGCClassifier's defaults were chosen on seeds 100 to 109
(other splits, noise and generated sets). In a first report on seeds 1 to 5 it was behind on iris, 83.2 against 94.2,
and reached 84.7 there with correct labels. The learning rate for few rows was then fixed, again on seeds 100 to 109.
The reported seeds, 11 to 15, were new then, and nothing has been chosen on them since: the defaults are unchanged,
though rows are now in another order. More steps for few rows were tried on seeds 100 to 104 with 40 % wrong labels. 400
steps at half the learning rate made no significant difference; 400 at the same rate and 800 at either were worse (800
at half: iris 82.6 instead of 87.9, wine 90.2 instead of 92.4, breast cancer 83.2 instead of 87.4).
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from marks import command
from ogc.integrations.sklearn import OGCClassifier
from provenance import provenance

RESULTS = Path(__file__).parent / "results" / "classifiers.json"
BEGIN, END = "<!-- made by benchmarks/classifiers.py -->", "<!-- end of classifiers -->"
RATES = (0.4, 0.0)
SEEDS = range(11, 16)
SETS: dict[str, Callable[[int], Any]] = {
    "digits": lambda seed: datasets.load_digits(return_X_y=True),
    "make_classification, 10 classes": lambda seed: datasets.make_classification(
        5000, n_features=40, n_informative=20, n_redundant=10, n_classes=10, random_state=seed
    ),
    "make_gaussian_quantiles, 3 classes": lambda seed: datasets.make_gaussian_quantiles(
        n_samples=5000, n_features=10, n_classes=3, random_state=seed
    ),
    "make_moons, 2 classes": lambda seed: datasets.make_moons(5000, noise=0.2, random_state=seed),
    "iris": lambda seed: datasets.load_iris(return_X_y=True),
    "wine": lambda seed: datasets.load_wine(return_X_y=True),
    "breast cancer": lambda seed: datasets.load_breast_cancer(return_X_y=True),
}
OURS = {
    "OGCClassifier": lambda seed: OGCClassifier(random_state=seed),
    "OGCClassifier, early stopping": lambda seed: OGCClassifier(early_stopping=True, random_state=seed),
}
THEIRS: dict[str, Callable[[int], Any]] = {
    "MLPClassifier": lambda seed: MLPClassifier(random_state=seed),
    "MLPClassifier, early stopping": lambda seed: MLPClassifier(early_stopping=True, random_state=seed),
    "LogisticRegression": lambda seed: LogisticRegression(max_iter=5000),
}
METHODS: dict[str, Callable[[int], Any]] = OURS | {
    f"{name}{how}": (
        lambda seed, make=make, how=how: make_pipeline(StandardScaler(), make(seed)) if how else make(seed)
    )
    for name, make in THEIRS.items()
    for how in ("", ", scaled")
}


def task(name: str, rate: float, seed: int) -> tuple[Any, Any, Any, Any, Any]:
    """Make a task: training features, given labels, true labels, test features, test labels."""
    X, y = SETS[name](seed)
    X, X_test, true, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=seed)
    rng, classes = np.random.default_rng(seed), len(np.unique(y))
    wrong = rng.permutation(len(true))[: round(rate * len(true))]
    given = true.copy()
    given[wrong] = (given[wrong] + rng.integers(1, classes, len(wrong))) % classes
    return X, given, true, X_test, y_test


def run(name: str, rate: float, method: str, seed: int) -> dict[str, float]:
    torch.set_num_threads(1)
    X, given, true, X_test, y_test = task(name, rate, seed)
    classifier = METHODS[method](seed)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier.fit(X, given)
    found = {"test_accuracy": 100 * classifier.score(X_test, y_test)}
    if method in OURS and rate:
        found["roc_auc"] = float(roc_auc_score(given == true, classifier.label_quality_))
    return found


def fit_times(repeats: int) -> dict[str, list[float]]:
    """Time fitting on digits, in turns, in seconds of CPU time on one thread."""
    torch.set_num_threads(1)
    X, given, *_ = task("digits", RATES[0], 1)
    times: dict[str, list[float]] = {"OGCClassifier": [], "MLPClassifier, scaled": []}
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for repeat, method in product(range(repeats + 1), times):
            began = time.process_time()
            METHODS[method](repeat).fit(X, given)
            if repeat:  # the first is a warm-up
                times[method].append(time.process_time() - began)
    return times


def measure(workers: int) -> dict[str, Any]:
    began = time.perf_counter()
    times = fit_times(5)
    cells = list(product(SETS, RATES, METHODS))
    jobs = [(*cell, seed) for cell in cells for seed in SEEDS]
    with ProcessPoolExecutor(workers) as pool:
        found = dict(zip(jobs, pool.map(run, *zip(*jobs, strict=True)), strict=True))
    rows = []
    for name, rate, method in cells:
        results = [found[name, rate, method, seed] for seed in SEEDS]
        measured = {key: [result[key] for result in results] for key in results[0]}
        rows.append({"set": name, "noise": rate, "method": method, **measured})
    return {
        **provenance(),
        "scikit-learn": version("scikit-learn"),
        "seconds": round(time.perf_counter() - began),
        "seeds": list(SEEDS),
        "fit_seconds_on_digits": times,
        "rows": rows,
    }


def time_ratio(result: dict[str, Any]) -> float:
    ours, theirs = (statistics.median(values) for values in result["fit_seconds_on_digits"].values())
    return ours / theirs


def accuracies(result: dict[str, Any], name: str, rate: float) -> dict[str, list[float]]:
    """Return accuracies by method, for scikit-learn the better of raw and scaled features."""
    found = {r["method"]: r["test_accuracy"] for r in result["rows"] if (r["set"], r["noise"]) == (name, rate)}
    better = {method: max((found[method], found[f"{method}, scaled"]), key=statistics.fmean) for method in THEIRS}
    return {method: found[method] for method in OURS} | better


def tables(result: dict[str, Any]) -> str:
    """Render Markdown: one row per set, mean and standard deviation over the seeds, the best one bold."""
    lines = [
        f"Test accuracy in percent, measured on correct labels; mean ± standard deviation over {len(result['seeds'])} "
        "seeds. The best mean of each row is bold.",
        "",
    ]
    for rate in RATES:
        labels = f"With {100 * rate:.0f} % of the training labels wrong" if rate else "With correct training labels"
        auc = " ROC AUC of `label_quality_` for finding the wrong labels |" if rate else ""
        lines += [f"{labels}:", "", f"| data set | {' | '.join([*OURS, *THEIRS])} |{auc}"]
        lines += ["|---|" + "---|" * (len(OURS) + len(THEIRS) + bool(rate))]
        for name in SETS:
            found = accuracies(result, name, rate)
            means = {method: round(statistics.fmean(values), 1) for method, values in found.items()}
            cells = [
                ("**{}** ± {:.1f}" if means[m] == max(means.values()) else "{} ± {:.1f}").format(
                    f"{means[m]:.1f}", statistics.stdev(values)
                )
                for m, values in found.items()
            ]
            if rate:
                scores = next(
                    r["roc_auc"]
                    for r in result["rows"]
                    if (r["set"], r["noise"], r["method"]) == (name, rate, next(iter(OURS)))
                )
                cells.append(f"{statistics.fmean(scores):.3f}")
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
    lines.append(
        "All classifiers have their default parameters, except that LogisticRegression gets enough iterations to "
        "converge. scikit-learn's classifiers were run on raw and on standardised features; the better mean is shown. "
        f"On digits, fitting `OGCClassifier` takes {time_ratio(result):.1f} times as long as fitting `MLPClassifier` "
        f"(one thread, {result['device']}, scikit-learn {result['scikit-learn']}, torch {result['torch']}, "
        f"{result['date'][:10]})."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    command(__doc__, RESULTS, measure, tables, (BEGIN, END), workers=2)
