"""Tests that need a GPU: no synchronisation, graph replays equal eager steps, kernels equal the plain versions.

The kernel of a complete step is tested in tests/clipping/test_cuda_kernels.py.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ogc import OGC, losses
from ogc.clipping import EMA, Linear, fit_mixture, solve_threshold
from ogc.clipping.loss_queue import push_by_scatter, push_on_cpu
from ogc.kernels.ogc_step import push_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),  # as inductor's first graph is
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # from torch, while inductor is imported
]
GOLDEN = Path(__file__).parent.parent / "golden"


@contextmanager
def no_synchronisation() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def batches(steps: int, samples: int = 64, classes: int = 10) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    result = []
    for step in range(steps):
        labels = torch.randint(classes, (samples,), generator=generator)
        logits = 2 * torch.randn(samples, classes, generator=generator)
        right = torch.rand(samples, generator=generator) < 0.6
        logits[torch.arange(samples), labels] += torch.where(right, 5.0 + step / 40, 0.0)
        result.append((logits.cuda(), labels.cuda()))
    return result


def optimizer_with(lr: float | Tensor) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([torch.zeros(1, device="cuda", requires_grad=True)], lr=0.1)
    optimizer.param_groups[0]["lr"] = lr
    return optimizer


@pytest.mark.parametrize("lr", ["float", "cpu tensor", "cuda tensor"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("base", ["ce", "fl", "gce"])
def test_no_step_or_update_synchronises(base: str, weighted: bool, lr: str) -> None:
    value = {"float": 0.1, "cpu tensor": torch.tensor(0.1), "cuda tensor": torch.tensor(0.1, device="cuda")}[lr]
    optimizer = optimizer_with(value)
    weight = torch.rand(10, device="cuda") if weighted else None
    settings = {"every": 8, "queue_size": 512, "epsilon": 0.1, "weight": weight, "ignore_index": 3}
    criterion = OGC(base, optimizer, **settings).cuda()
    data = batches(100)
    for step, (logits, labels) in enumerate(data):
        logits.requires_grad_()
        if step == 16:  # kernels are compiled by now
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        criterion(logits, labels).backward()
    torch.cuda.set_sync_debug_mode("default")
    assert float(criterion.p0) > 1e-6


@pytest.mark.parametrize("name", losses.LOSSES)
def test_no_loss_synchronises(name: str) -> None:
    (logits, labels), loss = batches(1)[0], losses.LOSSES[name](ignore_index=3).cuda()
    with no_synchronisation():
        loss(logits.requires_grad_(), labels).backward()


@pytest.mark.parametrize("threshold", [EMA(0.99), Linear(10.0, steps=300)])
def test_no_schedule_synchronises(threshold: EMA | Linear) -> None:
    criterion = OGC("ce", threshold=threshold).cuda()
    data = batches(20)
    criterion(*data[0])
    with no_synchronisation():
        for logits, labels in data:
            criterion(logits.requires_grad_(), labels).backward()


@pytest.mark.parametrize("rule", [{}, {"epsilon": 2.0}])
def test_without_kernels_only_updates_synchronise(rule: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is copied to the CPU for an update, and the numbers are those of the CPU."""
    monkeypatch.setattr("ogc.clipping.backends.cuda.serves_queue", lambda *_: False)
    criterion, cpu_criterion = (OGC("fl", follow_lr=False, every=32, queue_size=256, **rule) for _ in range(2))
    criterion.cuda()
    for step, (logits, labels) in enumerate(batches(64), start=1):
        cpu_criterion(logits.cpu().requires_grad_(), labels.cpu())
        may_synchronise = (
            step < 8 or step % criterion.rule.period(step, criterion.every) == 0
        )  # torch compiles some kernels at first
        with nullcontext() if may_synchronise else no_synchronisation():
            criterion(logits.requires_grad_(), labels).backward()
        torch.testing.assert_close(
            criterion.solution.cpu(), cpu_criterion.solution, rtol=1e-4, atol=1e-6, equal_nan=True
        )
    assert float(criterion.p0) > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_step_is_one_launch(dtype: torch.dtype) -> None:
    """State, loss and gradient in one kernel, except in float64, where torch computes the loss."""
    from overhead import launches

    optimizer = optimizer_with(torch.tensor(0.1, device="cuda"))
    criterion = OGC("fl", optimizer, every=2, queue_size=64).cuda()
    logits, labels = batches(1)[0]
    logits = logits.to(dtype).requires_grad_()
    assert (launches(lambda: criterion(logits, labels)) == 1) is (dtype != torch.float64)
    criterion.set_rule(EMA(0.99))
    assert launches(lambda: criterion(logits, labels)) > 1


