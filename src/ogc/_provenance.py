"""Provenance of results: the commit of this code, and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent


@cache
def commit() -> str | None:
    """Return OGC_COMMIT if it is set, or the commit of the clone around this code, with a + if files have changed."""
    if given := os.environ.get("OGC_COMMIT"):
        return given
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # a repository that we are merely installed in is not ours
        return _git("describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(HERE), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def device_name(device: torch.device) -> str:
    """Return the name of the GPU or the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()


@cache
def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
