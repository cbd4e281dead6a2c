"""The step kernel, on a GPU or in Triton's interpreter (TRITON_INTERPRET=1), compared with torch on the CPU."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from asserts import value_and_gradient
from ogc import OGC, losses
from ogc.clipping import Default, Relative
from ogc.clipping.backends import compiled, cuda
from ogc.kernels import HAVE_TRITON
from ogc.kernels.ogc_step import LARGEST_BATCH, LARGEST_LOGITS, serves_batch
from samples import noisy_batch, optimizer_with, random, rare_batch, same_bits, state_of

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAVE_TRITON, reason="needs Triton"),
    pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA device or the interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy in the interpreter, where a GPU gives inf or NaN
]
BASES = {"ce": losses.CrossEntropy(), "fl": losses.Focal(), "fl 2": losses.Focal(gamma=2.0), "gce": losses.GCE(q=0.7)}


class KernelOGC(OGC):
    """OGC that must run every training step with the kernel."""

    lr_on_device: Tensor | None = None

    def forward(self, logits, labels):
        with kernels():
            return super().forward(logits, labels)

    @property
    def lr(self):
        return super().lr if self.lr_on_device is None or not self.rule.follow_lr else self.lr_on_device

    def learn(self, *_):
        raise AssertionError("This step should have been run by the kernel.")


@contextmanager
def kernels() -> Iterator[None]:
    """Use the kernels on the CPU, if they are interpreted."""
    with pytest.MonkeyPatch.context() as patch:
        if INTERPRETED:
            patch.setattr(cuda, "serves_queue", lambda *_: True)
        yield


def pair(base, lr: float | Tensor = 0.1, **arguments) -> tuple[KernelOGC, OGC, torch.optim.Optimizer]:
    """Return an OGC that uses the kernel, one that uses torch on the CPU, and the optimizer that both follow."""
    optimizer = optimizer_with(0.1)
    optimizer.param_groups[0]["lr"] = lr
    return KernelOGC(base, optimizer, **arguments).to(DEVICE), OGC(base, optimizer, **arguments), optimizer


def check(fast: OGC, slow: OGC, logits: Tensor, labels: Tensor) -> None:
    """Compare loss, gradient and state after one step of each. The CPU step uses float64."""
    expected, expected_gradient = value_and_gradient(slow, logits.double(), labels)
    value, gradient = value_and_gradient(fast, logits.to(DEVICE), labels.to(DEVICE))
    assert value.dtype == torch.float32
    assert gradient.dtype == logits.dtype
    assert_close(value.cpu(), expected.float(), rtol=1e-5, atol=1e-6)
    coarse = torch.finfo(logits.dtype).eps if logits.dtype != torch.float32 else 0.0  # the gradient has this dtype
    assert_close(gradient.cpu().double(), expected_gradient, rtol=1e-4 + coarse, atol=5e-7)
    check_state(fast, slow)


def check_state(fast: OGC, slow: OGC) -> None:
    for name in ("seen", "steps", "degenerate", "unreliable"):
        assert int(fast.get_buffer(name)) == int(slow.get_buffer(name)), name
    assert_close(fast.queue[:-1].cpu(), slow.queue[:-1], rtol=1e-5, atol=1e-6)
    assert_close(fast.solution.cpu(), slow.solution, rtol=1e-4, atol=1e-6, equal_nan=True)
    assert torch.equal(fast.rule_state.cpu(), slow.rule_state)
    assert_close(fast.thresholds.cpu(), slow.thresholds, rtol=1e-4, atol=1e-6)
    assert_close(fast.history.cpu(), slow.history, rtol=1e-4, atol=1e-6, equal_nan=True)
    assert_close(fast.highest_lr.cpu(), slow.highest_lr, rtol=1e-15, atol=0)


@pytest.mark.parametrize("rule", [{"epsilon": 0.5}, {}])
@pytest.mark.parametrize("base", BASES)
def test_200_steps_equal_torch(base, rule):
    """A new learning rate at each step, uneven batches, ignored labels, and a phase of clean labels."""
    fast, slow, optimizer = pair(BASES[base], every=8, queue_size=512, **rule)
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.1 * min(step / 20, 0.51 + 0.5 * math.cos(math.pi * step / 200))
        rate, n = 0.0 if 100 <= step < 150 else 0.4, 64 if step % 10 < 9 else 20 + step % 7
        logits, labels = noisy_batch(n, seed=step, rate=rate, margin=2 + 5 * step / 200)
        labels[: step % 4] = -100
        logits[7, labels[7]] = -math.inf  # H is not finite
        logits[8, (labels[8] + 1) % 10] = -math.inf
        check(fast, slow, logits, labels)
    assert float(slow.p0) > 1e-3


@pytest.mark.parametrize("base", ["ce", "fl"])
def test_rare_class_equals_torch(base):
    fast, slow, _ = pair(base, every=8, queue_size=256)
    for step in range(60):
        check(fast, slow, *rare_batch(step))
    assert slow.thresholds[0, 1] < 0.8 * slow.p0


def test_a_third_is_exact():
    """A class is not given up if exactly a third of its samples are better than a guess.

    Triton 3.6 rounds constants on a GPU, but not in the interpreter, so this can only fail on a GPU.
    """
    fast, slow, _ = pair("ce", every=8, queue_size=64)
    labels = torch.arange(90) // 30
    margin = torch.where(torch.arange(90) < 70, 6.0, -6.0)  # 10 of class 2 are right
    logits = margin[:, None] * torch.nn.functional.one_hot(labels) + torch.randn(90, 3, generator=random(0))
    for _step in range(6):
        check(fast, slow, logits, labels)
    assert slow.thresholds[0, 2] == slow.p0


def test_rule_may_change_between_steps():
    """The thresholds of the classes follow whichever rule is in force."""
    fast, slow, _ = pair("ce", every=8, queue_size=256)
    for step in range(30):
        for criterion in (fast, slow):
            if step in (12, 20):
                criterion.set_rule(Relative(0.5) if step == 12 else Default())
        check(fast, slow, *rare_batch(step))


@pytest.mark.parametrize("base", ["sce", "taylor_ce"])
@pytest.mark.parametrize("arguments", [{}, {"reduction": "none"}, {"weight": torch.linspace(0, 1, 10)}])
def test_state_with_other_losses_equals_torch(base, arguments):
    """For these losses the kernel updates only the state."""
    fast, slow, _ = pair(base, every=4, queue_size=128, **arguments)
    for step in range(12):
        check(fast, slow, *noisy_batch(64, seed=step))
    assert not slow.mixture.noisy_weight.isnan()


@pytest.mark.parametrize("base", ["ce", "fl"])
def test_state_only_kernel_matches_full_kernel(base):
    """torch.compile uses the state-only kernel. Its queue and solution are bit-identical to those of full steps."""
    full, slow, _ = pair(BASES[base], every=8, queue_size=64)
    state_only, _, optimizer = pair(BASES[base], every=8, queue_size=64)
    full.attach(optimizer), slow.attach(optimizer)
    for step in range(5):
        logits, labels = noisy_batch(32, seed=step)
        labels[:step] = -100
        full(logits.to(DEVICE), labels.to(DEVICE))
        slow(logits, labels)
        with kernels():
            compiled._observe(logits.to(DEVICE), labels.to(DEVICE), *state_only.state(), state_only.key)
        check_state(state_only, slow)
        assert torch.equal(full.queue[:-1], state_only.queue[:-1])
        assert same_bits(full.solution, state_only.solution)
    assert float(state_only.p0) > 1e-3


def test_values_within_rounding_error_count_as_equal():
    fast, slow, _ = pair("ce", every=8, queue_size=16, epsilon=0.5)
    for criterion in (fast, slow):
        criterion.queue[:12], criterion.queue[12:] = 15.9, 15.9 + 2e-6
        criterion.seen.fill_(16)
        criterion.steps.fill_(7)
    ignored = torch.full((2,), -100)
    check(fast, slow, torch.zeros(2, 3), ignored)
    assert int(fast.degenerate) == 1


def clip(*criteria: OGC, p0: float = 0.2) -> None:
    for criterion in criteria:
        at = torch.tensor(p0, dtype=torch.float64)
        criterion.solution[:2] = torch.stack([at, criterion.base.slope(at)])
        criterion.thresholds[:] = criterion.solution[:2, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(128, 10), (128, 100), (100, 1000), (1, 3), (7, 2), (300, 129), (2048, 16)])
def test_shapes_and_types(shape, dtype):
    for base, reduction in (("ce", "mean"), ("fl 2", "sum"), ("gce", "mean")):
        fast, slow, _ = pair(BASES[base], reduction=reduction, queue_size=256, ignore_index=2)
        clip(fast, slow)
        logits = (3 * torch.randn(shape, generator=random(0))).to(dtype)
        check(fast, slow, logits, torch.randint(shape[1], shape[:1], generator=random(1)))


def test_strides():
    fast, slow, _ = pair("ce", queue_size=64)
    clip(fast, slow)
    logits, labels = noisy_batch(40, seed=0)
    check(fast, slow, logits.t().contiguous().t(), labels)
    check(fast, slow, logits[::2, 1:], labels[::2].clamp(0, 8))
    check(fast, slow, logits[:1].expand(40, 10), labels)


@pytest.mark.parametrize("arguments", [{}, {"epsilon0": 20}, {"follow_lr": False, "epsilon": 0.7}])
@pytest.mark.parametrize("kind", ["float", "tensor"])
def test_rules_for_epsilon(arguments, kind):
    """A learning rate of 0 keeps tau. A tensor is read on the device."""
    fast, slow, optimizer = pair("ce", every=1, queue_size=64, **arguments)
    on_device = torch.zeros((), device=DEVICE)
    if kind == "tensor":
        fast.lr_on_device = on_device
    for step, lr in enumerate((0.0, 0.02, 0.1, 0.05, 0.0, 1e-4)):
        optimizer.param_groups[0]["lr"] = float(torch.tensor(lr))  # exact in float32
        on_device.fill_(lr)
        check(fast, slow, *noisy_batch(64, seed=step))
    assert float(slow.p0) > 1e-3


def test_batch_larger_than_queue():
    fast, slow, _ = pair("ce", every=1, queue_size=50)
    for step in range(3):
        check(fast, slow, *noisy_batch(170, seed=step))


def test_bad_values_give_nan_and_are_not_queued():
    criterion = KernelOGC("fl", follow_lr=False, queue_size=64).to(DEVICE)
    logits, labels = noisy_batch(10, seed=0)
    labels[0], labels[1] = 10, -1
    logits[2, 5], logits[3, 5], logits[4] = math.nan, math.inf, -math.inf
    value, gradient = value_and_gradient(criterion, logits.to(DEVICE), labels.to(DEVICE))
    assert value.isnan()
    assert gradient.isnan().any(1).tolist() == [True] * 5 + [False] * 5
    assert criterion.seen == 5
    assert criterion.queue.isfinite().all()


def test_ignored_rows_have_no_effect():
    criterion = KernelOGC("ce", follow_lr=False, queue_size=64).to(DEVICE)
    logits, labels = (t.to(DEVICE) for t in noisy_batch(8, seed=0))
    value, gradient = value_and_gradient(criterion, logits, torch.full_like(labels, -100))
    assert value == 0
    assert not gradient.any()
    assert (int(criterion.seen), int(criterion.steps)) == (0, 1)
    labels[3], logits[3, 0] = -100, math.nan
    assert criterion(logits, labels).isfinite()


def test_double_backward():
    fast, slow, _ = pair("fl", queue_size=64)
    clip(fast, slow)
    logits, labels = noisy_batch(16, seed=0)
    second = []
    for criterion in (fast, slow):
        x = logits.to(DEVICE if criterion is fast else "cpu").requires_grad_()
        (first,) = torch.autograd.grad(criterion(x, labels.to(x.device)), x, create_graph=True)
        clip(criterion, p0=0.9)  # the gradient uses the p0 of the forward pass
        second.append(torch.autograd.grad(first.square().sum(), x)[0].cpu())
    assert_close(*second, rtol=1e-4, atol=1e-7)


def test_unsupported_batches_are_rejected():
    logits, labels = noisy_batch(8, seed=0)
    assert serves_batch(logits, labels)
    too_many = torch.zeros(1, 1).expand(LARGEST_BATCH + 1, 2)
    too_wide = torch.zeros(1, 1).expand(4, LARGEST_LOGITS // 4 + 1)
    for wrong in (
        (logits.double(), labels),
        (logits, labels.int()),
        (logits, labels[:-1]),
        (logits[0], labels[0]),
        (logits[:, :, None], labels[:, None]),
        (logits[:0], labels[:0]),
        (logits[:, :1], labels),
        (too_many, torch.zeros(len(too_many), dtype=torch.int64)),
        (too_wide, torch.zeros(len(too_wide), dtype=torch.int64)),
    ):
        assert not serves_batch(*wrong)


def test_missing_optimizer_leaves_state_unchanged():
    criterion = KernelOGC("ce", every=1, queue_size=4).to(DEVICE)
    before = state_of(criterion)
    with pytest.raises(RuntimeError, match=r"criterion\.attach\(optimizer\)"):
        criterion(*(t.to(DEVICE) for t in noisy_batch(8, seed=0)))
    assert all(same_bits(buffer, before[name]) for name, buffer in criterion.named_buffers())
