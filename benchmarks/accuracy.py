"""Whole runs of a paper's protocol, side by side on a GPU: one JSON a run, as ``ogc train`` writes it.

    python benchmarks/accuracy.py cifar10 --data ~/cifar --methods ce,ce+ogc --noises symmetric:0.5 --seeds 1

Averaged weights are recorded beside the raw ones, whose accuracy is what the paper reports.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from ogc.training import RECIPES, Job, Source, load, override, train
from ogc.training.history import Epoch, Nobody
from provenance import provenance


class Lines(Nobody):
    """A line every tenth epoch."""

    def __init__(self, jobs: list[Job]) -> None:
        self.names = [f"{job.recipe.method} {job.recipe.noise} seed {job.recipe.seed}" for job in jobs]
        self.began_at = time.perf_counter()

    def ended_epoch(self, run: int, epoch: Epoch) -> None:
        if epoch.epoch % 10 == 0 or epoch.epoch == 1:
            seconds = time.perf_counter() - self.began_at
            print(
                f"{seconds:6.1f} s  {self.names[run]}  epoch {epoch.epoch}  test {100 * epoch.accuracy['test']:.2f}  "
                f"averaged {100 * epoch.averaged.get('test', 0):.2f}  loss {epoch.loss:.3f}  tau {epoch.tau}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=["cifar10", "cifar100"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--methods", default="ce,ce+ogc")
    parser.add_argument("--noises", default="symmetric:0.5")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/accuracy"))
    args = parser.parse_args()

    source = Source.parse(args.source, data=args.data)
    jobs, shared = [], None
    for noise in args.noises.split(","):
        for seed in args.seeds.split(","):
            for method in args.methods.split(","):
                changes = {"method": method, "noise": noise, "seed": seed, "average": 0.999}
                recipe = override(RECIPES[args.source], changes | ({"epochs": args.epochs} if args.epochs else {}))
                (train_set, sets), info = load(source, recipe)
                shared = shared or (train_set.inputs, sets)  # one copy on the device for all runs
                jobs.append(Job(recipe, source, (replace(train_set, inputs=shared[0]), shared[1]), info))
    began = time.perf_counter()
    results = train(jobs, device="cuda", engine="graph", watch=Lines(jobs))
    wall = time.perf_counter() - began
    args.out.mkdir(parents=True, exist_ok=True)
    for job, result in zip(jobs, results, strict=True):
        recipe = job.recipe
        parts = [args.source, recipe.method.replace("+", "_"), (recipe.noise or "clean").replace(":", "-")]
        name = "-".join([*parts, str(recipe.seed)])
        facts = {
            "provenance": provenance("cuda"),
            "side_by_side": len(jobs),
            "wall_seconds": wall,
            "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        }
        result["source"]["path"] = None  # of no interest elsewhere
        (args.out / f"{name}.json").write_text(json.dumps(facts | result, indent=1) + "\n")
        print(f"{name}: {result['summary']}, {wall:.0f} s for {len(jobs)} runs")


if __name__ == "__main__":
    main()
