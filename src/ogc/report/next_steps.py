"""Suggested next steps after a run: commands and code to paste."""

from __future__ import annotations

import shlex

from ..training.method import own_loss
from ..training.recipe import RECIPES, Recipe, override, shown
from ..training.run_folder import StoredRun
from ..training.source import NAMED, OPTIONS, Source
from ..training.stopping import resume_command

LOAD = """\
from pathlib import Path
from ogc.training import load_network

network = load_network(Path({folder!r}){given})"""
AUDIT = """\
from ogc.audit.run import audit_run

audit_run({folder!r}, (train, sets))  # the data of the job"""


def next_steps(run: StoredRun) -> list[tuple[str, str]]:
    """Return pairs of a sentence and a command or code."""
    folder, source, recipe = run.folder, run.source, run.recipe
    from_python = run.facts["from_python"]  # parts that no command can load: "data", "network"
    steps = []
    if not run.finished:
        # without a loss from a file: a report may come from anyone, and the command warns before it asks for the file
        command = resume_command({folder: ""}, from_python=bool(from_python))
        steps.append(("Resume the run:", f"{command}  # the same jobs" if from_python else command))
    if run.finished and recipe.surveys:
        code = AUDIT.format(folder=str(folder))
        command = f"ogc audit {shlex.quote(str(folder))}"
        steps.append(("See which labels are wrong, and what they should be:", code if source is None else command))
    if run.epochs:
        averaged = ", with its averaged weights" if recipe.average else ""
        given = ", network=your_network" if "network" in from_python else ""
        steps.append((f"Use the network in Python{averaged}:", LOAD.format(folder=str(folder), given=given)))
    if source is None or from_python:
        return steps
    other, loss = "ce+ogc" if recipe.method == "ce" else "ce", own_loss(recipe.method)
    train = "Train" if loss is None else f"If you trust the code in {loss.path}, train"
    for sentence, changes in (
        (f"Train with {other} for comparison:", {"method": other}),
        (f"{train} with another seed to measure the variation:", {"seed": recipe.seed + 1}),
    ):
        if (again := train_command(source, override(recipe, changes))) is not None:
            steps.append((sentence, again))
    return steps


def train_command(source: Source, recipe: Recipe) -> str | None:
    """Return the command for such a run; ``None`` if the recipe came from a file."""
    if recipe.name not in RECIPES:
        return None
    named = source.kind in NAMED
    words = ["ogc", "train", source.kind if named else str(source.path)]
    if named and source.path is not None:
        words += ["--data", str(source.path)]
    for option in OPTIONS[source.kind]:
        value, default = getattr(source, option), Source.model_fields[option].default
        if option != "path" and value != default:
            words += [f"--{option.replace('_', '-')}", *([] if value is True else [str(value)])]
    if recipe.name != source.kind:
        words += ["--recipe", recipe.name]
    base = RECIPES[recipe.name]
    usual = {name: getattr(recipe, name) for name in ("method", "noise", "seed", "epochs")}
    usual = {name: value for name, value in usual.items() if value != getattr(base, name)}
    for name, value in usual.items():
        words += [f"--{name}", str(value)]
    known = _flat(override(base, usual))
    for name, value in _flat(recipe).items():
        if name != "precision" and (name not in known or value != known[name]):  # already resolved for this device
            words += ["--set", f"{name}={shown(value).replace(', ', ',')}"]
    return shlex.join(words)


def _flat(recipe: Recipe) -> dict[str, object]:
    return {name: value for name, value in recipe if name != "parameters"} | dict(recipe.parameters)
