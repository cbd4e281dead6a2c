"""Writing files that are whole or not there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """All or nothing: a reader never sees half a file, not even after a crash. An ``OSError`` names ``path``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:  # a full disk names no file, the others name the temporary one
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """What :func:`write_whole` had begun to write under these names when its process was killed."""
    begun = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.\d+")
    for path in folder.iterdir():
        if begun.fullmatch(path.name):
            path.unlink(missing_ok=True)
