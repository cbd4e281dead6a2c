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
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .._require import require
from ..given_label import P_MIN, can_read, check_input, cross_entropy, pick, require_tensors, widest_float
from ..losses import CLIPPABLE, Loss, Pointwise, by_name, clipped
from ..losses.loss import Reduction
from . import backends, default_rule
from .backends import compiled, eager
from .epsilon import MISSING_OPTIMIZER, epsilon_at, learning_rate
from .loss_queue import gather_ranks, newest, push
from .mixture import Mixture, fit
from .ratio import GRID
from .reliability import describe, find_problem
from .schedules import TAU_MIN, Fixed, Schedule, name_of
from .state import Solution, State, keeping_dtype
from .threshold import Slopes


class OGC(Loss):
    """Optimized Gradient Clipping of a pointwise loss, used like ``nn.CrossEntropyLoss``.

    *Optimized Gradient Clipping for Noisy Label Learning*, Ye et al., AAAI 2025. Every training step queues the cross
    entropies H = -log p(y) of the batch. Every ``every`` steps, two normals are fitted to the queue, one for clean and
    one for noisy samples, and tau, the bound on the gradient with respect to p, is updated. OGC learns only in training
    mode with gradients enabled. There are four rules for tau:

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
    :param threshold: a function of the step and the last tau.
    :param every: s, the number of steps between updates. The default rule updates eight times as often in the first
        1,024 steps. Each call in training is a step, including calls that gradient checkpointing repeats.
    :param queue_size: q, the number of recent samples that the normals are fitted to. The default rule starts to fit at
        256 samples.
    :param process_group: its ranks share the queue; the default group if ``None``, no sharing if ``False``. On CUDA
        all ranks need batches of the same size, because exchanging sizes would wait for the device.
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
    thresholds: Tensor
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
        require(epsilon is None or epsilon0 is None, "epsilon", "omitted with epsilon0: they are two rules", epsilon)
        require(epsilon0 is None or follow_lr, "follow_lr", "True with epsilon0, which is multiplied by lr", follow_lr)
        for name, value in (("epsilon", epsilon), ("epsilon0", epsilon0)):
            require(threshold is None or value is None, name, "omitted with threshold, which sets tau", value)
        require(threshold is None or callable(threshold), "threshold", "Fixed, Linear, EMA or a function", threshold)
        require(isinstance(every, int) and every >= 1, "every", "an integer of at least 1", every)
        require(isinstance(queue_size, int) and queue_size >= 4, "queue_size", "an integer of at least 4", queue_size)
        require(process_group is not True, "process_group", "a process group, None or False", process_group)
        if isinstance(base, type) and issubclass(base, Pointwise):
            raise ValueError(f"OGC needs a loss, not its class. To fix this, pass {base.__name__}().")
        loss = by_name(base)() if isinstance(base, str) else base
        if not isinstance(loss, Pointwise):
            names = ", ".join(f'"{name}"' for name in CLIPPABLE)
            raise ValueError(
                f"OGC needs a pointwise loss, one that depends on the given label's probability alone: {names} or a "
                f"subclass of ogc.losses.Pointwise. Found {(loss if isinstance(loss, type) else type(loss)).__name__}."
            )
        trainable = [name for name, value in loss.named_parameters() if value.requires_grad]
        if trainable:
            raise ValueError(
                "OGC does not train the parameters of its base loss. Found trainable parameters in "
                f"{type(loss).__name__}: {', '.join(trainable)}. To fix this, call loss.requires_grad_(False)."
            )
        self.base = loss.require_plain("OGC")
        self.epsilon, self.epsilon0, self.follow_lr = epsilon, epsilon0, follow_lr
        self.threshold, self.every, self.queue_size, self.process_group = threshold, every, queue_size, process_group

        self.slopes = Slopes(loss)
        for name, buffer in State.initial(queue_size, self.slopes.steepest)._asdict().items():
            self.register_buffer(name, buffer)
        self._reset_host_state()
        if optimizer is not None:
            self.attach(optimizer)
        if isinstance(threshold, Fixed):
            self.update()  # its tau is known before the first step

    def _reset_host_state(self) -> None:
        """Reset the state that is neither saved nor copied, such as the optimizer and the step number on the host."""
        self._key = compiled.key_of(self)
        self._optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None
        self._has_warned = self._is_captured = False
        self._num_classes = 0  # known from the first call on
        self._step = int(self.steps)

    # --- Algorithm 1 -------------------------------------------------------------------------------------------------

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Run Algorithm 1, lines 4 to 13, on one batch: (N, C, ...), (N, ...) -> () or (N, ...)."""
        require_tensors(logits, labels)
        if self.queue.device != logits.device:
            self.to(logits.device)  # like nn.CrossEntropyLoss, which does not have to be moved
        learns = self.training and torch.is_grad_enabled()
        if torch.compiler.is_compiling():
            return compiled.forward(self, logits, labels, learns)
        kernels = backends.step_kernels(self, logits, labels) if learns else None
        if kernels is not None:
            step = kernels.step(self, self._state(), logits, labels)
            if step is not None:
                return eager.with_gradient(self, logits, labels, *step) if logits.requires_grad else step[0]
            learns = False  # the kernel has updated the state, and the loss remains to be computed

        checked, labels = check_input(logits, labels)
        with torch.no_grad():
            log_p = F.log_softmax(checked, dim=1)
            H = pick(log_p, labels, self.ignore_index)  # line 4
            if learns:
                self._learn(H, labels, checked.shape[1], self._state())  # lines 5 to 12
        return eager.clipped_loss(self, logits, labels, log_p, H)  # line 13

    def _learn(self, H: Tensor, labels: Tensor, num_classes: int, state: State) -> None:
        """Run Algorithm 1, lines 5 to 12: queue the batch, and update tau if that is due. Write to ``state``."""
        self._num_classes = num_classes
        self._count_step(state)
        state.steps.add_(1)
        if self.threshold is not None:
            self._follow_schedule(state)
            return
        self._enqueue(torch.where(labels == self.ignore_index, math.nan, H), labels, state)  # line 5
        self._track_lr(state)
        if self._is_due(state):  # line 7
            self._update(state, by_clock=True)  # lines 8 and 9

    def _enqueue(self, H: Tensor, labels: Tensor, state: State) -> None:
        """Queue the finite H of all ranks: Algorithm 1, line 5. Count classes for the default rule."""
        H = gather_ranks(H.flatten().float(), self.process_group)
        if self.rule == "default":
            all_labels = gather_ranks(labels.flatten().float(), self.process_group)  # exact for class indices
            default_rule.count_classes(state.by_class, H, all_labels.nan_to_num(0).long(), self._num_classes)
        kernels = backends.kernels(state.queue, H.numel())
        (push if kernels is None else kernels.push)(state.queue, state.seen, H)

    def _track_lr(self, state: State) -> None:
        lr = self._lr()
        if isinstance(lr, Tensor):
            state.highest_lr.copy_(torch.fmax(state.highest_lr, lr))
        elif lr is not None and not math.isnan(lr):
            state.highest_lr.clamp_(min=lr)

    def _update(self, state: State, by_clock: bool = False) -> None:
        """Run Algorithm 1, lines 8 and 9. ``by_clock``: the kernel checks line 7 by the step number on the device."""
        if self.rule == "default" and self._num_classes < 2:
            return  # the number of classes is known from the first call on
        kernels = backends.kernels(state.queue, self.queue_size)
        if kernels is not None:
            kernels.update(self, state, self._epsilon(state.highest_lr), by_clock)
            return
        on_cpu = state.to_cpu()
        self._solve(on_cpu)
        state.copy_from(on_cpu)
        self._warn_once()

    def _solve(self, state: State) -> None:
        """Fit two normals to the queue and solve for tau, on the CPU: Algorithm 1, lines 8 and 9."""
        seen, is_default = int(state.seen), self.rule == "default"
        if seen < self._fewest or not (epsilon := float(self._epsilon(float(state.highest_lr)))) > 0:
            return
        count = default_rule.recent(seen, self.queue_size) if is_default else self.queue_size
        mixture, is_degenerate = fit(newest(state.queue, seen, count))  # line 8
        if is_degenerate:
            state.degenerate.add_(1)
        else:
            p0, tau = self.slopes.solve(mixture, 1 + epsilon)  # line 9
            if is_default:
                self._by_default_rule(p0, mixture, state)
            else:
                state.accept(p0, tau, mixture)
        if is_default:
            state.by_class.zero_()  # counts are of the samples since the last update

    def _by_default_rule(self, p_ratio: float, mixture: Mixture, state: State) -> None:
        """Move p0 and the factor of each class towards the goals of the default rule. ``p_ratio`` solves Eq. 12."""
        shares = default_rule.better_than_guess(state.by_class, self._num_classes)
        p_star = default_rule.p_star(mixture, p_ratio, self._num_classes, default_rule.gives_up_a_class(shares))
        steps, last = self._period(int(state.steps)), float(Solution.unpack(state.solution).p0)
        p0 = default_rule.follow(last, p_star, steps)
        factors = [each / last for each in state.thresholds[0].tolist()]
        for c, share in shares.items():
            factors[c] = default_rule.follow(factors[c], default_rule.f_star(share), steps)
        tau = {factor: self.slopes.at(max(factor * p0, P_MIN)) for factor in {1.0, *factors}}
        state.accept(p0, tau[1.0], mixture)
        of_class = [[factor * p0 for factor in factors], [tau[factor] for factor in factors]]
        state.thresholds.copy_(torch.tensor(of_class, dtype=torch.float64))

    def _follow_schedule(self, state: State) -> None:
        """Move tau by ``threshold``, which takes the place of lines 7 to 12. No host read on CUDA."""
        last, device = Solution.unpack(state.solution), state.solution.device
        moved = cast(Schedule, self.threshold)(state.steps.to(device), last.tau)
        tau = torch.as_tensor(moved, dtype=last.tau.dtype, device=device).clamp(TAU_MIN, self.slopes.steepest)
        tau = torch.where(tau.isnan(), last.tau, tau)
        last.p0.copy_(self.slopes.on(device).p0_at(tau))
        last.tau.copy_(tau)
        state.thresholds.copy_(state.solution[:2, None].expand_as(state.thresholds))

    # --- results -----------------------------------------------------------------------------------------------------

    @property
    def rule(self) -> str:
        """Name of the rule that moves tau: "default", "epsilon", "paper" (epsilon0) or "threshold"."""
        if self.threshold is not None:
            return "threshold"
        return "paper" if self.epsilon0 is not None else "default" if self.epsilon is None else "epsilon"

    @property
    def p0(self) -> Tensor:
        """The probability below which the loss is a straight line; 0-dim.

        With the default rule, classes that have not been learned have a smaller one.
        """
        return Solution.unpack(self.solution).p0.clone()

    @property
    def tau(self) -> Tensor:
        """The largest gradient with respect to p, slope(p0); 0-dim.

        With the default rule, classes that have not been learned have a larger one.
        """
        return Solution.unpack(self.solution).tau.clone()

    @property
    def mixture(self) -> Mixture:
        """The last fit; NaN before the first one."""
        return Solution.unpack(self.solution.clone()).mixture

    @torch.no_grad()
    def noise_probability(self, logits: Tensor, labels: Tensor) -> Tensor:
        """P(given label is wrong | H) by the last fit: (N, C, ...), (N, ...) -> (N, ...). NaN where ignored."""
        logits, labels = check_input(logits, labels)
        H = cross_entropy(logits, labels, self.ignore_index)
        mixture = Mixture(*(number.to(widest_float(H.device)).to(H.device) for number in self.mixture))
        probability = mixture.noise_probability(H).to(H.dtype)
        return torch.where(labels == self.ignore_index, math.nan, probability)

    def attach(self, optimizer: torch.optim.Optimizer) -> Self:
        """Follow the learning rate of an optimizer built after the loss. It is held weakly and never saved."""
        require(hasattr(optimizer, "param_groups"), "optimizer", "an optimizer with param_groups", optimizer)
        self._optimizer = weakref.ref(optimizer)
        return self

    @torch.no_grad()
    def update(self) -> None:
        """Solve for tau now, if enough samples are queued; with the default rule, only after a call in training.

        A schedule moves tau once more without counting a step, which matters for EMA.
        """
        if self.threshold is not None:
            self._follow_schedule(self._state())
        else:
            self._update(self._state())

    def require_plain(self, wrapper: str) -> Self:
        raise ValueError(f"{wrapper} cannot wrap an OGC, which learns from the logits that it is called with.")

    # --- for the backends --------------------------------------------------------------------------------------------

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the clipped loss at the current tau, without updating the state."""
        H = cross_entropy(logits, labels, self.ignore_index)
        return clipped(self.base, H, *self.p0_and_tau(H, labels, logits.shape[1]))

    def p0_and_tau(self, H: Tensor, labels: Tensor, num_classes: int) -> Sequence[Tensor] | Sequence[float]:
        """Return copies of p0 and tau for a loss of H: floats if all samples share them and they can be read.

        Otherwise tensors, with the shape of H if classes may differ. The next update overwrites the buffers, and
        backward may still need the old values.
        """
        shared = self.solution[:2]
        found = shared.tolist() if can_read(shared) else shared.to(H.dtype, copy=True).to(H.device).unbind()
        if self.rule != "default" or num_classes > default_rule.MOST_CLASSES:
            return found
        if can_read(shared) and set(self.thresholds[0].tolist()[:num_classes]) == {found[0]}:
            return found
        p0, tau = self.thresholds[:, :num_classes].to(H.dtype).to(H.device)[:, labels.clamp(0, num_classes - 1)]
        return p0.clamp(min=P_MIN), tau

    def _state(self) -> State:
        return State(*(cast(Tensor, self._buffers[name]) for name in State._fields))

    # --- when to update, and epsilon ---------------------------------------------------------------------------------

    def _count_step(self, state: State) -> None:
        """Count a training step on the host, where its number t can be read without waiting for the device."""
        if state.steps.device.type == "cpu":
            self._step = int(state.steps) + 1
        elif state.steps.is_cuda and torch.cuda.is_current_stream_capturing():
            self._is_captured = True  # replays advance only the step number on the device
        else:
            self._step += 1

    def _is_due(self, state: State) -> bool:
        """Return True if t mod s = 0 (Algorithm 1, line 7), or if the kernel has to decide that on the device."""
        if self._is_captured and backends.kernels(state.queue, self.queue_size) is not None:
            return True
        if state.queue.is_cuda and torch.cuda.is_current_stream_capturing():
            return False  # nothing can be copied to the CPU here
        return self._step % self._period(self._step) == 0

    def _period(self, step: int) -> int:
        """Return s, the number of steps between updates."""
        return default_rule.period(step, self.every) if self.rule == "default" else self.every

    @property
    def _fewest(self) -> int:
        """Minimum number of queued samples for a fit."""
        return min(default_rule.FEWEST, self.queue_size) if self.rule == "default" else self.queue_size

    def _epsilon(self, highest_lr: Tensor | float) -> Tensor | float:
        """Return epsilon of Eq. 12 for this update."""
        epsilon = default_rule.EPSILON if self.epsilon is None else self.epsilon
        if not self.follow_lr:
            return epsilon
        lr = self._lr()
        if lr is None:
            raise RuntimeError(MISSING_OPTIMIZER)
        return epsilon_at(lr, highest_lr, epsilon=epsilon, epsilon0=self.epsilon0)

    def _lr(self) -> Tensor | float | None:
        may_read = self.highest_lr.device.type == "cpu"
        return learning_rate(self._optimizer(), may_read=may_read) if self.follow_lr else None

    def _warn_once(self) -> None:
        """Warn the first time that the rule turns out not to work. Reads the buffers."""
        problem = None if self._has_warned else find_problem(self)
        if problem is not None:
            self._has_warned = True
            warnings.warn(problem, stacklevel=7)  # the line that called the criterion

    # --- saving, copying, moving -------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        self._warn_once()  # a kernel cannot warn, so a save does
        return self._identity()

    def _identity(self) -> dict[str, Any]:
        """Return what a state must have in common with the OGC that loads it."""
        slope = [float(f"{self.slopes.slope[i]:.6g}") for i in (0, GRID // 2, -1)]  # distinguishes losses
        base = {"name": type(self.base).__name__, **self.base.hyperparameters}
        return {"base": base, "slope": slope, "queue_size": self.queue_size, "threshold": name_of(self.threshold)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Do nothing: ``_load_from_state_dict`` checks the state before any buffer is written."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        found, own = state_dict.get(f"{prefix}_extra_state"), self._identity()
        in_earlier_versions = {**own, "threshold": type(self.threshold).__name__}
        if found not in (None, own, in_earlier_versions):
            raise ValueError(f"This state belongs to another OGC: it was saved with {found}; this one has {own}.")
        solution = state_dict.get(f"{prefix}solution")
        if solution is not None:  # states of older versions have one p0 for all classes
            state_dict.setdefault(f"{prefix}thresholds", solution[:2, None].expand_as(self.thresholds))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._step = int(self.steps)

    def __getstate__(self) -> dict[str, Any]:
        hidden = ("_optimizer", "_key", "_has_warned", "_is_captured", "_step", "_num_classes")
        return {name: value for name, value in self.__dict__.items() if name not in hidden}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._reset_host_state()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follow ``.to(device)``, but not ``.half()`` and the like, which would lose precision in the queue."""
        super()._apply(keeping_dtype(fn), recurse)  # type: ignore[no-untyped-call]
        if self.queue.is_cuda:
            self.slopes.on(self.queue.device)  # now, because a captured step cannot copy them
        return self

    @property
    def hyperparameters(self) -> dict[str, Any]:
        if self.threshold is not None:
            return {"threshold": self.threshold}
        rule = {"epsilon": self.epsilon, "follow_lr": self.follow_lr} if self.epsilon0 is None else {}
        found = {**rule, "epsilon0": self.epsilon0, "every": self.every, "queue_size": self.queue_size}
        return {name: value for name, value in found.items() if value is not None}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}\n{describe(self)}"
