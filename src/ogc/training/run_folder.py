"""A run's folder: the names of its files, and the only code that reads them.

Every file that is read back contains a checksum and the identifier of its run, so that damaged files and files of other
runs are detected. Reading a folder never runs code that it names. ``metrics.jsonl``, the report and the pictures are
for people, and are never read back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import _tensors
from .._files import checked_fields, read_json, remove_leftovers, write_json, write_whole
from .._require import require
from .history import Epoch, summaries
from .method import own_loss
from .recipe import Recipe
from .source import Source
from .stopping import resume_command

FORMAT = 2  # of the safetensors files
LAST, BEST, SAMPLES = "last.safetensors", "best.safetensors", "samples.safetensors"
RUN, METRICS, RESULT = "run.json", "metrics.jsonl", "result.json"
PREPROCESSING = "preprocessing.json"  # how inputs were prepared
NONFINITE = "nonfinite.json"  # where training failed
REPORT, PICTURES = "report.html", ("accuracy", "labels", "noise", "tau", "ratio", "histogram")
EVENTS = "events.out.tfevents.*"  # TensorBoard's
AUDIT = "audit"  # a folder
NOT_STARTED: dict[str, Any] = {"network": "a network", "samples": 0, "classes": (), "noise": None, "versions": {}}
NOT_STARTED |= {"device": "unknown", "commit": None, "started": "not yet"}  # facts of a run that has not started
LISTS = ("classes", "inputs", "from_python")
# required once a run has started; facts that are only shown have defaults above
FACTS = ("samples", "network", "started", *LISTS)


class CheckpointError(ValueError):
    """Raised if a file in a run's folder is damaged, from another version of ogc, or from another run."""


# --- writing ---------------------------------------------------------------------------------------------------------


def claim(folder: Path, *, resume: bool) -> None:
    """Prepare a folder for a run: remove leftovers of killed processes and, unless it is resumed, an older run.

    The record of a failure is removed in either case.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [LAST, BEST, SAMPLES, METRICS, RESULT, PREPROCESSING, NONFINITE, REPORT]
    names += [f"{name}.png" for name in PICTURES]
    remove_leftovers(folder, [*names, RUN])
    old = [folder / name for name in names] + list(folder.glob(EVENTS))
    for path in [folder / NONFINITE] if resume else old:
        path.unlink(missing_ok=True)


def is_saved(folder: Path) -> bool:
    """Return True if the folder has a checkpoint to resume from."""
    return (folder / LAST).exists()


def is_finished(folder: Path) -> bool:
    return (folder / RESULT).exists()


def write_run(folder: Path, run: str, described: Mapping[str, Any], facts: Mapping[str, Any] | None) -> None:
    """Write ``run.json``, which describes the run. All its other files repeat the identifier ``run``."""
    write_json(folder / RUN, {"id": run, **described, "facts": facts})


def write_part(path: Path, run: str, content: Mapping[str, Any]) -> None:
    """Write a JSON file of a run."""
    write_json(path, {**content, "run": run})


def write_tensors(path: Path, run: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write a safetensors file of a run."""
    _tensors.write_tensors(path, tensors, json.dumps({"format": FORMAT, "run": run, **facts}))


def write_metrics(folder: Path, epochs: Sequence[Epoch]) -> None:
    """Start ``metrics.jsonl`` with the epochs so far. Training never reads this log."""
    write_whole(folder / METRICS, "".join(epoch.to_json() + "\n" for epoch in epochs).encode())


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Description:
    """The content of ``run.json``."""

    id: str
    recipe: Recipe
    source: Source | None
    facts: dict[str, Any] | None  # None before the run has started

    @property
    def from_python(self) -> list[str]:
        """Parts that came from Python and that no command can load again: "data", "network"."""
        if self.facts is None:
            return ["data"] if self.source is None else []
        return list(self.facts["from_python"])


@dataclass(frozen=True)
class StoredRun(Description):
    """Everything in a run's folder that reports and audits use."""

    facts: dict[str, Any]
    folder: Path
    epochs: list[Epoch]
    samples: dict[str, Tensor]
    digests: dict[str, str]  # of the data that it was trained on
    summaries: list[dict[str, Any]]  # one per evaluation set
    true_noise_rate: float | None  # share of wrong labels among the surveyed ones
    recall: dict[str, dict[str, float]]  # by evaluation set and class, if classes differ in size
    finished: bool
    broken: dict[str, Any] | None  # the batch at which training failed, if it did


