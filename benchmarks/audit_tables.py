"""The tables of docs/audit_measurements.md, from the results of benchmarks/audit.py."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from audit_measures import CHOICES, SCORES, Facts
from marks import renewed

RESULTS = Path(__file__).parent / "results"
CPU, SAME, CIFAR = (RESULTS / f"audit-{name}.json" for name in ("cpu", "same-network", "cifar10n"))
TITLES = {
    "digits": "Digits from scikit-learn",
    "table": "A synthetic table of 20,000 rows",
}


def with_tables(text: str, cpu: Facts, same: Facts, cifar: Facts | None) -> str:
    """Return the document with the parts between its marks updated."""
    made = {"cpu": "\n".join(cpu_tables(cpu, same)), "CIFAR-10N": "\n".join(cifar_tables(cifar))}
    for name, lines in made.items():
        begin, end = f"<!-- made by benchmarks/audit.py: {name} -->", f"<!-- end of {name} -->"
        text = renewed(text, begin, end, lines)
    return text


MEASURES = {"precision_at_k": "precision at k", "auroc": "AUROC", "average_precision": "average precision"}


def over(values: Sequence[float], digits: int = 3) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def row(title: str, scores: Sequence[Facts]) -> str:
    cells = [over([score[name] for score in scores]) for name in MEASURES]
    return f"| {title} | {' | '.join(cells)} |"


def head(*titles: str) -> list[str]:
    return ["", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]


def cpu_tables(result: Facts, same: Facts) -> Iterator[str]:
    seeds = sorted({run["seed"] for run in result["runs"]})
    used = {"torch": result["torch"], **result["versions"]}
    yield (
        f"Mean ± standard deviation over seeds {', '.join(map(str, seeds))}. Measured on "
        f"{result['date'][:10]} at commit {result['commit']} (our network in five folds: {same['date'][:10]}, commit "
        f"{same['commit']}), on one thread ({result['device']}), with "
        f"{', '.join(f'{name} {number}' for name, number in used.items())}."
    )
    for name, title in TITLES.items():
        runs = [with_same_network(run, same) for run in result["runs"] if run["data"] == name]
        yield f"\n### {title}"
        yield from head("ranking", *MEASURES.values())
        yield row("**ours**, one run", [run["ours"]["scores"]["label_score"] for run in runs])
        for kind in runs[0]["cleanlab"]:
            for score in SCORES:
                facts = [run["cleanlab"][kind]["scores"][score] for run in runs]
                yield row(f"cleanlab, {folds_of(kind)}, `{score}`", facts)
        for score in SCORES:
            facts = [run["ours"]["cleanlab_on_mean_p"]["scores"][score] for run in runs]
            yield row(f"cleanlab, mean probabilities of our run, `{score}`", facts)
        yield "\nLabels flagged as wrong, and CPU time:"
        yield from head("method", *FOUND)
        yield found_row("truth", [{"noise_rate": run["noise_rate"]} for run in runs])
        yield found_row("**ours**, one run", [run["ours"] for run in runs])
        for kind in runs[0]["cleanlab"]:
            yield found_row(f"cleanlab, {folds_of(kind)}", [run["cleanlab"][kind] for run in runs])
        right = over([100 * run["ours"]["suggestions_right"] for run in runs], 1)
        yield SUGGESTIONS.format(right)
        yield "\nOther scores, of which all but the last are computed from the same run:"
        yield from head("score", *MEASURES.values())
        for choice, what in CHOICES.items():
            yield row(what, [run["ours"]["scores"][choice] for run in runs])
        yield row(
            f"{CHOICES['label_score']}, after training with CE instead of CE+OGC",
            [run["with_ce"]["scores"]["label_score"] for run in runs],
        )
        yield from calibration_rows([run["ours"] for run in runs])


def with_same_network(run: Facts, same: Facts) -> Facts:
    """Add cleanlab's results for our network in five folds, on the same labels."""
    [other] = [each for each in same["runs"] if each["labels_sha256"] == run["labels_sha256"]]
    return {**run, "cleanlab": {**run["cleanlab"], **other["cleanlab"]}}


def folds_of(kind: str) -> str:
    """Name the source of out-of-sample probabilities.

    >>> folds_of("MLP, early stopping")
    'five folds of MLP with early stopping'
    """
    return f"five folds of {kind.replace(', ', ' with ')}"


