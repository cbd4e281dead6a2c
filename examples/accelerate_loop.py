"""Train with Accelerate on digits with half of the labels wrong: first with CE, then with OGC, saved and resumed.

pip install ".[accelerate,cli]"
python examples/accelerate_loop.py                          # a minute on a CPU, offline
torchrun --nproc-per-node 2 examples/accelerate_loop.py     # two processes that share a queue
"""

import argparse
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ogc import OGC
from ogc.data import load_digits
from ogc.models import mlp
from ogc.noise import symmetric

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--smoke", action="store_true", help="run a few epochs as a smoke test")
is_smoke = parser.parse_args().smoke
EPOCHS = 6 if is_smoke else 120

train_set, others = load_digits()
test_set = others["test"]
given = torch.from_numpy(symmetric(train_set.given.numpy(), 0.5, num_classes=10))


def train(method, start, stop, folder):
    """Train from epoch ``start`` to ``stop`` and save. If ``start`` is not 0, resume from the state in ``folder``."""
    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
    torch.manual_seed(0)
    model = mlp(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [EPOCHS // 3, 2 * EPOCHS // 3])
    batch_size = 128 // accelerator.num_processes
    loader = DataLoader(TensorDataset(train_set.inputs, given), batch_size=batch_size, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    criterion = OGC("ce", optimizer) if method == "CE+OGC" else nn.CrossEntropyLoss()
    accelerator.register_for_checkpointing(criterion)  # instead of prepare, because it has no parameters
    if start:
        accelerator.load_state(folder)
    for _ in range(start, stop):
        for inputs, labels in loader:
            loss = criterion(model(inputs), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        schedule.step()
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()
    with torch.no_grad():
        logits = model(test_set.inputs.to(accelerator.device)).cpu()
    return criterion, (logits.argmax(1) == test_set.given).float().mean()


accelerator = Accelerator(cpu=True)
with tempfile.TemporaryDirectory() as own:
    folder = broadcast_object_list([own])[0]  # all processes use the folder of the main process
    _, accuracy = train("CE", 0, EPOCHS, f"{folder}/ce")
    accelerator.print(f"CE      accuracy on clean test digits {accuracy:.1%}")
    train("CE+OGC", 0, EPOCHS // 2, f"{folder}/ogc")
    criterion, accuracy = train("CE+OGC", EPOCHS // 2, EPOCHS, f"{folder}/ogc")  # new objects, restored from the folder
    accelerator.print(f"CE+OGC  accuracy on clean test digits {accuracy:.1%}, tau {float(criterion.tau):.3g}, ", end="")
    accelerator.print(f"weight of the noisy normal {float(criterion.mixture.noisy_weight):.1%}")
    accelerator.wait_for_everyone()
if is_smoke:
    accelerator.print("--smoke is too short for a comparison.")
accelerator.print("Next: in your loop, create OGC('ce', optimizer) after prepare, and call register_for_checkpointing.")
