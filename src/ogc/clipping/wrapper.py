"""OGC: the loss that keeps the books. It queues cross entropies, re-solves for tau when due, and clips ``base`` there.

How it lives in a training step. In eager mode :meth:`OGC._observe` is a plain call. Under ``torch.compile`` it is one
opaque operator, ``ogc::observe``, that declares which buffers it writes; whatever only the host knows (the clock, the
learning rate) is looked up inside it by the criterion's key, so none of it is baked into a graph or guarded on. In a
CUDA graph host code runs once, at capture: there the update kernel is launched every step and looks at the clock on the
device, and the learning rate should be a tensor there. Without the kernel (no Triton, or a queue beyond its reach) a
captured ``forward`` queues and never updates: capture :meth:`OGC.update` on its own and replay it when due.
"""

from __future__ import annotations

import itertools
import math
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Self, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .._require import require
from ..given_label import P_MIN, can_read, check_input, cross_entropy, pick, pick_quietly
from ..losses import Loss, Pointwise, by_name, clipped, clipped_slope
from ..losses.clipped import ByHand
from ..losses.loss import Reduction
from .loss_queue import gather_ranks, push
from .mixture import Mixture, fit_or_doubt
from .numbers import numbers_on
from .ratio import GRID
from .schedules import Fixed, Schedule
from .threshold import Slopes

UNRELIABLE_SEPARATION = 2.0
UNRELIABLE_UPDATES = 32


class _State(NamedTuple):
    """The buffers that a step writes."""

    queue: Tensor  # (Q + 1,) float32, see loss_queue
    seen: Tensor  # () int64: samples queued
    steps: Tensor  # () int64: calls in training
    degenerate: Tensor  # () int64: updates that kept the last tau because the fit said nothing
    unreliable: Tensor  # () int64: updates in a row whose normals are hard to tell apart
    solution: Tensor  # (7,) float64: p0, tau, and the mixture
    highest_lr: Tensor  # () float64


