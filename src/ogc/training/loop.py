"""The plain loop: any device, mixed precision, gradient accumulation, one process or several."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from . import checkpoint
from .evaluate import precision
from .feed import Plan
from .history import Watch
from .ranks import Ranks
from .run import Run, get_rng, set_rng
from .stopping import Stop

AHEAD = 2  # batches that are read from the disk while others are trained on


def train(run: Run, *, ranks: Ranks, watch: Watch, stop: Stop, save_every: float) -> None:
    """Train to the end, or until ``stop``; the run is then saved where it stands.

    :param save_every: seconds from save to save.
    """
    network = run.network
    if ranks.size > 1:
        network = nn.parallel.DistributedDataParallel(network)
    before, saved = get_rng(run.device), time.monotonic()
    set_rng(run.device, run.rng)
    watch.began(run.number, epoch=run.epoch, epochs=run.recipe.epochs, steps=run.feed.steps)
    try:
        while not run.done and not stop:
            plan, began = run.feed.plan(run.epoch), time.perf_counter() - run.seconds
            for inputs, index in batches(run, plan, ranks):
                step(run, network, inputs, index)
                run.step += 1
                run.seconds = time.perf_counter() - began
                watch.moved(run.number, step=run.step, images_per_second=run.step * run.feed.batch / run.seconds)
                if run.step < run.feed.steps and run.step % TALK == 0:
                    halt, due = ranks.any(bool(stop), time.monotonic() - saved > save_every)
                    if halt or due:
                        save(run, plan, ranks)
                        saved = time.monotonic()
                    if halt:
                        return
            end_epoch(run, plan, ranks, watch, began)
            halt, due = ranks.any(bool(stop), time.monotonic() - saved > save_every)
            if halt or due or run.done:
                save(run, plan, ranks)
                saved = time.monotonic()
            if halt:
                return
    finally:
        set_rng(run.device, before)


TALK = 1  # steps from one look at the clock to the next


def batches(run: Run, plan: Plan, ranks: Ranks) -> Iterator[tuple[list[Tensor], Tensor]]:
    """What is left of an epoch: this rank's inputs in micro-batches, and their indices (accumulate, samples)."""
    order = ranks.parts(plan.order, run.recipe.accumulate)[:, :, ranks.rank]
    draws = [ranks.parts(part, run.recipe.accumulate)[:, :, ranks.rank] for part in plan.draws]

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


def step(run: Run, network: nn.Module, inputs: list[Tensor], index: Tensor) -> None:
    """One step of the optimizer, on the micro-batches given."""
    run.set_lr()
    index = index.to(run.device, non_blocking=True)
    total = torch.zeros((), device=run.device)
    for i, part in enumerate(inputs):
        last = i == len(inputs) - 1
        with nullcontext() if last or network is run.network else network.no_sync():
            with precision(run.recipe.precision, run.device):
                logits = network(part)
            loss = run.criterion(logits, run.feed.given[index[i]]) / len(inputs)
            loss.backward()
        run.watch_batch(logits, index[i])
        total += loss.detach()
    run.losses[run.step] = total
    if run.device.type == "cpu":  # elsewhere, looking would wait for the device: the epoch's end does
        run.require_finite(run.losses[: run.step + 1], run.epoch + 1)
    if run.recipe.clip_norm is not None:
        nn.utils.clip_grad_norm_(run.network.parameters(), run.recipe.clip_norm)
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.follow()


def end_epoch(run: Run, plan: Plan, ranks: Ranks, watch: Watch, began: float) -> None:
    merge(run, plan, ranks)
    seconds = time.perf_counter() - began  # merge has read from the device, so it is done
    run.epoch, run.step, run.seconds = run.epoch + 1, 0, 0.0
    if ranks.first:
        epoch = run.record(run.snapshot().to_host(), seconds)
        checkpoint.write_metrics(run)
        watch.ended_epoch(run.number, epoch)


def save(run: Run, plan: Plan, ranks: Ranks) -> None:
    merge(run, plan, ranks)
    run.require_finite(run.losses[: run.step].cpu(), run.epoch + 1)
    checkpoint.save(run, ranks)


def merge(run: Run, plan: Plan, ranks: Ranks) -> None:
    """Put together what each rank has seen of this epoch."""
    done = run.step
    losses = torch.stack(ranks.gather(run.losses.cpu())).mean(0)
    run.losses.copy_(losses)
    if ranks.size == 1:
        return
    owner = ranks.parts(plan.order[:done], run.recipe.accumulate)
    for books in (run.H, run.predicted):
        for rank, seen in enumerate(ranks.gather(books.cpu())):
            own = owner[:, :, rank].flatten()
            books[own.to(run.device)] = seen[own].to(run.device)