@pytest.mark.parametrize("base", ["ce", "fl", "gce", "sce"])
@pytest.mark.parametrize("kernels", ["one launch", "push and update", "none"])
def test_captured_step_equals_the_eager_one(base: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: loss, gradient and state."""
    if kernels == "none":
        monkeypatch.setattr("ogc.clipping.backends.cuda.serves_queue", lambda *_: False)
    elif kernels == "push and update":
        monkeypatch.setattr("ogc.clipping.backends.cuda.serves_batch", lambda *_: False)
    every, lr = 8, torch.tensor(0.1, device="cuda")
    optimizer = optimizer_with(lr)
    rule = {"epsilon": 2.0} if kernels == "none" else {}  # the default rule updates more often at first
    eager, captured = (OGC(base, optimizer, every=every, queue_size=512, **rule).cuda() for _ in range(2))
    start = copy.deepcopy(captured.state_dict())
    data = batches(200)
    logits, labels = data[0][0].clone().requires_grad_(), data[0][1].clone()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(10):  # compile the kernels, and fill the allocator's pool
            logits.grad = None
            captured(logits, labels).backward()
    torch.cuda.current_stream().wait_stream(stream)
    step_graph = torch.cuda.CUDAGraph()
    logits.grad = None
    with torch.cuda.graph(step_graph):
        loss = captured(logits, labels)
        loss.backward()
    captured.load_state_dict(start)

    for step, (x, y) in enumerate(data, start=1):
        lr.fill_(0.1 * (1 - step / 250))
        expected = eager(x.requires_grad_(), y)
        expected.backward()
        with torch.no_grad():
            logits.copy_(x)
        labels.copy_(y)
        step_graph.replay()
        if kernels == "none" and step % every == 0:  # between replays, so after the loss
            captured.update()
        else:
            assert torch.equal(loss, expected), step
            assert torch.equal(logits.grad, x.grad), step
        for name, buffer in captured.named_buffers():
            assert torch.equal(buffer.nan_to_num(), eager.get_buffer(name).nan_to_num()), (step, name)
    assert float(eager.p0) > 1e-6


def solved(queue: Tensor, base: str, epsilon: float, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> OGC:
    criterion = OGC(base, follow_lr=False, epsilon=epsilon, queue_size=len(queue)).cuda()
    criterion.queue[:-1] = queue.cuda()
    criterion.seen.fill_(len(queue))
    with monkeypatch.context() as patch:
        if not kernels:
            patch.setattr("ogc.clipping.backends.cuda.serves_queue", lambda *_: False)
        criterion.update()
    return criterion


@pytest.mark.parametrize("base", ["ce", "fl", "gce"])
def test_update_kernel_equals_torch(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [torch.from_numpy(q) for q in np.load(GOLDEN / "queues.npz").values()]
    generator = torch.Generator().manual_seed(0)
    for size in (300, 1000, 4096, 8192):
        spread, noisy = torch.randn(size, generator=generator), torch.rand(size, generator=generator) < 0.3
        queues.append(torch.where(noisy, 4 + spread, 0.4 + spread / 4).clamp(1e-7, 16))
    queues += [torch.full((512,), 2.0), torch.cat([torch.zeros(511), torch.tensor([9.0])]).clamp(1e-7)]
    for queue in queues:
        for epsilon in (2.0, 0.2, 0.02):
            fast, slow = (solved(queue, base, epsilon, kernels, monkeypatch) for kernels in (True, False))
            torch.testing.assert_close(fast.solution, slow.solution, rtol=1e-8, atol=1e-10, equal_nan=True)
            assert (int(fast.degenerate), int(fast.unreliable)) == (int(slow.degenerate), int(slow.unreliable))


def test_push_kernel_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    pushes = {"slices": push_on_cpu, "scatter": push_by_scatter, "kernel": push_kernel}
    queues = {name: torch.zeros(101) if name == "slices" else torch.zeros(101, device="cuda") for name in pushes}
    seen = {name: torch.zeros((), dtype=torch.int64, device=queue.device) for name, queue in queues.items()}
    for size in (5, 64, 100, 101, 250, 1, 33, 99, 7):
        H = 20 * torch.rand(size, generator=generator)
        H[torch.rand(size, generator=generator) < 0.2] = float("nan")
        H[torch.rand(size, generator=generator) < 0.1] = float("inf")
        for name, push in pushes.items():
            push(queues[name], seen[name], H.to(queues[name].device))
        for name in ("scatter", "kernel"):
            assert torch.equal(queues[name][:-1].cpu(), queues["slices"][:-1]), (name, size)
            assert int(seen[name]) == int(seen["slices"])


def test_golden_thresholds_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = np.load(GOLDEN / "queues.npz")
    bases = {"ce": losses.CrossEntropy(), "fl": losses.Focal(gamma=0.5), "gce": losses.GCE(q=0.7)}
    for row in json.loads((GOLDEN / "thresholds.json").read_text()):
        criterion = OGC(copy.deepcopy(bases[row["loss"]]), follow_lr=False, epsilon=row["lr"] * row["epsilon0"]).cuda()
        criterion.queue[:-1] = torch.from_numpy(queues[row["queue"]]).cuda()
        criterion.seen.fill_(4096)
        criterion.update()
        assert row["p0_min"] - 0.003 <= float(criterion.p0) <= row["p0_max"] + 0.003, row


def test_gpu_matches_the_cpu() -> None:
    cpu, cuda = (OGC("ce", follow_lr=False, every=8, queue_size=512) for _ in range(2))
    cuda.cuda()
    for logits, labels in batches(200):
        a = cpu(logits.cpu().requires_grad_(), labels.cpu())
        b = cuda(logits.requires_grad_(), labels)
        torch.testing.assert_close(b.cpu(), a, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(cuda.solution.cpu(), cpu.solution, rtol=1e-4, atol=1e-6)


def test_bad_values_give_nan_and_are_not_queued() -> None:
    criterion = OGC("ce", follow_lr=False).cuda()
    logits, labels = batches(1)[0]
    labels[0], logits[1, 0] = 12, float("nan")
    loss = criterion(logits.requires_grad_(), labels)
    assert loss.isnan()
    assert int(criterion.seen) == len(labels) - 2
    for name in losses.LOSSES:
        assert losses.LOSSES[name]()(logits, labels).isnan()


@pytest.mark.parametrize("has_kernels", [True, False])
def test_a_tensor_learning_rate_of_nan_does_not_spoil_the_highest_one(
    has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernels:
        monkeypatch.setattr("ogc.clipping.backends.cuda.serves_queue", lambda *_: False)
    lr = torch.tensor(0.1, device="cuda")
    optimizer = optimizer_with(lr)  # which OGC holds weakly
    criterion = OGC("ce", optimizer, every=1, queue_size=64).cuda()
    logits, labels = batches(1)[0]
    for value in (0.1, float("nan"), 0.01):
        lr.fill_(value)
        criterion(logits.clone().requires_grad_(), labels).backward()
        assert float(criterion.highest_lr) == pytest.approx(0.1)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("base", ["ce", "fl", "sce"])
def test_compiled_matches_eager(base: str, mode: str) -> None:
    """The state is equal bit for bit, because the kernel is the same. The loss is computed by inductor."""
    torch._dynamo.reset()
    optimizer = optimizer_with(0.1)
    eager, plain = (OGC(base, optimizer, every=8, queue_size=512).cuda() for _ in range(2))
    compiled = torch.compile(plain, fullgraph=True, mode=mode)
    for step, (logits, labels) in enumerate(batches(100)):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 250)
        labels[: step % 3] = -100
        a, b = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        first, second = eager(a, labels), compiled(b, labels)
        first.backward()
        second.backward()
        torch.testing.assert_close(second, first, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-6)
    assert torch.equal(eager.queue[:-1], plain.queue[:-1])
    assert torch.equal(eager.solution, plain.solution)
    assert float(eager.p0) > 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    criterion = OGC("fl", follow_lr=False, every=8, queue_size=512).cuda()
    for logits, labels in batches(50):
        half = logits.to(dtype).requires_grad_()
        loss = criterion(half, labels)
        loss.backward()
        assert loss.dtype == torch.float32
        assert half.grad is not None
        assert half.grad.dtype == dtype
        assert half.grad.isfinite().all()


def test_public_functions_return_tensors_on_the_device() -> None:
    H = torch.rand(1000) * 5
    mixture = fit_mixture(H.cuda())
    assert all(number.is_cuda for number in mixture)
    assert torch.equal(torch.stack(mixture).cpu(), torch.stack(fit_mixture(H)))
    assert solve_threshold(losses.CrossEntropy(), mixture, 1.5).is_cuda


def test_one_logit_is_refused() -> None:
    with pytest.raises(ValueError, match="two columns"):
        OGC("ce", follow_lr=False).cuda()(torch.zeros(8, 1, device="cuda"), torch.zeros(8, dtype=torch.long).cuda())


def test_criterion_moves_to_the_device_of_the_logits() -> None:
    """nn.CrossEntropyLoss needs no .to(device) either, so replacing it stays a one-line change."""
    optimizer = optimizer_with(0.1)
    criterion = OGC("ce", optimizer, every=4, queue_size=128)
    for logits, labels in batches(12):
        criterion(logits.requires_grad_(), labels).backward()
    assert criterion.solution.is_cuda
    assert not criterion.mixture.noisy_weight.isnan()


def test_missing_optimizer_fails_at_the_first_update() -> None:
    criterion = OGC("ce", every=32, queue_size=128).cuda()  # every fourth step at first
    data = batches(4)
    for logits, labels in data[:3]:
        criterion(logits.requires_grad_(), labels)
    with pytest.raises(RuntimeError, match=r"criterion\.attach\(optimizer\)"):
        criterion(*data[3])


def test_replays_and_eager_steps_share_the_step_count() -> None:
    criterion = OGC("ce", follow_lr=False, every=4, queue_size=64).cuda()
    logits, labels = batches(1)[0]
    logits.requires_grad_()
    for _ in range(3):
        criterion(logits, labels).backward()
    graph = torch.cuda.CUDAGraph()
    logits.grad = None
    with torch.cuda.graph(graph):
        criterion(logits, labels).backward()
    while int(criterion.steps) % 4 != 3:
        graph.replay()
    criterion.solution[0] = 0.5  # the eager step below is the fourth and overwrites it
    criterion(logits, labels)
    assert float(criterion.p0) != 0.5
