"""Parameter checks whose messages have one format: the name, the rule, the value found. Names and lists in messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence


def require(holds: bool, name: str, rule: str, found: object, known: Iterable[str] = ()) -> None:
    """Raise ``ValueError`` unless ``holds``: "Parameter `q` should be in (0, 1]. Found `q = 1.4`.".

    :param known: valid values. Those with a similar spelling are suggested.
    """
    if not holds:
        raise ValueError(
            f"Parameter `{name}` should be {rule}. Found `{name} = {found!r}`.{did_you_mean(str(found), known)}"
        )


def require_known(what: str, name: str, known: Collection[str]) -> None:
    """Raise ``ValueError`` for an unknown name: "There is no format 'pn'. Did you mean png? Choose from png, svg."."""
    if name not in known:
        raise ValueError(f"There is no {what} {name!r}.{did_you_mean(name, known)} Choose from {', '.join(known)}.")


def did_you_mean(name: str, known: Iterable[str], key: Callable[[str], str] = str.lower) -> str:
    """Return a question that names similar spellings, to append to an error message; empty if there are none.

    :param key: the part of a name to compare.

    >>> did_you_mean("gse", ["ce", "gce", "sce"])
    ' Did you mean sce or gce?'
    >>> did_you_mean("mylos", ["MyLoss", "Brier"])
    ' Did you mean MyLoss?'
    """
    spelt = {key(other): other for other in known}
    close = difflib.get_close_matches(key(name), spelt, n=3, cutoff=0.6)
    close = close or [other for other in spelt if len(name) > 2 and other.startswith(key(name))][:3]
    return f" Did you mean {either([spelt[other] for other in close])}?" if close else ""


def either(names: Sequence[str]) -> str:
    """Join names: "a", "a or b", "a, b or c"."""
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def printable(text: str, longest: int = 40) -> str:
    """Shorten a name from a file, and replace control characters, which could change what a terminal shows.

    >>> printable("tab\\t" + 50 * "a", longest=10)
    'tab�...aaa'
    """
    kept = cut_middle(text, longest)
    return "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in kept)


def cut_middle(text: str, longest: int = 40) -> str:
    """Shorten a text in the middle, because long names often have the same beginning.

    >>> cut_middle("Department of internal affairs", longest=20)
    'Departmen... affairs'
    """
    if len(text) <= longest:
        return text
    tail = (longest - len("...")) // 2
    return f"{text[: longest - len('...') - tail]}...{text[len(text) - tail :]}"


def few(names: Sequence[object], most: int = 5) -> str:
    """List the first names, and the number of the others.

    >>> few(["a", "b", "c"], most=2)
    '`a`, `b` and 1 more'
    """
    first = ", ".join(f"`{name}`" for name in names[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most} more"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 run", "2,000 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
