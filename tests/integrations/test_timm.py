"""The task with the real timm, in separate processes: timm and torchvision are in .venv/aside (see Makefile).

Functions named ``check_...`` run there, in a pytest that collects such names.
"""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ogc import OGC

ASIDE = Path(sys.prefix, "aside")
IS_ASIDE = "OGC_ASIDE" in os.environ
needs_timm = pytest.mark.skipif(not ASIDE.is_dir(), reason="timm is not in .venv/aside: make .venv/aside")

if IS_ASIDE:
    sys.path.insert(0, str(ASIDE))
    operators = torch.library.Library("torchvision", "DEF")  # usually defined by torchvision's binary
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    import timm.data
    import timm.optim
    from timm.task import ClassificationTask, load_task_ema_checkpoint, resume_task_checkpoint
    from timm.utils import CheckpointSaver

    from ogc.integrations.timm import OGCTask


def test_missing_timm_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r'needs timm 1.0.30 or newer.*pip install "torch-ogc\[timm\]"'):
        import ogc.integrations.timm  # noqa: F401


@needs_timm
def test_checks_with_the_real_timm() -> None:
    checks = [sys.executable, "-m", "pytest", "-q", "-o", "python_functions=check_", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(checks, env={**os.environ, "OGC_ASIDE": "1"}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


@needs_timm
@pytest.mark.slow
def test_two_processes_agree_with_each_other_and_with_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    from children import fork  # not at the top: the processes run this file without tests/ in their path
    from small_runs import finish

    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OGC_ASIDE": "1"}
    finish(
        [
            fork(
                __file__,
                tmp_path / f"{rank}-of-{size}.pt",
                env={**world, "RANK": str(rank), "WORLD_SIZE": str(size)},
            )
            for size in (1, 2)
            for rank in range(size)
        ]
    )
    one, first, second = (torch.load(path, weights_only=True) for path in sorted(tmp_path.iterdir(), key=size_of_world))
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(first, one, rtol=1e-3, atol=1e-5, equal_nan=True)
    assert one["criterion.tau"] < 1e6


def size_of_world(path: Path) -> str:
    return path.stem.rpartition("-")[2] + path.stem


# --- run in a separate process ---------------------------------------------------------------------------------------


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Make noise images whose bright quarter determines the class, with a third of the labels replaced."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (96,), generator=generator)
    images = torch.randn(96, 1, 32, 32, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 16 * (label // 2) :, 16 * (label % 2) :][:, :16, :16] += 1
    random = torch.randint(4, (96,), generator=generator)
    return images, torch.where(torch.rand(96, generator=generator) < 1 / 3, random, labels)


def task_of(kind: Any = None) -> tuple[Any, torch.optim.Optimizer, OGC]:
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=4, in_chans=1, img_size=32)
    criterion = OGC("ce", every=2, queue_size=32, epsilon=0.01)
    task = (kind or OGCTask)(model, criterion, verbose=False)
    optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9)
    criterion.attach(optimizer)
    return task, optimizer, criterion


def train(task: Any, optimizer: torch.optim.Optimizer, epochs: range, rank: int = 0, ranks: int = 1) -> None:
    """Train like timm's train_one_epoch, without logging: six steps of 16 images per epoch."""
    inputs, labels = images()
    for epoch in epochs:
        task.train()
        order = torch.randperm(96, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(16):
            mine = batch.chunk(ranks)[rank]
            optimizer.zero_grad()
            task(inputs[mine], labels[mine])["loss"].backward()
            optimizer.step()


def state_of(task: Any) -> dict[str, torch.Tensor]:
    return {k: v for k, v in task.state_dict().items() if isinstance(v, torch.Tensor)}


def check_trains_and_resumes_exactly(tmp_path: Path) -> None:
    uninterrupted, optimizer, criterion = task_of()
    train(uninterrupted, optimizer, range(3))
    assert criterion.steps == 18
    assert 0 < criterion.tau < 1e6

    part, optimizer, _ = task_of()
    saver = CheckpointSaver(part.trainable_module, optimizer, checkpoint_dir=str(tmp_path), task=part)
    train(part, optimizer, range(1))
    saver.save_checkpoint(epoch=0, metric=1.0)

    resumed, optimizer, _ = task_of()
    assert resume_task_checkpoint(resumed, str(tmp_path / "last.pth.tar"), optimizer, log_info=False) == 1
    train(resumed, optimizer, range(1, 3))
    torch.testing.assert_close(state_of(resumed), state_of(uninterrupted), rtol=0, atol=0, equal_nan=True)


def check_ema_does_not_affect_the_criterion(tmp_path: Path) -> None:
    task, optimizer, criterion = task_of()
    task.setup_ema(decay=0.5)
    train(task, optimizer, range(1))
    task.update_ema()
    saver = CheckpointSaver(task.trainable_module, optimizer, checkpoint_dir=str(tmp_path), task=task)
    saver.save_checkpoint(epoch=0)
    train(task, optimizer, range(1, 2))
    load_task_ema_checkpoint(task, str(tmp_path / "last.pth.tar"))
    assert criterion.steps == 12
    resume_task_checkpoint(task, str(tmp_path / "last.pth.tar"), log_info=False)
    assert criterion.steps == 6


def check_missing_state_warns(tmp_path: Path) -> None:
    other, optimizer, _ = task_of(ClassificationTask)
    CheckpointSaver(other.trainable_module, optimizer, checkpoint_dir=str(tmp_path), task=other).save_checkpoint(
        epoch=0
    )
    task, _, _ = task_of()
    with pytest.warns(UserWarning, match=r"has no ogc criterion state.*by another task"):
        resume_task_checkpoint(task, str(tmp_path / "last.pth.tar"), log_info=False)


def check_mixup_is_rejected() -> None:
    inputs, labels = images()
    mixed, soft = timm.data.Mixup(mixup_alpha=0.8, num_classes=4, label_smoothing=0.1)(inputs, labels)
    task, _, criterion = task_of()
    with pytest.raises(ValueError, match=r"should be off: --mixup 0 --cutmix 0 .* shape \(96, 4\)"):
        task(mixed, soft)
    assert criterion.steps == 0


def check_evaluation_leaves_state_unchanged() -> None:
    inputs, labels = images()
    task, _, criterion = task_of()
    with torch.no_grad():  # timm's script leaves the task in training mode and evaluates its model
        task(inputs, labels)
    task.eval()
    task(inputs, labels)
    assert criterion.steps == criterion.seen == 0


def check_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    example = str(Path(__file__).parents[2] / "examples" / "timm_images.py")
    monkeypatch.setattr(sys, "argv", [example, "--smoke"])
    runpy.run_path(example, run_name="__main__")
    assert "From timm's checkpoint: tau " in capsys.readouterr().out


if __name__ == "__main__":
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    task, optimizer, criterion = task_of()
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        task.prepare_distributed()
    train(task, optimizer, range(2), rank, ranks)
    found = {k.replace("trainable_module.module.", "trainable_module."): v for k, v in state_of(task).items()}
    torch.save({**found, "criterion.tau": criterion.tau}, sys.argv[1])
    if ranks > 1:
        torch.distributed.destroy_process_group()