class OGC(Loss):
    """Optimized Gradient Clipping (Ye et al., AAAI 2025) of a pointwise loss. Use it like ``nn.CrossEntropyLoss``.

    Every training step queues the batch's cross entropies H = -log p(y). Every ``every`` steps, once the queue is full,
    two normals are fitted to it, clean and noisy, and tau is set so that, gradients with respect to p clipped at tau,
    noisy samples pull 1 + epsilon times as hard as clean ones. It learns only in training mode with gradients enabled.

    >>> model = torch.nn.Linear(4, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> criterion = OGC("ce", optimizer)
    >>> criterion(model(torch.zeros(8, 4)), torch.zeros(8, dtype=torch.long)).shape
    torch.Size([])

    :param base: a pointwise loss, or its name in ``ogc.losses.LOSSES``.
    :param optimizer: whose first group's lr epsilon follows; held weakly. Or :meth:`attach` it later.
    :param epsilon: the excess at the highest lr so far; at an update it is ``epsilon * lr / highest lr``.
    :param epsilon0: instead, the paper's rule: ``lr * epsilon0``. Its 20 at lr 0.1 is the default epsilon of 2.
    :param follow_lr: ``False`` keeps epsilon constant, and needs no optimizer.
    :param threshold: move tau by hand instead: ``Fixed``, ``Linear`` or ``EMA`` from ``ogc.clipping``.
    :param every: s, steps from update to update. One call in training is a step; a call that gradient checkpointing
        repeats is another.
    :param queue_size: Q, how many recent samples the normals are fitted to.
    :param process_group: whose ranks share the queue; the default group if ``None``, nobody if ``False``. On CUDA all
        ranks must bring batches of the same size: exchanging sizes would wait for the device.
    """

    base: Pointwise
    queue: Tensor
    seen: Tensor
    steps: Tensor
    degenerate: Tensor
    unreliable: Tensor
    solution: Tensor
    highest_lr: Tensor
    slopes: Slopes

    def __init__(
        self,
        base: Pointwise | str,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        epsilon: float = 2.0,
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
        require(0 < epsilon < math.inf, "epsilon", "above 0", epsilon)
        require(epsilon0 is None or 0 < epsilon0 < math.inf, "epsilon0", "above 0", epsilon0)
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
        self._be_known()
        if optimizer is not None:
            self.attach(optimizer)
        if isinstance(threshold, Fixed):
            self.update()  # there is nothing to wait for

    def _be_known(self) -> None:
        """What only the host knows: the optimizer, and a key for the operator, a tensor since an int is guarded on."""
        self._key = torch.tensor(next(_keys))
        _criteria[int(self._key)] = self
        self._optimizer: Callable[[], torch.optim.Optimizer | None] = _no_optimizer
        self._has_warned = self._is_captured = False
        self._clock = int(self.steps)

    def require_plain(self, wrapper: str) -> Self:
        raise ValueError(f"{wrapper} cannot hold an OGC, which learns from the logits it is called with itself.")

    def attach(self, optimizer: torch.optim.Optimizer) -> Self:
        """Follow this optimizer's learning rate; held weakly, never saved. For frameworks that build the loss first."""
        require(hasattr(optimizer, "param_groups"), "optimizer", "an optimizer with param_groups", optimizer)
        self._optimizer = weakref.ref(optimizer)
        return self

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
        logits, labels = check_input(logits, labels)
        num_classes = logits.shape[1]
        learns = self.training and torch.is_grad_enabled()
        if torch.compiler.is_compiling():
            if learns:
                _observe_operator(logits.detach(), labels, *self._state(), self._key)
            return self.reduce(self.per_sample(logits, labels), labels, num_classes)

        differentiable = torch.is_grad_enabled() and given.requires_grad
        with torch.no_grad():
            log_p = F.log_softmax(logits, 1)
            H = pick(log_p, labels, self.ignore_index)
            share = self.shares(labels, num_classes, H.dtype)
            if learns:
                self._observe(self._unless_ignored(H, labels) if isinstance(share, Tensor) else H, self._state())
            p0, tau = self._p0_and_tau(H)
            p = torch.exp(-H)
            value = self.combine(clipped(self.base, H, p0, tau, p=p), share)
            if not differentiable:
                return value
            slope = (share * clipped_slope(self.base, p, p0, tau)).unsqueeze(1)
            label = labels if isinstance(share, float) else labels.clamp(0, num_classes - 1)  # any will do at slope 0
            gradient = log_p.exp_().mul_(slope).scatter_add_(1, label.unsqueeze(1), -slope)  # softmax - one-hot, scaled

        def again(given: Tensor) -> Tensor:
            logits, _ = check_input(given, labels)
            H = cross_entropy(logits, labels, self.ignore_index)
            return self.reduce(clipped(self.base, H, p0, tau), labels, num_classes)

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

    def _state(self) -> _State:
        return _State(*(cast(Tensor, self._buffers[name]) for name in _State._fields))

    def _observe(self, H: Tensor, state: _State) -> None:
        """One step's books: queue H where finite, move the clock, update when due. Writes the buffers it is handed."""
        if self.threshold is None:
            H = gather_ranks(H.flatten().float(), self.process_group)
            kernels = _kernels(state.queue, H.numel())
            (push if kernels is None else kernels.push)(state.queue, state.seen, H)
            self._track_lr(state)
        state.steps.add_(1)
        if self.threshold is not None or self._is_due(state):
            self._update(state, every=self.every)

    def _is_due(self, state: _State) -> bool:
        """Whether to update now, or to launch a kernel that looks at the clock on the device."""
        if not state.queue.is_cuda:
            return int(state.steps) % self.every == 0
        by_kernel = _kernels(state.queue, self.queue_size) is not None
        if torch.cuda.is_current_stream_capturing():
            self._is_captured = True  # from here on replays move the clock on the device, and only that one
            return by_kernel
        self._clock += 1
        return (self._is_captured and by_kernel) or self._clock % self.every == 0

    def _track_lr(self, state: _State) -> None:
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

    def _epsilon(self, state: _State) -> Tensor | float:
        """epsilon for this update; 0 or less while the learning rate is not positive."""
        if not self.follow_lr:
            return self.epsilon
        lr = self._lr()
        if lr is None:
            raise RuntimeError(
                "OGC follows the learning rate (follow_lr=True), but no optimizer is attached, or it is gone. Call "
                "criterion.attach(optimizer), or pass follow_lr=False to keep epsilon constant."
            )
        if self.epsilon0 is not None:
            return self.epsilon0 * lr
        if state.highest_lr.device.type != "cpu":
            return self.epsilon * lr / state.highest_lr
        return self.epsilon * lr / float(state.highest_lr) if lr > 0 else 0.0

    def _update(self, state: _State, every: int = 1) -> None:
        N = numbers_on(state.solution.device)
        if self.threshold is not None:
            tau = torch.as_tensor(self.threshold(state.steps, state.solution[1])).clamp(P_MIN, self.slopes.steepest)
            state.solution[:2] = N.pack([self.slopes.p0_at(N.read(tau), N), N.read(tau)])
            return
        if N.on_host and int(state.seen) < self.queue_size:
            return
        epsilon = self._epsilon(state)
        if N.on_host and epsilon <= 0:
            return
        if (kernels := _kernels(state.queue, self.queue_size)) is not None:
            epsilon = epsilon.double() if isinstance(epsilon, Tensor) else state.solution.new_full((), epsilon)
            kernels.update(state, self.slopes, epsilon, UNRELIABLE_SEPARATION, every)
            return
        mixture, doubt = fit_or_doubt(state.queue[:-1], N)
        solution = N.pack([*self.slopes.solve(mixture, 1 + epsilon, N), *mixture])
        poor = mixture.separation < UNRELIABLE_SEPARATION
        if N.on_host:
            if doubt:
                state.degenerate.add_(1)
                return
            state.solution.copy_(solution)
            state.unreliable.copy_(state.unreliable + 1 if poor else torch.zeros_like(state.unreliable))
            self._warn_if_unreliable(int(state.unreliable))
        else:
            ready = (state.seen >= self.queue_size) & (torch.as_tensor(epsilon) > 0)
            good = ready & ~doubt
            state.degenerate.add_(ready & doubt)
            state.solution.copy_(torch.where(good, solution, state.solution))
            state.unreliable.copy_(torch.where(good, (state.unreliable + 1) * poor, state.unreliable))

    def _warn_if_unreliable(self, updates: int) -> None:
        """The paper's own limit: where noise is complex or heavy, the two normals fit badly."""
        if updates >= UNRELIABLE_UPDATES and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"OGC: for {updates} updates the clean and the noisy normal have been hard to tell apart (separation "
                f"{float(self.mixture.separation):.2f} < {UNRELIABLE_SEPARATION:g}, overlap "
                f"{float(self.mixture.overlap):.2f}), so tau ({float(self.tau):.3g}) and noise_probability rest on a "
                "poor fit. Wrong labels learnt by heart do this (try a smaller epsilon), and so do noise that is heavy "
                "or depends on the input, and clean labels (then all is well).",
                stacklevel=7,  # the caller's line, past nn.Module's two
            )

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
        hidden = ("_optimizer", "_key", "_has_warned", "_is_captured", "_clock")
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
        rule = {"epsilon": self.epsilon} if self.epsilon0 is None else {"epsilon0": self.epsilon0}
        return rule | {"follow_lr": self.follow_lr, "every": self.every, "queue_size": self.queue_size}

    def extra_repr(self) -> str:
        state = f"steps={int(self.steps)}, tau={float(self.tau):.4g}, p0={float(self.p0):.4g}"
        if not math.isnan(rate := float(self.mixture.noisy_weight)):
            state += f", estimated noise={rate:.1%}"
        return f"{super().extra_repr()}\n{state}"


