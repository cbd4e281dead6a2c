"""Figures from recorded runs: the sweeps, tau over training, and r(tau) from the model and the true labels."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..report.drawing import BLUE, GREEN, GREY, INK, ORANGE, RED, log_axis, name_heights, over_epochs, tidy
from ..report.pictures import lr_drops
from ..training.history import Epoch
from .plan import TABLES, name_of
from .result import Result
from .table import fill, runs_by_row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Drawn = dict[str, Figure]  # by the name of the file, without suffix

SKY, PURPLE = "#56b4e9", "#cc79a7"
SMALL = 8.5  # points
# background of text that may cross a line
TEXT_BOX: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
COLOURS = {  # symmetric noise: darker with its rate
    "symmetric:0.2": SKY,
    "symmetric:0.5": BLUE,
    "symmetric:0.8": INK,
    "asymmetric:0.4": RED,
    "blocks:0.4": RED,
    "instance:0.4": GREEN,
    "human:worse": ORANGE,
    "human:noisy": ORANGE,
    "pairflip:0.4": GREY,
    "human:random1": PURPLE,
}
SWEPT = {  # table: parameter, label of the axis, the paper's choice
    "epsilon": ("epsilon", "epsilon", None),
    "queue": ("queue_size", "queue size Q", 4096),
    "every": ("every", "steps between updates, s", 32),
}
NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "webvision": "Mini-WebVision",
    "digits": "Digits",
    "cifar10-default": "CIFAR-10, default rule",
    "cifar10-plus": "CIFAR-10, plus",
    "cifar100-plus": "CIFAR-100, plus",
}


# --- the sweeps -------------------------------------------------------------------------------------------------------


def sweep(name: str, results: Sequence[Result]) -> Drawn:
    """Draw accuracy against the parameter, one panel per noise, or accuracy and the variance of tau."""
    from matplotlib.figure import Figure

    table = TABLES[name]
    filled = fill(table, results)
    if not filled.has_runs:
        return {}
    parameter, xlabel, choice = SWEPT[name]
    values = [float(str(row.changes[parameter])) for row in table.rows]
    figure = Figure(figsize=(7.2, 2.8), dpi=200, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08)  # type: ignore[union-attr, call-arg]
    figure.suptitle(table.title, x=0.01, ha="left", fontsize=10, weight="bold")
    for i, (axes, column) in enumerate(zip(figure.subplots(1, len(table.columns)), table.columns, strict=True)):
        known = [(value, entries[i].ours) for value, (_, entries) in zip(values, filled.rows, strict=True)]
        draw_sweep(axes, sorted(known), column.measure)
        axes.set_xlabel(xlabel, fontsize=SMALL)
        if choice is None:
            axes.set_title(f"{column.label} (grey: epsilon = 20 lr)", fontsize=9, loc="left")
            draw_references(axes, column.noise, results)
        else:
            mark_choice(axes, sorted(values).index(choice))
    return {name: figure}


def draw_sweep(axes: Axes, points: Sequence[tuple[float, Sequence[float]]], measure: str) -> None:
    """Draw the mean of the runs at each value with its number, and each of several runs as a dot.

    Values are equally spaced, which is close to a log scale and keeps 0.05 and 0.1 apart.
    """
    accuracy = measure == "test"
    colour, style = (BLUE, ".1f") if accuracy else (GREEN, ".2g")
    known = [(i, runs) for i, (_, runs) in enumerate(points) if runs]
    axes.set_xticks(range(len(points)), [f"{value:g}" for value, _ in points])
    axes.set_xlim(-0.5, len(points) - 0.5)
    axes.set_ylabel("test accuracy, %" if accuracy else "variance of tau (log scale)", fontsize=SMALL)
    tidy(axes)
    means = [statistics.fmean(runs) for _, runs in known]
    axes.plot([i for i, _ in known], means, "-o", color=colour, linewidth=1.6, markersize=4)
    for (i, runs), mean in zip(known, means, strict=True):
        if len(runs) > 1:
            axes.plot([i] * len(runs), runs, ".", color=colour, markersize=4, alpha=0.45)
        axes.annotate(
            f"{mean:{style}}",
            (i, max(runs)),
            (0, 5),
            "data",
            "offset points",
            ha="center",
            fontsize=SMALL,
            bbox=TEXT_BOX,
        )
    if accuracy:
        axes.margins(y=0.2)
    else:
        log_axis(axes, [run for _, runs in known for run in runs if run > 0])
        axes.set_ylim(top=axes.get_ylim()[1] * 1.2)


def draw_references(axes: Axes, noise: str | None, results: Sequence[Result]) -> None:
    """Draw the accuracy of the paper's rule, epsilon = 20 lr: the paper's number and ours."""
    cell = next(cell for cell in TABLES["cifar10"].cells if cell.method == "ce+ogc" and cell.noise == noise)
    ours = [
        found for r in results if r.key == cell.key and not r.other_draw and (found := r.measured("test")) is not None
    ]
    lines = [("paper", cell.paper.mean, ":")] if cell.paper else []
    lines += [("ours", statistics.fmean(ours), "--")] if ours else []
    for _, height, style in lines:
        axes.axhline(height, color=GREY, linewidth=1.0, linestyle=style, zorder=1)
    names = [(height, f"{name} {height:.1f}", GREY) for name, height, _ in lines]
    name_heights(axes, names, gap=0.1, x=1.01, size=SMALL)


def mark_choice(axes: Axes, place: int) -> None:
    axes.axvline(place, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    late = place > sum(axes.get_xlim()) / 2
    shift, side = ((-3, 4), "right") if late else ((3, 4), "left")
    units = axes.get_xaxis_transform(), "offset points"
    axes.annotate("paper's choice", (place, 0), shift, *units, ha=side, color=GREY, fontsize=SMALL)


# --- over training ----------------------------------------------------------------------------------------------------

RATIOS: tuple[tuple[str, str, str, Callable[[Epoch], float | None]], ...] = (
    ("from the two normals", BLUE, "-", lambda epoch: epoch.ratio),
    ("from the true labels", ORANGE, "--", lambda epoch: epoch.true_ratio),
)
Runs = dict[str, list[Result]]  # by the label of the noise; its runs differ in their seed


def with_ogc(results: Sequence[Result]) -> dict[str, dict[str, Runs]]:
    """Group the runs of tables by data set, method and noise: the paper's methods, then others. Sweeps are left out."""
    found: dict[str, dict[str, Runs]] = {}
    for table in TABLES.values():
        if table.name in SWEPT or table.alone:
            continue
        for row, by_column in runs_by_row(table, results):
            name = name_of(row.method) if row in table.rows else row.label
            for column, runs in zip(table.columns, by_column, strict=True):
                if runs and row.method.endswith("+ogc"):
                    label = column.label if column.noise is not None else "web labels"
                    found.setdefault(row.recipe or table.dataset, {}).setdefault(name, {})[label] = runs
    return found


