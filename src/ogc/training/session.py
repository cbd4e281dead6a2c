"""Train jobs from start to end: choose the device and the engine or loop, write folders, handle signals."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from .._extras import extra
from .._files import first_line
from .._require import require
from .._tensors import part_of
from ..models import build_network
from . import checkpoint, loop, run_folder, source
from .history import SilentWatch, Watch
from .method import allow_loss, confirmed, own_loss
from .preprocessing import Preprocessing
from .ranks import Ranks, ranks
from .recipe import batch_for_samples, never_clips
from .run import Job, NonFinite, Run, check, described
from .run_folder import BEST, LAST, NONFINITE, RESULT, CheckpointError
from .stopping import IN_PYTHON, Interrupted, Stop, stopping

Result = dict[str, Any]
"""The content of ``result.json``."""


def train(
    jobs: Sequence[Job],
    *,
    device: str = "auto",
    engine: str = "auto",
    tensorboard: bool = False,
    watch: Watch | None = None,
    save_every: float = 60.0,
    resume: bool = False,
    stop: Stop | None = None,
) -> list[Result]:
    """Train the jobs, side by side if the engine supports all of them, otherwise one after the other.

    If a job has a folder, ``run.json``, ``metrics.jsonl``, ``last.safetensors`` and ``best.safetensors`` are written
    there, and ``samples.safetensors`` and ``result.json`` at the end. An older run in the folder is removed, unless it
    is resumed. Ctrl-C and SIGTERM save and raise ``Interrupted``. Under torchrun, batches are split among the
    processes, and the first one writes.

    :param engine: ``loop``, ``graph`` (steps as CUDA graphs), or ``auto``.
    :param save_every: seconds between two checkpoints.
    :param resume: resume from the jobs' checkpoints. Jobs without one start from the beginning. Those of finished or
        interrupted runs on files are read with :func:`jobs_of`.
    :param stop: saves and raises ``Interrupted`` once its ``signal`` is set; by default Ctrl-C and SIGTERM set it.
    """
    from ..engine import graphs  # not at the top: it imports this package

    require(engine in ("auto", "loop", "graph"), "engine", "one of auto, loop, graph", engine)
    chosen = pick_device(device)
    jobs = [resolved(job, chosen, resume=resume) for job in jobs]
    folders = [job.out.resolve() for job in jobs if job.out is not None]
    require(
        len(set(folders)) == len(folders), "out", "a different folder for each job", [str(path) for path in folders]
    )
    handled = stopping() if stop is None else nullcontext(stop)
    with ranks(chosen) as world, handled as stop, ExitStack() as opened:
        watch = SilentWatch() if watch is None or not world.first else watch
        events = _tensorboard(opened) if tensorboard and world.first else None
        reason = "the loop was chosen" if engine == "loop" else graphs.unsupported_reason(jobs, chosen, world)
        if engine == "graph" and reason is not None:
            raise ValueError(f"The engine cannot train these jobs: {reason}. Use --engine loop or auto.")
        if engine == "auto" and reason is not None and chosen.type == "cuda":
            watch.said(f"Training with the plain loop instead of the engine: {reason}.")
        context = Context(chosen, world, watch, stop, save_every, resume, engine == "graph", events)
        for job in jobs:
            check(job, world.size)
        for job in jobs:
            _claim(job, context)
        return _one_by_one(jobs, context) if reason is not None else _side_by_side(jobs, context)


class Context(NamedTuple):
    """Options and state that all jobs of a call share."""

    device: torch.device
    world: Ranks
    watch: Watch
    stop: Stop
    save_every: float
    resume: bool
    must_use_engine: bool
    events: Callable[[Run], Any] | None  # opens TensorBoard's event file of a run


def _one_by_one(jobs: Sequence[Job], context: Context) -> list[Result]:
    """Train with the plain loop. The first error of a run is raised after the others are done."""
    results: list[Result] = []
    run, failure = None, None
    for number, job in enumerate(jobs):
        run = _begin(job, number, run, context)
        try:
            small = run.device.type == "cpu" and job.network is None and job.recipe.network == "mlp"
            with loop.one_thread() if small else nullcontext():
                loop.train(
                    run, ranks=context.world, watch=context.watch, stop=context.stop, save_every=context.save_every
                )
        except NonFinite as error:
            failure = failure or error.with_traceback(None)  # its frames would keep the run's memory alive
            _finish(run, context.world)
            continue
        if not run.done:
            raise _interrupted(jobs[number:], context, failure)
        results.append(_finish(run, context.world))
    if failure is not None:
        raise failure
    return results


def _side_by_side(jobs: Sequence[Job], context: Context) -> list[Result]:
    """Train with the engine, or with the plain loop if a network cannot be captured."""
    from ..engine import graphs

    runs: list[Run] = []
    for number, job in enumerate(jobs):
        like = next((run for run in runs if run.feed.origin is job.data[0].inputs), None)
        runs.append(_begin(job, number, like, context))
        if runs[-1].done:  # it gets no lane, so nothing else would report it
            context.watch.began(number, epoch=runs[-1].epoch, epochs=job.recipe.epochs, steps=runs[-1].feed.steps)
    try:
        lanes, why = graphs.prepare(runs, context.watch), None
    except graphs.CaptureError as error:
        if context.must_use_engine:
            raise ValueError(str(error)) from error
        lanes, why = [], str(error)
    if why is not None:  # outside the except block, which keeps the memory of the failed capture alive
        runs.clear()
        context.watch.said(f"{why} Training with the plain loop instead.")
        return _one_by_one(jobs, context)
    failure = graphs.train(lanes, stop=context.stop, save_every=context.save_every)
    results = [_finish(run, context.world) for run in runs]
    if stopped := [run for run in runs if not run.finished and run.broken is None]:
        raise _interrupted([run.job for run in stopped], context, failure)
    if failure is not None:
        raise failure
    return results


def _interrupted(jobs: Sequence[Job], context: Context, failure: Exception | None) -> Interrupted:
    methods = {job.out: job.recipe.method for job in jobs if job.out is not None}
    from_python = any(job.source is None or job.network is not None for job in jobs)
    return Interrupted(context.stop.signal, methods, failure, from_python=from_python)


def _is_saved(job: Job, context: Context) -> bool:
    return context.resume and job.out is not None and run_folder.is_saved(job.out)


def _claim(job: Job, context: Context) -> None:
    """Prepare the job's folder and write ``run.json``, so that it can be resumed even if the job never starts."""
    if job.out is not None and context.world.first:
        saved = _is_saved(job, context)
        run_folder.claim(job.out, resume=saved)
        if not saved:
            run_folder.write_run(job.out, "", described(job), None)


