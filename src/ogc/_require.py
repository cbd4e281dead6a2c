"""One form for every complaint about a parameter: its name, the rule, the value found."""

from __future__ import annotations

from collections.abc import Iterable

from ._suggestions import did_you_mean


def require(holds: bool, name: str, rule: str, found: object, known: Iterable[str] = ()) -> None:
    """Raise ``ValueError`` unless ``holds``: "Parameter `q` should be in (0, 1]. Found `q = 1.4`.".

    :param known: names, of which one that is spelt alike may have been meant.
    """
    if not holds:
        raise ValueError(
            f"Parameter `{name}` should be {rule}. Found `{name} = {found!r}`.{did_you_mean(str(found), known)}"
        )
