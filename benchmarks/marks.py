"""Update the generated part of a document, which is between two marks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def renewed(text: str, begin: str, end: str, content: str) -> str:
    """Return the document with new content between the marks."""
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{content}\n{end}{after}"


def command(
    description: str | None,
    results: Path,
    measure: Callable[..., Any],
    table: Callable[[Any], str],
    marks: tuple[str, str],
    dumps: Callable[[Any], str] = lambda found: json.dumps(found, indent=1),
    **options: Any,
) -> None:
    """Run the command line of a benchmark: measure with ``--run``, print the table, insert it with ``--write``.

    :param options: options of ``measure`` with their defaults.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help=f"measure and write {results.name}")
    parser.add_argument("--write", type=Path, help="a Markdown file with the two marks")
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help="(%(default)s)")
    args = parser.parse_args()
    if args.run:
        found = measure(**{name: getattr(args, name) for name in options})
        results.write_text(dumps(found) + "\n")
    result = json.loads(results.read_text())
    print(table(result))
    if args.write:
        args.write.write_text(renewed(args.write.read_text(), *marks, table(result)))
