"""Writing files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """All or nothing: a reader never sees half a file, not even after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
