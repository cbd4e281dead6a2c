"""A lock file, so that only one process works on a run."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from pathlib import Path
from typing import Self


class Lock:
    """A locked file that names its holder. It is removed when the lock is released."""

    # flock, not the existence of the file: the kernel releases it when the process ends, so no lock is ever stale, and
    # a reused process id is not mistaken for the holder. It works over NFS.

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    @classmethod
    def take(cls, path: Path, *, wait: float = 0.0) -> Self | None:
        """Take the lock, or return ``None`` if another process holds it for longer than ``wait`` seconds."""
        end = time.monotonic() + wait
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                if time.monotonic() > end:
                    return None
                time.sleep(0.2)
                continue
            if _is_at(path, descriptor):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())
                return cls(path, descriptor)
            os.close(descriptor)  # removed by its last holder after we opened it: the lock would protect nothing

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        if self.descriptor >= 0:
            if _is_at(self.path, self.descriptor):  # not the file of a later holder
                self.path.unlink(missing_ok=True)
            os.close(self.descriptor)
        self.descriptor = -1


def holder(path: Path) -> str | None:
    """Describe the process that holds the lock, or return ``None`` if it is free."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(descriptor, 1000).decode(errors="replace") or "another process"
    finally:
        os.close(descriptor)
    return None


def _is_at(path: Path, descriptor: int) -> bool:
    """Return True if the open file is the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
