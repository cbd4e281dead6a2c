"""Train a timm network on digits with half of the labels wrong, with timm's task, optimizer and checkpoints.

pip install ".[timm,cli]"
python examples/timm_images.py            # a minute on a CPU, offline
python examples/timm_images.py --smoke    # a smoke test of a few seconds
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from ogc import OGC
from ogc.data import load_digits
from ogc.noise import symmetric

try:
    import timm
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.task import resume_task_checkpoint
    from timm.utils import CheckpointSaver

    from ogc.integrations.timm import OGCTask
except ImportError as error:
    sys.exit(f'This example needs timm and torchvision: pip install "torch-ogc[timm,cli]". Error: {error}')


def images_of(part):
    return part.inputs.view(-1, 1, 8, 8).repeat_interleave(2, 2).repeat_interleave(2, 3)


def train(task, optimizer, epochs, saver):
    scheduler = CosineLRScheduler(optimizer, t_initial=epochs, warmup_t=1, warmup_lr_init=1e-3)
    for epoch in range(epochs):
        scheduler.step(epoch)
        task.train()
        for batch in torch.randperm(len(given)).split(64):
            optimizer.zero_grad()
            task(images[batch], given[batch])["loss"].backward()
            optimizer.step()
    saver.save_checkpoint(epoch)
    with torch.no_grad():
        return (task.eval().get_eval_model()(test_images).argmax(1) == test.true).float().mean().item()


digits, others = load_digits()
test = others["test"]
images, test_images = images_of(digits), images_of(test)
given = torch.from_numpy(symmetric(digits.true.numpy(), 0.5, num_classes=10))
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--smoke", action="store_true", help="run a smoke test of a few seconds")
is_smoke = parser.parse_args().smoke

with tempfile.TemporaryDirectory() as folder:
    for name in ("CE", "CE+OGC"):
        torch.manual_seed(0)
        model = timm.create_model("test_resnet", in_chans=1, num_classes=10)
        optimizer = create_optimizer_v2(model, opt="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4)
        smaller = {"queue_size": 512, "every": 8} if is_smoke else {"queue_size": 1024, "every": 16}
        criterion = OGC("ce", optimizer, **smaller) if name == "CE+OGC" else nn.CrossEntropyLoss()
        task = OGCTask(model, criterion, verbose=False)  # in place of timm's ClassificationTask
        saver = CheckpointSaver(model, optimizer, checkpoint_dir=folder, task=task)
        accuracy = train(task, optimizer, 3 if is_smoke else 40, saver)
        print(f"{name:6}  accuracy on clean test digits {accuracy:.1%}")
    print(f"tau {float(criterion.tau):.3g}, weight of the noisy normal {float(criterion.mixture.noisy_weight):.1%}")

    again = OGC("ce", **smaller)
    task = OGCTask(timm.create_model("test_resnet", in_chans=1, num_classes=10), again, verbose=False)
    resume_task_checkpoint(task, str(Path(folder, "last.pth.tar")), log_info=False)
    print(f"From timm's checkpoint: tau {float(again.tau):.3g} after {int(again.steps)} steps")

if is_smoke:
    print("--smoke is too short for a comparison.")
print("Next: in timm's train.py, use OGCTask instead of ClassificationTask and OGC as the criterion, without --mixup.")
