"""Adapters for other libraries (docs/integrations.md). The extra of the same name installs the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..clipping.reliability import frozen_group

if TYPE_CHECKING:
    from ..clipping import OGC


def never_fitted(criterion: OGC) -> str | None:
    """Return a warning if training was too short for OGC to clip anything, or ``None``."""
    if not criterion.samples_needed or not bool(criterion.mixture.noisy_weight.isnan()):
        return None
    return frozen_group(criterion) or (
        f"OGC clipped nothing: it saw {int(criterion.seen):,} samples in {int(criterion.steps):,} steps. It fits once "
        f"its queue has {criterion.samples_needed:,} samples, at a step that is a multiple of "
        f"{criterion.rule.period(int(criterion.steps), criterion.every)}. Lower `queue_size` and `every`, or train "
        "for longer."
    )
