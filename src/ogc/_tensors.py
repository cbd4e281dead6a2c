"""Tensors and facts in one safetensors file, with a checksum of all of it in its header."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ._extras import extra
from ._files import (
    CHECKSUM,
    MISMATCH,
    NO_CHECKSUM,
    Again,
    DamageOrVersionError,
    VersionError,
    check_format,
    parse_json,
    unusable,
    write_whole,
)

BLANK = b"0" * 64  # stands in for the checksum while it is computed
# quotes inside the facts are escaped; a checksum that is damaged is found, too
_PLACE = re.compile(rb'"%b":"(.{64})"' % CHECKSUM.encode(), re.DOTALL)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: str) -> None:
    """Write tensors, and facts as JSON, in one step."""
    from safetensors.torch import save

    host = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    content = memoryview(save(host, metadata={"ogc": facts, CHECKSUM: BLANK.decode()}))
    place = _place(content)
    assert place is not None
    digest = hashlib.sha256(content).hexdigest().encode()
    write_whole(path, content[: place.start], digest, content[place.stop :])


def read_tensors(
    path: Path, *, error: type[ValueError], again: Again, format: int
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote: the tensors and the facts.

    :param error: raised if the file cannot be used, with a message from :func:`ogc._files.unusable`.
    :param format: the expected value of the fact ``format``.
    """
    with extra("cli", "Saved tensors need safetensors", "safetensors"):
        from safetensors import SafetensorError
        from safetensors.torch import load
    content = path.read_bytes()
    try:
        place = _place(memoryview(content))
        if place is None:
            load(content)
            raise DamageOrVersionError(NO_CHECKSUM)
        digest = hashlib.sha256(memoryview(content)[: place.start])
        digest.update(BLANK)
        digest.update(memoryview(content)[place.stop :])
        if digest.hexdigest().encode() != content[place]:
            raise ValueError(MISMATCH)
        metadata = parse_json(content[8 : 8 + _header_size(content)]).get("__metadata__")
        if not isinstance(metadata, dict) or "ogc" not in metadata:
            raise VersionError("its header has no metadata of ogc.")
        facts = parse_json(metadata["ogc"])
        check_format(facts.get("format"), format)
        return load(content), facts
    except (SafetensorError, ValueError, TypeError) as reason:
        raise error(unusable(path, reason, again)) from None


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    """Return the tensors whose names begin with ``prefix`` and a dot, by the rest of their names."""
    return {name[len(prefix) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{prefix}.")}


def _header_size(content: bytes | memoryview) -> int:
    return int.from_bytes(content[:8], "little")


def _place(content: memoryview) -> slice | None:
    """Find the one checksum in a file's header."""
    found = list(_PLACE.finditer(content[8 : 8 + min(_header_size(content), len(content))]))
    return slice(*(8 + at for at in found[0].span(1))) if len(found) == 1 else None
