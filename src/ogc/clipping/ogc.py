"""OGC, the loss that adapts its clipping threshold: Algorithm 1 of Ye et al., 2025.

:meth:`OGC.forward` is one iteration of the algorithm. In eager mode it runs as written here, with a hand-written
gradient (``backends/eager.py``). On CUDA one kernel runs all of it (``backends/cuda.py``). Under ``torch.compile``
everything but the loss is one opaque operator (``backends/compiled.py``).

On an accelerator without our kernels (no Triton, no NVIDIA GPU, or a queue that is too large for them) the queue stays
on the device and is copied to the CPU for each update. A step captured in a CUDA graph then only queues samples: call
:meth:`OGC.update` between replays.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._require import require
from ..given_label import (
    P_MIN,
    can_read,
    check_input,
    cross_entropy,
    cross_entropy_and_lowest,
    require_tensors,
    widest_float,
)
from ..kernels.constants import GRID, MOST_CLASSES
from ..losses import Loss, Pointwise, clipped
from ..losses.loss import Reduction
from .backends import compiled, cuda, eager
from .base_loss import clippable_loss
from .clock import MISSING_OPTIMIZER, Clock, is_capturing, learning_rate, raise_to_highest
from .loss_queue import Backlog, gather_labels, gather_ranks
from .mixture import Mixture
from .reliability import describe_state, find_problem
from .rule import Now, Rule
from .rules import Function, choose_rule
from .state import State, keeping_dtype
from .threshold import Slopes

SAME_P0 = 1e-8
"""Classes whose p0 differ by less, relatively, share one. The factors of the default rule never quite return to 1."""


def _flushed(name: str) -> Any:
    """Return a property for a buffer that is behind while batches wait, and is up to date whenever it is read."""

    def read(criterion: OGC) -> Tensor:
        criterion.flush()
        return criterion._buffers[name]  # type: ignore[return-value]

    return property(read)


class OGC(Loss):
    """Optimized Gradient Clipping of a pointwise loss, used like ``nn.CrossEntropyLoss``.

    *Optimized Gradient Clipping for Noisy Label Learning*, Ye et al., AAAI 2025. Every training step queues the cross
    entropies H = -log p(y) of the batch. Every ``every`` steps, two normals are fitted to the queue, one for clean and
    one for noisy samples, and a rule moves tau, the bound on the gradient with respect to p. OGC learns only in
    training mode with gradients enabled.

    - by default, the rule of :mod:`ogc.clipping.default_rule`, which has nothing to tune;
    - with ``epsilon0=20``, the rule of the paper: the gradients of noisy samples are at most 1 + lr * epsilon0 times as
      large as those of clean ones;
    - with ``epsilon=0.5``, the same with ``epsilon * lr / (highest lr so far)`` in place of ``lr * epsilon0``;
    - with ``threshold=...``, a schedule: ``Fixed``, ``Linear`` or ``EMA`` from ``ogc.clipping``.

    >>> model = torch.nn.Linear(4, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> criterion = OGC("ce", optimizer)
    >>> criterion(model(torch.zeros(8, 4)), torch.zeros(8, dtype=torch.long)).shape
    torch.Size([])

    :param base: a pointwise loss, or its name in ``ogc.losses.LOSSES``.
    :param optimizer: OGC follows the learning rate of its first group, and keeps only a weak reference to it. It can
        also be attached later, with :meth:`attach`.
    :param epsilon: epsilon at the highest learning rate so far.
    :param epsilon0: epsilon divided by the learning rate: the rule of the paper.
    :param follow_lr: ``False`` keeps epsilon constant and needs no optimizer.
    :param threshold: a schedule, a function of the step and the last tau, or a rule of your own.
    :param every: s, the number of steps between updates. The default rule updates eight times as often in the first
        1,024 steps. Each call in training is a step, including calls that gradient checkpointing repeats.
    :param queue_size: q, the number of recent samples that the normals are fitted to. The default rule starts to fit at
        256 samples.
    :param process_group: its ranks share the queue; the default group if ``None``, no sharing if ``False``. On CUDA
        all ranks need batches of the same size, because exchanging sizes would wait for the device.
    """

    base: Pointwise
    degenerate: Tensor
    unreliable: Tensor
    solution: Tensor
    thresholds: Tensor
    history: Tensor
    queue, seen, rule_state = _flushed("queue"), _flushed("seen"), _flushed("rule_state")
    steps, highest_lr = _flushed("steps"), _flushed("highest_lr")

    def __init__(
        self,
        base: Pointwise | str,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        epsilon: float | None = None,
        epsilon0: float | None = None,
        follow_lr: bool = True,
        threshold: Rule | Function | None = None,
        every: int = 32,
        queue_size: int = 4096,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        process_group: dist.ProcessGroup | bool | None = None,
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        require(isinstance(every, int) and every >= 1, "every", "an integer of at least 1", every)
        require(isinstance(queue_size, int) and queue_size >= 4, "queue_size", "an integer of at least 4", queue_size)
        require(process_group is not True, "process_group", "a process group, None or False", process_group)
        self.rule = choose_rule(epsilon=epsilon, epsilon0=epsilon0, follow_lr=follow_lr, threshold=threshold)
        self.base = clippable_loss(base)
        self.every, self.queue_size, self.process_group = every, queue_size, process_group
        self.warns = True
        self.slopes = Slopes(self.base)
        # not register_buffer, which refuses the names of properties
        state = State.initial(queue_size, self.slopes.steepest, self.rule.initial_state())
        self._buffers.update(state._asdict())
        self._reset_host_state()
        if optimizer is not None:
            self.attach(optimizer)
        if self.rule.is_constant:
            self.update()

    def _reset_host_state(self) -> None:
        """Reset the state that is neither saved nor copied, such as the optimizer and the step number on the host."""
        self.clock = Clock(self.steps)
        self.key = compiled.new_key(self)
        self._optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None
        self._backlog = Backlog()
        self._has_warned = False

    # --- Algorithm 1 -------------------------------------------------------------------------------------------------

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Run Algorithm 1, lines 4 to 13, on one batch: (N, C, ...), (N, ...) -> () or (N, ...)."""
        require_tensors(logits, labels)
        if self._buffers["solution"].device != logits.device:  # type: ignore[union-attr]
            self.to(logits.device)  # like nn.CrossEntropyLoss, which does not have to be moved
        learns = self.training and torch.is_grad_enabled()
        if torch.compiler.is_compiling():
            return compiled.traced_loss(self, logits, labels, learns)
        rule = cuda.step_rule(self, logits, labels) if learns else None
        if rule is not None:
            step = cuda.run_step(self, rule, self.state(), logits, labels)
            if step is not None:
                return eager.kernel_loss(self, logits, labels, *step)
            learns = False  # the kernel has updated the state, and the loss remains to be computed

        (checked, labels), num_classes = check_input(logits, labels), logits.shape[1]
        H, lowest = cross_entropy_and_lowest(checked, labels, self.ignore_index)  # line 4
        share = self.shares(labels, num_classes, H.dtype, keeps_all=lowest > 0)
        if learns:
            to_queue = H.detach()
            if isinstance(share, Tensor):
                to_queue = torch.where(labels == self.ignore_index, math.nan, to_queue)
            self.learn(to_queue, labels, num_classes)  # lines 5 to 12
        return eager.eager_loss(self, H, labels, num_classes, share)  # line 13

    def learn(self, H: Tensor, labels: Tensor, num_classes: int, state: State | None = None) -> None:
        """Run Algorithm 1, lines 5 to 12: queue the batch, and update tau if that is due.

        :param H: without a gradient; NaN where ignored.
        :param state: the buffers to write. If None, those of this criterion, and on a CPU the batch may wait.
        """
        waits = state is None and can_read(H) and not (dist.is_available() and dist.is_initialized())
        if not waits or num_classes != self.clock.num_classes or self._backlog.samples > self.queue_size:
            self.flush(state)
        steps = cast(Tensor, self._buffers["steps"]) if state is None else state.steps
        self.clock.count_step(steps, num_classes, waiting=len(self._backlog.steps))
        if waits and self.rule.by_class:
            labels = labels.clone()  # the caller may overwrite them
        self._backlog.append(H, labels, self.lr)
        if not waits:
            self.flush(state)
        if self.is_due():  # line 7
            self._update(self._state() if state is None else state, by_clock=True)  # lines 8 and 9

    @torch.no_grad()
    def flush(self, state: State | None = None) -> None:
        """Count and queue the batches that wait: Algorithm 1, line 5. Reading the state does this first."""
        if not self._backlog.steps:
            return
        state = self._state() if state is None else state
        H, labels, lrs = self._backlog.take()
        state.steps.add_(len(lrs))
        raise_to_highest(state.highest_lr, lrs)
        if not self.samples_needed:
            return
        H = gather_ranks(H.float(), self.process_group)
        if state.rule_state.numel():
            labels = gather_labels(labels, self.process_group)
            self.rule.count(state.rule_state, H, labels, self.clock.num_classes)
        cuda.push_batch(state.queue, state.seen, H)

    @torch.no_grad()
    def _update(self, state: State, by_clock: bool = False) -> None:
        """Run Algorithm 1, lines 8 and 9. ``by_clock``: the kernel checks line 7 by the step number on the device."""
        rule = cuda.kernel_rule(self, state.solution, self.clock.num_classes)
        if rule is not None:
            cuda.run_update(self, rule, state, by_clock)
            return
        self.flush(state)
        self.rule.update(state, self.slopes, Now(self.require_lr(), self.clock.num_classes, self.every))
        self._warn_once()

    # --- results -----------------------------------------------------------------------------------------------------

    @property
    def p0(self) -> Tensor:
        """The probability below which the loss is a straight line; smaller for classes that are not learned; 0-dim."""
        return self.solution[0].clone()

    @property
    def tau(self) -> Tensor:
        """The largest gradient with respect to p, slope(p0); larger for classes that are not learned; 0-dim."""
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
        mixture = Mixture(*(number.to(widest_float(H.device)).to(H.device) for number in self.mixture))
        probability = mixture.noise_probability(H).to(H.dtype)
        return torch.where(labels == self.ignore_index, math.nan, probability)

    @property
    def samples_needed(self) -> int:
        """Number of queued samples before the first fit; 0 if the rule fits nothing."""
        return self.rule.samples_needed(self.queue_size)

    def attach(self, optimizer: torch.optim.Optimizer) -> Self:
        """Follow the learning rate of an optimizer built after the loss. It is held weakly and never saved."""
        require(hasattr(optimizer, "param_groups"), "optimizer", "an optimizer with param_groups", type(optimizer))
        self._optimizer = weakref.ref(optimizer)
        return self

    def update(self) -> None:
        """Solve for tau now, if enough samples are queued; with the default rule, only after a call in training.

        A schedule moves tau once more without counting a step, which matters for EMA.
        """
        self._update(self.state())

    def set_rule(self, rule: Rule) -> None:
        """Move tau by another rule from now on."""
        self.flush()
        self.rule = rule
        self._buffers["rule_state"] = rule.initial_state().to(self.solution.device)

    def require_plain(self, wrapper: str) -> Self:
        raise ValueError(f"{wrapper} cannot wrap an OGC, which learns from the logits that it is called with.")

    # --- interface for the backends ----------------------------------------------------------------------------------
    # with `rule`, `slopes`, `clock`, `key`, `learn`, and the methods of Loss

    def state(self) -> State:
        """Return the buffers, up to date."""
        if not torch.compiler.is_compiling():
            self.flush()
        return self._state()

    def _state(self) -> State:
        return State(*(cast(Tensor, self._buffers[name]) for name in State._fields))

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the clipped loss at the current tau, without updating the state."""
        H = cross_entropy(logits, labels, self.ignore_index)
        return clipped(self.base, H, *self.p0_and_tau(H, labels, logits.shape[1]))

    def p0_and_tau(self, H: Tensor, labels: Tensor, num_classes: int) -> Sequence[Tensor] | Sequence[float]:
        """Return copies of p0 and tau for a loss of H: floats if all samples share them and they can be read.

        Otherwise tensors, with the shape of H if classes may differ. The next update overwrites the buffers, and
        backward may still need the old values.
        """
        by_class = self.rule.by_class and num_classes <= MOST_CLASSES
        solution, thresholds = cast(Tensor, self._buffers["solution"]), cast(Tensor, self._buffers["thresholds"])
        if can_read(solution):
            p0, tau = solution.tolist()[:2]
            of_class = thresholds.tolist()[0][:num_classes] if by_class else [p0]
            if max(of_class) - min(of_class) < SAME_P0 * p0:
                return p0, tau
        elif not by_class:
            return solution[:2].to(H.dtype, copy=True).to(H.device).unbind()
        table = thresholds[:, :num_classes].to(H.dtype, copy=True).to(H.device)
        table[0].clamp_(min=P_MIN)
        return table[:, labels.clamp(0, num_classes - 1)].unbind()

    def is_due(self) -> bool:
        """Return True if t mod s = 0 (Algorithm 1, line 7), or if a kernel has to decide that on the device."""
        step, solution = self.clock.step, cast(Tensor, self._buffers["solution"])
        if self.clock.is_captured and cuda.kernel_rule(self, solution, self.clock.num_classes) is not None:
            return True
        if step % self.rule.period(step, self.every):
            return False
        return not (self.samples_needed and is_capturing(solution))  # a fit needs the CPU

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer whose learning rate is followed, unless it was deleted."""
        return self._optimizer()

    @property
    def lr(self) -> Tensor | float | None:
        """The learning rate that the rule follows; None if it follows none, or without an optimizer."""
        optimizer = self._optimizer() if self.rule.follow_lr else None
        return None if optimizer is None else learning_rate(optimizer, cast(Tensor, self._buffers["solution"]).device)

    def require_lr(self) -> Tensor | float:
        """Return the learning rate, or NaN if the rule follows none. Raise ``RuntimeError`` without an optimizer."""
        lr = self.lr
        if lr is None and self.rule.follow_lr:
            raise RuntimeError(MISSING_OPTIMIZER)
        return math.nan if lr is None else lr

    def _warn_once(self) -> None:
        """Warn the first time that the rule turns out not to work. Reads the buffers."""
        problem = find_problem(self) if self.warns and not self._has_warned else None
        if problem is not None:
            self._has_warned = True
            warnings.warn(problem, stacklevel=8)  # the line that called the criterion

    # --- saving, copying, moving -------------------------------------------------------------------------------------

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        self.flush()  # torch walks over the modules to find their buffers
        yield from super().named_modules(*args, **kwargs)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self.flush()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def get_extra_state(self) -> dict[str, Any]:
        self._warn_once()  # a kernel cannot warn, so a save does
        return self._identity()

    def _identity(self) -> dict[str, Any]:
        """Return what a state must have in common with the OGC that loads it."""
        slope = [float(f"{self.slopes.curve.slope[i]:.6g}") for i in (0, GRID // 2, -1)]  # distinguishes losses
        base = {"name": type(self.base).__name__, **self.base.hyperparameters}
        return {"base": base, "slope": slope, "queue_size": self.queue_size, "rule": self.rule.identity}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Do nothing: ``_load_from_state_dict`` checks the state before any buffer is written."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        found, own = state_dict.get(f"{prefix}_extra_state"), self._identity()
        if found not in (None, own):
            raise ValueError(f"This state belongs to another OGC: it was saved with {found}; this one has {own}.")
        self.flush()
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.clock.step = int(self.steps)

    def __getstate__(self) -> dict[str, Any]:
        self.flush()
        hidden = ("_optimizer", "key", "_has_warned", "clock", "_backlog")
        return {name: value for name, value in self.__dict__.items() if name not in hidden}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._reset_host_state()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow ``.to(device)``, but not ``.half()`` and the like, which would lose precision in the queue."""
        self.flush()
        super()._apply(keeping_dtype(fn), recurse)  # type: ignore[no-untyped-call]
        if self.solution.is_cuda:
            self.slopes.on(self.solution.device)  # now, because a captured step cannot copy them
        return self

    @property
    def hyperparameters(self) -> dict[str, Any]:
        return {"rule": self.rule, "every": self.every, "queue_size": self.queue_size}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}\n{describe_state(self)}"
