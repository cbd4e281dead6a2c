"""Training throughput on a GPU in images per second: the plain loop, and the engine with one and several runs.

    python benchmarks/throughput.py --steps 128 --rounds 3 --json benchmarks/results/throughput-h200.json
    python benchmarks/throughput.py --write docs/training.md    # insert the recorded numbers

ResNet-18 for CIFAR, batch 128, bf16, the paper's recipe, training steps alone (augmentation included, evaluation not).
Methods take turns, so that a slow machine affects all of them; a number is the median of the rounds. Without
``--data`` the images are random, which does not change the speed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from marks import renewed
from ogc.data import Dataset, load_cifar10
from ogc.engine.lane import Lane
from ogc.training import RECIPES, Job, override
from ogc.training import loop as plain
from ogc.training.history import SilentWatch
from ogc.training.ranks import Ranks
from ogc.training.run import Run
from provenance import provenance

RESULTS = Path(__file__).parent / "results" / "throughput-h200.json"
BEGIN, END = "<!-- made by benchmarks/throughput.py -->", "<!-- end of throughput -->"


def table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['device']}, torch {result['torch']}, {result['date'][:10]}, commit {result['commit']}, "
        f"median of {result['settings']['rounds']}:",
        "",
        "| | CE, images/s | CE+OGC, images/s | extra time with OGC | memory, GiB |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        ce, ogc = (row["images_per_second"][method] for method in ("ce", "ce+ogc"))
        name = "plain loop" if row["what"] == "loop" else f"engine, {row['runs']} run{'s' * (row['runs'] > 1)}"
        lines.append(f"| {name} | {ce:,} | {ogc:,} | {100 * (ce / ogc - 1):+.1f} % | {row['memory_gib']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10; random images without it")
    parser.add_argument("--methods", default="ce,ce+ogc")
    parser.add_argument("--runs", default="1,2,4,6,8", help="numbers of runs side by side")
    parser.add_argument("--steps", type=int, default=256, help="per measurement and run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--loop", action=argparse.BooleanOptionalAction, default=True, help="measure the plain loop too"
    )
    parser.add_argument("--average", action="store_true", help="also average the weights")
    parser.add_argument("--profile", type=Path, help="write a table of the kernels in one run's steps to this file")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help="insert the recorded numbers into this document, without measuring")
    args = parser.parse_args()
    if args.write is not None:
        args.write.write_text(renewed(args.write.read_text(), BEGIN, END, table(json.loads(RESULTS.read_text()))))
        return

    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    images = random_images() if args.data is None else load_cifar10(args.data)[0]
    data = images, dict[str, Dataset]()  # no test set, so that the memory is that of training alone
    changes = {"precision": "bf16"} | ({"average": 0.999} if args.average else {})
    methods = args.methods.split(",")
    counts = [int(n) for n in args.runs.split(",")]
    first: Run | None = None
    lanes: dict[str, list[Lane]] = {method: [] for method in methods}
    found: list[dict[str, object]] = []

    def make(method: str, seed: int) -> Run:
        nonlocal first
        recipe = override(RECIPES["cifar10"], {**changes, "method": method, "seed": seed})
        run = Run(Job(recipe, None, data), device=device, like=first)
        first = first or run
        return run

    def memory() -> float:
        torch.cuda.empty_cache()
        return round(torch.cuda.memory_reserved() / 2**30, 2)

    def record(what: str, runs: int, rates: dict[str, list[float]], memory_gib: float) -> None:
        row: dict[str, object] = {"what": what, "runs": runs, "rounds": args.rounds}
        row["images_per_second"] = {method: round(statistics.median(values)) for method, values in rates.items()}
        row["spread"] = {method: round(max(values) - min(values)) for method, values in rates.items()}
        row["memory_gib"] = memory_gib
        found.append(row)
        print(json.dumps(row), flush=True)

    if args.loop:
        runs = {method: make(method, 0) for method in methods[-1:]}
        loop_rate(runs[methods[-1]], 8)
        taken = memory()
        runs |= {method: make(method, 0) for method in methods[:-1]}
        record("loop", 1, alternate(methods, args.rounds, lambda method: loop_rate(runs[method], 64)), taken)
        del runs
    needed: dict[int, float] = {}  # by number of runs, before the other method's exist
    for method in reversed(methods):
        for n in counts:
            while len(lanes[method]) < n:
                lanes[method].append(Lane(make(method, len(lanes[method])), SilentWatch(), {}))
            engine_rate(lanes[method], 8)
            needed.setdefault(n, memory())
    for n in counts:
        rates = alternate(methods, args.rounds, lambda method, n=n: engine_rate(lanes[method][:n], args.steps))
        record("engine", n, rates, needed[n])
        if args.profile is not None and n == counts[0]:
            profile(lanes[methods[-1]][0], args.profile)
    if args.json is not None:
        settings = {
            name: str(value) for name, value in vars(args).items() if name not in ("json", "profile", "data", "write")
        }
        settings["data"] = "random" if args.data is None else "CIFAR-10"
        args.json.write_text(json.dumps({**provenance("cuda"), "settings": settings, "rows": found}, indent=2) + "\n")


def random_images(samples: int = 50_000) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (samples, 3, 32, 32), dtype=torch.uint8, generator=generator)
    given = torch.randint(10, (samples,), generator=generator)
    return Dataset(images, given, tuple("0123456789"), [str(i) for i in range(samples)])


def alternate(methods: list[str], rounds: int, measure) -> dict[str, list[float]]:  # type: ignore[no-untyped-def]
    """Measure each method in turn, after one round of warm-up."""
    for method in methods:
        measure(method)
    rates: dict[str, list[float]] = {method: [] for method in methods}
    for _ in range(rounds):
        for method in methods:
            rates[method].append(measure(method))
    return rates


def loop_rate(run: Run, steps: int) -> float:
    run.step = 0
    batches = plain.batches(run, run.feed.plan(0), Ranks())
    return timed(lambda: plain.step(run, run.network, *next(batches), Ranks()), steps, 1, run.feed.batch)


def engine_rate(lanes: list[Lane], steps: int) -> float:
    for lane in lanes:
        lane.run.epoch = lane.run.step = 0
    driven = [lane.steps() for lane in lanes]
    return timed(lambda: [next(steps) for steps in driven], steps, len(lanes), lanes[0].run.feed.batch)


def timed(work, steps: int, runs: int, batch: int) -> float:  # type: ignore[no-untyped-def]
    for _ in range(8):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        work()
    torch.cuda.synchronize()
    return steps * runs * batch / (time.perf_counter() - began)


def profile(lane: Lane, path: Path) -> None:
    """Write the time of a step by kernel."""
    from torch.profiler import ProfilerActivity

    driven = lane.steps()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(16):
            next(driven)
        torch.cuda.synchronize()
    path.write_text(
        profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=120, max_name_column_width=110)
    )


if __name__ == "__main__":
    main()
