"""What a misspelt name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(name: str, known: Iterable[str]) -> str:
    """A question that names what is spelt alike, to end a sentence with, or nothing.

    >>> meant("gse", ["ce", "gce", "sce"])
    ' Did you mean sce or gce?'
    >>> meant("mylos", ["MyLoss", "Brier"])
    ' Did you mean MyLoss?'
    """
    spelt = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), spelt, n=3, cutoff=0.6)
    close = close or [other for other in spelt if len(name) > 2 and other.startswith(name.lower())][:3]
    return f" Did you mean {' or '.join(spelt[other] for other in close)}?" if close else ""
