"""Several processes reach the same queue, counters and solution as one, bit for bit, even with uneven batches."""

import math
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from children import fork
from ogc import OGC
from samples import noisy_batch, optimizer_with, same_bits, state_of
from small_runs import environment, finish

pytestmark = pytest.mark.slow

WORLD, STEPS, EPOCH, PER_RANK = 3, 100, 10, 16


def batch_sizes(step: int) -> list[int]:
    """Return the batch size of each rank. The last batch of an epoch is uneven, and one rank's is empty once."""
    if step % EPOCH != EPOCH - 1:
        return [PER_RANK] * WORLD
    sizes = [1 + (5 * rank + step) % PER_RANK for rank in range(WORLD)]
    if step == 5 * EPOCH - 1:
        sizes[1] = 0
    return sizes


def simulate(rank: int | None, process_group: bool | None = None) -> OGC:
    """Simulate training on one rank, or, if ``rank`` is None, in one process with all the data."""
    optimizer = optimizer_with(0.1)
    criterion = OGC("ce", optimizer, every=8, queue_size=512, process_group=process_group)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 0.1 * (0.51 + 0.5 * math.cos(math.pi * step / STEPS))
        sizes = batch_sizes(step)
        logits, labels = noisy_batch(sum(sizes), seed=step)
        labels[:: 5 + step % 3] = -100
        if rank is not None:
            logits, labels = logits.split(sizes)[rank], labels.split(sizes)[rank]
        logits.requires_grad_()
        criterion(logits, labels).backward()
    return criterion


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    torch.save([state_of(simulate(rank)), state_of(simulate(rank, process_group=False))], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_ranks_equal_one_process(tmp_path: Path):
    finish([fork(__file__, rank, tmp_path, env=environment()) for rank in range(WORLD)])
    single = state_of(simulate(None))
    assert single["solution"][0] > 1e-3
    for rank in range(WORLD):
        shared, local = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name in single:
            assert same_bits(shared[name], single[name]), (rank, name)
        alone = state_of(simulate(rank))
        for name in alone:
            assert same_bits(local[name], alone[name]), (rank, name)
        assert local["seen"] < shared["seen"]


if __name__ == "__main__":
    run_rank(int(sys.argv[1]), sys.argv[2])
