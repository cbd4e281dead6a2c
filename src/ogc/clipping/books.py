"""OGC's books: the buffers that a training step writes, and their update by torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .clean_edge import follow, gives_up_a_class, recent, target
from .loss_queue import newest
from .mixture import fit_or_doubt
from .numbers import HOST, Number, numbers_on
from .threshold import Slopes

UNRELIABLE_SEPARATION = 2.0
OCTAVES = 32
"""Length of the history: column i is of the last update in steps 2^i to 2^(i + 1) - 1."""


class State(NamedTuple):
    """The buffers that a step writes."""

    queue: Tensor  # (Q + 1,) float32, see loss_queue
    seen: Tensor  # () int64: samples queued
    steps: Tensor  # () int64: calls in training
    degenerate: Tensor  # () int64: updates that kept the last tau because the fit said nothing
    unreliable: Tensor  # () int64: updates in a row whose normals are hard to tell apart
    solution: Tensor  # (7,) float64: p0, tau, and the mixture
    highest_lr: Tensor  # () float64
    by_class: Tensor  # (2, MOST_CLASSES) int64: samples since the last update, and those better than a guess
    history: Tensor  # (2, OCTAVES) float64: tau and noisy_weight at the last update before each power of two steps


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
        column = torch.log2(state.steps.clamp(min=1).double() + 0.5).long().clamp(max=OCTAVES - 1)
        state.history.copy_(
            torch.where(
                good & (torch.arange(OCTAVES, device=column.device) == column), solution[[1, 6], None], state.history
            )
        )


def update_by_default(state: State, slopes: Slopes, epsilon: float, num_classes: int, steps: int) -> None:
    """Fit two normals to what is queued and move p0 towards p*, see :mod:`ogc.clipping.clean_edge`. On the CPU.

    :param steps: since the last update.
    """
    seen = int(state.seen)
    mixture, doubt = fit_or_doubt(newest(state.queue, seen, recent(seen, state.queue.numel() - 1)), HOST)
    p_ratio, _ = slopes.solve(mixture, 1 + epsilon, HOST)
    aim = target(mixture, p_ratio, num_classes, gives_up_a_class(state.by_class, num_classes))
    p0 = follow(float(state.solution[0]), aim, steps)
    state.by_class.zero_()
    solution = HOST.pack([p0, slopes.at(p0), *mixture])
    _accept(state, solution, bool(doubt), bool(mixture.separation < UNRELIABLE_SEPARATION))


def _accept(state: State, solution: Tensor, doubt: bool, poor: bool) -> None:
    """Write a solution, unless the fit is degenerate, and count which of the two it was."""
    if doubt:
        state.degenerate.add_(1)
    else:
        state.solution.copy_(solution)
        state.unreliable.copy_(state.unreliable + 1 if poor else torch.zeros_like(state.unreliable))
        state.history[:, octave(int(state.steps))] = solution[[1, 6]]


def octave(step: int) -> int:
    """The column of the history that a step belongs to."""
    return min(max(step, 1).bit_length() - 1, OCTAVES - 1)
