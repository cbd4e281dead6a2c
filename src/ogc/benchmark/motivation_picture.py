"""The figure of ``motivation.py``: a fixed threshold above, OGC below, one column per epoch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..report.drawing import BLUE, GREEN, GREY, INK, ORANGE, RED, log_axis, name_heights, tidy
from .motivation import EVALUATIONS, PLANE, History, Moment, Snapshot, Task, final_means

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEEPEST = 30.0  # gradients are drawn up to here; larger ones count as this
BANDWIDTH = 0.15  # of the densities, in log gradient
CLASSES = ("#cc79a7", "#56b4e9")  # colours of the given labels
SMALL, SMALLER = 7.5, 6.5  # points


def draw(histories: Sequence[History], task: Task) -> Figure:
    """Draw the first run (a fixed threshold) and the last (OGC) as in the paper, and curves of all runs."""
    from matplotlib.figure import Figure

    colours = [RED, *[GREY] * (len(histories) - 2), BLUE]
    figure = Figure(figsize=(7.2, 6.4), dpi=200)  # fixed positions: a computed layout varies in its last bits
    firsts: list[Axes] = []
    for top, which in ((0.935, 0), (0.425, -1)):
        history, colour = histories[which], colours[which]
        last, moments = final_means(history), history.moments[-EVALUATIONS:]
        name = "Threshold by OGC" if history.threshold is None else f"Fixed threshold, {history.name}"
        memorised, accuracy = (f"{100 * last[measure]:.0f} %" for measure in ("memorised", "test_accuracy"))
        found = f"{memorised} of wrong labels memorised, test accuracy {accuracy}"
        title = f"{name}, epochs {moments[0].epoch} to {moments[-1].epoch}: {found}"
        figure.text(0.01, top + 0.055, title, va="top", fontsize=8.5, weight="bold", color=colour)
        place = {"top": top, "bottom": top - 0.385, "hspace": 0.42}
        first = figure.add_gridspec(2, 1, left=0.03, right=0.205, **place)
        firsts += [figure.add_subplot(first[row]) for row in (0, 1)]
        others = figure.add_gridspec(2, len(history.snapshots), left=0.28, right=0.985, wspace=0.14, **place)
        for column, snapshot in enumerate(history.snapshots):
            above, below = (figure.add_subplot(others[row, column]) for row in (0, 1))
            above.set_title(f"epoch {snapshot.moment.epoch}", fontsize=SMALL, pad=3)
            draw_densities(above, snapshot, task, colour)
            draw_plane(below, task, snapshot.plane)
            if column == 0:
                above.set_xlabel("gradient 1/p of a sample (log scale)", fontsize=SMALLER, labelpad=1, loc="left")
    data, right, tau, wrong = firsts
    draw_plane(data, task, None)
    data.set_title("training data", fontsize=SMALL, pad=3)
    data.set_xlabel(f"outlined: wrong label, {100 * task.wrong.double().mean():.0f} %", fontsize=SMALLER, labelpad=2)
    draw_moments(right, histories, colours, "test accuracy, %", lambda moment: 100 * moment.test_accuracy)
    draw_moments(tau, histories, colours, "tau (log scale)", lambda moment: moment.tau, log=True)
    draw_moments(wrong, histories, colours, "wrong labels memorised, %", lambda moment: 100 * moment.memorised)
    return figure


def density(H: Tensor, at: Tensor) -> Tensor:
    """Estimate the density of the log gradient, which for CE is H, mirrored at both ends: (N,), (M,) -> (M,)."""
    end = math.log(STEEPEST)
    H = H.double().clamp(max=end)
    distance = (at[:, None] - torch.cat([H, -H, 2 * end - H])) / BANDWIDTH
    return torch.exp(-0.5 * distance**2).sum(1) / (len(H) * BANDWIDTH * math.sqrt(2 * math.pi))


def draw_densities(axes: Axes, snapshot: Snapshot, task: Task, colour: str) -> None:
    moment = snapshot.moment
    at = torch.linspace(0, math.log(STEEPEST), 400, dtype=torch.float64)
    groups = ((task.wrong, ORANGE, "noisy", moment.noisy_clipped), (~task.wrong, GREEN, "clean", moment.clean_clipped))
    for line, (chosen, side, name, share) in enumerate(groups):
        curve = density(snapshot.H[chosen], at).tolist()
        axes.fill_between(at.exp().tolist(), curve, color=side, alpha=0.4, linewidth=0)
        axes.plot(at.exp().tolist(), curve, color=side, linewidth=1.1)
        text, corner = f"{100 * share:.0f} % of {name} clipped", axes.transAxes
        axes.text(1.0, 1.0 - 0.12 * line, text, color=side, fontsize=SMALLER, ha="right", va="top", transform=corner)
    axes.set(xscale="log", xlim=(1, STEEPEST), yticks=[])
    axes.set_xticks([1, 2, 5, 10, STEEPEST], ["1", "2", "5", "10", f"{STEEPEST:g}+"])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0, 1.7 * axes.get_ylim()[1])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=SMALLER, pad=1.5, length=2)
    if moment.tau is not None:
        axes.axvline(moment.tau, ymax=0.64, color=colour, linewidth=1.3)
        text, units = f"tau = {moment.tau:.3g}", (axes.get_xaxis_transform(), "offset points")
        axes.annotate(text, (moment.tau, 0.64), (2, -1), *units, color=colour, fontsize=SMALLER, va="top")


def draw_plane(axes: Axes, task: Task, plane: Tensor | None) -> None:
    """Draw the samples in the colours of their given labels, wrong ones outlined, over the network's predictions."""
    from matplotlib.colors import to_rgb

    (left, right), (bottom, top) = PLANE
    if plane is not None:
        tints = 1 - 0.35 * (1 - torch.tensor([to_rgb(colour) for colour in CLASSES]))
        place = (left, right, bottom, top)
        axes.imshow(tints[(plane > 0.5).long()].numpy(), origin="lower", extent=place, aspect="auto")
        axes.contour(plane.numpy(), [0.5], extent=place, colors=INK, linewidths=0.7)
    for wrong, size, edge in ((False, 4, "none"), (True, 6, INK)):
        for label, colour in enumerate(CLASSES):
            points = task.inputs[(task.given == label) & (task.wrong == wrong)]
            across, up = points.T.tolist()
            axes.scatter(across, up, s=size, color=colour, edgecolors=edge, linewidths=0.5)
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])
    axes.spines[:].set_linewidth(0.5)


