"""Extensions of the site's Markdown and of its API reference; mkdocs.yml names both."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import griffe
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from markdown.treeprocessors import Treeprocessor

ROOT = Path(__file__).resolve().parent


class LinksOutside(Treeprocessor):
    """Turn links to files outside docs/ into text: they work in the repository, but not on the site."""

    def run(self, root: Element) -> None:
        for link in root.iter("a"):
            path = link.get("href", "").partition("#")[0]
            inner = re.sub(r"^(\.\./)+", "", path)
            if path != inner and (ROOT / inner).exists() and not (ROOT / "docs" / inner).exists():
                link.tag = "span"
                link.attrib.clear()


class Commands(Preprocessor):
    """Replace the line `<!-- commands -->` by the reference of the command line, from the Typer app."""

    def run(self, lines: list[str]) -> list[str]:
        if "<!-- commands -->" not in lines:
            return lines
        at = lines.index("<!-- commands -->")
        return [*lines[:at], *reference().splitlines(), *lines[at + 1 :]]


def reference() -> str:
    """Write all commands of ogc as Markdown: usage, help, examples, one table of arguments and options each."""
    import typer

    from ogc.cli.app import build

    def walk(command: Any, path: str, depth: int) -> list[str]:
        context = typer.Context(command, info_name=path)
        subcommands = dict(getattr(command, "commands", {}))
        parts = [] if depth == 1 else [f"{'#' * depth} {path}"]
        if default := subcommands.pop(path.split()[-1], None):  # `ogc audit` runs the command audit of its group
            parts += walk(default, path, depth)[1:]
        else:
            parts.append(_help(command.help or ""))
            if not subcommands:
                usage = " ".join(command.collect_usage_pieces(context))
                parts.insert(-1, f"```text\n{path} {usage}\n```")
            if rows := [record for param in command.params if (record := param.get_help_record(context))]:
                table = [f"| `{names}` | {_cell(text)} |" for names, text in rows]
                parts.append("\n".join(["| name | meaning |", "|---|---|", *table]))
        for name, subcommand in subcommands.items():
            parts += walk(subcommand, f"{path} {name}", depth + 1)
        return parts

    return "\n\n".join(part for part in walk(typer.main.get_command(build()), "ogc", 1) if part)


def _help(text: str) -> str:
    """Make Markdown of a help text. Paragraphs that start with ``\\b`` keep their lines."""
    parts = []
    for paragraph in text.split("\n\n"):
        if not paragraph.startswith("\b"):
            parts.append(_cell(paragraph))
            continue
        lines = paragraph.strip("\b\n").split("\n")
        if lines[0].endswith(":"):
            parts.append(_cell(lines.pop(0)))
        kind = "sh" if lines[0].lstrip().startswith("ogc ") else "text"
        parts.append(f"```{kind}\n{textwrap.dedent(chr(10).join(lines))}\n```")
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    """Escape what Markdown would take for markup."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))


class SiteExtension(Extension):
    """The Markdown extension of the site."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.treeprocessors.register(LinksOutside(md), "links_outside", 5)  # after links are parsed
        md.preprocessors.register(Commands(md), "commands", 100)  # before anything else reads the lines


def makeExtension(**options: Any) -> SiteExtension:  # noqa: N802
    """Entry point of Python-Markdown."""
    return SiteExtension(**options)


class Docstrings(griffe.Extension):
    """Make code blocks of doctests, and `OGC` of Sphinx's :class:`OGC`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = re.sub(r":\w+:(?=`)", "", obj.docstring.value)
            obj.docstring.value = re.sub(r"((?:^>>>.*\n?)(?:^\S.*\n?)*)", _fenced, text, flags=re.M)


def _fenced(doctest: re.Match[str]) -> str:
    return f"```pycon\n{doctest[1].rstrip()}\n```\n"
