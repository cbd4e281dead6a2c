"""The demo's pictures: accuracy over time, tau over time, and the cross entropies with the two fitted normals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..drawing import BLUE, RED, Curve, draw_curves, draw_histogram, draw_tau, figure_of, figure_of_several
from .training import History, Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"CE": RED, "CE+OGC": BLUE}


def pictures(histories: Sequence[History], settings: Settings) -> dict[str, Figure]:
    """Return the figures by file name: the three panels side by side, and each on its own."""
    drops = dict.fromkeys(settings.milestones, "lr / 10")
    ogc = [history for history in histories if history.method == "CE+OGC"]
    which = f" (seed {ogc[0].seed})" if len(settings.seeds) > 1 else ""
    xlabel = f"H, cross entropy of the given label, at the end{which}"
    panels: dict[str, Callable[[Axes], str]] = {
        "accuracy.png": lambda axes: draw_accuracy(axes, histories, drops),
        "tau.png": lambda axes: draw_tau(axes, [[epoch.tau for epoch in h.epochs] for h in ogc], drops=drops),
        "histogram.png": lambda axes: draw_histogram(axes, ogc[0].H, ogc[0].wrong, ogc[0].mixture, xlabel=xlabel),
    }
    return {"demo.png": figure_of_several(panels.values())} | {name: figure_of(draw) for name, draw in panels.items()}


def draw_accuracy(axes: Axes, histories: Sequence[History], drops: dict[int, str]) -> str:
    """Draw the test accuracy per epoch: the mean of each method, and every seed as a thin line."""
    means = []
    for method, colour in COLOURS.items():
        runs = [[100 * epoch.test_accuracy for epoch in h.epochs] for h in histories if h.method == method]
        for run in runs if len(runs) > 1 else []:
            axes.plot(range(1, len(run) + 1), run, color=colour, linewidth=0.7, alpha=0.35)
        means.append(Curve(method, [statistics.fmean(at) for at in zip(*runs, strict=True)], colour))
    draw_curves(axes, means, ylabel="accuracy on clean test digits, %", drops=drops)
    return "At the end: " + ", ".join(f"{mean.label} {mean.values[-1]:.1f} %" for mean in means)
