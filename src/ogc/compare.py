"""Comparison of methods on one data set: the same data, network and seeds for each, judged on held-out samples.

source = Source.parse("customers.csv", label="churned")
data, info = load(source, RECIPES["table"])
jobs = jobs_of(RECIPES["table"], data, Path("compare/customers"), source=source, info=info)
comparison = compare(jobs)
print(comparison.sentence())
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ._files import write_json, write_whole
from ._require import counted, either, require
from .data.dataset import Dataset, Loaded
from .predict import Predictor
from .report.console import make_console
from .report.drawing import (
    BLUE,
    GREEN,
    GREY,
    GRID,
    INK,
    ORANGE,
    RED,
    Curve,
    draw_curves,
    figure_of_several,
    percent,
    png,
    tidy,
)
from .report.table import clock, table_of
from .rival_label import almost_all, unlearned
from .training.evaluate import differ_in_size
from .training.history import Watch
from .training.method import Method
from .training.recipe import Recipe, never_clips, override
from .training.run import Job
from .training.run_folder import CheckpointError, is_saved, read_description
from .training.session import pick_device, resolved, train

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

    from .noise import LabelInfo
    from .training.source import Source

METHODS = ("ce", "gce", "ce+ogc")
SEEDS = (1, 2, 3)
SIDE_BY_SIDE = 4  # runs that share a GPU
NUMBERS, PICTURE = "compare.json", "compare.png"
GIVEN, TRUE = "held-out, given labels", "held-out, true labels"
COLOURS = (BLUE, RED, GREEN, ORANGE, GREY, INK)
STANDARD_ERRORS = 2.0  # a larger difference is not put down to chance


def jobs_of(
    recipe: Recipe,
    data: Loaded,
    out: Path,
    *,
    methods: Sequence[str] = METHODS,
    seeds: Sequence[int] = SEEDS,
    source: Source | None = None,
    info: LabelInfo | None = None,
) -> list[Job]:
    """Make one job per seed and method, each with a folder in ``out``.

    :param recipe: everything but method and seed.
    :param methods: as on the command line: ``ce``, ``gce:q=0.9``, ``my_loss.py:MyLoss``.
    :param source: source of ``data``, needed to resume, audit or repeat a run by command.
    """
    sets = {name: part for name, part in data[1].items() if len(part)}
    require(bool(sets), "val", "above 0: methods are judged on held-out samples", 0)
    require(len(set(seeds)) == len(seeds) > 0, "seeds", "distinct integers", list(seeds))
    recipes = recipes_of(recipe, methods)
    return [
        Job(override(each, {"seed": seed}), source, (data[0], sets), info, out / f"{label}-{seed}")
        for seed in seeds
        for label, each in recipes.items()
    ]


def recipes_of(recipe: Recipe, methods: Sequence[str]) -> dict[str, Recipe]:
    """Make one recipe per method, by a label that can be used as a folder name."""
    parsed = [Method.parse(text) for text in methods]
    require(len(parsed) > 1, "methods", "two methods or more", list(methods))
    found: dict[str, Recipe] = {}
    for method, text in zip(parsed, methods, strict=True):
        if method.label in found:
            default = ",".join(METHODS)
            raise ValueError(
                f"The method {text} is compared already. --method adds to --methods, by default {default}."
            )
        found[method.label] = override(recipe, {"method": method.name, **method.settings})
    return found


def compare(
    jobs: Sequence[Job],
    *,
    device: str = "auto",
    engine: str = "auto",
    side_by_side: int = SIDE_BY_SIDE,
    address: str | None = None,
    progress: Callable[[Sequence[Job]], AbstractContextManager[Watch | None]] = lambda jobs: nullcontext(),
) -> Comparison:
    """Train the jobs that are not finished, and judge all of them.

    After Ctrl-C or SIGTERM, which raise ``Interrupted``, the same call continues from the last checkpoints.

    :param jobs: those of :func:`jobs_of`.
    :param engine: as in :func:`ogc.training.train`, or ``ray``: a Ray cluster that shares the jobs' folders.
    :param address: HOST:PORT of the cluster; a local Ray if not given.
    :param side_by_side: number of runs that share a GPU. On a CPU they train one after the other.
    :param progress: makes the watch of a group of jobs that train together.
    """
    require(side_by_side >= 1, "side_by_side", "at least 1", side_by_side)
    if engine == "ray":
        from .benchmark.cluster import train_jobs

        check_folders(jobs)
        console = make_console()
        results = train_jobs(jobs, device=device, side_by_side=side_by_side, address=address, console=console)
        return judge(jobs, results)
    chosen = pick_device(device)
    check_folders([resolved(job, chosen, resume=True) for job in jobs])
    size = side_by_side if chosen.type == "cuda" else len(jobs)
    results = []
    for start in range(0, len(jobs), size):
        group = jobs[start : start + size]
        with progress(group) as watch:
            results += train(group, device=device, engine=engine, watch=watch, resume=True)
    return judge(jobs, results, device=device)


def check_folders(jobs: Sequence[Job]) -> None:
    """Raise ``CheckpointError`` if a folder has a run of another comparison, before anything is trained."""
    for job in jobs:
        if job.out is None or not is_saved(job.out):
            continue
        found, fix = read_description(job.out), "To fix this, choose another --out, or remove that folder."
        recorded, wanted = (recipe.model_dump(exclude={"report_epochs"}) for recipe in (found.recipe, job.recipe))
        # each node of a cluster resolves "auto" by itself
        if changed := [name for name, value in wanted.items() if value not in ("auto", recorded[name])]:
            name = changed[0]
            raise CheckpointError(
                f"{job.out} has a run with {name} = {recorded[name]!r}, but {wanted[name]!r} was requested. {fix}"
            )
        if found.source != job.source:
            raise CheckpointError(f"{job.out} has a run on other data, or with other options for reading it. {fix}")


def judge(jobs: Sequence[Job], results: Sequence[Mapping[str, Any]], *, device: str = "auto") -> Comparison:
    """Predict the held-out samples with the trained runs: averaged weights after the last epoch."""
    seeds = list(dict.fromkeys(job.recipe.seed for job in jobs))
    labels = [_label(job) for job in jobs if job.recipe.seed == seeds[0]]
    right: dict[str, list[Tensor]] = {}
    truths: dict[str, Tensor] = {}
    for job in jobs:
        assert job.out is not None
        predictor = Predictor.load(job.out, device=device)
        for name, part in job.data[1].items():
            predicted = predictor.probabilities(part.inputs).argmax(1)
            for column, truth in _columns(name, part).items():
                truths[column] = truth  # the same for all jobs
                right.setdefault(column, []).append(predicted == truth)
    shape = (len(seeds), len(labels), -1)  # the jobs are ordered by seed, and those of a seed by method
    folders = [job.out for job in jobs if job.out is not None]
    return Comparison(
        methods=labels,
        seeds=seeds,
        right={column: torch.stack(runs).view(shape).transpose(0, 1) for column, runs in right.items()},
        labels=truths,
        classes=jobs[0].data[0].class_names,
        results=[list(results[i :: len(labels)]) for i in range(len(labels))],
        folders=[folders[i :: len(labels)] for i in range(len(labels))],
    )


def _label(job: Job) -> str:
    """Return the method as it is typed: ``gce:q=0.9`` for the folder ``gce-q-0.9-1``."""
    assert job.out is not None
    name, keys = Path(job.recipe.method).name, "|".join([*Recipe.model_fields, *job.recipe.parameters])
    settings = job.out.name.removesuffix(f"-{job.recipe.seed}").removeprefix(name)
    return name + re.sub(rf"-({keys})-", r":\1=", settings)


def _columns(name: str, part: Dataset) -> dict[str, Tensor]:
    """Return the labels to judge by. The labels of a test set are assumed to be correct."""
    if name != "val":
        return {name: part.given if part.true is None else part.true}
    return {GIVEN: part.given} | ({} if part.true is None else {TRUE: part.true})


class Lead(NamedTuple):
    """Lead of one method over another, as shares of the samples."""

    mean: float
    spread: float  # ``STANDARD_ERRORS`` standard errors of the mean, over seeds and samples

    @property
    def is_clear(self) -> bool:
        return self.mean > self.spread


@dataclass(frozen=True)
class Comparison:
    """Results of M methods from S seeds."""

    methods: list[str]
    seeds: list[int]
    right: dict[str, Tensor]  # by column: (M, S, N) bool, where a prediction equals the label
    labels: dict[str, Tensor]  # by column: (N,) int64
    classes: Sequence[str]
    results: list[list[Mapping[str, Any]]]  # by method and seed: as ogc.training.train returns them
    folders: list[list[Path]]

    @property
    def judged_by(self) -> str:
        """The column to rank by: labels that are assumed to be correct, if there are any."""
        checked = [name for name in self.right if name not in (TRUE, GIVEN)]
        return checked[0] if checked else TRUE if TRUE in self.right else GIVEN

    def accuracy(self, column: str) -> Tensor:
        """Return the share of right predictions: (M, S)."""
        return self.right[column].double().mean(2)

    def balanced(self, column: str) -> Tensor:
        """Return the mean over the classes of the share of right predictions: (M, S)."""
        return torch.stack([right.mean(2) for right in self._by_class(column)]).mean(0)

    def _by_class(self, column: str) -> list[Tensor]:
        """Return the correct predictions of each class that has samples: (M, S, n) each."""
        labels, right = self.labels[column], self.right[column].double()
        return [right[:, :, labels == c] for c in torch.unique(labels)]

    @property
    def measures(self) -> dict[str, Tensor]:
        """Accuracy by column, then the balanced accuracy if classes differ in size: (M, S)."""
        found = {column: self.accuracy(column) for column in self.right}
        if self.is_imbalanced:
            found[f"{self.judged_by}, balanced"] = self.balanced(self.judged_by)
        return found

    @property
    def is_imbalanced(self) -> bool:
        """Return True if accuracy can be high although a class is never predicted."""
        return differ_in_size(self.labels[self.judged_by])

    @property
    def ranking(self) -> list[int]:
        """Method indices, best first."""
        return self.accuracy(self.judged_by).mean(1).argsort(descending=True, stable=True).tolist()

    @property
    def best(self) -> str:
        return self.methods[self.ranking[0]]

    def lead(self, one: int, other: int, *, balanced: bool = False) -> Lead:
        """Compare two methods on the same seeds and samples.

        The variances of the difference over seeds and over samples are added, the latter within each class if
        ``balanced``. A variance over one seed or sample is unknown and omitted.
        """
        groups = self._by_class(self.judged_by) if balanced else [self.right[self.judged_by].double()]
        differences = [right[one] - right[other] for right in groups]  # (S, n) each
        of_seeds = torch.stack([difference.mean(1) for difference in differences]).mean(0)
        of_samples = [difference.mean(0) for difference in differences]
        variance = sum(_variance_of_mean(values) for values in of_samples) / len(groups) ** 2
        spread = STANDARD_ERRORS * math.sqrt(variance + _variance_of_mean(of_seeds))
        return Lead(float(of_seeds.mean()), spread)

    def sentence(self) -> str:
        """Recommend a method, and report whether its lead may be chance."""
        first, *others = self.ranking
        leads = {self.methods[other]: self.lead(first, other) for other in others}
        close = {name: lead for name, lead in leads.items() if not lead.is_clear}
        samples = self.right[self.judged_by].shape[2]
        over = f"{counted(len(self.seeds), 'seed')} and {samples:,} samples"
        accuracy = f"{100 * float(self.accuracy(self.judged_by)[first].mean()):.1f} %"
        known = {TRUE: "of the true held-out labels", GIVEN: "of the held-out labels as they are given"}
        what = known.get(self.judged_by, f"of the {self.judged_by} labels")
        one_seed = " One seed does not show the spread: use --seeds 1,2,3." if len(self.seeds) == 1 else ""
        if not close:
            name, lead = next(iter(leads.items()))
            return (
                f"Use {self.best}: it predicts {accuracy} {what}, {_points(lead)} more than the next best, {name}, and "
                f"the difference exceeds two standard errors over {over} ({100 * lead.spread:.1f} points).{one_seed}"
            )
        lead = max(close.values(), key=lambda lead: lead.mean)
        difference = "the difference of" if len(close) == 1 else "a difference of up to"
        return (
            f"Use {self.best}, which predicts {accuracy} {what}, but {either(list(close))} may do as well: "
            f"{difference} {_points(lead)} is within two standard errors over {over} ({100 * lead.spread:.1f} points)."
            f"{one_seed}"
        )

    def notes(self) -> list[str]:
        """Name missed classes, another method that is best by balanced accuracy, and methods that clip nothing."""
        advice = " Accuracy is a poor guide here: compare the balanced accuracy, or train for more epochs."
        labels, found = self.labels[self.judged_by], []
        for i in self.ranking:
            missed = [unlearned(labels, right, self.classes) for right in self.right[self.judged_by][i]]
            if classes := {name: count for name, count in missed[0].items() if all(name in each for each in missed)}:
                found.append(f"{self.methods[i]} misses {almost_all(classes)}.{advice if i == self.ranking[0] else ''}")
        return found + self._best_balanced() + self._without_clipping()

    def _without_clipping(self) -> list[str]:
        """Explain why a method with OGC is the same as its base loss here."""
        sizes = ({name: run["facts"][name] for name in ("samples", "batch", "steps")} for run, *_ in self.results)
        recipes = (Recipe.model_validate(run["recipe"]) for run, *_ in self.results)
        return [why for recipe, size in zip(recipes, sizes, strict=True) if (why := never_clips(recipe, **size))]

    def _best_balanced(self) -> list[str]:
        if not self.is_imbalanced:
            return []
        first, best = self.ranking[0], int(self.balanced(self.judged_by).mean(1).argmax())
        lead = self.lead(best, first, balanced=True)
        if lead.mean < 0.0005:  # less than is shown
            return []
        chance = "" if lead.is_clear else f", which is within two standard errors ({100 * lead.spread:.1f} points)"
        names = self.methods[best], self.methods[first]
        return [f"By balanced accuracy {names[0]} is best, {_points(lead)} ahead of {names[1]}{chance}."]

    @property
    def title(self) -> str:
        over = f"mean +- standard deviation over {len(self.seeds)} seeds" if len(self.seeds) > 1 else "one seed"
        return f"Correct predictions in %, {over}"

    @property
    def caption(self) -> str:
        noisy = " Given labels may be wrong: they rank the methods but do not measure accuracy."
        balanced = " Balanced: the mean over the classes." if self.is_imbalanced else ""
        given = noisy if GIVEN in self.right else ""
        return f"Averaged weights after the last epoch. One split for all runs.{balanced}{given}"

    def table(self) -> Table:
        """Make a table with one row per method, best first. ``title`` and ``caption`` belong to it."""
        headings = ["method", *(name.replace(", ", "\n") for name in self.measures), "memorised", "time"]
        return table_of(headings, [(self._cells(i), "bold" if i == self.ranking[0] else "") for i in self.ranking])

    def _cells(self, method: int) -> list[str]:
        runs = self.results[method]
        shares = [measure[method].tolist() for measure in self.measures.values()]
        shares.append([run["epochs"][-1]["memorised"] for run in runs])
        seconds = sum(run["seconds"] for run in runs) / len(runs)
        return [self.methods[method], *map(percent, shares), clock(seconds)]

    def picture(self) -> Figure:
        """Draw one panel per measure, and one of the accuracy over the epochs."""
        panels = [self._strip(name, shares) for name, shares in self.measures.items()]
        return figure_of_several([*panels, self._draw_epochs])

    def _strip(self, name: str, shares: Tensor) -> Callable[[Axes], str]:
        def draw(axes: Axes) -> str:
            """Draw one dot per seed, and a bar at the mean. The best method by accuracy is at the top."""
            for place, method in enumerate(reversed(self.ranking)):
                colour = COLOURS[method % len(COLOURS)]
                values = (100 * shares[method]).tolist()
                heights = [place + 0.1 * (seed - (len(values) - 1) / 2) for seed in range(len(values))]
                axes.plot(values, heights, "o", color=colour, alpha=0.6, markersize=7)
                mean = sum(values) / len(values)
                axes.plot([mean, mean], [place - 0.25, place + 0.25], color=colour, linewidth=2.5)
                axes.annotate(f"{mean:.1f}", (mean, place + 0.28), ha="center", fontsize=9.5, color=colour)
            names = [self.methods[method] for method in reversed(self.ranking)]
            axes.set(yticks=range(len(names)), yticklabels=names, ylim=(-0.6, len(names) - 0.3))
            what = f"% of {self.right[name].shape[2]:,} samples" if name in self.right else "mean over the classes, %"
            axes.set_xlabel(f"correct predictions, {what}; one dot per seed")
            axes.margins(x=0.15)
            tidy(axes)
            axes.grid(axis="y", visible=False)
            axes.grid(axis="x", color=GRID, linewidth=0.6)
            return name[0].upper() + name[1:]

        return draw

    def _draw_epochs(self, axes: Axes) -> str:
        """Draw the mean over seeds per epoch."""
        name = "val" if self.judged_by in (GIVEN, TRUE) else self.judged_by
        curves = []
        for number, (method, runs) in enumerate(zip(self.methods, self.results, strict=True)):
            epochs = zip(*(run["epochs"] for run in runs), strict=True)
            shares = ([(epoch["averaged"] or epoch["accuracy"])[name] for epoch in same] for same in epochs)
            values = [100 * sum(share) / len(share) for share in shares]
            curves.append(Curve(method, values, COLOURS[number % len(COLOURS)]))
        draw_curves(axes, curves, ylabel="correct predictions, %", drops={})
        return f"{self.judged_by[0].upper()}{self.judged_by[1:]}, over the epochs"

    def to_json(self) -> dict[str, Any]:
        return {
            "methods": self.methods,
            "seeds": self.seeds,
            "judged_by": self.judged_by,
            "samples": {column: right.shape[2] for column, right in self.right.items()},
            "accuracy": {column: self.accuracy(column).tolist() for column in self.right},
            "balanced_accuracy": {column: self.balanced(column).tolist() for column in self.right},
            "lead_of_best": {
                self.methods[other]: self.lead(self.ranking[0], other)._asdict() for other in self.ranking[1:]
            },
            "best": self.best,
            "sentence": self.sentence(),
            "notes": self.notes(),
        }

    def write(self, folder: Path) -> None:
        """Write ``compare.json`` and ``compare.png``."""
        write_json(folder / NUMBERS, self.to_json())
        write_whole(folder / PICTURE, png(self.picture()))


def _variance_of_mean(values: Tensor) -> float:
    return float(values.var()) / len(values) if len(values) > 1 else 0.0


def _points(lead: Lead) -> str:
    return f"{100 * lead.mean:.1f} points"
