"""Provenance of a measurement: date, commit, machine, versions."""

from __future__ import annotations

import platform
from datetime import UTC, datetime

import torch

from ogc._provenance import commit, device_name


def provenance(device: str = "cpu") -> dict[str, str]:
    """Return the provenance. The commit ends in + if files differ from it; outside a clone it comes from OGC_COMMIT."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit() or "",
        "device": device_name(torch.device(device)),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
