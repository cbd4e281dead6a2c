"""Imports of optional packages, with an error that names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, needs: str, *modules: str) -> Iterator[None]:
    """Raise ``ImportError`` if a package is missing: "Images need Pillow, which is missing: pip install ...".

    :param needs: beginning of the message.
    :param modules: modules that the extra installs and the block imports. Other import errors are raised unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in modules:
            raise
        raise ImportError(f'{needs}, which is missing: pip install "torch-ogc[{name}]"') from None
