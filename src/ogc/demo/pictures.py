"""The demo's pictures: accuracy over time, tau over time, and the cross entropies with the two fitted normals."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .training import History, Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED, GREEN, ORANGE, GREY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#666666"  # safe for the colour-blind
COLOURS = {"CE": RED, "CE+OGC": BLUE}


def pictures(histories: Sequence[History], settings: Settings) -> dict[str, Figure]:
    """File name to figure: the three panels side by side, and each on its own."""
    from matplotlib.figure import Figure

    panels = {"accuracy.png": draw_accuracy, "tau.png": draw_tau, "histogram.png": draw_histogram}
    together = Figure(figsize=(16, 4.4), dpi=100, layout="constrained")
    together.get_layout_engine().set(w_pad=0.15)  # type: ignore[union-attr, call-arg]
    for axes, draw in zip(together.subplots(1, 3), panels.values(), strict=True):
        draw(axes, histories, settings)
    figures = {"demo.png": together}
    for name, draw in panels.items():
        figures[name] = Figure(figsize=(6, 4.4), dpi=120, layout="constrained")
        draw(figures[name].subplots(), histories, settings)
    return figures


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", pil_kwargs={"optimize": True})
    return buffer.getvalue()


def draw_accuracy(axes: Axes, histories: Sequence[History], settings: Settings) -> None:
    """Test accuracy over epochs: the mean of each method, and every seed as a thin line."""
    ends = {}
    for method, colour in COLOURS.items():
        curves = [[100 * epoch.test_accuracy for epoch in h.epochs] for h in histories if h.method == method]
        mean = [statistics.fmean(at) for at in zip(*curves, strict=True)]
        ends[method] = mean[-1]
        numbers = range(1, settings.epochs + 1)
        for curve in curves if len(curves) > 1 else []:
            axes.plot(numbers, curve, color=colour, linewidth=0.7, alpha=0.35)
        axes.plot(numbers, mean, color=colour, linewidth=2, label=method)
    _mark_lr_drops(axes, settings)
    axes.legend(loc="lower left", frameon=False)
    axes.set(xlabel="epoch", ylabel="accuracy on clean test digits, %", xlim=(0, settings.epochs))
    _tidy(axes, "At the end: " + ", ".join(f"{method} {end:.1f} %" for method, end in ends.items()))


def draw_tau(axes: Axes, histories: Sequence[History], settings: Settings) -> None:
    """tau over epochs; the first ones, when nothing is clipped, are a shaded field: tau is 1e7 there."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    curves = [[epoch.tau or math.nan for epoch in h.epochs] for h in histories if h.method == "CE+OGC"]
    for curve in curves:
        axes.plot(range(1, settings.epochs + 1), curve, color=BLUE, linewidth=2 if len(curves) == 1 else 1)
    axes.plot([], [], color=BLUE, linewidth=2, label="tau of CE+OGC")
    first = min(next((i for i, tau in enumerate(curve, 1) if tau > 0), settings.epochs) for curve in curves)
    axes.axvspan(0, first, color=GREY, alpha=0.2, linewidth=0, label="nothing is clipped yet: the queue fills")
    _mark_lr_drops(axes, settings)
    axes.set(xlabel="epoch", ylabel="tau (log scale)", xlim=(0, settings.epochs), yscale="log")
    axes.set_yticks([1, 2, 3, 5, 10, 20, 50, 100])
    highest = max((tau for curve in curves for tau in curve if tau > 0), default=10)
    axes.set_ylim(0.9, 1.3 * highest)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda tau, _: f"{tau:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.93), framealpha=1, edgecolor="none")
    last = statistics.fmean(curve[-1] for curve in curves)
    _tidy(
        axes,
        "No gradient is clipped yet" if math.isnan(last) else f"Gradients above tau are clipped: {last:.2f} at the end",
    )


def draw_histogram(axes: Axes, histories: Sequence[History], settings: Settings) -> None:
    """H of the training set after CE+OGC, and how many samples per bin the two normals expect.

    The normals were fitted to the queue: the last 4,096 samples seen, H cut at 16.1.
    """
    history = next(h for h in histories if h.method == "CE+OGC")
    H, bins = history.H.double(), 45
    width = max(H.max().item(), 1.0) / bins
    for chosen, colour, name in ((~history.wrong, GREEN, "correct label"), (history.wrong, ORANGE, "wrong label")):
        axes.hist(H[chosen].tolist(), bins, range=(0, bins * width), color=colour, alpha=0.6, label=name)
    title = "Cross entropies at the end of CE+OGC"
    if history.mixture is not None:
        clean_mean, clean_var, noisy_mean, noisy_var, noisy_weight = history.mixture
        centre = torch.linspace(0, bins * width, 1000, dtype=torch.float64)
        for weight, mean, var, style, name in (
            (1 - noisy_weight, clean_mean, clean_var, "-", "normal fitted as clean"),
            (noisy_weight, noisy_mean, noisy_var, "--", "normal fitted as noisy"),
        ):
            ends = [torch.special.ndtr((centre + side * width / 2 - mean) / var.sqrt()) for side in (-1, 1)]
            expected = len(H) * weight * (ends[1] - ends[0])
            axes.plot(centre.tolist(), expected.tolist(), style, color="black", linewidth=1.5, label=name)
        title = f"Noise rate by the two normals {100 * noisy_weight:.1f} %, true {100 * history.true_noise:.1f} %"
    which = f" (seed {history.seed})" if settings.seeds > 1 else ""
    axes.set(xlabel=f"H, cross entropy of the given label, at the end{which}", ylabel="training samples (log scale)")
    axes.set(yscale="log", ylim=(0.7, 2 * len(H)), xlim=(-width / 2, bins * width))
    axes.legend(frameon=False, ncols=2, loc="upper right", fontsize=9)
    _tidy(axes, title)


def _mark_lr_drops(axes: Axes, settings: Settings) -> None:
    for epoch in settings.milestones:
        axes.axvline(epoch, color=GREY, linewidth=0.8, linestyle=":")
        top = (epoch, 0.99)
        axes.annotate(
            "lr / 10", top, (4, 0), axes.get_xaxis_transform(), "offset points", va="top", color=GREY, fontsize=9
        )


def _tidy(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, weight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
