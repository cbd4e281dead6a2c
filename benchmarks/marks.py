"""What is generated in a document stands between two marks."""

from __future__ import annotations


def renewed(text: str, begin: str, end: str, content: str) -> str:
    """The document with other content between the marks; all around it as it was."""
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{content}\n{end}{after}"