def _begin(job: Job, number: int, like: Run | None, context: Context) -> Run:
    run = Run(job, number=number, device=context.device, rank=context.world.rank, like=like)
    preprocessing = Preprocessing.of(run)
    if _is_saved(job, context) and job.out is not None:
        checkpoint.load(run, context.world)
    elif preprocessing.encoder is not None and number == 0:
        context.watch.said(f"Columns: {preprocessing.encoder.use}.")
    if job.out is not None and context.world.first:
        run_folder.write_run(job.out, run.id, described(job), run.facts())
        preprocessing.write(job.out, run.id)
        run_folder.write_metrics(job.out, run.history)
        run.events = None if context.events is None else context.events(run)
    why = never_clips(job.recipe, samples=run.feed.samples, batch=run.feed.batch, steps=run.feed.steps)
    if why is not None and not run.done:
        context.watch.said(why)
    return run


def _finish(run: Run, world: Ranks) -> Result:
    """Write the result of the run, or where it broke, and return the result."""
    result = run.result()
    if run.job.out is not None and world.first:
        if run.finished:
            checkpoint.write_samples(run)
            run_folder.write_part(run.job.out / RESULT, run.id, result)
        elif run.broken is not None:
            where = {**(run.broken.batch or {}), "epochs": result["epochs"]}
            run_folder.write_part(run.job.out / NONFINITE, run.id, where)
    return result


