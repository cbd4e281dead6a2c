"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that names similar spellings, to append to an error message; empty if there are none.

    >>> did_you_mean("gse", ["ce", "gce", "sce"])
    ' Did you mean sce or gce?'
    >>> did_you_mean("mylos", ["MyLoss", "Brier"])
    ' Did you mean MyLoss?'
    """
    spelt = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), spelt, n=3, cutoff=0.6)
    close = close or [other for other in spelt if len(name) > 2 and other.startswith(name.lower())][:3]
    return f" Did you mean {' or '.join(spelt[other] for other in close)}?" if close else ""
