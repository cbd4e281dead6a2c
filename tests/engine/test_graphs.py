"""Tests of the engine that need no GPU: unsupported jobs, and the kernels in Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from ogc import kernels
from ogc.data import Dataset
from ogc.engine import graphs
from ogc.kernels.record import record_step
from ogc.kernels.sgd import BLOCK, sgd_step
from ogc.training import RECIPES, Job, NonFinite, override
from ogc.training.ranks import Ranks
from ogc.training.stopping import Stop

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or not kernels.HAVE_TRITON, reason="needs Triton and TRITON_INTERPRET=1"
)


def job(**changes: object) -> Job:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (16, 3, 8, 8), dtype=torch.uint8, generator=generator)
    given = torch.randint(3, (16,), generator=generator)
    data = Dataset(images, given, ("a", "b", "c"), [str(i) for i in range(16)])
    settings = {"network": "resnet20-cifar", "batch_size": 4, "precision": "bf16", "average": 0.99, **changes}
    return Job(override(RECIPES["cifar10"], settings), None, (data, {"test": data}))


class Files:
    """Images on disk."""

    def __len__(self) -> int:
        return 16


@pytest.mark.parametrize(
    ("reason", "device", "ranks", "make_job"),
    [
        ("no GPU", CPU, Ranks(), job),
        ("accumulated", CUDA, Ranks(), lambda: job(accumulate=2)),
        ("adamw", CUDA, Ranks(), lambda: job(optimizer="adamw")),
        ("only SGD with momentum", CUDA, Ranks(), lambda: job(momentum=0.0)),
        ("frozen", CUDA, Ranks(), lambda: job()._replace(network=nn.Linear(2, 2).requires_grad_(False))),
    ],
)
def test_unsupported_jobs(
    reason: str, device: torch.device, ranks: Ranks, make_job: Callable[[], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "HAVE_TRITON", True)
    assert graphs.unsupported_reason([job()], CUDA, Ranks()) is None
    assert reason in (graphs.unsupported_reason([job(), make_job()], device, ranks) or "")


def test_images_on_disk_and_missing_triton_are_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    train, sets = job().data
    on_disk = Dataset(Files(), train.given, train.class_names, train.ids)  # type: ignore[arg-type]
    monkeypatch.setattr(kernels, "HAVE_TRITON", True)
    assert "from disk" in (graphs.unsupported_reason([job()._replace(data=(on_disk, sets))], CUDA, Ranks()) or "")
    monkeypatch.setattr(kernels, "HAVE_TRITON", False)
    assert "Triton" in (graphs.unsupported_reason([job()], CUDA, Ranks()) or "")


def test_engine_without_a_gpu_is_rejected() -> None:
    from ogc.training import train

    with pytest.raises(ValueError, match="there is no GPU"):
        train([job()], device="cpu", engine="graph")


class FakeLane:
    """A lane of two steps that can fail when it is saved."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.launched, self.saved_at = fails, 0, -1

    def steps(self) -> Iterator[bool]:
        for _ in range(2):
            self.launched += 1
            yield True

    def save(self) -> None:
        if self.fails:
            raise NonFinite("broken")
        self.saved_at = self.launched


class LateStop(Stop):
    """A signal that arrives just after the first check."""

    def __bool__(self) -> bool:
        arrived, self.signal = self.signal != 0, 15
        return arrived


def test_signal_between_two_checks_leaves_no_run_unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    lane: Any = FakeLane()
    assert graphs.train([lane], stop=LateStop(), save_every=60) is None
    assert lane.saved_at == lane.launched == 2


def test_run_that_fails_at_its_end_does_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    lanes: list[Any] = [FakeLane(fails=True), FakeLane()]
    assert isinstance(graphs.train(lanes, stop=Stop(), save_every=60), NonFinite)
    assert lanes[1].saved_at == 2


@interpreted
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("clip_norm", [None, 5.0])
@pytest.mark.parametrize("averages", [False, True])
def test_sgd_kernel_matches_torch(nesterov: bool, clip_norm: float | None, averages: bool) -> None:
    torch.manual_seed(0)
    n_low, n = 5000, 5608
    weight, momentum, average = (torch.randn(n) for _ in range(3))
    low, high = torch.randn(n_low).bfloat16(), torch.randn(n - n_low)
    parameter = nn.Parameter(weight.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=nesterov)
    optimizer.state[parameter]["momentum_buffer"] = momentum.clone()
    parameter.grad = torch.cat([low.float(), high])
    if clip_norm is not None:
        nn.utils.clip_grad_norm_([parameter], clip_norm)
    optimizer.step()
    expected_average = average.lerp(parameter.detach(), 0.01) if averages else average.clone()

    starts = range(0, n_low, BLOCK)
    rows = [*((0, s, s, min(BLOCK, n_low - s)) for s in starts), (1, 0, n_low, n - n_low)]
    sgd_step(
        weight=weight,
        momentum=momentum,
        average=average if averages else None,
        short=torch.zeros(n_low, dtype=torch.bfloat16),
        pointers=torch.tensor([low.data_ptr(), high.data_ptr()]),
        blocks=torch.tensor(rows, dtype=torch.int32),
        rates=torch.tensor([[0.1, 0.9], [0.05, 0.99]]),
        position=torch.tensor([1]),
        clip_norm=clip_norm,
        decay=5e-4,
        beta=0.9,
        nesterov=nesterov,
    )
    assert_close(weight, parameter.detach(), rtol=1e-5, atol=1e-6)
    assert_close(momentum, optimizer.state[parameter]["momentum_buffer"], rtol=1e-5, atol=1e-6)
    assert_close(average, expected_average, rtol=1e-5, atol=1e-6)


@interpreted
def test_record_step() -> None:
    torch.manual_seed(0)
    logits = torch.randn(16, 10)
    rows = torch.stack([torch.randperm(50)[:16], torch.randint(10, (16,))])
    H, predicted, losses = torch.full((50,), torch.nan), torch.full((50,), -1), torch.zeros(7)
    stats, average_stats = torch.randn(1500), torch.randn(1500)
    expected: Tensor = average_stats.lerp(stats, 0.01)
    record_step(
        logits=logits,
        rows=rows,
        loss=torch.tensor(3.5),
        H=H,
        predicted=predicted,
        losses=losses,
        position=torch.tensor([1]),
        at=torch.tensor([4]),
        stats=stats,
        average_stats=average_stats,
        rates=torch.tensor([[0.1, 0.9], [0.05, 0.99]]),
    )
    assert_close(H[rows[0]], F.cross_entropy(logits, rows[1], reduction="none"))
    assert torch.equal(predicted[rows[0]], logits.argmax(1))
    assert int(H.isnan().sum()) == 34
    assert losses.tolist() == [0, 0, 0, 0, 3.5, 0, 0]
    assert_close(average_stats, expected)
