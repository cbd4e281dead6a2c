"""One run of the engine: its tables, its step and its evaluation as CUDA graphs on a stream of its own.

A step reads its batch, learning rate and decay from tables at a position counted on the device. So replaying one graph
is a step, and the host only refills the tables. The weights are in flat memory, with a bf16 copy for the network. At
the end of an epoch the state is copied, and the copy is evaluated and read back while the next epoch trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import functional_call

from ..clipping import OGC
from ..data.augment import Statistics
from ..kernels.record import record_step
from ..kernels.sgd import sgd_step
from ..models.resnet import ResNet
from ..training import checkpoint
from ..training.evaluate import EvaluationSet, precision
from ..training.feed import Plan
from ..training.history import Watch
from ..training.ranks import Ranks
from ..training.run import Run, Snapshot, decay_at
from .flat import Flat

CHUNK = 64  # maximum number of steps in the tables
CHUNK_NUMBERS = 2**27  # maximum size of the inputs in the tables; augmentation needs several times this memory
WARM_UP = 3
RAW, AVERAGED = ("weight", "stats"), ("average", "average_stats")  # copies of weights and buffers
CHANNELS = 8  # minimum for images: convolutions of three channels do not use tensor cores

Ready = dict[tuple[int, Statistics | None, torch.dtype], Tensor]
"""Preprocessed held-out data, by inputs, statistics and precision."""


def new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Lane:
    """One run on its own stream: its tables, and its step and evaluation as graphs."""

    def __init__(self, run: Run, watch: Watch, ready: Ready) -> None:
        self.run, self.watch, self.flat = run, watch, Flat(run)
        device, feed = run.device, run.feed
        self.bits = torch.bfloat16 if run.recipe.precision == "bf16" else torch.float32
        self.stream, self.aside = new_stream(device), new_stream(device)
        self.finished_aside = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.pending: Any = None

        shape = feed.shape
        pads = isinstance(run.network, ResNet) and self.bits == torch.bfloat16
        channels = max(CHANNELS, shape[0]) if pads else shape[0]
        memory = (shape[1], shape[2], channels) if len(shape) == 3 else shape
        self.chunk = min(CHUNK, max(1, CHUNK_NUMBERS // (feed.batch * math.prod(memory))), feed.steps)
        self.inputs = torch.zeros(self.chunk, feed.batch, *memory, dtype=self.bits, device=device)
        self.rows = torch.zeros(self.chunk, 2, feed.batch, dtype=torch.int64, device=device)  # index, label
        self.rates = torch.zeros(self.chunk, 2, device=device)  # lr, decay of the average
        self.position = torch.zeros((1,), dtype=torch.int64, device=device)  # in the tables
        self.at = torch.zeros((1,), dtype=torch.int64, device=device)  # in the epoch
        self.lr = torch.zeros((), device=device)
        for group in run.optimizer.param_groups:
            group["lr"] = self.lr

        self.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self.stream):
            self.fill(self.load(0), 0, self.chunk)
            self.frozen = {name: value.clone() for name, value in self.live().items()}
            self.sets = {name: self.ready_set(part, ready) for name, part in run.sets.items()}
            self.hits = {kind: {name: self.at.new_zeros(()) for name in run.sets} for kind in ("raw", "averaged")}
        integers = [value for value in run.network.buffers() if not value.is_floating_point()]
        changed = [*self.live().values(), *run.criterion.buffers(), self.flat.momentum, *integers]
        self.step_graph = self.capture(self.step, changed)
        self.evaluation_graph = self.capture(self.evaluate, [])

    def live(self) -> dict[str, Tensor]:
        """Return the tensors that are copied at the end of an epoch."""
        run, flat = self.run, self.flat
        found = {"weight": flat.weight, "stats": flat.stats, "H": run.H, "predicted": run.predicted}
        found |= {"losses": run.losses}
        if flat.average is not None and flat.average_stats is not None:
            found |= {"average": flat.average, "average_stats": flat.average_stats}
        if isinstance(run.criterion, OGC):
            found["solution"] = run.criterion.solution
        return found

    def capture(self, work: Callable[[], None], changed: list[Tensor]) -> torch.cuda.CUDAGraph:
        """Capture ``work`` as a graph. The tensors changed by its warm-up are restored, even if the capture fails."""
        counters = [self.position, self.at]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            before = [value.clone() for value in (*changed, *counters)]
        try:
            with torch.cuda.stream(self.stream):
                for _ in range(WARM_UP):
                    for counter in counters:
                        counter.zero_()
                    work()
            self.stream.synchronize()
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                work()
            with torch.cuda.stream(self.stream):
                self.write_gradient_addresses()
        finally:
            with torch.cuda.stream(self.stream), torch.no_grad():
                for value, old in zip((*changed, *counters), before, strict=True):
                    value.copy_(old)
                self.flat.short.copy_(self.flat.weight[: self.flat.n_low])
            self.stream.synchronize()
        return graph

    # --- a step --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        run, flat, recipe = self.run, self.flat, self.run.recipe
        inputs = self.inputs.index_select(0, self.position)[0]
        rows = self.rows.index_select(0, self.position)[0]
        self.lr.copy_(self.rates.index_select(0, self.position)[0, 0])
        inputs = inputs.permute(0, 3, 1, 2) if inputs.dim() == 4 else inputs
        weights = {
            name: value.detach().requires_grad_()
            for name, value in flat.network_weights(flat.weight, flat.short).items()
        }
        with precision(recipe.precision, run.device):
            logits = functional_call(run.network, weights, (inputs,))
        loss = run.criterion(logits, rows[1])
        self.gradients = flat.in_memory_order(torch.autograd.grad(loss, list(weights.values())))
        if not torch.cuda.is_current_stream_capturing():
            self.write_gradient_addresses()
        record_step(
            logits=logits.detach().contiguous(),
            rows=rows,
            loss=loss.detach(),
            H=run.H,
            predicted=run.predicted,
            losses=run.losses,
            position=self.position,
            at=self.at,
            stats=flat.stats,
            average_stats=flat.average_stats,
            rates=self.rates,
        )
        sgd_step(
            weight=flat.weight,
            momentum=flat.momentum,
            average=flat.average,
            short=flat.short,
            pointers=flat.pointers,
            blocks=flat.blocks,
            rates=self.rates,
            position=self.position,
            clip_norm=recipe.clip_norm,
            decay=recipe.weight_decay,
            beta=recipe.momentum,
            nesterov=recipe.nesterov,
        )
        self.position.add_(1)
        self.at.add_(1)

    def write_gradient_addresses(self) -> None:
        """Write the addresses of the gradients for the kernel. In a captured step they never change."""
        self.flat.pointers.copy_(torch.tensor([gradient.data_ptr() for gradient in self.gradients]))

    def steps(self) -> Iterator[bool]:
        """Launch the remaining steps, one per iteration."""
        run = self.run
        self.watch.began(run.number, epoch=run.epoch, epochs=run.recipe.epochs, steps=run.feed.steps)
        while not run.done:
            plan = self.load(run.epoch)
            self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            self.begin.record(self.stream)
            self.before = run.seconds  # training time of this epoch before it was interrupted
            while run.step < run.feed.steps:
                count = min(self.chunk, run.feed.steps - run.step)
                with torch.cuda.stream(self.stream):
                    self.fill(plan, run.step, count)
                self.watch.moved(
                    run.number, epoch=run.epoch, step=run.step, images_per_second=None
                )  # the host runs ahead
                self.record_last_epoch()
                for _ in range(count):
                    with torch.cuda.stream(self.stream):
                        self.step_graph.replay()
                    run.step += 1
                    yield True
            self.end.record(self.stream)
            self.end_epoch()
        self.record_last_epoch(wait=True)

    def load(self, epoch: int) -> Plan:
        """Copy the plan of an epoch to the device."""
        plan = self.run.feed.plan(epoch)
        with torch.cuda.stream(self.stream):
            order, *draws = (
                part.pin_memory().to(self.run.device, non_blocking=True) for part in (plan.order, *plan.draws)
            )
            return Plan(order, tuple(draws))

    @torch.no_grad()
    def fill(self, plan: Plan, step: int, count: int) -> None:
        """Fill the tables for the next ``count`` steps."""
        run = self.run
        index = plan.order[step : step + count]
        draws = tuple(part[step : step + count].flatten() for part in plan.draws)
        inputs = run.feed(index.flatten(), draws)
        inputs = inputs.permute(0, 2, 3, 1) if inputs.dim() == 4 else inputs
        self.inputs[:count, ..., : inputs.shape[-1]].copy_(inputs.view(count, *self.inputs.shape[1:-1], -1))
        self.rows[:count, 0].copy_(index)
        self.rows[:count, 1].copy_(run.feed.given[index])
        rates = torch.zeros(self.chunk, 2, pin_memory=True)
        for i in range(count):
            rates[i, 0] = run.recipe.lr_at(run.epoch, (step + i) / run.feed.steps)
            rates[i, 1] = decay_at(run.recipe.average or 0.0, run.epoch * run.feed.steps + step + i)
        self.rates.copy_(rates, non_blocking=True)
        self.position.zero_()
        self.at.fill_(step)

    # --- the end of an epoch -----------------------------------------------------------------------------------------

    def ready_set(self, part: EvaluationSet, ready: Ready) -> tuple[Tensor, Tensor]:
        """Return preprocessed held-out data, shared by all lanes, and its labels."""
        key = id(part.origin), part.feed.statistics, self.bits
        if key not in ready:
            inputs = part.feed.plain(cast(Tensor, part.inputs)).to(self.bits)
            ready[key] = inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs
        return ready[key], part.labels

    @torch.no_grad()
    def evaluate(self) -> None:
        """Count the correct predictions of the copied weights on every evaluation set."""
        run = self.run
        run.network.eval()
        for kind in ("raw", *(["averaged"] if "average" in self.frozen else [])):
            weights = self.frozen_network(kind)
            for name, (inputs, labels) in self.sets.items():
                hits = torch.zeros_like(self.hits[kind][name])
                size = run.sets[name].batch
                for batch, truth in zip(torch.split(inputs, size), torch.split(labels, size), strict=True):
                    with precision(run.recipe.precision, run.device):
                        hits += (functional_call(run.network, weights, (batch,)).argmax(1) == truth).sum()
                self.hits[kind][name].copy_(hits)
        run.network.train()

    def frozen_network(self, kind: str | None = None) -> dict[str, Tensor]:
        """Return the copied weights in the network's precision. By default the averaged ones, if any."""
        averaged = "average" in self.frozen if kind is None else kind == "averaged"
        weight, stats = (self.frozen[name] for name in (AVERAGED if averaged else RAW))
        short = weight[: self.flat.n_low].to(torch.bfloat16)
        return self.flat.network_weights(weight, short) | self.flat.network_buffers(stats)

    def end_epoch(self) -> None:
        """Copy the state, and launch its evaluation, which runs while the next epoch trains."""
        self.record_last_epoch(wait=True)
        run = self.run
        self.stream.wait_event(self.finished_aside)
        with torch.cuda.stream(self.stream):
            for name, value in self.live().items():
                self.frozen[name].copy_(value)
        self.aside.wait_stream(self.stream)
        run.epoch, run.step = run.epoch + 1, 0
        with torch.cuda.stream(self.aside):
            self.evaluation_graph.replay()
            run.survey(self.frozen_network)
            snapshot = Snapshot(
                epoch=run.epoch,
                losses=self.frozen["losses"],
                H=self.frozen["H"],
                predicted=self.frozen["predicted"],
                solution=self.frozen.get("solution"),
                hits=self.hits["raw"],
                averaged_hits=self.hits["averaged"] if self.flat.average is not None else {},
                weights=self.frozen_weights,
            ).to_host(wait=False)
            self.finished_aside.record(self.aside)
        self.pending = snapshot, self.begin, self.end, self.before
        run.seconds = 0.0

    def record_last_epoch(self, wait: bool = False) -> None:
        """Record the last epoch if its evaluation is done, or wait for it."""
        if self.pending is None or not (wait or self.finished_aside.query()):  # type: ignore[no-untyped-call]
            return
        self.finished_aside.synchronize()
        snapshot, begin, end, before = self.pending
        self.pending = None
        with torch.cuda.stream(self.aside):
            epoch = self.run.record(snapshot, before + begin.elapsed_time(end) / 1000)
            self.finished_aside.record(self.aside)
        checkpoint.write_metrics(self.run)
        self.watch.ended_epoch(self.run.number, epoch)

    def frozen_weights(self) -> dict[str, Tensor]:
        """Return the copied weights by name."""
        flat = self.flat
        found: dict[str, Tensor] = {}
        for prefix, (weight, stats) in (("network.", RAW), ("averaged.", AVERAGED)):
            if weight in self.frozen:
                found |= {f"{prefix}{name}": flat.view(self.frozen[weight], i) for i, name in enumerate(flat.names)}
                found |= {f"{prefix}{name}": flat.buffer(self.frozen[stats], name) for name in flat.buffers}
        return {name: value.clone() for name, value in found.items()}

    def save(self) -> None:
        """Wait for the device and save the run."""
        if self.run.step:
            self.end.record(self.stream)
        self.stream.synchronize()
        self.record_last_epoch(wait=True)
        self.finished_aside.synchronize()  # the best weights are copied on that stream
        if self.run.step:
            self.run.seconds = self.before + self.begin.elapsed_time(self.end) / 1000
        self.run.require_finite(self.run.losses[: self.run.step].cpu(), self.run.epoch + 1)
        checkpoint.save(self.run, Ranks())
