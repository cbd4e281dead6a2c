"""Commands and code shown in documents and examples. Commands are parsed, not run."""

import ast
import importlib.util
import re
import shlex
import sys
from pathlib import Path

from typer.main import get_command

from ogc.cli.app import build
from ogc.cli.audit import ITSELF

ASIDE = Path(sys.prefix, "aside")  # timm and torchvision, see Makefile
WITH_ASIDE = f"""
import sys, torch
sys.path.insert(0, {str(ASIDE)!r})
operators = torch.library.Library("torchvision", "DEF")  # torchvision expects these from its binary
for name in ("nms", "qnms"):
    operators.define(name + "(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
"""


def ogc_lines(markdown):
    """Return the ``ogc`` commands in the shell blocks of a document."""
    blocks = re.findall(r"```sh\n(.*?)```", markdown, re.S)
    return [line for block in blocks for line in block.splitlines() if line.startswith("ogc ")]


def parse(line):
    """Parse a command. Fails where ogc would: on an unknown command or option, or a missing argument."""
    _, *words = shlex.split(line, comments=True)
    command = get_command(build())
    while hasattr(command, "commands"):
        itself = command.name == ITSELF and words[0] not in command.commands  # the group's default command
        command = command.commands[ITSELF if itself else words.pop(0)]
    command.make_context(line, words)


def missing(code):
    """Return the libraries that the code imports and that are not installed."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return sorted({name for name in (n.partition(".")[0] for n in names) if importlib.util.find_spec(name) is None})
