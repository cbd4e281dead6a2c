"""One process at a time for a run."""

from __future__ import annotations

import fcntl
import os
import platform
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Self


class Lock:
    """A file that its holder has locked, with who that is in it; removed when it is released."""

    # flock, not the file's being there: the kernel lets go when a process ends, however it ends, so no lock is ever
    # stale, and a number that another process has by now is not mistaken for the holder. NFS carries it to the server.

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    @classmethod
    def take(cls, path: Path, *, wait: float = 0.0) -> Self | None:
        """The lock, or ``None`` if somebody else has it and does not let go of it within ``wait`` seconds."""
        end = time.monotonic() + wait
        tries = 1000
        while True:
            try:
                os.makedirs(path.parent, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:  # somebody has removed the folder, which was empty; or it cannot be made at all
                tries -= 1
                if not tries:
                    raise
                continue
            except FileExistsError:  # likewise, between our attempt to make it and our look at it
                with suppress(FileNotFoundError):
                    if not stat.S_ISDIR(path.parent.lstat().st_mode):
                        raise
                continue
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
            os.close(descriptor)  # its last holder has removed it since it was opened: it would bar nobody

    def release(self) -> None:
        """Once, or again."""
        if self.descriptor >= 0:
            if _is_at(self.path, self.descriptor):  # and not another's, who came after somebody removed ours
                self.path.unlink(missing_ok=True)
            os.close(self.descriptor)
        self.descriptor = -1


def holder(path: Path) -> str | None:
    """Who has the lock now, in words."""
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
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