def jobs_of(folders: Sequence[Path], *, loss: str | None = None) -> list[Job]:
    """Make the jobs of run folders, to resume them. Data that several of them share is loaded once.

    :param loss: the file and class of the runs' loss, if it comes from a file. A folder may come from anyone, so
        code that only the folder names is not run.
    """
    if loss is not None:
        allow_loss(loss)
    jobs, known, used = [], source.Known(), False
    for folder in folders:
        found = run_folder.read_description(folder)
        if found.from_python or found.source is None:
            what = " and ".join(found.from_python)
            raise ValueError(f"The {what} of {folder} came from Python: resume with {IN_PYTHON}.")
        recipe = found.recipe
        if own_loss(recipe.method) is not None:
            used, named = True, confirmed(recipe.method, recipe.method_sha256, loss, of=folder)
            recipe = recipe.model_copy(update={"method": named})
        saved = found.source.kind == "table" and run_folder.is_saved(folder)
        encoder = Preprocessing.read(folder).encoder if saved else None  # as another version of ogc may have fitted it
        jobs.append(Job(recipe, found.source, *source.load(found.source, recipe, known=known, encoder=encoder), folder))
    require(loss is None or used, "method", "omitted with --resume, which uses the run's recipe", loss)
    return jobs


def load_network(folder: Path, which: str = "averaged", network: nn.Module | None = None) -> nn.Module:
    """Load a trained network from a run's folder, in evaluation mode on the CPU.

    :param which: ``last``, ``averaged`` (the averaged weights at the end, or the raw ones without averaging) or
        ``best``.
    :param network: a network to load the weights into. Required if the run's network came from Python.
    """
    require(which in ("last", "averaged", "best"), "which", "one of last, averaged, best", which)
    found, name = run_folder.read_description(folder), BEST if which == "best" else LAST
    tensors, _ = run_folder.read_tensors(folder / name)
    recipe, facts = found.recipe, found.facts or {}
    if network is None:
        require("network" not in found.from_python, "network", f"given: that of {folder} came from Python", network)
        inputs, classes = tuple(facts["inputs"]), len(facts["classes"])
        network = build_network(recipe.network, inputs=inputs, classes=classes, hidden=recipe.hidden)
    weights = part_of(tensors, "network")
    if which != "last":
        weights |= part_of(tensors, "averaged")
    state = network.state_dict()
    try:
        if lost := dict(network.named_parameters()).keys() - weights.keys():
            raise RuntimeError(f"it has no {min(lost)}")
        network.load_state_dict(state | {name: value for name, value in weights.items() if name in state})
    except RuntimeError as error:
        why = first_line(error)
        raise CheckpointError(f"{folder / name} does not fit {type(network).__name__}: {why}") from None
    return network.eval()


def pick_device(name: str) -> torch.device:
    """Choose the device. ``auto`` is the GPU if there is one; under torchrun, the GPU of this process."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = "unknown"
    require(kind in ("cpu", "cuda"), "device", "auto, cpu, cuda or cuda:N", name)
    device = torch.device(name)
    if kind == "cuda":
        require(torch.cuda.is_available(), "device", "cpu: no GPU found", name)
        index = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
        require(index < torch.cuda.device_count(), "device", f"below cuda:{torch.cuda.device_count()}", name)
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device


def resolved(job: Job, device: torch.device, *, resume: bool) -> Job:
    """Replace ``auto`` by the precision, the network and the batch size for this device and data.

    A run that is resumed keeps its batch size.
    """
    recipe, out = job.recipe, job.out
    changes: dict[str, str | int] = {}
    if recipe.batch_size == "auto":
        saved = resume and out is not None and run_folder.is_saved(out)
        recorded = run_folder.read_description(out).recipe.batch_size if saved and out is not None else "auto"
        changes["batch_size"] = batch_for_samples(len(job.data[0])) if recorded == "auto" else recorded
    if recipe.precision == "auto":
        short = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        changes["precision"] = "bf16" if short else "float32"
    if recipe.network == "auto":
        changes["network"] = "resnet18-cifar" if device.type == "cuda" else "resnet20-cifar"
    return job._replace(recipe=recipe.model_copy(update=changes))


def _tensorboard(opened: ExitStack) -> Callable[[Run], Any]:
    """Return a function that opens the event file of a run. ``opened`` closes it."""
    with extra("tensorboard", "Events for TensorBoard need tensorboard", "tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    # purge_step removes what was written after the checkpoint
    return lambda run: opened.enter_context(SummaryWriter(str(run.job.out), purge_step=run.epoch + 1))
