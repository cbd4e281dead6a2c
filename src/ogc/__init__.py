"""Training on data whose labels are partly wrong: Optimized Gradient Clipping and the losses it is compared with.

>>> from ogc import OGC, losses
>>> criterion = OGC(losses.CrossEntropy(), follow_lr=False)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import audit, clipping, data, losses, models, noise, plot, theory, training
    from .clipping import OGC

__version__ = "0.1.0"
__all__ = ["OGC", "audit", "clipping", "data", "losses", "models", "noise", "plot", "theory", "training"]


if not TYPE_CHECKING:  # a type checker would take any name for a public one

    def __getattr__(name):
        """Import a public name, and torch with it, on first use: ``ogc --help`` does not wait for torch."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = import_module(".clipping", __name__).OGC if name == "OGC" else import_module(f".{name}", __name__)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
