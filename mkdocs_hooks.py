"""What the site needs beyond mkdocs: links out of docs/, and docstrings that are no Markdown."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parent


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """A link to a file outside docs/, which leads somewhere in the repository and nowhere on the site, is its text."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def in_text(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        is_outside = not path.startswith("docs/") and (ROOT / path).exists()
        return text if is_outside else link[0]

    return re.sub(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)\)", in_text, markdown)


class Docstrings(griffe.Extension):
    """Doctests become code blocks, and Sphinx's :class:`OGC` is `OGC`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = re.sub(r":\w+:(?=`)", "", obj.docstring.value)
            obj.docstring.value = re.sub(r"((?:^>>>.*\n?)(?:^\S.*\n?)*)", _fenced, text, flags=re.M)


def _fenced(doctest: re.Match[str]) -> str:
    return f"```pycon\n{doctest[1].rstrip()}\n```\n"
