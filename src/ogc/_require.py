"""One form for every complaint about a parameter: its name, the rule, the value found."""

from __future__ import annotations


def require(holds: bool, name: str, rule: str, found: object) -> None:
    """Raise ``ValueError`` unless ``holds``: "Parameter `q` should be in (0, 1]. Found `q = 1.4`."."""
    if not holds:
        raise ValueError(f"Parameter `{name}` should be {rule}. Found `{name} = {found!r}`.")
