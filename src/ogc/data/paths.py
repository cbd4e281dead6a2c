"""Paths that stay inside their folder, and a few names out of many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def inside(root: Path, path: Path) -> bool:
    """Whether a path stays in a folder once every link and ``..`` is followed."""
    return path.resolve().is_relative_to(root.resolve())


def few(names: Sequence[object], most: int = 5) -> str:
    """The first names and how many more there are.

    >>> few(["a", "b", "c"], most=2)
    '`a`, `b` and 1 more'
    """
    first = ", ".join(f"`{name}`" for name in names[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most} more"
