"""Warnings that point at the line of the caller."""

from __future__ import annotations

import sys
import warnings


def warn(message: str) -> None:
    """Warn at the innermost line outside of this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_globals.get("__name__", "").partition(".")[0] == "ogc" and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
