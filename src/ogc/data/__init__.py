"""Data sets, as tensors."""

from __future__ import annotations

from .digits import Digits, load_digits

__all__ = ["Digits", "load_digits"]
