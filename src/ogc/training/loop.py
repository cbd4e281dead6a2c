"""The plain loop: any device, mixed precision, gradient accumulation, one process or several."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from . import checkpoint
from .evaluate import precision
from .feed import Plan
from .history import Epoch, Watch
from .ranks import Ranks
from .run import Run, random_numbers
from .stopping import Stop

AHEAD = 2  # batches to prefetch from disk
SYNC_EVERY = 16  # steps between checks whether to stop or to save, for several processes on GPUs


def train(run: Run, *, ranks: Ranks, watch: Watch, stop: Stop, save_every: float) -> None:
    """Train to the end, or until ``stop``. The run is saved in either case.

    :param save_every: seconds between two checkpoints.
    """
    network = run.network if ranks.size == 1 else DistributedDataParallel(run.network)
    sync_every = SYNC_EVERY if ranks.size > 1 and run.device.type == "cuda" else 1
    saved = time.monotonic()
    watch.began(run.number, epoch=run.epoch, epochs=run.recipe.epochs, steps=run.feed.steps)
    with random_numbers(run):
        while not run.done:
            plan, began = run.feed.plan(run.epoch), time.perf_counter() - run.seconds
            for inputs, index in batches(run, plan, ranks):
                step(run, network, inputs, index, ranks)
                run.seconds = time.perf_counter() - began
                speed = run.step * run.feed.batch / run.seconds
                watch.moved(run.number, epoch=run.epoch, step=run.step, images_per_second=speed)
                if run.step == run.feed.steps:
                    end_epoch(run, plan, ranks, watch, began)
                elif run.step % sync_every:
                    continue
                halt, due = ranks.highest(stop.signal, time.monotonic() - saved >= save_every)
                if halt or due or run.done:
                    synchronise(run, plan, ranks)
                    checkpoint.save(run, ranks)
                    saved = time.monotonic()
                if halt:
                    stop.signal = halt  # on every rank, whichever received it
                    return


def batches(run: Run, plan: Plan, ranks: Ranks) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield the rest of an epoch: this rank's inputs in micro-batches, and their indices (accumulate, samples)."""
    order, *draws = (ranks.parts(part, run.recipe.accumulate)[:, :, ranks.rank] for part in (plan.order, *plan.draws))

    def load(step: int) -> tuple[list[Tensor], Tensor]:
        micro = range(run.recipe.accumulate)
        return [run.feed(order[step, i], tuple(part[step, i] for part in draws)) for i in micro], order[step]

    left = range(run.step, run.feed.steps)
    if isinstance(run.feed.inputs, Tensor):
        yield from map(load, left)
        return
    with ThreadPoolExecutor(1) as pool:
        waiting = [pool.submit(load, number) for number in left[:AHEAD]]
        for number in left:
            if number + AHEAD < run.feed.steps:
                waiting.append(pool.submit(load, number + AHEAD))
            yield waiting.pop(0).result()


def step(run: Run, network: nn.Module, inputs: list[Tensor], index: Tensor, ranks: Ranks) -> None:
    """Take one optimizer step on the given micro-batches."""
    run.set_lr()
    index = index.to(run.device, non_blocking=True)
    loss = torch.zeros((), device=run.device)
    for i, (part, at) in enumerate(zip(inputs, index, strict=True)):
        more = i < len(inputs) - 1
        with network.no_sync() if more and isinstance(network, DistributedDataParallel) else nullcontext():
            with precision(run.recipe.precision, run.device):
                logits = network(part)
            require_finite(run, logits, ranks)
            labels = run.feed.given[at]
            share = run.criterion(logits, labels) / len(inputs)
            share.backward()
        run.record_batch(logits.detach(), labels, at)
        loss += share.detach()
    require_finite(run, loss, ranks)
    run.losses[run.step] = loss
    if run.recipe.clip_norm is not None:
        nn.utils.clip_grad_norm_(run.network.parameters(), run.recipe.clip_norm)
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.update_average()
    run.step += 1


def require_finite(run: Run, values: Tensor, ranks: Ranks) -> None:
    """Raise ``NonFinite`` if values are not finite on some rank. Only on the CPU: on a GPU this would wait."""
    if run.device.type == "cpu":
        total = float(values.detach().sum())
        if ranks.highest(not total < math.inf)[0]:  # a logit of -inf rules a class out and is allowed
            run.require_finite(run.losses[: run.step], run.epoch + 1)  # the step before may be the cause
            run.losses[run.step] = math.nan
            run.require_finite(run.losses[: run.step + 1], run.epoch + 1)


def synchronise(run: Run, plan: Plan, ranks: Ranks) -> None:
    """Combine the records of all ranks for this epoch. Raises ``NonFinite`` if a loss is not finite."""
    run.losses.copy_(torch.stack(ranks.gather(run.losses.cpu())).mean(0))
    run.require_finite(run.losses[: run.step].cpu(), run.epoch + 1)
    if ranks.size > 1:
        parts = ranks.parts(plan.order, run.recipe.accumulate)[: run.step]
        for recorded in (run.H, run.predicted):
            for rank, seen in enumerate(ranks.gather(recorded.cpu())):
                own = parts[:, :, rank].flatten()
                recorded[own.to(run.device)] = seen[own].to(run.device)


def end_epoch(run: Run, plan: Plan, ranks: Ranks, watch: Watch, began: float) -> None:
    """Evaluate and record the epoch on the first rank, and send the result to the others."""
    synchronise(run, plan, ranks)
    seconds = time.perf_counter() - began
    run.epoch, run.step, run.seconds = run.epoch + 1, 0, 0.0
    if ranks.first:
        run.record(run.snapshot().to_host(), seconds)
        run.survey(lambda: run.average or run.state())
        checkpoint.write_metrics(run)
    recorded = ranks.broadcast(run.history[-1].to_json() if ranks.first else "")
    if not ranks.first:
        run.history.append(Epoch(**json.loads(recorded)))
    watch.ended_epoch(run.number, run.history[-1])


@contextmanager
def one_thread() -> Iterator[None]:
    """Run on one thread: for small layers, a second one saves little and can be ten times slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
