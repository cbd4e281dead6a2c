"""Atomic writes, and checksums that reveal changed files.

The checksum is part of the file itself, so that the two always match, even if the process is killed between two writes.
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
    """Replace a file atomically: a reader never sees a partial file, even after a crash.

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
    except OSError as error:  # that of a full disk names no file, others name the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove temporary files of :func:`write_whole` for these names, which killed processes have left behind."""
    begun = re.compile(rf"\.({'|'.join(map(re.escape, names))})\.\d+")
    for path in folder.iterdir():
        if begun.fullmatch(path.name):
            path.unlink(missing_ok=True)


# --- JSON with a checksum --------------------------------------------------------------------------------------------


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with a checksum of its other fields added."""
    return {**content, CHECKSUM: _checksum(content)}


def without_checksum(content: dict[str, Any]) -> dict[str, Any]:
    """Check and remove the checksum of :func:`with_checksum`. Raises ``ValueError`` if the object has changed."""
    content = dict(content)
    if CHECKSUM not in content:
        raise ValueError(NO_CHECKSUM)
    if content.pop(CHECKSUM) != _checksum(content):
        raise ValueError(MISMATCH)
    return content


def parse_json(text: str | bytes, *, finite: bool = False) -> dict[str, Any]:
    """Parse a JSON object, without NaN and infinities if ``finite``. Raises ``ValueError`` for anything else."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not allowed.")

    try:
        content = json.loads(text, parse_constant=refuse if finite else None)
    except RecursionError:
        raise ValueError("it is nested too deeply.") from None
    if not isinstance(content, dict):
        raise ValueError(f"it should hold a JSON object, not {type(content).__name__}.")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with a checksum."""
    write_whole(path, (json.dumps(with_checksum(content), indent=2) + "\n").encode())


def read_json(path: Path, *, error: type[ValueError], again: str, format: int | None = None) -> dict[str, Any]:
    """Read what :func:`write_json` wrote.

    :param error: raised if the file cannot be used, with a message from :func:`unusable`.
    :param again: last alternative in that message, as in "train again".
    :param format: the expected value of the field ``format``, if there is one.
    """
    try:
        content = without_checksum(parse_json(path.read_bytes()))
        check_format(content.get("format"), format)
        return content
    except ValueError as reason:
        raise error(unusable(path, reason, again)) from None


# --- files that cannot be used ---------------------------------------------------------------------------------------


def unusable(path: Path, reason: Exception, again: str) -> str:
    """Return an error message for a file that is damaged or was written by another version of ogc."""
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


def first_line(error: BaseException, *, with_type: bool = False) -> str:
    """Return the first line of an error message as a sentence, or the type of an error without a message.

    Messages of torch have many lines.

    >>> first_line(RuntimeError("Why?\\nBecause.")), first_line(AssertionError())
    ('Why?', 'AssertionError.')
    >>> first_line(ValueError("no labels"), with_type=True), first_line(AssertionError(), with_type=True)
    ('ValueError: no labels.', 'AssertionError.')
    """
    line = f"{error}".strip().partition("\n")[0].rstrip(":.")
    if with_type or not line:
        line = f"{type(error).__name__}: {line}".removesuffix(": ")
    return line if line.endswith(("?", "!")) else f"{line}."


def _checksum(content: Mapping[str, Any]) -> str:
    """Hash a parsed object, so that white space does not matter."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