def read_description(folder: Path) -> Description:
    path = folder / RUN
    if not folder.exists():
        raise FileNotFoundError(f"There is no folder {folder}. Create a run with ogc train.")
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a run folder: it has no {RUN}. Create one with ogc train.")
    found = read_json(path, error=CheckpointError, again=_again(path))
    with checked(path):
        recipe, facts = found["recipe"], found["facts"]
        loss = own_loss(recipe["method"]) if recipe.get("method_sha256") is None else None
    if loss is not None:  # making the recipe runs the file, which the user must have named
        loss.content()
    with checked(path):
        source = None if found["source"] is None else Source(**found["source"])
        if facts is not None:
            itemgetter(*FACTS)(facts)
            for name in LISTS:
                require(isinstance(facts[name], list), f"facts.{name}", "a list", facts[name])
        return Description(found["id"], Recipe(**recipe), source, facts)


def how_to_resume(folder: Path) -> str:
    """Return the command that resumes a run. If ``run.json`` cannot be read, that command will say so.

    It never names a loss from a file, because the folder may come from anyone. The command explains what to add.
    """
    from_python = False
    with suppress(ValueError, OSError):
        from_python = bool(read_description(folder).from_python)
    return resume_command({folder: ""}, from_python=from_python)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a safetensors file of a run: its tensors, and the facts in its header."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    tensors, facts = _tensors.read_tensors(path, error=CheckpointError, again=_again(path), format=FORMAT)
    _require_own(path, facts, _again(path))
    return tensors, facts


def read_part(path: Path, *, again: str = "") -> dict[str, Any]:
    """Read a JSON file of a run.

    :param again: what to do if it cannot be used; by default, resume the run.
    """
    again = again or _again(path)
    content = read_json(path, error=CheckpointError, again=again)
    _require_own(path, content, again)
    del content["run"]
    return content


def read(folder: Path) -> StoredRun:
    """Read a run's folder, whether the run is finished or not."""
    described, finished = read_description(folder), is_finished(folder)
    path = folder / SAMPLES
    samples, known = read_tensors(path) if finished and path.exists() else ({}, {})
    with checked(path):
        digests = dict(known.get("sha256", {}))
    broken = read_part(folder / NONFINITE) if (folder / NONFINITE).exists() else None
    if finished:
        path, content, key = folder / RESULT, read_part(folder / RESULT), "epochs"
    elif broken is not None:  # which may be later than the last checkpoint
        path, content, key = folder / NONFINITE, broken, "epochs"
    else:
        path, key = folder / LAST, "history"
        content = read_tensors(path)[1] if is_saved(folder) else {"history": []}
    with checked(path):
        epochs = [Epoch(**epoch) for epoch in content[key]]
        recall = dict(content.get("recall", {}))  # not recorded before the end
        true_rate = content.get("true_noise_rate")
    facts = NOT_STARTED | (described.facts or {"from_python": described.from_python})
    totals = summaries(epochs, described.recipe.report_epochs)
    who = described.id, described.recipe, described.source
    return StoredRun(*who, facts, folder, epochs, samples, digests, totals, true_rate, recall, finished, broken)


def checked(path: Path) -> AbstractContextManager[None]:
    """Raise ``CheckpointError`` for missing or unexpected fields of a file."""
    return checked_fields(path, error=CheckpointError, again=_again(path))


def _require_own(path: Path, content: Mapping[str, Any], again: str) -> None:
    """Refuse a file that belongs to a different run than ``run.json`` next to it."""
    beside = path.with_name(RUN)
    if beside.is_file():
        known = read_json(beside, error=CheckpointError, again=_again(beside)).get("id")
        if content.get("run") != known:
            why = f"belongs to a different run than {RUN} next to it"
            raise CheckpointError(f"{path} {why}. Restore it from a backup, or {again}.")


def _again(path: Path) -> str:
    """Return what to do if a file cannot be used."""
    known = {RUN: "train again", LAST: "train again", PREPROCESSING: "train again", BEST: "use the last weights"}
    return known.get(path.name) or f"resume the run to write it again ({how_to_resume(path.parent)})"
