"""Tensors and metadata in one safetensors file, with a checksum of the whole file in its header."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ._extras import extra
from ._files import CHECKSUM, MISMATCH, NO_CHECKSUM, check_format, parse_json, unusable, write_whole

BLANK = "0" * 64  # stands in for the checksum while it is computed


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: str) -> None:
    """Write tensors atomically, with ``facts``, their metadata as JSON, in the header."""
    from safetensors.torch import save

    host = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    content = save(host, metadata={"ogc": facts, CHECKSUM: BLANK})
    before, after = _around(content, BLANK)
    write_whole(path, before, hashlib.sha256(content).hexdigest().encode(), after)


def read_tensors(
    path: Path, *, error: type[ValueError], again: str, format: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the metadata that :func:`write_tensors` wrote.

    :param error: raised if the file cannot be used, with a message from :func:`ogc._files.unusable`.
    :param again: last alternative in that message, as in "train again".
    :param format: the expected value of the metadata field ``format``.
    """
    with extra("cli", "Saved tensors need safetensors", "safetensors"):
        from safetensors import SafetensorError
        from safetensors.torch import load
    content = path.read_bytes()
    try:
        metadata = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
        if CHECKSUM not in metadata:
            raise ValueError(NO_CHECKSUM)
        before, after = _around(content, metadata[CHECKSUM])
        digest = hashlib.sha256(before)
        digest.update(BLANK.encode())
        digest.update(after)
        if digest.hexdigest() != metadata[CHECKSUM]:
            raise ValueError(MISMATCH)
        facts = parse_json(metadata["ogc"])
        check_format(facts.get("format"), format)
        return load(content), facts
    except (SafetensorError, ValueError, TypeError, KeyError) as reason:
        raise error(unusable(path, reason, again)) from None


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    """Return the tensors whose names begin with ``prefix`` and a dot, by the rest of their names."""
    return {name[len(prefix) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{prefix}.")}


def _around(content: bytes, checksum: str) -> tuple[memoryview, memoryview]:
    """Split a file at the checksum in its header. Quotes inside the metadata are escaped, so it occurs once."""
    start = content.index(f'"{CHECKSUM}":"{checksum}"'.encode()) + len(f'"{CHECKSUM}":"')
    return memoryview(content)[:start], memoryview(content)[start + len(checksum) :]
