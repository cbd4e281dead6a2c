"""OGC's books: the buffers that a training step writes, and their update by torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .clean_edge import clean_edge, follow
from .mixture import fit_or_doubt
from .numbers import HOST, Number, numbers_on
from .threshold import Slopes

UNRELIABLE_SEPARATION = 2.0


class State(NamedTuple):
    """The buffers that a step writes."""

    queue: Tensor  # (Q + 1,) float32, see loss_queue
    seen: Tensor  # () int64: samples queued
    steps: Tensor  # () int64: calls in training
    degenerate: Tensor  # () int64: updates that kept the last tau because the fit said nothing
    unreliable: Tensor  # () int64: updates in a row whose normals are hard to tell apart
    solution: Tensor  # (7,) float64: p0, tau, and the mixture
    highest_lr: Tensor  # () float64


def update(state: State, slopes: Slopes, epsilon: Number) -> None:
    """Fit two normals to the queue and solve for tau, if the queue is full, epsilon above 0 and the fit says anything.

    On CPU it is told by the caller that the first two hold; elsewhere a look would wait.
    """
    N = numbers_on(state.solution.device)
    mixture, doubt = fit_or_doubt(state.queue[:-1], N)
    solution = N.pack([*slopes.solve(mixture, 1 + epsilon, N), *mixture])
    poor = mixture.separation < UNRELIABLE_SEPARATION
    if N.on_host:
        _accept(state, solution, bool(doubt), bool(poor))
    else:
        ready = (state.seen >= state.queue.numel() - 1) & (torch.as_tensor(epsilon) > 0)
        good = ready & ~doubt
        state.degenerate.add_(ready & doubt)
        state.solution.copy_(torch.where(good, solution, state.solution))
        state.unreliable.copy_(torch.where(good, (state.unreliable + 1) * poor, state.unreliable))


def update_by_default(state: State, slopes: Slopes, epsilon: float, num_classes: int, steps: int) -> None:
    """Fit two normals to what is queued and move p0 towards the larger of two bounds. On the CPU.

    :param steps: since the last update.
    """
    count = min(int(state.seen), state.queue.numel() - 1)
    mixture, doubt = fit_or_doubt(state.queue[:count], HOST)
    by_ratio, _ = slopes.solve(mixture, 1 + epsilon, HOST)
    p0 = follow(float(state.solution[0]), max(by_ratio, clean_edge(mixture, num_classes)), steps)
    solution = HOST.pack([p0, slopes.at(p0), *mixture])
    _accept(state, solution, bool(doubt), bool(mixture.separation < UNRELIABLE_SEPARATION))


def _accept(state: State, solution: Tensor, doubt: bool, poor: bool) -> None:
    """Write a solution, unless the fit is degenerate, and count which of the two it was."""
    if doubt:
        state.degenerate.add_(1)
    else:
        state.solution.copy_(solution)
        state.unreliable.copy_(state.unreliable + 1 if poor else torch.zeros_like(state.unreliable))
