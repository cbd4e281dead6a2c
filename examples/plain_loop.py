"""Train in a plain loop on digits with half of the labels wrong: first with CE, then with OGC, saved and resumed.

python examples/plain_loop.py     # half a minute on a CPU, offline; the digits need scikit-learn
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

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
inputs, true = train_set.inputs, train_set.given
given = torch.from_numpy(symmetric(true.numpy(), 0.5, num_classes=10))  # noisy labels


def train(method, checkpoint, until=EPOCHS):
    """Train until epoch ``until`` and save. Resume from the checkpoint if there is one."""
    torch.manual_seed(0)
    model = mlp(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [EPOCHS // 3, 2 * EPOCHS // 3])
    criterion = OGC("ce", optimizer) if method == "CE+OGC" else nn.CrossEntropyLoss()  # the only change
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "criterion": criterion}
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        start = saved.pop("epoch")
        for name, state in saved.items():
            parts[name].load_state_dict(state)

    for epoch in range(start, until):
        order = torch.randperm(len(given), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(128):
            loss = criterion(model(inputs[batch]), given[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    torch.save({"epoch": until} | {name: part.state_dict() for name, part in parts.items()}, checkpoint)
    return model, criterion


def accuracy(model):
    with torch.no_grad():
        return (model(test_set.inputs).argmax(1) == test_set.given).float().mean()


with tempfile.TemporaryDirectory() as folder:
    model, _ = train("CE", Path(folder) / "ce.pt")
    print(f"CE      accuracy on clean test digits {accuracy(model):.1%}")

    train("CE+OGC", Path(folder) / "ogc.pt", until=EPOCHS // 2)
    model, criterion = train("CE+OGC", Path(folder) / "ogc.pt")  # new model and criterion, restored from the file
    print(f"CE+OGC  accuracy on clean test digits {accuracy(model):.1%}, tau {float(criterion.tau):.3g}, ", end="")
    weight, wrong = float(criterion.mixture.noisy_weight), (given != true).float().mean()
    print(f"weight of the noisy normal {weight:.1%} ({wrong:.1%} of the labels are wrong)")

suspicion = criterion.noise_probability(model(inputs), given)
print(f"The most suspicious labels: {suspicion.argsort(descending=True)[:5].tolist()}")
if is_smoke:
    print("--smoke is too short for a comparison.")
print("Next: in your own loop, replace nn.CrossEntropyLoss() with OGC('ce', optimizer), and save its state_dict.")
