"""Panels shared by all pictures: curves over epochs, tau, the histogram of H; colours and file formats."""

from __future__ import annotations

import io
import math
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..clipping.mixture import Mixture
from ..given_label import H_MAX

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..clipping import OGC

BLUE, RED, GREEN, ORANGE, GREY = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#666666"  # colour-blind safe
INK, GRID = "#000000", "#dddddd"
VARIABLES = {BLUE: "blue", RED: "red", GREEN: "green", ORANGE: "orange", GREY: "grey", INK: "ink", GRID: "grid"}
BINS = 45


class Curve(NamedTuple):
    """One number per epoch, ``None`` if unknown. The label is drawn at the end of the curve."""

    label: str
    values: Sequence[float | None]
    colour: str
    style: str = "-"


def figure_of(draw: Callable[[Axes], str]) -> Figure:
    """Draw one panel, titled with what ``draw`` returns. It is small, so that its text is readable on a phone."""
    figure = _new_figure((4.7, 3.3), dpi=200)
    figure.suptitle(draw(figure.subplots()), x=0.01, ha="left", fontsize=10.5, weight="bold", wrap=True)
    return figure


def figure_of_several(panels: Collection[Callable[[Axes], str]]) -> Figure:
    """Draw panels side by side, each titled with what its function returns."""
    figure = _new_figure((16 * len(panels) / 3, 4.4), dpi=100)
    figure.get_layout_engine().set(w_pad=0.15)  # type: ignore[union-attr, call-arg]
    for axes, draw in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.set_title(draw(axes), loc="left", fontsize=11, weight="bold", pad=16)  # above the learning-rate marks
    return figure


