"""Download of one file: resumable, verified by its checksum, and atomic."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

CHUNK_BYTES = 1 << 18
TIMEOUT = 30.0  # seconds
Progress = Callable[[int, int | None], None]
"""Called with the number of bytes received, and the total if the server reports it."""


def download_file(url: str, destination: Path, *, md5: str, progress: Progress | None = None) -> None:
    """Download ``url``. An interrupted download is kept as ``.part``, and the next call resumes it."""
    if destination.exists():
        check_md5(destination, md5, "Move it away to download it again.")
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = destination.with_name(destination.name + ".part")
    try:
        _fetch(url, part, progress)
    except (OSError, http.client.HTTPException) as error:
        size = part.stat().st_size if part.exists() else 0
        kept = f"{size:,} bytes are kept in `{part}`. Run the command again to resume." if size else "Nothing was kept."
        reason = str(getattr(error, "reason", "") or error or type(error).__name__).rstrip(".")
        raise ConnectionError(f"The download of {url} stopped: {reason}. {kept}") from error
    try:
        check_md5(part, md5, "It was deleted. Run the command again.")
    except ValueError:
        part.unlink()
        raise
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    part.replace(destination)


def check_md5(path: Path, md5: str, advice: str) -> None:
    """Raise ``ValueError``, with advice, if a file has another md5 sum."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if actual != md5:
        raise ValueError(f"`{path}` should have the md5 sum {md5}. Found {actual}. {advice}")


def _fetch(url: str, part: Path, progress: Progress | None) -> None:
    """Append the missing bytes to ``part``, or start over if the server cannot resume."""
    if part.is_symlink():
        raise OSError(f"`{part}` is a link; delete it")
    size = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "ogc", "Accept-Encoding": "identity"} | ({"Range": f"bytes={size}-"} if size else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not size:
            raise
        error.close()  # nothing left to send: the part is complete, or of another file, which its checksum reveals
        return
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            size = 0
        remaining = response.headers.get("Content-Length", "")
        total = size + int(remaining) if remaining.isdecimal() else None
        with part.open("ab" if size else "wb") as file:
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                size += len(chunk)
                if progress is not None:
                    progress(size, total)
    if total is not None and size != total:
        raise ConnectionError(f"{size:,} of {total:,} bytes received")
