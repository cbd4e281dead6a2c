"""Uniform error messages: about a parameter (its name, the rule, the value found), and about a missing package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ._suggestions import did_you_mean


def require(holds: bool, name: str, rule: str, found: object, known: Iterable[str] = ()) -> None:
    """Raise ``ValueError`` unless ``holds``: "Parameter `q` should be in (0, 1]. Found `q = 1.4`.".

    :param known: names, of which one that is spelt alike may have been meant.
    """
    if not holds:
        raise ValueError(
            f"Parameter `{name}` should be {rule}. Found `{name} = {found!r}`.{did_you_mean(str(found), known)}"
        )


@contextmanager
def extra(name: str, needs: str, *modules: str) -> Iterator[None]:
    """Raise ``ImportError`` with the extra to install if a package is missing: "Images need Pillow, which is missing".

    :param needs: who needs which package.
    :param modules: the packages of the extra that are imported in the block, by the names of their modules.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in modules:
            raise
        raise ImportError(f'{needs}, which is missing: pip install "torch-ogc[{name}]"') from None
