"""Networks."""

from __future__ import annotations

from .mlp import mlp

__all__ = ["mlp"]
