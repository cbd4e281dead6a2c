"""Writing files whole, and noticing when one that is read back has changed.

A file that is read back carries a checksum of its contents. It is part of the file itself, so that the two cannot get
out of step when the process is killed between two writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECKSUM = "checksum"  # key of a JSON object, and of a safetensors header
MISMATCH = "its contents do not match its checksum."
NO_CHECKSUM = "it has no checksum."


def write_whole(path: Path, *pieces: bytes | memoryview) -> None:
    """Replace a file in one step: a reader never sees half of it, not even after a crash.

    An ``OSError`` names ``path``.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:  # a full disk names no file, the others name the temporary one
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove the temporary files of :func:`write_whole` that killed processes have left under these names."""
    begun = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.\d+")
    for path in folder.iterdir():
        if begun.fullmatch(path.name):
            path.unlink(missing_ok=True)


# --- JSON with a checksum --------------------------------------------------------------------------------------------


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with a checksum of everything else in it."""
    return {**content, CHECKSUM: _checksum(content)}


def unsealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return an object that :func:`sealed` has made, without its checksum. Raises ``ValueError`` if it has changed."""
    content = dict(content)
    if CHECKSUM not in content:
        raise ValueError(NO_CHECKSUM)
    if content.pop(CHECKSUM) != _checksum(content):
        raise ValueError(MISMATCH)
    return content


def parse_json(text: str | bytes, *, finite: bool = False) -> dict[str, Any]:
    """Parse a JSON object, without NaN and infinities if ``finite``. Raises ``ValueError`` for anything else."""

    def constant(name: str) -> float:
        if finite:
            raise ValueError(f"{name} is not allowed.")
        return float(name)

    try:
        content = json.loads(text, parse_constant=constant)
    except RecursionError:
        raise ValueError("it is nested too deeply.") from None
    if not isinstance(content, dict):
        raise ValueError(f"it should hold a JSON object, not {type(content).__name__}.")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with a checksum."""
    write_whole(path, (json.dumps(sealed(content), indent=2) + "\n").encode())


def read_json(path: Path, *, error: type[ValueError], again: str, format: int | None = None) -> dict[str, Any]:
    """Read what :func:`write_json` wrote.

    :param error: raised if the file cannot be used, with a message from :func:`unusable`.
    :param again: how to do without the file: "train again".
    :param format: the expected value of the field ``format``, if there is one.
    """
    try:
        content = unsealed(parse_json(path.read_bytes()))
        check_format(content.get("format"), format)
        return content
    except ValueError as reason:
        raise error(unusable(path, reason, again)) from None


# --- files that cannot be used ---------------------------------------------------------------------------------------


def unusable(path: Path, reason: Exception, again: str) -> str:
    """Say why a file cannot be used, and what to do: it is damaged, or another version of ogc wrote it."""
    why = f"it has no {reason}." if isinstance(reason, KeyError) else first_line(reason)
    fix = "Restore it from a backup, use the version of ogc that wrote it"
    return f"{path} cannot be used: {why} {fix}, or {again}."


def check_format(found: object, expected: int | None) -> None:
    """Raise ``ValueError`` unless a file has the expected format number, or none if ``expected`` is ``None``."""
    if found != expected:
        raise ValueError(f"expected format {expected}, found {found}.")


@contextmanager
def checked_fields(path: Path, *, error: type[ValueError], again: str) -> Iterator[None]:
    """Raise ``error`` for missing or unexpected fields. Since the checksum is right, another version wrote them."""
    try:
        yield
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as wrong:
        raise error(unusable(path, wrong, again)) from wrong


def json_lines(content: Mapping[str, Any], rows: Iterable[str] = ()) -> bytes:
    """Write a JSON object with one line per field, and one line per row of the lists named in ``rows``."""
    lines = []
    for name, value in content.items():
        text = json.dumps(value)
        if name in rows and value:
            text = "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"
        lines.append(f"  {json.dumps(name)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def first_line(error: Exception) -> str:
    """Return the first line of an error's message as a sentence. Those of torch have many."""
    return f"{error}".strip().partition("\n")[0].rstrip(":.") + "."


def _checksum(content: Mapping[str, Any]) -> str:
    """Hash an object as it is parsed, so that white space does not count."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
