"""Where a number comes from: date, commit, machine, versions."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch


def provenance(device: str = "cpu") -> dict[str, str]:
    """The commit ends in + where files differ from it. Outside a clone it is taken from the variable OGC_COMMIT."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    commit = os.environ.get("OGC_COMMIT") or subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "device": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()
