"""The confusion matrix of given labels as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .._require import printable, require
from .files import LabelInfo

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_WITH_NUMBERS = 20  # classes; with more, a cell is too small for its number


def draw_confusion(info: LabelInfo, name: str, class_names: Sequence[str] = ()) -> Figure:
    """Draw the share of each given label (columns) for each true class (rows), with counts if there are few classes."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    require(info.confusion is not None, "info", "with a confusion matrix", info)
    counts = np.array(info.confusion)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    few = len(counts) <= MOST_WITH_NUMBERS
    size = (8, 7) if few else (9, 8)
    figure = Figure(figsize=size, dpi=120, layout="compressed")  # "constrained" can cut off the label of square axes
    axes = figure.subplots()
    image = axes.imshow(share, cmap="Blues", norm=PowerNorm(0.4, 0, 1), interpolation="nearest")
    if few:
        for (row, column), count in np.ndenumerate(counts):
            colour = "white" if share[row, column] > 0.25 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=8)
    ticks = range(len(counts)) if few else range(0, len(counts), max(1, round(len(counts) / 100) * 10))
    texts = [printable(class_names[i], 30) if few and class_names else str(i) for i in ticks]
    tilted = max(map(len, texts)) > 3
    axes.set_xticks(ticks, texts, rotation=45 if tilted else 0, ha="right" if tilted else "center")
    axes.set_yticks(ticks, texts)
    axes.set(xlabel="given label", ylabel="true label")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, ticks=[0, 0.01, 0.05, 0.1, 0.2, 0.5, 1])
    bar.ax.set_yticklabels([f"{100 * tick:g} %" for tick in (0, 0.01, 0.05, 0.1, 0.2, 0.5, 1)])
    numbers = "numbers: count of labels; " if few else ""
    bar.set_label(f"{numbers}colour: share of the true class (power scale)")
    figure.suptitle(title(info, name), fontsize=11, weight="bold")
    return figure


def title(info: LabelInfo, name: str) -> str:
    asked = "" if info.rate_asked is None else f" ({100 * info.rate_asked:g} % requested)"
    seed = "" if info.seed is None else f", seed {info.seed}"
    total = int(np.sum(info.confusion or 0))
    return f"{name}, {info.kind}{seed}: {100 * (info.rate_got or 0):.2f} % of {total:,} labels are wrong{asked}"