def tau(results: Sequence[Result]) -> Drawn:
    """Draw tau: one figure per data set, one panel per method, one curve per noise, gaps where nothing is clipped."""
    from matplotlib.figure import Figure

    drawn: Drawn = {}
    for dataset, methods in with_ogc(results).items():
        clips = {method: with_number(noises, lambda epoch: epoch.tau) for method, noises in methods.items()}
        panels = {method: noises for method, noises in clips.items() if noises}
        if not panels:
            continue
        figure = Figure(figsize=(0.9 + max(3.2, 2.5 * len(panels)), 3.0), dpi=200, layout="constrained")
        figure.suptitle(f"tau over training, {NAMES[dataset]}", x=0.01, ha="left", fontsize=10, weight="bold")
        names: dict[str, str] = {}  # colour by name of the curve
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (method, noises) in zip(grid, panels.items(), strict=True):
            for noise, runs in noises.items():
                names[noise] = COLOURS.get(str(runs[0].noise), GREY)
                draw_mean(axes, runs, lambda epoch: epoch.tau, names[noise])
            axes.set_title(method, fontsize=9, loc="left", pad=14)
            first = next(iter(noises.values()))[0]
            over_epochs(axes, len(first.epochs), lr_drops(first.epochs))
            log_axis(axes, [e.tau for runs in noises.values() for run in runs for e in run.epochs if e.tau])
        grid[0].set_ylabel("tau (log scale)", fontsize=SMALL)
        curves = [mean_of(runs, lambda epoch: epoch.tau) for noises in panels.values() for runs in noises.values()]
        gap = {"gap: nothing\nis clipped": GREY} if any(None in curve for curve in curves) else {}
        name_curves(grid[-1], names | gap, inside=False)
        drawn[f"tau-{dataset}"] = figure
    return drawn


