"""Saving a run and going on with it, bit for bit: safetensors, with the rest as JSON in the file's header.

One file is one state, written under another name, synced and renamed: a run that is killed leaves the last whole one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._files import remove_leftovers, write_whole
from ..noise.files import labels_sha256
from .history import Epoch
from .ranks import Ranks
from .run import NONFINITE, Run, get_rng

FORMAT = 1
LAST, BEST, SAMPLES = "last.safetensors", "best.safetensors", "samples.safetensors"
RUN, METRICS, RESULT = "run.json", "metrics.jsonl", "result.json"
REPORT, PICTURES = "report.html", ("accuracy", "labels", "noise", "tau", "ratio", "histogram")
EVENTS = "events.out.tfevents.*"  # TensorBoard's


class CheckpointError(ValueError):
    """A checkpoint that is broken, or belongs to another run: one sentence that names it."""


def claim(folder: Path, *, resume: bool) -> None:
    """Make a run's folder ready to write to: what a killed process had begun goes, and so does an older run.

    Where training broke the last time is forgotten even if it goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [LAST, BEST, SAMPLES, METRICS, RESULT, NONFINITE, REPORT, *(f"{name}.png" for name in PICTURES)]
    remove_leftovers(folder, [*names, RUN])
    old = [folder / name for name in names] + list(folder.glob(EVENTS))
    for path in [folder / NONFINITE] if resume else old:
        path.unlink(missing_ok=True)


def save(run: Run, ranks: Ranks) -> None:
    """Write ``last.safetensors`` and, if there is a new one, ``best.safetensors``. Every rank waits for it."""
    states = ranks.gather(get_rng(run.device))
    if run.job.out is not None and ranks.first:
        _save(run, run.job.out, states, ranks)
    run.saved = run.job.out is not None
    ranks.highest(0)


def _save(run: Run, folder: Path, states: list[Tensor], ranks: Ranks) -> None:
    if run.best is not None:
        best = max(run.history, key=lambda epoch: run.score(epoch) or 0.0)
        _write(folder / BEST, run.best, {"epoch": best.epoch, "score": run.score(best)})
        run.best = None
    network, network_facts = _apart(run.network.state_dict())
    criterion, criterion_facts = _apart(run.criterion.state_dict())
    slots = run.optimizer.state_dict()["state"].items()
    tensors = {
        **_named("network", network),
        **_named("averaged", run.average or {}),
        **_named("criterion", criterion),
        **{f"optimizer.{slot}.{name}": value for slot, state in slots for name, value in state.items()},
        **_named("books", run.books()),
        **{f"rng.{rank}": state for rank, state in enumerate(states)},
    }
    facts = {
        "epoch": run.epoch,
        "step": run.step,
        "seconds": run.seconds,
        "started": run.started,
        "history": [asdict(epoch) for epoch in run.history],
        "network": network_facts,
        "criterion": criterion_facts,
        "belongs_to": _fingerprint(run, ranks),
        "sha256": run.digests,
    }
    _write(folder / LAST, tensors, facts)


def load(run: Run, ranks: Ranks) -> None:
    """Take up ``last.safetensors`` of the run's folder."""
    assert run.job.out is not None
    path = run.job.out / LAST
    tensors, facts = read(path)
    try:
        for name, here in _fingerprint(run, ranks).items():
            there = facts["belongs_to"].get(name)
            there = there.rpartition("/")[2] if name == "method" and isinstance(there, str) else there
            if there != here:
                raise CheckpointError(f"{path} is of another run: {name} is {there!r} there, and {here!r} here.")
        for what, there in facts.get("sha256", {}).items():  # surveys of samples in two orders cannot be added
            if run.digests.get(what, there) != there:
                raise CheckpointError(f"{path} is of other data: their {what} have changed since.")
        _take_up(run, tensors, facts, ranks)
    except CheckpointError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not fit this run: {first_line(error)}") from error


