"""OGC: the loss that keeps the books. It queues cross entropies, re-solves for tau when due, and clips ``base`` there.

How it lives in a training step. On CPU, and wherever the kernels do not serve, it is torch's operators: H, then the
books (:meth:`OGC._keep_books`), then the loss and its gradient by hand. On CUDA all of it is one launch (``fused.py``)
that finds the clock and the learning rate on the device: a step captured in a CUDA graph, where host code runs once, is
the eager one if its learning rate is a tensor. Under ``torch.compile`` the books are one opaque operator
(``operator.py``), on CUDA by the same kernel, and the loss is traced.

What that kernel does not take on CUDA (schedules, several ranks, float64, more than two dimensions, very large batches)
has one for a push and one for an update, which looks at the clock on the device too. Without any (no Triton, or a queue
beyond their reach) a captured ``forward`` queues and never updates: capture :meth:`OGC.update` on its own and replay it
when due.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Self, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .._require import require
from ..given_label import P_MIN, can_read, check_input, cross_entropy, pick, pick_quietly
from ..losses import Loss, Pointwise, by_name, clipped, clipped_slope
from ..losses.clipped import ByHand
from ..losses.loss import Reduction
from .books import OCTAVES, UNRELIABLE_SEPARATION, State, update, update_by_default
from .clean_edge import EPSILON, FEWEST, MOST_CLASSES, count_classes, period
from .loss_queue import gather_ranks, push
from .mixture import Mixture
from .numbers import numbers_on
from .operator import key_of, observe
from .ratio import GRID
from .schedules import Fixed, Schedule
from .threshold import Slopes

UNRELIABLE_UPDATES = 32
_Step = tuple[Tensor, Tensor, Tensor, Tensor]


class OGC(Loss):
    """Optimized Gradient Clipping (Ye et al., AAAI 2025) of a pointwise loss. Use it like ``nn.CrossEntropyLoss``.

    Every training step queues the batch's cross entropies H = -log p(y). Every ``every`` steps two normals are fitted
    to the queue, one for clean and one for noisy samples, and tau is moved, the bound on the gradient with respect to
    p. It learns only in training mode with gradients enabled. How tau moves:

    - by default, by the rule of :mod:`ogc.clipping.clean_edge`, which has nothing to tune;
    - with ``epsilon0=20``, by the paper's rule: noisy samples pull 1 + lr * epsilon0 times as hard as clean ones;
    - with ``epsilon=0.5``, the same with ``epsilon * lr / (highest lr so far)`` in place of ``lr * epsilon0``;
    - with ``threshold=``, by hand: ``Fixed``, ``Linear`` or ``EMA`` from ``ogc.clipping``.

    >>> model = torch.nn.Linear(4, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> criterion = OGC("ce", optimizer)
    >>> criterion(model(torch.zeros(8, 4)), torch.zeros(8, dtype=torch.long)).shape
    torch.Size([])

    :param base: a pointwise loss, or its name in ``ogc.losses.LOSSES``.
    :param optimizer: whose first group's lr is followed; held weakly. Or :meth:`attach` it later.
    :param epsilon: the excess at the highest lr so far.
    :param epsilon0: the excess over the lr: the paper's rule.
    :param follow_lr: ``False`` keeps epsilon constant and needs no optimizer.
    :param threshold: a function of the step and the last tau.
    :param every: s, steps from update to update; the default rule updates eight times as often in the first 1,024
        steps. One call in training is a step, also one that gradient checkpointing repeats.
    :param queue_size: Q, how many recent samples the normals are fitted to. The default rule starts at 256.
    :param process_group: whose ranks share the queue; the default group if ``None``, none if ``False``. On CUDA all
        ranks need batches of the same size: exchanging sizes would wait for the device.
    """

    base: Pointwise
    queue: Tensor
    seen: Tensor
    steps: Tensor
    degenerate: Tensor
    unreliable: Tensor
    solution: Tensor
    highest_lr: Tensor
    by_class: Tensor
    history: Tensor
    slopes: Slopes

    def __init__(
        self,
        base: Pointwise | str,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        epsilon: float | None = None,
        epsilon0: float | None = None,
        follow_lr: bool = True,
        threshold: Schedule | None = None,
        every: int = 32,
        queue_size: int = 4096,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        process_group: dist.ProcessGroup | bool | None = None,
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        require(epsilon is None or 0 < epsilon < math.inf, "epsilon", "above 0", epsilon)
        require(epsilon0 is None or 0 < epsilon0 < math.inf, "epsilon0", "above 0", epsilon0)
        require(epsilon is None or epsilon0 is None, "epsilon", "left out with epsilon0: they are two rules", epsilon)
        require(epsilon0 is None or follow_lr, "follow_lr", "True with epsilon0, which is multiplied by lr", follow_lr)
        require(threshold is None or callable(threshold), "threshold", "Fixed, Linear, EMA or a function", threshold)
        require(isinstance(every, int) and every >= 1, "every", "an integer of at least 1", every)
        require(isinstance(queue_size, int) and queue_size >= 4, "queue_size", "an integer of at least 4", queue_size)
        require(process_group is not True, "process_group", "a process group, None or False", process_group)
        loss = by_name(base)() if isinstance(base, str) else base
        if not isinstance(loss, Pointwise):
            raise ValueError(
                'OGC needs a pointwise loss, one that depends on the probability of the given label alone: "ce", "fl", '
                f'"gce", "sce", "taylor_ce", "js" or a subclass of ogc.losses.Pointwise. Found {type(loss).__name__}.'
            )
        self.base = loss.require_plain("OGC")
        self.epsilon, self.epsilon0, self.follow_lr = epsilon, epsilon0, follow_lr
        self.threshold, self.every, self.queue_size, self.process_group = threshold, every, queue_size, process_group

        self.__dict__["slopes"] = Slopes(loss)  # no part of the model: not shown, not saved; _apply moves it
        self.register_buffer("queue", torch.zeros(queue_size + 1, dtype=torch.float32))
        for counter in ("seen", "steps", "degenerate", "unreliable"):
            self.register_buffer(counter, torch.zeros((), dtype=torch.int64))
        unclipped = [P_MIN, self.slopes.steepest, *[math.nan] * len(Mixture._fields)]
        self.register_buffer("solution", torch.tensor(unclipped, dtype=torch.float64))
        self.register_buffer("highest_lr", torch.zeros((), dtype=torch.float64))
        self.register_buffer("history", torch.full((2, OCTAVES), math.nan, dtype=torch.float64))
        self.register_buffer("by_class", torch.zeros(2, MOST_CLASSES, dtype=torch.int64))
        self._be_known()
        if optimizer is not None:
            self.attach(optimizer)
        if isinstance(threshold, Fixed):
            self.update()  # there is nothing to wait for

    def _be_known(self) -> None:
        """What only the host knows: the optimizer, the clock, and a key for the operator."""
        self._key = key_of(self)
        self._optimizer: Callable[[], torch.optim.Optimizer | None] = _no_optimizer
        self._has_warned = self._is_captured = False
        self._num_classes = 0  # known from the first call on
        self._clock = int(self.steps)

    def require_plain(self, wrapper: str) -> Self:
        raise ValueError(f"{wrapper} cannot hold an OGC, which learns from the logits it is called with itself.")

    def attach(self, optimizer: torch.optim.Optimizer) -> Self:
        """Follow this optimizer's learning rate; held weakly, never saved. For frameworks that build the loss first."""
        require(hasattr(optimizer, "param_groups"), "optimizer", "an optimizer with param_groups", optimizer)
        self._optimizer = weakref.ref(optimizer)
        return self

    @property
    def rule(self) -> str:
        """Name of the rule that moves tau: "default", "epsilon", "paper" (epsilon0) or "threshold"."""
        if self.threshold is not None:
            return "threshold"
        return "paper" if self.epsilon0 is not None else "default" if self.epsilon is None else "epsilon"

    # --- what it knows -------------------------------------------------------------------------------------------

    @property
    def p0(self) -> Tensor:
        """The probability below which the loss is a straight line; 0-dim."""
        return self.solution[0].clone()

    @property
    def tau(self) -> Tensor:
        """The largest gradient with respect to p, slope(p0); 0-dim."""
        return self.solution[1].clone()

    @property
    def mixture(self) -> Mixture:
        """The last fit; NaN before the first one."""
        return Mixture(*self.solution[2:].clone().unbind())

    @torch.no_grad()
    def noise_probability(self, logits: Tensor, labels: Tensor) -> Tensor:
        """P(given label is wrong | H) by the last fit: (N, C, ...), (N, ...) -> (N, ...). NaN where ignored."""
        logits, labels = check_input(logits, labels)
        H = cross_entropy(logits, labels, self.ignore_index)
        probability = self.mixture.noise_probability(H).to(H.dtype)
        return torch.where(labels == self.ignore_index, math.nan, probability)

    # --- a step --------------------------------------------------------------------------------------------------

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.queue.device != logits.device:
            self.to(logits.device)  # like nn.CrossEntropyLoss, which needs no moving
        given = logits
        learns = self.training and torch.is_grad_enabled()
        if torch.compiler.is_compiling():
            logits, labels = check_input(given, labels)
            if learns:
                observe(given.detach(), labels, *self._state(), self._key)
            return self.reduce(self.per_sample(logits, labels), labels, logits.shape[1])

        differentiable = torch.is_grad_enabled() and given.requires_grad
        state = self._state()
        self._num_classes = logits.shape[1] if logits.dim() > 1 else 0
        step = self._in_one_launch(given, labels, state) if learns else None
        if step:
            return self._by_hand(given, labels, *step) if differentiable else step[0]
        logits, labels = check_input(given, labels)
        num_classes = logits.shape[1]
        with torch.no_grad():
            log_p = F.log_softmax(logits, 1)
            H = pick(log_p, labels, self.ignore_index)
            share = self.shares(labels, num_classes, H.dtype)
            if learns and step is None:
                self._keep_books(self._unless_ignored(H, labels) if isinstance(share, Tensor) else H, labels, state)
            p0, tau = self._p0_and_tau(H)
            p = torch.exp(-H)
            value = self.combine(clipped(self.base, H, p0, tau, p=p), share)
            if not differentiable:
                return value
            slope = (share * clipped_slope(self.base, p, p0, tau)).unsqueeze(1)
            label = labels if isinstance(share, float) else labels.clamp(0, num_classes - 1)  # any will do at slope 0
            gradient = log_p.exp_().mul_(slope).scatter_add_(1, label.unsqueeze(1), -slope)  # softmax - one-hot, scaled
        return self._by_hand(given, labels, value, gradient, p0, tau)

    def _by_hand(
        self, given: Tensor, labels: Tensor, value: Tensor, gradient: Tensor, p0: Tensor | float, tau: Tensor | float
    ) -> Tensor:
        """``value``, with its gradient for the graph."""

        def again(given: Tensor) -> Tensor:
            logits, _ = check_input(given, labels)
            H = cross_entropy(logits, labels, self.ignore_index)
            return self.reduce(clipped(self.base, H, p0, tau), labels, logits.shape[1])

        return cast(Tensor, ByHand.apply(given, value, gradient, again))  # type: ignore[no-untyped-call]

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The clipped loss at the present tau; learns nothing."""
        H = cross_entropy(logits, labels, self.ignore_index)
        return clipped(self.base, H, *self._p0_and_tau(H))

    def _unless_ignored(self, H: Tensor, labels: Tensor) -> Tensor:
        return torch.where(labels == self.ignore_index, math.nan, H)

    def _p0_and_tau(self, H: Tensor) -> Sequence[Tensor] | Sequence[float]:
        """As the loss uses them: apart from the buffer, which the next update writes in place."""
        present = self.solution[:2]
        return present.tolist() if can_read(present) else present.to(H.dtype, copy=True).unbind()

    @torch.no_grad()
    def update(self) -> None:
        """Re-solve now, if the queue is full."""
        self._update(self._state())

    def _state(self) -> State:
        return State(*(cast(Tensor, self._buffers[name]) for name in State._fields))

    def _in_one_launch(self, logits: Tensor, labels: Tensor, state: State) -> _Step | tuple[()] | None:
        """A step by the kernel: value, gradient, p0, tau; () if it kept the books only; ``None`` if it cannot serve."""
        kernels = _kernels(logits, self.queue_size)
        if kernels is None or self.threshold is not None or not kernels.serves_batch(logits, labels):
            return None
        if not _is_alone(self.process_group):  # ranks exchange H in the middle of a step
            return None
        lr = self._lr()
        if self._is_due(state):
            self._require_lr(lr)
        return cast("_Step | tuple[()]", kernels.step(self, state, logits, labels, 0.0 if lr is None else lr))

    def _observe(self, logits: Tensor, labels: Tensor, state: State) -> None:
        """One step's books for the operator. Writes the buffers it is handed.

        H is computed anew, as in eager mode, so that a compiled run queues the very bits that an eager one does.
        """
        self._num_classes = logits.shape[1]
        if self._in_one_launch(logits, labels, state) is None:
            log_p = F.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), 1)
            H = pick_quietly(log_p, labels, self.ignore_index)
            self._keep_books(self._unless_ignored(H, labels), labels, state)

    def _keep_books(self, H: Tensor, labels: Tensor, state: State) -> None:
        """Queue H where finite, move the clock, update when due."""
        if self.threshold is None:
            H = gather_ranks(H.flatten().float(), self.process_group)
            if self.rule == "default":
                everyone = gather_ranks(labels.flatten().float(), self.process_group)  # exact: classes are few
                count_classes(state.by_class, H, everyone.nan_to_num(0).long(), self._num_classes)
            kernels = _kernels(state.queue, H.numel())
            (push if kernels is None else kernels.push)(state.queue, state.seen, H)
            self._track_lr(state)
        state.steps.add_(1)
        if self.threshold is not None or self._is_due(state):
            self._update(state, by_clock=True)

    def _period(self, step: int) -> int:
        """Steps from update to update, at this step."""
        return period(step, self.every) if self.rule == "default" else self.every

    def _is_due(self, state: State) -> bool:
        """Whether to update now, or to launch a kernel that looks at the clock on the device."""
        if not state.queue.is_cuda:
            step = int(state.steps)
            return step % self._period(step) == 0
        by_kernel = _kernels(state.queue, self.queue_size) is not None
        if torch.cuda.is_current_stream_capturing():
            self._is_captured = True  # from here on replays move the clock on the device, and only that one
            return by_kernel
        self._clock += 1
        return (self._is_captured and by_kernel) or self._clock % self._period(self._clock) == 0

    def _track_lr(self, state: State) -> None:
        lr = self._lr()
        if isinstance(lr, Tensor):
            state.highest_lr.copy_(torch.maximum(state.highest_lr, lr))
        elif lr is not None:
            state.highest_lr.clamp_(min=lr)

    def _lr(self) -> Tensor | float | None:
        """The learning rate: a float, or a tensor if it lives on an accelerator, where reading it would wait."""
        optimizer = self._optimizer() if self.follow_lr else None
        if optimizer is None:
            return None
        lr = optimizer.param_groups[0]["lr"]
        return lr if isinstance(lr, Tensor) and lr.device.type != "cpu" else float(lr)

    def _require_lr(self, lr: Tensor | float | None) -> Tensor | float:
        if lr is None and self.follow_lr:
            raise RuntimeError(
                "OGC follows the learning rate (follow_lr=True), but no optimizer is attached, or it is gone. Call "
                "criterion.attach(optimizer), or pass follow_lr=False to keep epsilon constant."
            )
        return 0.0 if lr is None else lr

    def _epsilon(self, state: State) -> Tensor | float:
        """epsilon for this update; 0 or less while the learning rate is not positive."""
        epsilon = EPSILON if self.epsilon is None else self.epsilon
        if not self.follow_lr:
            return epsilon
        lr = self._require_lr(self._lr())
        if self.epsilon0 is not None:
            return self.epsilon0 * lr
        if state.highest_lr.device.type != "cpu":
            return epsilon * lr / state.highest_lr
        return epsilon * lr / float(state.highest_lr) if lr > 0 else 0.0

    @property
    def _fewest(self) -> int:
        """Samples in the queue from which on it is fitted."""
        return min(FEWEST, self.queue_size) if self.rule == "default" else self.queue_size

    def _update(self, state: State, by_clock: bool = False) -> None:
        """Move tau by the rule. ``by_clock``: only if the clock on the device says that it is time."""
        N = numbers_on(state.solution.device)
        if self.threshold is not None:
            tau = torch.as_tensor(self.threshold(state.steps, state.solution[1])).clamp(P_MIN, self.slopes.steepest)
            state.solution[:2] = N.pack([self.slopes.p0_at(N.read(tau), N), N.read(tau)])
            return
        if N.on_host and int(state.seen) < self._fewest:
            return
        epsilon = self._epsilon(state)
        if N.on_host and epsilon <= 0:
            return
        if (kernels := _kernels(state.queue, self.queue_size)) is not None:
            kernels.update(self, state, epsilon, by_clock)
        elif self.rule == "default":
            self._update_by_default(state, epsilon)
        else:
            update(state, self.slopes, epsilon)
        if N.on_host:
            self._warn_if_unreliable(int(state.unreliable))

    def _update_by_default(self, state: State, epsilon: Tensor | float) -> None:
        """On an accelerator without our kernels the queue is copied to the CPU and the solution back."""
        here = State(*(buffer.cpu() for buffer in state))  # the buffers themselves where they are on the CPU
        if self._num_classes < 2 or int(here.seen) < self._fewest or float(epsilon) <= 0:
            return
        slopes = self.slopes if self.slopes.table.device.type == "cpu" else Slopes(self.base)
        update_by_default(here, slopes, float(epsilon), self._num_classes, self._period(int(here.steps)))
        for buffer, updated in zip(state, here, strict=True):
            if buffer is not updated:
                buffer.copy_(updated)

    def _warn_if_unreliable(self, updates: int) -> None:
        """Warn once if the rule cannot work: nothing is clipped, or the two normals fit badly, the paper's own limit.

        :param updates: in a row whose normals are hard to tell apart.
        """
        if self._has_warned or int(self.steps) < UNRELIABLE_UPDATES * self.every:
            return
        share, tau = float(self.mixture.noisy_weight), float(self.tau)
        if updates >= UNRELIABLE_UPDATES:
            message = (
                f"OGC: for {updates} updates the clean and the noisy normal have been hard to tell apart (separation "
                f"{float(self.mixture.separation):.2f} < {UNRELIABLE_SEPARATION:g}, overlap "
                f"{float(self.mixture.overlap):.2f}), so tau ({tau:.3g}) and noise_probability rest on a poor fit. "
                f"The share of noisy samples: {self._past(1, '.0%')}. If it fell, wrong labels were memorised: train "
                "for fewer epochs or use a smaller network. If it was always small, the labels may be clean. "
                "Otherwise the noise may be heavy or depend on the input."
            )
        elif self.rule in ("epsilon", "paper") and share >= 0.05 and not (self.history[0] < self.slopes.steepest).any():
            name = "epsilon" if self.epsilon0 is None else "epsilon0"
            message = (
                f"OGC: nothing has been clipped in {int(self.steps):,} steps, although {share:.0%} of the samples look "
                f"noisy: without clipping they pull less than 1 + epsilon times as hard as clean ones. Leave out "
                f"{name} to use the default rule, or lower it."
            )
        else:
            return
        self._has_warned = True
        warnings.warn(message, stacklevel=7)  # the caller's line, past nn.Module's two

    def _past(self, row: int, form: str) -> str:
        """A row of the history in words, oldest first."""
        known = [(i, value) for i, value in enumerate(self.history[row].tolist()) if not math.isnan(value)]
        steps = int(self.steps)
        return ", ".join(f"{value:{form}} at step {min(2 ** (i + 1) - 1, steps)}" for i, value in known[-4:]) or "none"

    # --- saving, copying, moving -------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        self._warn_if_unreliable(int(self.unreliable))  # on CUDA, where an update cannot look, a save does
        slope = [float(f"{self.slopes.slope[i]:.6g}") for i in (0, GRID // 2, -1)]  # tells any loss from any other
        base = {"name": type(self.base).__name__, **self.base.hyperparameters}
        threshold = None if self.threshold is None else type(self.threshold).__name__
        return {"base": base, "slope": slope, "queue_size": self.queue_size, "threshold": threshold}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Checked before any buffer is written, in ``_load_from_state_dict``."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        found, own = state_dict.get(f"{prefix}_extra_state"), self.get_extra_state()
        if found is not None and found != own:
            raise ValueError(f"This state belongs to another OGC: it was saved with {found}; this one has {own}.")
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._clock = int(self.steps)

    def __getstate__(self) -> dict[str, Any]:
        hidden = ("_optimizer", "_key", "_has_warned", "_is_captured", "_clock", "_num_classes")
        return {name: value for name, value in self.__dict__.items() if name not in hidden}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._be_known()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow ``.to(device)``, but not ``.half()`` and the like: a queue in half precision is no queue."""

        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        self.slopes._apply(keep_dtype)  # type: ignore[no-untyped-call]
        super()._apply(keep_dtype, recurse)  # type: ignore[no-untyped-call]
        return self

    @property
    def hyperparameters(self) -> dict[str, Any]:
        if self.threshold is not None:
            return {"threshold": self.threshold}
        rules: dict[str, dict[str, Any]] = {
            "default": {"follow_lr": self.follow_lr},
            "epsilon": {"epsilon": self.epsilon, "follow_lr": self.follow_lr},
            "paper": {"epsilon0": self.epsilon0},
        }
        return {**rules[self.rule], "every": self.every, "queue_size": self.queue_size}

    def extra_repr(self) -> str:
        state = f"steps={int(self.steps)}, tau={float(self.tau):.4g}, p0={float(self.p0):.4g}"
        if not math.isnan(float(self.mixture.noisy_weight)):
            state += f"\ntau: {self._past(0, '.3g')}\nshare of noisy samples: {self._past(1, '.0%')}"
        return f"{super().extra_repr()}\n{state}"


def _kernels(tensor: Tensor, samples: int) -> ModuleType | None:
    """The module of CUDA kernels, where they serve; imported late, because Triton is not everywhere and not light."""
    if not tensor.is_cuda:
        return None
    from . import fused

    return fused if fused.serves(tensor, samples) else None


def _is_alone(process_group: dist.ProcessGroup | bool | None) -> bool:
    """Whether there is no other rank to share the queue with."""
    if process_group is False or not (dist.is_available() and dist.is_initialized()):
        return True
    return dist.get_world_size(None if isinstance(process_group, bool) else process_group) == 1


def _no_optimizer() -> None:
    return None