def ratio(results: Sequence[Result]) -> Drawn:
    """Draw r(tau) from the two normals and the true labels: one figure per data set and method, one panel per noise."""
    drawn: Drawn = {}
    for dataset, methods in with_ogc(results).items():
        for method, noises in methods.items():
            if panels := with_number(noises, lambda epoch: epoch.true_ratio):
                title = f"r(tau), noisy over clean gradients, {NAMES[dataset]}, {method}"
                name = f"ratio-{dataset}-{re.sub('[^a-z0-9.]+', '_', method.lower()).strip('_')}"
                drawn[name] = draw_ratios(panels, title)
    return drawn


def draw_ratios(panels: Runs, title: str) -> Figure:
    from matplotlib.figure import Figure

    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(max(4.7, 2.4 * columns), 0.5 + 2.0 * rows), dpi=200, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, weight="bold")
    grid = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for i, (axes, (noise, runs)) in enumerate(zip(grid, panels.items(), strict=False)):
        for _, colour, style, value in RATIOS:
            draw_mean(axes, runs, value, colour, style)
        over_epochs(axes, len(runs[0].epochs), dict.fromkeys(lr_drops(runs[0].epochs), ""))
        axes.set_title(noise, fontsize=9, loc="left", pad=4)
        lowest = i + columns >= len(panels)
        axes.set_xlabel("epoch" if lowest else "", fontsize=SMALL)
        axes.tick_params(labelbottom=lowest)
        axes.set_ylabel("r(tau) (log scale)" if i % columns == 0 else "", fontsize=SMALL)
    epochs = [epoch for runs in panels.values() for run in runs for epoch in run.epochs]
    log_axis(grid[0], [found for epoch in epochs for found in (epoch.ratio, epoch.true_ratio) if found])
    name_curves(grid[0], {name: colour for name, colour, _, _ in RATIOS}, inside=True)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


def with_number(noises: Runs, value: Callable[[Epoch], float | None]) -> Runs:
    """Select the noise types whose runs have the number in some epoch."""
    return {noise: runs for noise, runs in noises.items() if any(value(e) for run in runs for e in run.epochs)}


def draw_mean(
    axes: Axes, runs: Sequence[Result], value: Callable[[Epoch], float | None], colour: str, style: str = "-"
) -> None:
    curve = [math.nan if found is None else found for found in mean_of(runs, value)]
    dot: dict[str, Any] = {"marker": "o", "markersize": 1.5, "markeredgewidth": 0}  # shows an epoch between two gaps
    axes.plot(range(1, len(curve) + 1), curve, style, color=colour, linewidth=1.5, **dot)


def name_curves(axes: Axes, names: Mapping[str, str], *, inside: bool) -> None:
    """Write the names of curves in their colours, right of the axes or in the upper corner."""
    x, side = (0.99, "right") if inside else (1.04, "left")
    style: dict[str, Any] = {"fontsize": SMALL, "ha": side, "va": "top", "bbox": TEXT_BOX, "transform": axes.transAxes}
    for i, (name, colour) in enumerate(names.items()):
        axes.text(x, 0.98 - 0.09 * i, name, color=colour, **style)


def mean_of(runs: Sequence[Result], value: Callable[[Epoch], float | None]) -> list[float | None]:
    """Average a number over the runs that have it, epoch by epoch."""
    means = []
    for at in zip(*(run.epochs for run in runs), strict=True):
        known = [found for epoch in at if (found := value(epoch)) is not None]
        means.append(statistics.fmean(known) if known else None)
    return means


FIGURES: dict[str, Callable[[Sequence[Result]], Drawn]] = {
    **{name: partial(sweep, name) for name in SWEPT},
    "tau": tau,
    "ratio": ratio,
}