SUGGESTIONS = "\nFor {} % of the wrong labels that we flag, the suggested label is correct."
FOUND = {
    "estimated noise rate": ("noise_rate", 3),
    "labels flagged": ("found", 0),
    "precision": ("precision", 2),
    "recall": ("recall", 2),
    "CPU seconds": ("seconds", 0),
}


def found_row(title: str, runs: Sequence[Facts], columns: Sequence[str] = tuple(FOUND)) -> str:
    measures = [FOUND[column] for column in columns]
    cells = [over([run[name] for run in runs], digits) if name in runs[0] else "" for name, digits in measures]
    return f"| {title} | {' | '.join(cells)} |"


def calibration_rows(runs: Sequence[Facts]) -> Iterator[str]:
    """Yield the calibration over all runs."""
    normals = over([run["two_normals_noise_rate"] for run in runs])
    brier, other = (over([run[name] for run in runs]) for name in ("brier", "two_normals_brier"))
    yield (
        f"\nP(wrong) has a Brier score of {brier}. The probability from the two normals has a Brier score of {other}, "
        f"and its mean, as an estimate of the noise rate, is {normals}. Calibration of P(wrong):"
    )
    steps = list(zip(*(run["calibration"] for run in runs), strict=True))
    yield from head("P(wrong)", *(f"{(i / len(steps)):.1f} to {step[0]['to']:.1f}" for i, step in enumerate(steps)))
    samples, wrong = ([sum(each[name] for each in step) for step in steps] for name in ("samples", "wrong"))
    yield f"| number of samples | {' | '.join(f'{count:,}' for count in samples)} |"
    shares = [f"{bad / count:.2f}" if count else "" for bad, count in zip(wrong, samples, strict=True)]
    yield f"| share with a wrong label | {' | '.join(shares)} |"


def cifar_tables(result: Facts | None) -> Iterator[str]:
    if result is None:
        yield (
            "Not measured yet. Run `python benchmarks/audit.py train` on a GPU, and then `python benchmarks/audit.py "
            "score`."
        )
        return
    trained, ours = result["trained"], result["ours"]
    yield (
        f"{result['samples']:,} images, {100 * result['noise_rate']:.1f} % of them mislabelled; "
        f"{trained['recipe']['epochs']} epochs, one seed. Trained on {trained['started'][:10]} at commit "
        f"{trained['commit']}, on one {trained['device']}, with torch {trained['versions']['torch']}. Scored with "
        f"cleanlab {result['versions']['cleanlab']}."
    )
    yield from head("ranking", "training images", *MEASURES.values())

    def line(title: str, images: int, score: Facts) -> str:
        return row(title, [score]).replace(f"| {title} |", f"| {title} | {images / 1e6:.1f} M |", 1)

    yield line(f"**ours**, one run of CE+OGC: {CHOICES['label_score']}", ours["images"], ours["scores"]["label_score"])
    for title, facts in result["cleanlab"].items():
        for score in SCORES:
            yield line(f"cleanlab, {source_of(title)}, `{score}`", facts["images"], facts["scores"][score])
    yield "\nLabels flagged as wrong:"
    columns = list(FOUND)[:-1]
    yield from head("method", *columns)
    yield found_row("truth", [{"noise_rate": result["noise_rate"]}], columns)
    yield found_row("**ours**", [ours], columns)
    for title, facts in result["cleanlab"].items():
        yield found_row(f"cleanlab, {source_of(title)}", [facts], columns)
    yield SUGGESTIONS.format(f"{100 * ours['suggestions_right']:.0f}")
    yield "\nOther scores, computed from the same run:"
    yield from head("score", *MEASURES.values())
    for choice, what in CHOICES.items():
        yield row(what, [ours["scores"][choice]])
    yield from calibration_rows([ours])


def source_of(title: str) -> str:
    """Name the source of probabilities on CIFAR-10N.

    >>> source_of("one run's last, averaged weights")
    'final network of our run, averaged weights'
    """
    for short, long in (
        ("one run's mean over surveys", "mean over the surveys of our run"),
        ("one run's last", "final network of our run"),
        (", last", ", final networks"),
    ):
        title = title.replace(short, long)
    return title


def recorded() -> tuple[Facts, Facts, Facts | None]:
    cifar = json.loads(CIFAR.read_text()) if CIFAR.exists() else None
    return json.loads(CPU.read_text()), json.loads(SAME.read_text()), cifar