def _take_up(run: Run, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], ranks: Ranks) -> None:
    run.network.load_state_dict(part_of(tensors, "network") | facts["network"])
    run.criterion.load_state_dict(part_of(tensors, "criterion") | facts["criterion"])
    with torch.no_grad():
        for name, value in (run.average or {}).items():
            value.copy_(tensors[f"averaged.{name}"])
        for name, value in run.books().items():
            if f"books.{name}" in tensors or not name.startswith("survey."):  # which may have begun later
                value.copy_(tensors[f"books.{name}"])
    weights = [value for group in run.optimizer.param_groups for value in group["params"]]
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in part_of(tensors, "optimizer").items():
        slot, name = key.split(".", 1)
        like = weights[int(slot)]  # laid out in memory as before: kernels round by the way they go through it
        slots.setdefault(int(slot), {})[name] = torch.empty_like(like).copy_(value) if value.dim() else value
    run.optimizer.load_state_dict(run.optimizer.state_dict() | {"state": slots})
    run.rng = tensors[f"rng.{ranks.rank}"]
    run.epoch, run.step = facts["epoch"], facts["step"]
    run.seconds, run.started = facts["seconds"], facts["started"]
    run.history = [Epoch(**epoch) for epoch in facts["history"]]
    run.saved = True


def begin_metrics(run: Run) -> None:
    """``metrics.jsonl`` as far as the run has got."""
    if run.job.out is not None:
        write_whole(run.job.out / METRICS, "".join(epoch.to_json() + "\n" for epoch in run.history).encode())


def write_metrics(run: Run) -> None:
    """Append the last epoch to ``metrics.jsonl``."""
    if run.job.out is not None:
        with (run.job.out / METRICS).open("ab", buffering=0) as file:  # one write: a line is whole or not there
            file.write((run.history[-1].to_json() + "\n").encode())


def write_json(path: Path, content: Any) -> None:
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def write_samples(run: Run) -> None:
    """What is known of the training set at the end: for the histogram, and for finding wrong labels."""
    assert run.job.out is not None
    train = run.train_set
    tensors = {"H": run.H, "predicted": run.predicted, "given": train.given}
    tensors |= _named("survey", run.surveys.results())
    tensors |= {} if train.true is None else {"true": train.true}
    _write(run.job.out / SAMPLES, tensors, {"sha256": run.digests})


def read(path: Path, *, header_only: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, and the JSON in its header."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError('safetensors is missing: pip install "torch-ogc[cli]"') from error
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get("ogc", "null"))
            names = [] if header_only else file.keys()
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is broken: {first_line(error)}") from None
    if not isinstance(facts, dict):
        raise CheckpointError(f"{path} was not written by ogc.")
    if facts.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {facts.get('format')}; this version of ogc reads {FORMAT}.")
    return tensors, facts


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    """What a file holds of the network, say, by its own names."""
    return {name[len(prefix) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{prefix}.")}


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def _apart(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A module's state: tensors, and the rest, which has to be JSON."""
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in state.items() if name not in tensors}


def _write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    from safetensors.torch import save

    content = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    write_whole(path, save(content, metadata={"ogc": json.dumps({"format": FORMAT, **facts})}))


def _fingerprint(run: Run, ranks: Ranks) -> dict[str, Any]:
    """What has to be the same for a run to go on. A loss of one's own is known by its checksum, wherever it lies."""
    recipe = run.recipe.model_dump(mode="json", exclude={"surveys"})  # training does not depend on them
    return {
        **recipe,
        "method": recipe["method"].rpartition("/")[2] if run.recipe.method_sha256 else recipe["method"],
        "number of samples": len(run.train_set),
        "sha256 of the labels": labels_sha256(run.train_set.given.cpu().numpy()),
        "number of processes": ranks.size,
    }


def first_line(error: Exception) -> str:
    """Of its message: torch's have many."""
    return f"{error}".strip().partition("\n")[0].rstrip(":.") + "."
