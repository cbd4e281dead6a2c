"""Training on data whose labels are partly wrong: Optimized Gradient Clipping and the losses it is compared with.

>>> from ogc import OGC, losses
>>> criterion = OGC(losses.CrossEntropy(), follow_lr=False)
"""

from __future__ import annotations

from . import clipping, losses, theory
from .clipping import OGC

__version__ = "0.1.0"
__all__ = ["OGC", "clipping", "losses", "theory"]
