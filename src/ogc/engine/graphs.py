"""The engine: training steps as CUDA graphs over data on the device, several runs side by side on their own streams.

The arithmetic is that of the plain loop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from .. import kernels
from .._files import first_line
from ..kernels.ogc_step import LARGEST_QUEUE
from ..training.history import Watch
from ..training.ranks import Ranks
from ..training.run import Job, NonFinite, Run
from ..training.stopping import Stop
from .lane import Lane, Ready


def unsupported_reason(jobs: Sequence[Job], device: torch.device, ranks: Ranks) -> str | None:
    """Return why the engine does not support these jobs; ``None`` if it does."""
    if device.type != "cuda":
        return "there is no GPU"
    if torch.version.hip is not None:
        return "the GPU is not from NVIDIA"
    if not kernels.HAVE_TRITON:
        return "Triton is not installed"
    if ranks.size > 1:
        return "there are several processes"
    for job in jobs:
        train, sets = job.data
        if not all(isinstance(part.inputs, Tensor) for part in (train, *sets.values())):
            return "the images are read from disk"
        if job.recipe.optimizer != "sgd" or job.recipe.momentum == 0:
            found = f"optimizer {job.recipe.optimizer}, momentum {job.recipe.momentum:g}"
            return f"only SGD with momentum is supported ({found})"
        if job.recipe.accumulate > 1:
            return "gradients are accumulated"
        if not all(value.requires_grad for value in (job.network.parameters() if job.network else ())):
            return "some weights of the network are frozen"
        if job.recipe.parameters.get("queue_size", 0) > LARGEST_QUEUE:
            return f"the queue of OGC is larger than {LARGEST_QUEUE:,}"
    return None


class CaptureError(RuntimeError):
    """Raised if a network or loss cannot be captured in a CUDA graph."""


def prepare(runs: Sequence[Run], watch: Watch) -> list[Lane]:
    """Make a lane for each unfinished run. Raise ``CaptureError`` if its step cannot be captured."""
    ready: Ready = {}
    lanes = []
    with _tuned_convolutions():
        for run in runs:
            if drawing := [type(module).__name__ for module in run.network.modules() if draws(module)]:
                raise CaptureError(
                    f"{run.recipe.network} uses random numbers ({drawing[0]}), which a CUDA graph would repeat."
                )
            if run.done:
                continue
            try:
                lanes.append(Lane(run, watch, ready))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                _forget_capture(run.device)
                why = f"{run.recipe.network} cannot be captured in a CUDA graph: {first_line(error)}"
                raise CaptureError(why) from error
    return lanes


def _forget_capture(device: torch.device) -> None:
    """Reset the random generator, which is unusable after a failed capture."""
    generator = torch.cuda.default_generators[device.index or 0]
    with suppress(RuntimeError):  # the error of the capture is the one to report
        generator.graphsafe_set_state(generator.clone_state())


def draws(module: nn.Module) -> bool:
    """Return True if the module uses random numbers in training: dropout, stochastic depth."""
    return float(getattr(module, "drop_prob", 0) or (module.p if isinstance(module, _DropoutNd) else 0)) > 0


def train(lanes: Sequence[Lane], *, stop: Stop, save_every: float) -> NonFinite | None:
    """Train all runs to the end, or until ``stop``, and save them. Return the first error.

    One step of each run is launched in turn. A run that fails does not stop the others.
    """
    active = {lane: lane.steps() for lane in lanes}
    saved, trouble = time.monotonic(), None
    try:
        while active:
            for lane, steps in list(active.items()):
                try:
                    if next(steps, None) is None:
                        lane.save()
                        del active[lane]
                except NonFinite as error:
                    del active[lane]
                    trouble = trouble or error
            halt = bool(stop)  # read once: a later signal takes effect in the next round, which saves
            if halt or time.monotonic() - saved > save_every:
                for lane in list(active):
                    try:
                        lane.save()
                    except NonFinite as error:
                        del active[lane]
                        trouble = trouble or error
                saved = time.monotonic()
            if halt:
                break
        return trouble
    finally:
        torch.cuda.synchronize()


@contextmanager
def _tuned_convolutions() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
