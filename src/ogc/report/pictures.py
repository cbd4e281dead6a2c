"""The pictures of a training run: accuracy, wrong labels, the noise estimate, tau, r(tau), the histogram of H."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..clipping.mixture import Mixture
from ..training.history import Epoch
from ..training.survey import Point, memorised_from, points_of
from .drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Curve,
    draw_curves,
    draw_histogram,
    draw_tau,
    figure_of,
    in_percent,
    over_epochs,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BLUE, RED, GREEN, ORANGE)  # of the evaluation sets


class Picture(NamedTuple):
    """A panel with its title, and a description for captions and screen readers."""

    name: str
    title: str
    words: str
    figure: Figure


def pictures(
    epochs: Sequence[Epoch], samples: Mapping[str, Tensor], true_rate: float | None = None, *, when: str = "at the end"
) -> list[Picture]:
    """Draw the pictures that apply to the run.

    :param samples: the content of samples.safetensors, or empty.
    :param true_rate: share of wrong labels among the surveyed ones, if it is known.
    :param when: the time of the last epoch, for the titles.
    """
    if not epochs:
        return []
    drops = lr_drops(epochs)
    wrong = samples["given"] != samples["true"] if "true" in samples else None
    drawn: list[Picture] = []

    def add(name: str, words: str, draw: Callable[[Axes], str]) -> None:
        figure = figure_of(draw)
        drawn.append(Picture(name, figure.get_suptitle(), words, figure))

    if any(epoch.accuracy for epoch in epochs):
        words = "Accuracy after each epoch on held-out data."
        if any(epoch.averaged for epoch in epochs):
            words += " Dashed: averaged weights."
        add("accuracy", words, lambda axes: draw_accuracy(axes, epochs, drops, when))
    words = (
        "Share of training samples for which the network predicts the given label."
        if epochs[-1].memorised is None
        else "Predictions for training samples. Memorised: the given label, if it is wrong. Recovered: the true label, "
        "if the given one is wrong."
    )
    add("labels", words, lambda axes: draw_labels(axes, epochs, drops))
    if surveys := points_of(samples.get("survey.history")):
        words = (
            "Share of training labels that the network contradicts at each survey, and the noise rate estimated so far"
        )
        words += " (of training and validation labels)." if "survey.val.margin" in samples else "."
        if memorised_from(surveys) is not None:
            words += " From the vertical line on, the network memorises labels, and surveys do not count."
        add("noise", words, lambda axes: draw_noise(axes, surveys, len(epochs), true_rate))
    if any(epoch.tau for epoch in epochs):
        words = "tau, the largest slope of a sample's loss. The lower it is, the less a wrong label contributes."
        add("tau", words, lambda axes: draw_tau(axes, [[epoch.tau for epoch in epochs]], drops=drops, when=when))
    if any(epoch.ratio for epoch in epochs) and any(epoch.true_ratio for epoch in epochs):
        words = (
            "r(tau): mean gradient of noisy samples over that of clean ones, after clipping. Modelled: from the "
            "two normals that determine tau. True: from the true labels."
        )
        add("ratio", words, lambda axes: draw_ratio(axes, epochs, drops, when))
    if "H" in samples and bool(samples["H"].isfinite().any()):
        words = "Cross entropy of the given label when each sample was last trained on."
        if epochs[-1].mixture:
            words += " The two normals were fitted to the queue. Labels are suspect where the dashed one is higher."
        xlabel = "H, cross entropy of the given label"
        add(
            "histogram",
            words,
            lambda axes: draw_histogram(axes, samples["H"], wrong, mixture_of(epochs[-1]), xlabel=xlabel, when=when),
        )
    return drawn


def mixture_of(epoch: Epoch) -> Mixture | None:
    if epoch.mixture is None:
        return None
    return Mixture(**{name: torch.tensor(value, dtype=torch.float64) for name, value in epoch.mixture.items()})


def lr_drops(epochs: Sequence[Epoch]) -> dict[int, str]:
    """Return the new learning rate by the epoch after which it drops; empty if it changes continuously."""
    falls = {a.epoch: f"lr {b.lr:.3g}" for a, b in itertools.pairwise(epochs) if b.lr < a.lr}
    return falls if len(falls) <= max(3, len(epochs) // 10) else {}


def draw_accuracy(axes: Axes, epochs: Sequence[Epoch], drops: Mapping[int, str], when: str) -> str:
    last = epochs[-1]
    curves = []
    for name, colour in zip(last.accuracy, itertools.cycle(COLOURS), strict=False):
        curves.append(Curve(name, in_percent(epoch.accuracy.get(name) for epoch in epochs), colour))
        if name in last.averaged:
            label = "averaged" if len(last.accuracy) == 1 else f"{name}, averaged"
            curves.append(Curve(label, in_percent(epoch.averaged.get(name) for epoch in epochs), colour, "--"))
    draw_curves(axes, curves, ylabel="accuracy, %", drops=drops)
    ends = [f"{name} {100 * share:.1f} %" for name, share in last.accuracy.items()]
    if len(ends) == 1:  # more would be too long for a title
        ends += [f"averaged {100 * share:.1f} %" for share in last.averaged.values()]
    return f"Accuracy {when}: {', '.join(ends)}"


def draw_labels(axes: Axes, epochs: Sequence[Epoch], drops: Mapping[int, str]) -> str:
    """Draw how many right and wrong labels are predicted, or how many given ones if the true ones are unknown."""
    last = epochs[-1]
    curves = [
        Curve(label, in_percent(values), colour, style)
        for label, colour, style, values in (
            ("correct learned", GREEN, "-", [epoch.clean for epoch in epochs]),
            ("wrong memorised", RED, "-", [epoch.memorised for epoch in epochs]),
            ("wrong recovered", BLUE, "--", [epoch.recovered for epoch in epochs]),
        )
        if any(value is not None for value in values)
    ]
    if len(curves) < 2:  # the true labels are unknown, or none is wrong
        curves = [Curve("given learned", in_percent(epoch.agreement for epoch in epochs), GREY)]
    draw_curves(axes, curves, ylabel="share of training samples, %", drops=drops, bottom=0)
    if last.memorised is None:
        return f"Given labels that the network predicts: {100 * last.agreement:.1f} %"
    return f"Wrong labels memorised: {100 * last.memorised:.1f} %"


def draw_noise(axes: Axes, surveys: Sequence[Point], epochs: int, true: float | None) -> str:
    """Draw the estimated noise rate and the disagreements over epochs."""
    at = [point.epoch for point in surveys]
    lines = (
        ("contradicted", [point.disagreement for point in surveys], GREY, "--"),
        ("estimate", [point.noise_rate for point in surveys], BLUE, "-"),
    )
    for label, values, colour, style in lines:
        axes.plot(at, [100 * v for v in values], style, color=colour, linewidth=1.8, marker="o", ms=4, label=label)
    if true is not None:
        axes.axhline(100 * true, color=ORANGE, linewidth=1.2, linestyle=":", label="true")
    over_epochs(axes, epochs, {})
    if (since := memorised_from(surveys)) is not None:
        axes.axvline(since, color=RED, linewidth=0.8)
    axes.set_ylabel("share of labels, %")
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])  # the margin is small if the values are similar
    axes.legend(frameon=False, fontsize=9)
    rate = f"Estimated noise rate: {100 * surveys[-1].noise_rate:.1f} %"
    return rate if true is None else f"{rate}, true {100 * true:.1f} %"


def draw_ratio(axes: Axes, epochs: Sequence[Epoch], drops: Mapping[int, str], when: str) -> str:
    modelled = Curve("modelled", [epoch.ratio for epoch in epochs], BLUE)
    true = Curve("true", [epoch.true_ratio for epoch in epochs], ORANGE, "--")
    draw_curves(axes, [modelled, true], ylabel="r(tau), noisy / clean (log scale)", drops=drops, log=True)
    axes.axhline(1, color=GREY, linewidth=0.8)
    ends = (f"{curve.label} {curve.values[-1]:.3g}" for curve in (modelled, true) if curve.values[-1])
    return f"r(tau) {when}: " + ", ".join(ends)
