"""Training on data whose labels are partly wrong: Optimized Gradient Clipping and the losses it is compared with.

>>> from ogc import OGC, losses
>>> criterion = OGC(losses.CrossEntropy(), follow_lr=False)
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ._extras import extra

if TYPE_CHECKING:
    from . import audit, clipping, losses, models, plot
    from . import data as data
    from . import noise as noise
    from . import training as training
    from .clipping import OGC

__version__ = "0.1.0"
__all__ = ["OGC", "audit", "clipping", "losses", "models", "plot"]
_WITH_EXTRA = {"data": ("numpy",), "noise": ("numpy",), "training": ("numpy", "pydantic")}
"""Modules that need packages of the extra ``cli``. ``from ogc import *`` leaves them out."""


if not TYPE_CHECKING:  # a type checker would take any name for a public one

    def __getattr__(name):
        """Import a public name, and torch with it, on first use: ``ogc --help`` does not wait for torch."""
        if name not in (*__all__, *_WITH_EXTRA):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with extra("cli", f"ogc.{name} needs the extra cli", *_WITH_EXTRA.get(name, ())):
            found = import_module(".clipping", __name__).OGC if name == "OGC" else import_module(f".{name}", __name__)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Return the names that can be used with the packages installed."""
    return [*__all__, *(name for name, needed in _WITH_EXTRA.items() if all(map(find_spec, needed))), "__version__"]
