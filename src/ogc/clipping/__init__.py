"""Optimized gradient clipping, in the order of its data flow: queue, mixture, ratio, threshold, OGC."""

from __future__ import annotations

from .mixture import Mixture, fit_mixture
from .ogc import OGC
from .ratio import noisy_to_clean_ratio
from .schedules import EMA, Fixed, Linear
from .threshold import solve_threshold

__all__ = ["EMA", "OGC", "Fixed", "Linear", "Mixture", "fit_mixture", "noisy_to_clean_ratio", "solve_threshold"]
