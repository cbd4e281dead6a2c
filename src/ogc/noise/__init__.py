"""Label noise by recipe: true labels in, given labels out."""

from __future__ import annotations

from .transition import symmetric

__all__ = ["symmetric"]
