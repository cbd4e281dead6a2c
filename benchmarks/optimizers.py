"""Does the default OGC work beyond the paper's optimizer? The demo's digits, four optimizers, two schedules.

    python benchmarks/optimizers.py --run                      # measure: about seven minutes on two cores
    python benchmarks/optimizers.py --write docs/method.md     # put the table between its marks there

Half of the training labels wrong, 64-512-512-10, batch 128, 100 epochs; test accuracy at the end, on clean labels.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from marks import command
from ogc import OGC, losses
from ogc.demo.training import noisy_digits, shuffled
from ogc.models import mlp
from provenance import provenance

RESULTS = Path(__file__).parent / "results" / "optimizers.json"
BEGIN, END = "<!-- made by benchmarks/optimizers.py -->", "<!-- end -->"
EPOCHS, BATCH, RATE = 100, 128, 0.5
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "AdamW 1e-4": (torch.optim.AdamW, {"lr": 1e-4}),
    "AdamW 1e-3": (torch.optim.AdamW, {"lr": 1e-3}),
    "SGD 0.01": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}),
    "SGD 0.1": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}),
}
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda part: 1.0,
    "cosine": lambda part: (1 + math.cos(math.pi * part)) / 2,
}
METHODS: dict[str, Callable[[torch.optim.Optimizer], nn.Module]] = {
    "CE": lambda optimizer: losses.CrossEntropy(),
    "CE+OGC": lambda optimizer: OGC("ce", optimizer),
    "CE+OGC, epsilon=0.5": lambda optimizer: OGC("ce", optimizer, epsilon=0.5),
    "CE+OGC, epsilon0=20": lambda optimizer: OGC("ce", optimizer, epsilon0=20),
}


def train(optimizer_name: str, schedule_name: str, method: str, seed: int) -> float:
    """The test accuracy at the end, in percent."""
    torch.set_num_threads(1)
    task = noisy_digits(RATE, seed)
    torch.manual_seed(seed)
    model = mlp(64, 10)
    kind, settings = OPTIMIZERS[optimizer_name]
    optimizer = kind(model.parameters(), **settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: SCHEDULES[schedule_name](e / EPOCHS))
    criterion = METHODS[method](optimizer)
    batches = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for batch in shuffled(len(task.inputs), BATCH, batches):
            optimizer.zero_grad()
            criterion(model(task.inputs[batch]), task.given[batch]).backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        return 100 * (model(task.test_inputs).argmax(1) == task.test_labels).double().mean().item()


def measure(seeds: int, workers: int) -> dict[str, Any]:
    began = time.perf_counter()
    cells = list(product(OPTIMIZERS, SCHEDULES, METHODS))
    jobs = [(*cell, seed) for cell in cells for seed in range(1, seeds + 1)]
    with ProcessPoolExecutor(workers) as pool:
        found = list(pool.map(train, *zip(*jobs, strict=True)))
    accuracy = dict(zip(jobs, found, strict=True))
    rows = [
        {
            "optimizer": optimizer,
            "schedule": schedule,
            "method": method,
            "test_accuracy": [accuracy[optimizer, schedule, method, seed] for seed in range(1, seeds + 1)],
        }
        for optimizer, schedule, method in cells
    ]
    return {
        **provenance(),
        "seconds": round(time.perf_counter() - began),
        "seeds": list(range(1, seeds + 1)),
        "epochs": EPOCHS,
        "noise": f"each label replaced with probability {RATE}",
        "rows": rows,
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: a row per optimizer and schedule, mean +- standard deviation over the seeds."""
    lines = [
        f"| optimizer, schedule | {' | '.join(METHODS)} | CE+OGC - CE |",
        "|---|" + "---|" * (len(METHODS) + 1),
    ]
    for optimizer, schedule in product(OPTIMIZERS, SCHEDULES):
        found = {
            row["method"]: row["test_accuracy"]
            for row in result["rows"]
            if (row["optimizer"], row["schedule"]) == (optimizer, schedule)
        }
        mean = {method: statistics.fmean(values) for method, values in found.items()}
        cells = [f"{mean[m]:.1f} ± {statistics.stdev(found[m]):.1f}" for m in METHODS]
        lines.append(f"| {optimizer}, {schedule} | {' | '.join(cells)} | {mean['CE+OGC'] - mean['CE']:+.1f} |")
    n, date, version = len(result["seeds"]), result["date"][:10], result["torch"]
    lines.append(f"\nTest accuracy in percent at the end, mean ± standard deviation, n = {n}; {date}, torch {version}.")
    return "\n".join(lines)


if __name__ == "__main__":
    command(__doc__, RESULTS, measure, table, (BEGIN, END), seeds=3, workers=2)
