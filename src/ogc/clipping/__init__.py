"""Optimized gradient clipping, in the order of its data flow: queue, mixture, ratio, threshold, OGC."""

from __future__ import annotations

from .default_rule import Default
from .mixture import Mixture, fit_mixture
from .ogc import OGC
from .ratio import noisy_to_clean_ratio
from .rules import EMA, Fixed, Linear, Paper, Relative
from .threshold import solve_threshold

__all__ = [
    "EMA",
    "OGC",
    "Default",
    "Fixed",
    "Linear",
    "Mixture",
    "Paper",
    "Relative",
    "fit_mixture",
    "noisy_to_clean_ratio",
    "solve_threshold",
]
