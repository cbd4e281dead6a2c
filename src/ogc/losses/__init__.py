"""The eleven losses that the paper compares, by name.

To add one: write a subclass of :class:`Pointwise` (or :class:`Loss`) in a small file here and add it to LOSSES.
"""

from __future__ import annotations

from .._require import require_known
from .active_passive import NCEPlusNNCE, NCEPlusRCE
from .clipped import PHuberCE, clipped, clipped_with_derivative
from .js_divergence import JSDivergence
from .logit_clip import LogitClip
from .loss import Loss
from .pointwise import GCE, MAE, SCE, CrossEntropy, Focal, Pointwise, TaylorCE

LOSSES: dict[str, type[Loss]] = {
    "ce": CrossEntropy,
    "fl": Focal,
    "mae": MAE,
    "gce": GCE,
    "sce": SCE,
    "phuber_ce": PHuberCE,
    "taylor_ce": TaylorCE,
    "nce_rce": NCEPlusRCE,
    "js": JSDivergence,
    "lc_ce": LogitClip,
    "nce_nnce": NCEPlusNNCE,
}
CLIPPABLE = ("ce", "fl", "gce", "sce", "taylor_ce", "js")  # those that OGC accepts


def loss_class(name: str) -> type[Loss]:
    """Return the class of a loss by its name in LOSSES. Raise ``ValueError`` for an unknown name."""
    require_known("loss named", name, LOSSES)
    return LOSSES[name]


__all__ = [
    "CLIPPABLE",
    "GCE",
    "LOSSES",
    "MAE",
    "SCE",
    "CrossEntropy",
    "Focal",
    "JSDivergence",
    "LogitClip",
    "Loss",
    "NCEPlusNNCE",
    "NCEPlusRCE",
    "PHuberCE",
    "Pointwise",
    "TaylorCE",
    "clipped",
    "clipped_with_derivative",
    "loss_class",
]
