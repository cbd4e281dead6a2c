"""Download of one file: verified by its checksum, and atomic."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

CHUNK_BYTES = 1 << 18
DOWNLOAD_TIMEOUT = 30.0  # seconds
Progress = Callable[[int, int | None], None]
"""Called with the number of bytes received, and the total if the server reports it."""


def download_file(url: str, destination: Path, *, md5: str, progress: Progress | None = None) -> None:
    """Download ``url``. The file has a temporary name until it is complete and verified."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = destination.with_name(f".{destination.name}.{os.getpid()}")
    request, received = urllib.request.Request(url, headers={"User-Agent": "ogc"}), 0
    try:
        with urllib.request.urlopen(request, timeout=DOWNLOAD_TIMEOUT) as response, part.open("xb") as file:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                received += len(chunk)
                if progress is not None:
                    progress(received, total)
            os.fsync(file.fileno())
        if total is not None and received != total:
            raise ConnectionError(f"{received:,} of {total:,} bytes received")
        check_md5(part, md5, "Run the command again.")
        part.replace(destination)
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", "") or error or type(error).__name__).rstrip(".")
        raise ConnectionError(f"The download of {url} stopped: {reason}. Run the command again.") from error
    finally:
        part.unlink(missing_ok=True)


def check_md5(path: Path, md5: str, advice: str) -> None:
    """Raise ``ValueError``, with advice, if a file has another md5 sum."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if actual != md5:
        raise ValueError(f"`{path}` should have the md5 sum {md5}. Found {actual}. {advice}")
