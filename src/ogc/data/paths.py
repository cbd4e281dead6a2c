"""Paths that stay inside a folder, and lists of names for messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def inside(root: Path, path: Path) -> bool:
    """Return True if a path is inside a folder after resolving every link and ``..``."""
    return path.resolve().is_relative_to(root.resolve())


def few(names: Sequence[object], most: int = 5) -> str:
    """List the first names, and the number of the others.

    >>> few(["a", "b", "c"], most=2)
    '`a`, `b` and 1 more'
    """
    first = ", ".join(f"`{name}`" for name in names[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most} more"