def draw_moments(
    axes: Axes,
    histories: Sequence[History],
    colours: Sequence[str],
    title: str,
    value: Callable[[Moment], float | None],
    *,
    log: bool = False,
) -> None:
    """Draw a number over epochs: its running mean in front of a thin line of its values, named at the end."""
    ends: list[tuple[float, str, str]] = []
    for history, colour in zip(histories, colours, strict=True):
        known = [(moment.epoch, found) for moment in history.moments if (found := value(moment)) is not None]
        epochs, values = [epoch for epoch, _ in known], [found for _, found in known]
        smooth = smoothed(values)
        axes.plot(epochs, values, color=colour, linewidth=0.6, alpha=0.3)
        axes.plot(epochs, smooth, color=colour, linewidth=1.2)
        name = "OGC" if history.threshold is None else history.name
        ends += [(smooth[-1], name, colour)] if smooth else []
    axes.set_title(title, fontsize=SMALL, pad=3)
    axes.set_xlabel("epoch", fontsize=SMALLER, labelpad=1)
    axes.set_xlim(0, histories[0].moments[-1].epoch)
    tidy(axes)
    axes.tick_params(labelsize=SMALLER, pad=1.5, length=2)
    if log:
        log_axis(axes, [found for h in histories for moment in h.moments if (found := value(moment))])
    name_heights(axes, ends, gap=0.12, x=1.03, size=SMALLER)


def smoothed(values: Sequence[float]) -> list[float]:
    """Average each value and up to five neighbours on each side; fewer at the start, where values change fast.

    >>> smoothed([1.0, 2.0, 6.0])
    [1.0, 3.0, 3.0]
    """
    reach = [min(i, 5) for i in range(len(values))]
    return [statistics.fmean(values[i - r : i + r + 1]) for i, r in enumerate(reach)]
