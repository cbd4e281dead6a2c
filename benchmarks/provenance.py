"""Where a number comes from: date, commit, machine, versions."""

from __future__ import annotations

import platform
from datetime import UTC, datetime

import torch

from ogc._provenance import commit, device_name


def provenance(device: str = "cpu") -> dict[str, str]:
    """The commit ends in + where files differ from it. Outside a clone it is taken from the variable OGC_COMMIT."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit() or "",
        "device": device_name(torch.device(device)),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
