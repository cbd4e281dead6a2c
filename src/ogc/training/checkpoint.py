"""Saving a run and going on with it, bit for bit: safetensors, with the rest as JSON in the file's header.

One file is one state, written under another name, synced and renamed: a run that is killed leaves the last whole one.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._files import write_whole
from ..noise.files import labels_sha256
from .history import Epoch
from .ranks import Ranks
from .run import Run, get_rng

FORMAT = 1
LAST, BEST, SAMPLES = "last.safetensors", "best.safetensors", "samples.safetensors"
RUN, METRICS, RESULT = "run.json", "metrics.jsonl", "result.json"


class CheckpointError(ValueError):
    """A checkpoint that is broken, or belongs to another run: one sentence that names it."""


def save(run: Run, ranks: Ranks) -> None:
    """Write ``last.safetensors``, ``metrics.jsonl`` and, if there is a new one, ``best.safetensors``."""
    states = ranks.gather(get_rng(run.device))  # everyone takes part in this
    if run.job.out is None or not ranks.first:
        return
    if run.best is not None:
        best = max(run.history, key=lambda epoch: run.score(epoch) or 0.0)
        _write(run.job.out / BEST, run.best, {"epoch": best.epoch, "score": run.score(best)})
        run.best = None
    extra = {}
    tensors = {f"network.{name}": value for name, value in run.network.state_dict().items()}
    tensors |= {f"averaged.{name}": value for name, value in (run.average or {}).items()}
    for number, state in run.optimizer.state_dict()["state"].items():
        for name, value in state.items():
            tensors[f"optimizer.{number}.{name}"] = torch.as_tensor(value)
    for name, value in run.criterion.state_dict().items():
        if isinstance(value, Tensor):
            tensors[f"criterion.{name}"] = value
        else:
            extra[name] = value
    tensors |= {f"books.{name}": getattr(run, name) for name in ("H", "predicted", "losses")}
    tensors |= {f"rng.{rank}": state for rank, state in enumerate(states)}
    facts = {
        "format": FORMAT,
        "epoch": run.epoch,
        "step": run.step,
        "seconds": run.seconds,
        "started": run.started,
        "history": [asdict(epoch) for epoch in run.history],
        "criterion": extra,
        "belongs_to": _fingerprint(run),
        "ranks": ranks.size,
    }
    write_metrics(run)
    _write(run.job.out / LAST, tensors, facts)


def load(run: Run, ranks: Ranks) -> None:
    """Take up ``last.safetensors`` of the run's folder."""
    assert run.job.out is not None
    path = run.job.out / LAST
    tensors, facts = read(path)
    if facts.get("format") != FORMAT:
        raise CheckpointError(f"{path} has the format {facts.get('format')}; this version of ogc reads {FORMAT}.")
    own, found = _fingerprint(run), facts["belongs_to"]
    for name, value in own.items():
        if found.get(name) != value:
            raise CheckpointError(
                f"{path} belongs to another run: its {name} is {found.get(name)!r}, but here it is {value!r}."
            )
    if facts["ranks"] != ranks.size:
        raise CheckpointError(f"{path} was saved by {facts['ranks']} processes; go on with as many, not {ranks.size}.")

    def part(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    run.network.load_state_dict(part("network."))
    with torch.no_grad():
        for name, value in (run.average or {}).items():
            value.copy_(tensors[f"averaged.{name}"])
        for name in ("H", "predicted", "losses"):
            getattr(run, name).copy_(tensors[f"books.{name}"])
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in part("optimizer.").items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    run.optimizer.load_state_dict(run.optimizer.state_dict() | {"state": state})
    run.criterion.load_state_dict({**part("criterion."), **facts["criterion"]})
    run.rng = tensors[f"rng.{ranks.rank}"]
    run.epoch, run.step, run.seconds, run.started = facts["epoch"], facts["step"], facts["seconds"], facts["started"]
    run.history = [Epoch(**epoch) for epoch in facts["history"]]


def write_metrics(run: Run) -> None:
    if run.job.out is not None:
        lines = "".join(epoch.to_json() + "\n" for epoch in run.history)
        write_whole(run.job.out / METRICS, lines.encode())


def write_json(path: Path, content: Any) -> None:
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def write_samples(run: Run) -> None:
    """What is known of the training set at the end: for the histogram, and for finding wrong labels."""
    assert run.job.out is not None
    train = run.train_set
    tensors = {"H": run.H, "predicted": run.predicted, "given": train.given}
    _write(run.job.out / SAMPLES, tensors if train.true is None else {**tensors, "true": train.true}, {})


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, and the JSON in its header."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError('safetensors is missing: pip install "ogc[cli]"') from error
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get("ogc", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is broken: {error}.") from None


def _write(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    from safetensors.torch import save

    content = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
    write_whole(path, save(content, metadata={"ogc": json.dumps(facts)}))


def _fingerprint(run: Run) -> dict[str, Any]:
    return {
        "recipe": run.recipe.model_dump(mode="json"),
        "samples": len(run.train_set),
        "labels_sha256": labels_sha256(run.train_set.given.numpy()),
    }
