"""CSV files that read back exactly. The writer of the standard library does not quote a carriage return."""

from __future__ import annotations

from collections.abc import Iterable


def csv_bytes(header: Iterable[str], rows: Iterable[Iterable[object]]) -> bytes:
    """Write a CSV file. File names that are not valid text keep their bytes."""

    def text(value: object) -> str:
        return csv_cell(f"{value:.8g}" if isinstance(value, float) else str(value))

    lines = (",".join(map(text, row)) + "\n" for row in (header, *rows))
    return "".join(lines).encode("utf-8", "surrogateescape")


def csv_cell(text: str, delimiter: str = ",") -> str:
    """Quote a cell if necessary."""
    special = delimiter in text or any(mark in text for mark in '"\r\n') or text != text.strip()
    return '"' + text.replace('"', '""') + '"' if special else text
