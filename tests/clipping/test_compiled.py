"""torch.compile: one graph, few compilations, the same state bit for bit."""

import math

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from asserts import value_and_gradient
from ogc import OGC, losses
from ogc.clipping import EMA
from samples import noisy_batch, optimizer_with, same_bits, state_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),  # inductor's own
]


def compare_with_eager(backend: str, base, **arguments) -> None:
    """Compare 100 steps, forward and backward, with uneven batches and a new learning rate at each step."""
    optimizer = optimizer_with(0.1)
    eager, original = (OGC(base, optimizer, every=8, queue_size=512, **arguments) for _ in range(2))
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(original, fullgraph=True, backend=counter)
    for step in range(100):
        optimizer.param_groups[0]["lr"] = 0.1 * (0.51 + 0.5 * math.cos(math.pi * step / 100))
        n = 64 if step % 10 < 9 else 20 + step % 7
        logits, labels = noisy_batch(n, seed=step, margin=2 + 5 * step / 100)
        labels[: step % 4] = -100
        expected, expected_gradient = value_and_gradient(eager, logits, labels)
        value, gradient = value_and_gradient(compiled, logits, labels)
        assert_close(value, expected, rtol=1e-6, atol=1e-6)
        assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-6)
        for name, buffer in eager.named_buffers():
            assert same_bits(buffer, original.get_buffer(name)), (step, name)
    assert float(eager.p0) > 1e-3
    assert counter.frame_count <= 5


def test_100_compiled_steps_equal_eager():
    compare_with_eager("inductor", "ce")


@pytest.mark.parametrize("base", [losses.Focal(), losses.GCE(q=0.7)], ids=repr)
def test_100_traced_steps_of_other_losses_equal_eager(base):
    compare_with_eager("aot_eager", base)


def test_100_traced_steps_with_schedule_equal_eager():
    compare_with_eager("aot_eager", "ce", threshold=EMA(0.99))


def test_evaluation_changes_nothing():
    criterion = OGC("ce", follow_lr=False, every=1, queue_size=64)
    criterion(*noisy_batch(64, seed=0))
    before = state_of(criterion)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    logits, labels = noisy_batch(64, seed=1)
    with torch.no_grad():
        without_grad = compiled(logits, labels)
    criterion.eval()
    assert torch.equal(compiled(logits, labels), without_grad)
    assert_close(without_grad, criterion(logits, labels))
    assert all(same_bits(buffer, before[name]) for name, buffer in criterion.named_buffers())


def test_bad_values_give_nan_and_are_not_queued():
    """Checking values would break the graph, so nothing is raised: the loss is NaN, and other samples are queued."""
    criterion = OGC("ce", follow_lr=False, queue_size=64)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    logits, labels = noisy_batch(8, seed=0)
    labels[3] = 10
    assert compiled(logits, labels).isnan()
    assert criterion.seen == 7
    logits[2, 5] = torch.nan
    assert compiled(logits, labels).isnan()
    assert criterion.seen == 13
    assert criterion.queue.isfinite().all()


def test_eager_and_compiled_steps_may_alternate():
    """What waits from eager steps is counted before a compiled one."""
    eager, mixed = (OGC("ce", follow_lr=False, every=32, queue_size=64) for _ in range(2))
    compiled = torch.compile(mixed, fullgraph=True, backend="aot_eager")
    for step in range(12):
        logits, labels = noisy_batch(16, seed=step)
        eager(logits, labels)
        (compiled if step % 3 == 2 else mixed)(logits, labels)
    assert all(same_bits(buffer, mixed.get_buffer(name)) for name, buffer in eager.named_buffers())


def test_compiled_training_step():
    """Compile a function that calls both model and criterion."""
    torch.manual_seed(0)
    model, optimizer = torch.nn.Linear(10, 10), optimizer_with(0.1)
    criterion, eager = (OGC("ce", optimizer, every=2, queue_size=64) for _ in range(2))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x, y):
        return criterion(model(x), y)

    for seed in range(6):
        x, y = noisy_batch(64, seed=seed)
        assert_close(step(x, y), eager(model(x), y))
    assert criterion.steps == 6
    assert_close(criterion.solution, eager.solution, rtol=1e-4, atol=1e-6)  # compiled logits differ in the last bits


def test_ten_criteria_share_a_graph():
    """A sweep over ten criteria neither recompiles for each nor reaches the recompile limit."""
    counter = CompileCounterWithBackend("aot_eager")
    for seed in range(10):
        criterion = OGC("ce", follow_lr=False, every=4, queue_size=64)
        compiled = torch.compile(criterion, fullgraph=True, backend=counter)
        for _ in range(6):
            compiled(torch.randn(32, 5, requires_grad=True), torch.randint(5, (32,))).backward()
        assert int(criterion.steps) == 6
        assert not criterion.mixture.noisy_weight.isnan(), seed
    assert counter.frame_count <= 3