def _new_figure(size: tuple[float, float], dpi: int) -> Figure:
    """Make a figure without pyplot, which would keep a reference. Notebooks show it through ``_repr_png_``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=dpi, layout="constrained")
    setattr(figure, "_repr_png_", lambda: png(figure))  # noqa: B010
    return figure


def png(figure: Figure) -> bytes:
    return rendered(figure, "png")


def rendered(figure: Figure, kind: str) -> bytes:
    """Return the content of a png, svg or pdf file. Text stays text in SVG. PDF has TrueType fonts, for publishers."""
    import matplotlib

    buffer = io.BytesIO()
    options: dict[str, Any] = {"pil_kwargs": {"optimize": True}} if kind == "png" else {}
    with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()


def svg(figure: Figure, name: str) -> str:
    """Return SVG for an HTML page, without the title. Colours are CSS variables (``--blue``, ``--ink``).

    :param name: prefix of every id, so that a page can hold several figures.
    """
    import matplotlib

    figure.suptitle("")
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' (xmlns\S*|version|width|height)="[^"]*"', "", text.split(">", 1)[0]) + ">" + text.split(">", 1)[1]
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return text


def draw_curves(
    axes: Axes,
    curves: Sequence[Curve],
    *,
    ylabel: str,
    drops: Mapping[int, str],
    bottom: float | None = None,
    log: bool = False,
) -> None:
    """Draw curves over epochs, with a label at the end of each.

    :param drops: text by the epoch after which the learning rate drops.
    """
    epochs = max(len(curve.values) for curve in curves)
    for label, values, colour, style in curves:
        marker = "o" if sum(value is not None for value in values) == 1 else None
        axes.plot(
            range(1, len(values) + 1),
            [math.nan if value is None else value for value in values],
            style,
            color=colour,
            linewidth=1.8,
            marker=marker,
            label=label,
            clip_on=marker is None,
        )
    over_epochs(axes, epochs, drops)
    axes.set_ylabel(ylabel)
    if log:
        log_axis(axes, [value for curve in curves for value in curve.values if value])
    axes.set_ylim(bottom=bottom)
    label_ends(axes, curves)


def over_epochs(axes: Axes, epochs: int, drops: Mapping[int, str]) -> None:
    """Set up an axis of epochs and mark the drops in the learning rate."""
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel="epoch", xlim=(0, epochs))
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    for epoch, text in drops.items():
        axes.axvline(epoch, color=GREY, linewidth=0.8, linestyle=":")
        axes.text(epoch, 1.01, text, transform=axes.get_xaxis_transform(), ha="center", color=GREY, fontsize=8.5)
    tidy(axes)


def log_axis(axes: Axes, values: Sequence[float]) -> None:
    """Set up a log axis with ticks at 1, 2, 5 of each decade, or at each decade if there are many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = min(values, default=1.0), max(values, default=10.0)
    axes.set(yscale="log", ylim=(low / 1.15, high * 1.3))
    axes.yaxis.set_major_locator(
        LogLocator(subs=(1, 2, 3, 5) if high / low < 20 else (1, 2, 5) if high / low < 200 else (1,))
    )
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def label_ends(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw each label to the right of its curve."""
    last = [next((value for value in reversed(curve.values) if value is not None), None) for curve in curves]
    room = 0.72 * 72 * axes.figure.get_figure(root=True).get_figheight()  # approximate height of the axes in points
    ends = [(end, curve.label, curve.colour) for end, curve in zip(last, curves, strict=True) if end is not None]
    name_heights(axes, ends, gap=12 / room, x=1.015, size=9.5)


def name_heights(axes: Axes, heights: list[tuple[float, str, str]], *, gap: float, x: float, size: float) -> None:
    """Write names in their colours beside the axes, each at its height, moved up or down to be ``gap`` apart."""
    axes.get_ylim()  # applies a pending change of the limits
    ordered = sorted(heights)
    at = axes.transData.transform([(0, height) for height, _, _ in ordered] or [(0, 0)])
    shares = axes.transAxes.inverted().transform(at)[: len(ordered), 1]
    for (_, name, colour), share in zip(ordered, spread(list(shares), gap), strict=True):
        axes.text(x, share, name, color=colour, transform=axes.transAxes, va="center", fontsize=size)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move sorted heights as little as possible until they are ``gap`` apart.

    >>> spread([0.0, 10.0, 11.0], 2.0)
    [0.0, 9.5, 11.5]
    """
    groups: list[tuple[float, int]] = []  # centre and size of groups of touching labels
    for height in heights:
        centre, members = height, 1
        while groups and centre - groups[-1][0] < gap * (members + groups[-1][1]) / 2:
            before, number = groups.pop()
            centre = (centre * members + before * number) / (members + number)
            members += number
        groups.append((centre, members))
    return [centre + gap * (i - (members - 1) / 2) for centre, members in groups for i in range(members)]


def draw_tau(
    axes: Axes, taus: Sequence[Sequence[float | None]], *, drops: Mapping[int, str], when: str = "at the end"
) -> str:
    """Draw tau over epochs, one line per run. Epochs without clipping are shaded."""
    for tau in taus:
        draw_curves(axes, [Curve("", tau, BLUE)], ylabel="tau (log scale)", drops={})
    epochs = max(map(len, taus))
    over_epochs(axes, epochs, drops)
    log_axis(axes, [tau for run in taus for tau in run if tau])
    free = {epoch for epoch in range(1, epochs + 1) if all(len(run) < epoch or run[epoch - 1] is None for run in taus)}
    if free:
        shaded = [not free.isdisjoint((epoch - 1, epoch, epoch + 1)) for epoch in range(epochs + 1)]
        across = axes.get_xaxis_transform()
        axes.fill_between(range(epochs + 1), 0, 1, where=shaded, transform=across, color=GREY, alpha=0.2, linewidth=0)
        # this corner is free, because tau falls
        words = "shaded: nothing is clipped"
        axes.text(0.99, 0.98, words, transform=axes.transAxes, ha="right", va="top", color=GREY, fontsize=9)
    last = [run[-1] for run in taus if run[-1] is not None]
    if not last:
        return f"No gradient is clipped {when}"
    return f"Clipping threshold: tau = {statistics.fmean(last):.3g} {when}"


def draw_normals(axes: Axes, mixtures: Sequence[Mapping[str, float] | None]) -> str:
    """Draw the mean of each normal over epochs, in a band of one standard deviation."""
    curves = []
    for name, colour, style in (("clean", GREEN, "-"), ("noisy", ORANGE, "--")):
        means = [None if mixture is None else mixture[f"{name}_mean"] for mixture in mixtures]
        curves.append(Curve(name, means, colour, style))
        fits = [(n, m[f"{name}_mean"], math.sqrt(m[f"{name}_var"])) for n, m in enumerate(mixtures, 1) if m is not None]
        at, centres, widths = zip(*fits, strict=True)
        low, high = ([c + side * w for c, w in zip(centres, widths, strict=True)] for side in (-1, 1))
        axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    draw_curves(axes, curves, ylabel="H, mean and standard deviation", drops={})
    return "The two normals fitted to recent samples"


def draw_noisy_weight(axes: Axes, weights: Sequence[float | None]) -> str:
    """Draw the share of recent samples in the noisy normal over epochs."""
    percents = in_percent(weights)
    draw_curves(axes, [Curve("", percents, ORANGE)], ylabel="share of recent samples, %", drops={}, bottom=0)
    last = percents[-1]
    return "In the noisy normal" + ("" if last is None else f": {last:.1f} % at the end")


def draw_queue(axes: Axes, criterion: OGC) -> str:
    """Draw H of the samples that an OGC has queued, with its last fit."""
    H = criterion.queue[: min(int(criterion.seen), criterion.queue_size)].cpu()
    mixture = Mixture(*(number.cpu() for number in criterion.mixture))
    fitted = None if mixture.noisy_weight.isnan() else mixture
    xlabel = f"H of the last {len(H):,} samples, capped at {H_MAX:.1f}"
    return draw_histogram(axes, H, None, fitted, xlabel=xlabel, when=f"at step {int(criterion.steps):,}")


def draw_histogram(
    axes: Axes, H: Tensor, wrong: Tensor | None, mixture: Mixture | None, *, xlabel: str, when: str = "at the end"
) -> str:
    """Draw the histogram of H, (N,), and the counts expected from the two normals fitted to the queue.

    :param wrong: (N,) bool, True if the given label is wrong; ``None`` if unknown.
    :param when: the time of the fit, for the title.
    """
    seen = H.isfinite()
    H = H[seen].double()
    top, beyond = _range_of(H)
    edges = torch.linspace(0, top, BINS + 1, dtype=torch.float64)
    width = top / BINS
    groups = (
        [(torch.ones_like(H, dtype=torch.bool), BLUE, "training samples")]
        if wrong is None
        else [(~wrong[seen], GREEN, "correct label"), (wrong[seen], ORANGE, "wrong label")]
    )
    highest = 1.0
    for chosen, colour, name in groups:
        counts = torch.histogram(H[chosen].clamp(0, top), edges).hist
        highest = max(highest, float(counts.max()))
        axes.stairs(counts.tolist(), edges.tolist(), baseline=0.1, fill=True, color=colour, alpha=0.6, label=name)
    title = f"Cross entropies {when}"
    if mixture is not None:
        centre = torch.linspace(0, top, 1000, dtype=torch.float64)
        weight = float(mixture.noisy_weight)
        for share, mean, var, style, name in (
            (1 - weight, mixture.clean_mean, mixture.clean_var, "-", "normal fitted as clean"),
            (weight, mixture.noisy_mean, mixture.noisy_var, "--", "normal fitted as noisy"),
        ):
            ends = [torch.special.ndtr((centre + side * width / 2 - mean) / var.sqrt()) for side in (-1, 1)]
            expected = len(H) * share * (ends[1] - ends[0])
            axes.plot(centre.tolist(), expected.tolist(), style, color=INK, linewidth=1.5, label=name)
        title = f"{when.capitalize()}: {100 * weight:.1f} % in the noisy normal"
    axes.set(xlabel=xlabel + (f" ({beyond:,} beyond)" if beyond else ""), ylabel="training samples (log scale)")
    axes.set(yscale="log", ylim=(0.7, 10 * highest), xlim=(-width / 2, top))
    entries = len(axes.get_legend_handles_labels()[0])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, ncols=2 if entries == 4 else 1, loc="upper right", fontsize=9, borderaxespad=0)
    tidy(axes)
    return title


def _range_of(H: Tensor) -> tuple[float, int]:
    """Return the upper limit of the axis and the number of outliers beyond it."""
    highest, most = float(H.max()), float(H.kthvalue(max(1, math.ceil(0.999 * len(H)))).values)
    top = max(highest if highest < 2 * most else most, 1.0)
    return top, int((H > top).sum())


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)


def in_percent(shares: Iterable[float | None]) -> list[float | None]:
    return [None if share is None else 100 * share for share in shares]


def percent(values: Iterable[float | None]) -> str:
    """Format mean and standard deviation: [0.894] -> "89.4", [0.886, 0.9] -> "89.3+-1.0", [] -> "-"."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    deviation = f"+-{100 * statistics.stdev(known):.1f}" if len(known) > 1 else ""
    return f"{100 * statistics.fmean(known):.1f}{deviation}"
