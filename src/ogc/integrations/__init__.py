"""Adapters for other libraries (docs/integrations.md). The extra of the same name installs the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..clipping.reliability import frozen_group

if TYPE_CHECKING:
    from ..clipping import OGC


def never_fitted(criterion: OGC) -> str | None:
    """Return a warning if training was too short for OGC to clip anything, or ``None``."""
    if criterion.threshold is not None or not bool(criterion.mixture.noisy_weight.isnan()):
        return None
    return frozen_group(criterion) or (
        f"OGC clipped nothing: it saw {int(criterion.seen):,} samples in {int(criterion.steps):,} steps. It fits "
        f"once its queue has {criterion._fewest:,} samples, at a step that is a multiple of "
        f"{criterion._period(int(criterion.steps))}. Lower `queue_size` and `every`, or train for longer."
    )