_keys = itertools.count()
_criteria: weakref.WeakValueDictionary[int, OGC] = weakref.WeakValueDictionary()


def _kernels(tensor: Tensor, samples: int) -> ModuleType | None:
    """The module of CUDA kernels, where they serve; imported late, because Triton is not everywhere and not light."""
    if not tensor.is_cuda:
        return None
    from . import fused

    return fused if fused.serves(tensor, samples) else None


def _no_optimizer() -> None:
    return None


@torch.no_grad()
def _observe_by_key(logits: Tensor, labels: Tensor, *state_and_key: Any) -> None:
    """H is computed anew by the eager kernels, so that a compiled run queues the very bits that an eager one does."""
    *state, key = state_and_key
    criterion = _criteria[int(key)]
    H = pick_quietly(F.log_softmax(logits, 1), labels, criterion.ignore_index)
    criterion._observe(criterion._unless_ignored(H, labels), _State(*state))


# mode="reduce-overhead" would bake the learning rate of the first step into its graph
_UNSAFE_IN_CUDA_GRAPHS: dict[str, Any] = (
    {"tags": [torch.Tag.cudagraph_unsafe]} if hasattr(torch.Tag, "cudagraph_unsafe") else {}
)
_buffers = ", ".join(f"Tensor(a{i}!) {name}" for i, name in enumerate(_State._fields))
_observe_operator = torch.library.custom_op(
    "ogc::observe",
    _observe_by_key,
    mutates_args=_State._fields,
    schema=f"(Tensor logits, Tensor labels, {_buffers}, Tensor key) -> ()",
    **_UNSAFE_IN_CUDA_GRAPHS,
)
_observe_operator.register_fake(lambda *args: None)
