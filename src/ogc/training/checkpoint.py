"""The state of a run as a file, from which it resumes bit for bit.

The file is written under a temporary name, synced and renamed, so a killed run leaves its last complete checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._files import first_line
from .._tensors import part_of
from ..noise.files import labels_sha256
from .history import Epoch
from .preprocessing import Preprocessing
from .ranks import Ranks
from .run import Run, get_rng
from .run_folder import BEST, LAST, METRICS, SAMPLES, CheckpointError, read_tensors, write_tensors

SAMPLE_COUNT, LABELS = "number of samples", "sha256 of the labels"  # keys of the fingerprint


def save(run: Run, ranks: Ranks) -> None:
    """Write ``last.safetensors`` and, if there is a new best epoch, ``best.safetensors``. All ranks wait."""
    states = ranks.gather(get_rng(run.device))
    if run.job.out is not None and ranks.first:
        _save(run, run.job.out, states, ranks)
    run.saved = run.job.out is not None
    ranks.highest(0)


def _save(run: Run, folder: Path, states: list[Tensor], ranks: Ranks) -> None:
    if run.best is not None:
        best = max(run.history, key=lambda epoch: run.score(epoch) or 0.0)
        write_tensors(folder / BEST, run.id, run.best, {"epoch": best.epoch, "score": run.score(best)})
        run.best = None
    network, network_facts = _split(run.network.state_dict())
    criterion, criterion_facts = _split(run.criterion.state_dict())
    slots = run.optimizer.state_dict()["state"].items()
    tensors = {
        **_named("network", network),
        **_named("averaged", run.average or {}),
        **_named("criterion", criterion),
        **{f"optimizer.{slot}.{name}": value for slot, state in slots for name, value in state.items()},
        **_named("samples", run.sample_state()),
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
    write_tensors(folder / LAST, run.id, tensors, facts)


def load(run: Run, ranks: Ranks) -> None:
    """Continue from ``last.safetensors`` of the run's folder."""
    assert run.job.out is not None
    path = run.job.out / LAST
    tensors, facts = read_tensors(path)
    try:
        for name, here in _fingerprint(run, ranks).items():
            there = facts["belongs_to"].get(name)
            if there != here and name == SAMPLE_COUNT:
                raise _other_data(run, f"{there:,} training samples, now {here:,}")
            if there != here and name == LABELS:
                raise _other_data(run, "labels of train")
            if there != here:
                raise CheckpointError(f"{path} belongs to another run: {name} is {there!r} there and {here!r} here.")
        for what, there in facts.get("sha256", {}).items():  # surveys of samples in different orders cannot be added
            if run.digests.get(what, there) != there:
                raise _other_data(run, what)
        Preprocessing.of(run).check(run.job.out)
        _restore(run, tensors, facts, ranks)
    except CheckpointError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
        why = f"it has no {error}." if isinstance(error, KeyError) else first_line(error)
        fix = "Use the network and the version of ogc that wrote it, or train again."
        raise CheckpointError(f"{path} does not fit this run: {why} {fix}") from error


def _other_data(run: Run, what: str) -> CheckpointError:
    """Name the file or folder that has changed, and in brackets the part of the data."""
    name, source = "The data", run.job.source
    if source is not None:
        file = source.test if "test" in what else source.labels if "labels" in what else None
        name = f"`{file or source.path or source.kind}`"
    return CheckpointError(f"{name} has changed since {run.job.out} was trained ({what}). Restore it, or train again.")


def _restore(run: Run, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], ranks: Ranks) -> None:
    """Set the state of the run to that of a checkpoint."""
    run.network.load_state_dict(part_of(tensors, "network") | facts["network"])
    run.criterion.load_state_dict(part_of(tensors, "criterion") | facts["criterion"])
    with torch.no_grad():
        for name, value in (run.average or {}).items():
            value.copy_(tensors[f"averaged.{name}"])
        for name, value in run.sample_state().items():
            added = name.startswith("survey.") and f"samples.{name}" not in tensors  # surveys enabled on resuming
            if not added:
                value.copy_(tensors[f"samples.{name}"])
    weights = [value for group in run.optimizer.param_groups for value in group["params"]]
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in part_of(tensors, "optimizer").items():
        slot, name = key.split(".", 1)
        like = weights[int(slot)]  # the same memory layout as before, since rounding depends on it
        slots.setdefault(int(slot), {})[name] = torch.empty_like(like).copy_(value) if value.dim() else value
    run.optimizer.load_state_dict(run.optimizer.state_dict() | {"state": slots})
    run.id = facts["run"]
    run.rng = tensors[f"rng.{ranks.rank}"]
    run.epoch, run.step = facts["epoch"], facts["step"]
    run.seconds, run.started = facts["seconds"], facts["started"]
    run.history = [Epoch(**epoch) for epoch in facts["history"]]
    run.saved = True


def write_metrics(run: Run) -> None:
    """Append the last epoch to ``metrics.jsonl``, and to TensorBoard's events."""
    epoch = run.history[-1]
    if run.job.out is not None:
        with (run.job.out / METRICS).open("ab", buffering=0) as file:  # one write: a line is complete or missing
            file.write((epoch.to_json() + "\n").encode())
    if run.events is not None:
        for name, value in scalars(asdict(epoch)):
            run.events.add_scalar(name, value, epoch.epoch)


def scalars(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in nested dictionaries by path: {"a": {"b": 1}} -> ("a/b", 1)."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{name}/")
        elif value is not None:
            yield prefix + name, value


def write_samples(run: Run) -> None:
    """Write what was recorded about the training samples, for the histogram and for finding wrong labels."""
    assert run.job.out is not None
    train = run.train_set
    tensors = {"H": run.H, "predicted": run.predicted, "given": train.given}
    tensors |= _named("survey", run.surveys.results())
    tensors |= {} if train.true is None else {"true": train.true}
    write_tensors(run.job.out / SAMPLES, run.id, tensors, {"sha256": run.digests})


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def _split(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split a module's state into its tensors and the rest, which has to be JSON."""
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in state.items() if name not in tensors}


def _fingerprint(run: Run, ranks: Ranks) -> dict[str, Any]:
    """Return what must match to resume a run. A loss from a file is identified by its checksum, not its path."""
    independent = {"surveys", "report_epochs"}  # training does not depend on them
    recipe = run.recipe.model_dump(mode="json", exclude=independent)
    return {
        **recipe,
        "method": recipe["method"].rpartition("/")[2] if run.recipe.method_sha256 else recipe["method"],
        SAMPLE_COUNT: len(run.train_set),
        LABELS: labels_sha256(run.train_set.given.cpu().numpy()),
        "number of processes": ranks.size,
    }
