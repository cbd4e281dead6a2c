"""Accelerate, plain DDP and FSDP with the criterion outside the model: resuming is exact, and two processes agree."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from ogc import OGC
from small_runs import two_processes

STEPS, STOP, BATCH = 48, 26, 16  # stopped between two updates
STEEPEST = 1e7  # tau of CE while nothing is clipped


def noisy():
    """Make STEPS batches, with 40 % of the labels replaced."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS * BATCH, 8, generator=generator)
    labels = (inputs @ torch.randn(8, 4, generator=generator)).argmax(1)
    wrong = torch.rand(len(labels), generator=generator) < 0.4
    return TensorDataset(inputs, torch.where(wrong, torch.randint(4, (len(labels),), generator=generator), labels))


def model_and_criterion():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    criterion = OGC("ce", every=4, queue_size=64, epsilon=0.3)
    return model, criterion


def sgd(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return optimizer, CosineAnnealingLR(optimizer, STEPS)


def step(model, criterion, optimizer, schedule, batch, backward=torch.Tensor.backward):
    inputs, labels = batch
    loss = criterion(model(inputs), labels)
    optimizer.zero_grad()
    backward(loss)
    optimizer.step()
    schedule.step()


def state_of(model, criterion):
    """Return all tensors of both, unsharded and without the prefixes of wrappers."""
    weights = {name.removeprefix("module."): value for name, value in model.state_dict().items()}
    weights = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in weights.items()}
    return weights | dict(criterion.named_buffers(prefix="criterion"))


def assert_same(one, other, **tolerance):
    assert one.keys() == other.keys()
    assert {"0.weight", "criterion.queue", "criterion.solution", "criterion.steps"} <= one.keys()
    torch.testing.assert_close(one, other, equal_nan=True, **(tolerance or {"rtol": 0, "atol": 0}))


@pytest.fixture(scope="module")
def single_process():
    """State after training in one process, without a library."""
    model, criterion = model_and_criterion()
    optimizer, schedule = sgd(model)
    criterion.attach(optimizer)
    for batch in DataLoader(noisy(), batch_size=BATCH):
        step(model, criterion, optimizer, schedule, batch)
    assert 0 < float(criterion.tau) < STEEPEST
    return state_of(model, criterion)


# --- training loops: from the start, or resumed from the checkpoint at STOP -------------------------------------------


def train_with_accelerate(folder, resume, early=False):
    """If ``early``, attach the optimizer before ``prepare`` wraps it, otherwise after."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    model, criterion = model_and_criterion()
    optimizer, schedule = sgd(model)
    if early:
        criterion.attach(optimizer)
    loader = DataLoader(noisy(), batch_size=BATCH)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if not early:
        criterion.attach(optimizer)
    accelerator.register_for_checkpointing(criterion)
    start = 0
    if resume:
        accelerator.load_state(str(folder))
        loader, start = accelerator.skip_first_batches(loader, STOP), STOP
    for at, batch in enumerate(loader, start):
        if at == STOP and not resume:
            accelerator.save_state(str(folder))
        step(model, criterion, optimizer, schedule, batch, accelerator.backward)
    accelerator.wait_for_everyone()
    return state_of(model, criterion)


def halves():
    """Return this rank's half of each batch."""
    rank = dist.get_rank()
    return [[part.chunk(2)[rank] for part in batch] for batch in DataLoader(noisy(), batch_size=BATCH)]


def train_with_ddp(folder, resume):
    """Save everything in one file, which every rank loads with ``weights_only``."""
    model, criterion = model_and_criterion()
    model = DistributedDataParallel(model)
    optimizer, schedule = sgd(model)
    criterion.attach(optimizer)
    everything = {"model": model, "criterion": criterion, "optimizer": optimizer, "schedule": schedule}
    start = STOP if resume else 0
    if resume:
        saved = torch.load(folder / "last.pt", weights_only=True)
        for name, part in everything.items():
            part.load_state_dict(saved[name])
    for at, batch in enumerate(halves()[start:], start):
        if at == STOP and not resume and dist.get_rank() == 0:
            torch.save({name: part.state_dict() for name, part in everything.items()}, folder / "last.pt")
        step(model, criterion, optimizer, schedule, batch)
    dist.barrier()
    return state_of(model, criterion)


def train_with_fsdp(folder, resume):
    """Pass the criterion to torch.distributed.checkpoint directly: its buffers are the same on every rank."""
    model, criterion = model_and_criterion()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
    optimizer, schedule = sgd(model)
    criterion.attach(optimizer)
    weights, moments = get_state_dict(model, optimizer)
    start = STOP if resume else 0
    if resume:
        state = {"model": weights, "optimizer": moments, "criterion": criterion, "schedule": schedule}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    for at, batch in enumerate(halves()[start:], start):
        if at == STOP and not resume:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "criterion": criterion, "schedule": schedule}
            dcp.save(state, checkpoint_id=folder)
        step(model, criterion, optimizer, schedule, batch)
    return state_of(model, criterion)


LOOPS = {"accelerate": train_with_accelerate, "ddp": train_with_ddp, "fsdp": train_with_fsdp}


# --- one process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [False, True], ids=["attached after prepare", "attached before prepare"])
def test_accelerate_resumes_exactly(early, tmp_path, single_process):
    assert_same(train_with_accelerate(tmp_path, resume=False, early=early), single_process)
    assert_same(train_with_accelerate(tmp_path, resume=True, early=early), single_process)
    saved = torch.load(tmp_path / "custom_checkpoint_0.pkl", weights_only=True)  # which Accelerate does not set
    assert saved["steps"] == STOP


def test_each_micro_batch_counts_as_a_step():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model, criterion = model_and_criterion()
    optimizer, schedule = sgd(model)
    loader = DataLoader(noisy(), batch_size=BATCH)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    criterion.attach(optimizer)
    before, moved = model[0].weight.clone(), 0
    for batch in loader:
        with accelerator.accumulate(model):
            step(model, criterion, optimizer, schedule, batch, accelerator.backward)
        moved += not torch.equal(before, model[0].weight)
        before = model[0].weight.clone()
    assert (int(criterion.steps), moved) == (STEPS, STEPS // 4)


# --- two processes ----------------------------------------------------------------------------------------------------


def run_rank(folder):
    """Run each training loop as one rank, from the start and resumed."""
    rank = os.environ["RANK"]
    os.environ |= {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}  # as torchrun does
    for name, train in LOOPS.items():
        states = [train(folder / name, resume) for resume in (False, True)]
        torch.save(states, folder / f"{name}-{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    (folder / "ddp").mkdir()
    here = str(Path(__file__).parent)
    two_processes(f"sys.path.append({here!r}); from test_accelerate import run_rank; run_rank(folder)", folder)
    return {name: [torch.load(folder / f"{name}-{rank}.pt") for rank in range(2)] for name in LOOPS}


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_two_processes_agree(loop, ranks, single_process):
    """With each other bit for bit, and with one process that has both halves up to the order of sums."""
    (first, first_resumed), (second, second_resumed) = ranks[loop]
    assert_same(first, second)
    assert_same(first, single_process, rtol=1e-4, atol=1e-4)
    assert_same(first_resumed, first)
    assert_same(second_resumed, first)
