"""Time and memory to load a large table, as a ratio to `pandas.read_csv` on the same file.

    python benchmarks/loading.py --run     # measure: about a minute on two cores

The table has 200,000 rows and 50 columns: an identifier, 30 columns of decimal numbers and 4 of integers, 10 of
categories, 3 of dates, a comment of nine words, and the label. Each measurement has a process of its own, and the
libraries are imported before it starts. Memory is the highest that the process holds beyond that point, and the
result of `read_table` includes the features, float32. Times are the median of the repeats.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from marks import command
from provenance import provenance

RESULTS = Path(__file__).parent / "results" / "loading.json"
BEGIN, END = "<!-- made by benchmarks/loading.py -->", "<!-- end of loading -->"
READERS = {
    "pandas.read_csv": ("table.csv", "pandas.read_csv(path)"),
    "read_table, CSV": ("table.csv", 'read_table(path, "label")[0]'),
    "pandas.read_parquet": ("table.parquet", "pandas.read_parquet(path)"),
    "read_table, Parquet": ("table.parquet", 'read_table(path, "label")[0]'),
}


def write_table(folder: Path, rows: int) -> None:
    """Write the table as CSV and as Parquet."""
    import pandas

    draw = np.random.default_rng(0)
    columns: dict[str, Any] = {"customer_id": np.arange(rows)}
    columns |= {f"decimal {i}": draw.normal(100, 30, rows).round(3) for i in range(30)}
    columns["decimal 0"][draw.random(rows) < 0.1] = np.nan
    columns |= {f"integer {i}": draw.integers(0, 1000, rows) for i in range(4)}
    for i in range(10):
        names = np.array([f"value {j}" for j in range(5 + i)])
        columns[f"category {i}"] = names[draw.integers(0, len(names), rows)]
    for i in range(3):
        columns[f"date {i}"] = (np.datetime64("2020-01-01") + draw.integers(0, 2000, rows)).astype(str)
    words = np.array([f"word{j}" for j in range(200)])
    columns["comment"] = [" ".join(row) for row in words[draw.integers(0, len(words), (rows, 9))]]
    columns["label"] = np.array(["open", "paid"])[draw.integers(0, 2, rows)]
    frame = pandas.DataFrame(columns)
    frame.to_csv(folder / "table.csv", index=False)
    frame.to_parquet(folder / "table.parquet")


def read(path: str, call: str) -> dict[str, float]:
    """Read the table in this process."""
    import pandas
    import pyarrow.parquet

    from ogc.data import read_table

    names = {"path": path, "pandas": pandas, "pyarrow": pyarrow, "read_table": read_table}
    before, began = _mebibytes(), time.perf_counter()
    result = eval(call, names)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "mebibytes": after - before, "columns": getattr(result, "inputs", result).shape[1]}


def _mebibytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def measure(rows: int, repeats: int) -> dict[str, Any]:
    origin, found = provenance(), {name: [] for name in READERS}
    with tempfile.TemporaryDirectory() as folder:
        write_table(Path(folder), rows)
        for _ in range(repeats):  # readers take turns, so that a slow machine affects all of them
            for name, (file, call) in READERS.items():
                arguments = [sys.executable, __file__, "--read", str(Path(folder, file)), call]
                done = subprocess.run(arguments, capture_output=True, text=True, check=True)
                found[name].append(json.loads(done.stdout))
    median = {
        name: {key: statistics.median(one[key] for one in runs) for key in runs[0]} for name, runs in found.items()
    }
    return {**origin, "rows": rows, "repeats": repeats, "readers": median}


def table(result: dict[str, Any]) -> str:
    readers = result["readers"]
    base = readers["pandas.read_csv"]["seconds"]
    lines = ["| reader | seconds | times `pandas.read_csv` | MiB | columns |", "|---|---:|---:|---:|---:|"]
    for name, one in readers.items():
        ratio = f"{one['seconds'] / base:.1f}"
        lines.append(f"| {name} | {one['seconds']:.2f} | {ratio} | {one['mebibytes']:,.0f} | {one['columns']:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        print(json.dumps(read(*sys.argv[2:])))
    else:
        command(__doc__, RESULTS, measure, table, (BEGIN, END), rows=200_000, repeats=5)
