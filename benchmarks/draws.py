"""Instance-dependent noise is another one with every seed: how the draws differ, and what that does to a small network.

    python benchmarks/draws.py --data ~/cifar --run     # measure: half an hour to an hour on one core
    python benchmarks/draws.py --write docs/log.md      # put the table between its marks there

CIFAR-10, rate 0.4. The network: four convolutions, 4 epochs, SGD as in the paper's protocol before its first drop.
"""

from __future__ import annotations

import time
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from marks import command
from ogc import losses
from ogc.data import augment, cifar10
from ogc.demo.training import shuffled
from ogc.noise import confusion_matrix, instance_dependent
from provenance import provenance

RESULTS = Path(__file__).parent / "results" / "instance-draws.json"
BEGIN, END = "<!-- made by benchmarks/draws.py -->", "<!-- end -->"
RATE, SEEDS, EPOCHS, BATCH = 0.4, range(8), 4, 128
METHODS: dict[str, nn.Module] = {"PHuber-CE": losses.PHuberCE(tau=2.0), "GCE": losses.GCE(q=0.9)}  # as in the paper


def of_draw(true: Tensor, given: Tensor) -> dict[str, Any]:
    """How a draw's labels lie."""
    counts = torch.as_tensor(confusion_matrix(true.numpy(), given.numpy(), num_classes=10)).double()  # (true, given)
    share = counts.sum(0) / counts.sum()
    wrong = counts - counts.diag().diag()
    of_class = wrong / counts.sum(1, keepdim=True)
    return {
        "given": sorted(share.tolist(), reverse=True),  # share of each given label
        "first_of_wrong": float(wrong[:, share.argmax()].sum() / wrong.sum()),  # the most frequent one's, of the wrong
        "largest_wrong": float(of_class.amax(1).mean()),  # share of a class that one wrong label has, in the mean
        "entropy": float(-torch.special.xlogy(of_class, of_class).sum(1).mean()),
        "least_right": float((counts.diag() / counts.sum(0)).min()),  # of a given label
    }


def convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for i, o in pairwise((3, 16, 32, 64, 128)):
        layers += [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def train(method: str, inputs: Tensor, given: Tensor, test: Tensor, labels: Tensor) -> dict[str, Any]:
    """After each epoch test accuracy in percent, and how many classes more than 2 % of the images are taken for."""
    torch.manual_seed(1)
    network = convolutions()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    criterion = METHODS[method]
    batches = torch.Generator().manual_seed(1)
    accuracy, classes = [], []
    for _ in range(EPOCHS):
        network.train()
        for batch in shuffled(len(inputs), BATCH, batches):
            optimizer.zero_grad()
            criterion(network(inputs[batch]), given[batch]).backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            said = torch.cat([network(part).argmax(1) for part in test.split(1000)])
        accuracy.append(100 * (said == labels).double().mean().item())
        classes.append(int((said.bincount(minlength=10) > 0.02 * len(said)).sum()))
    return {"test_accuracy": accuracy, "classes": classes}


def measure(data: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    facts, began = provenance(), time.perf_counter()
    images, sets = cifar10(data)
    true, test = images.given, sets["test"]
    inputs, asked = (augment.normalise(each.inputs, *augment.CIFAR10) for each in (images, test))
    drawn = {
        seed: torch.as_tensor(instance_dependent(images.inputs, true.numpy(), RATE, num_classes=10, seed=seed))
        for seed in SEEDS
    }
    draws = [{"seed": seed, **of_draw(true, given)} for seed, given in drawn.items()]
    runs = []
    for method, seed in product(METHODS, SEEDS):
        found = train(method, inputs, drawn[seed], asked, test.given)
        runs.append({"seed": seed, "method": method, **found})
        print(seed, method, found, flush=True)
    seconds = round(time.perf_counter() - began)
    return {**facts, "seconds": seconds, "rate": RATE, "epochs": EPOCHS, "draws": draws, "runs": runs}


def table(result: dict[str, Any]) -> str:
    """Markdown: a row per draw."""
    head = ["noise seed", "most frequent labels", "largest wrong class", "entropy", "least right", *METHODS]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    last = {(run["seed"], run["method"]): (run["test_accuracy"][-1], run["classes"][-1]) for run in result["runs"]}
    for draw in result["draws"]:
        first, second = (f"{100 * share:.1f} %" for share in draw["given"][:2])
        lies = [f"{first}, {second}", f"{100 * draw['largest_wrong']:.0f} %"]
        lies += [f"{draw['entropy']:.2f}", f"{100 * draw['least_right']:.0f} %"]
        accuracies = ["{:.1f} ({})".format(*last[draw["seed"], method]) for method in METHODS]
        lines.append(f"| {draw['seed']} | {' | '.join(lies + accuracies)} |")
    lines.append(
        "\nThe two most frequent given labels; what one wrong label has of a class, in the mean; entropy of the "
        "wrong labels; the share of right ones in the worst given label. Then a small network after "
        f"{result['epochs']} epochs, test accuracy in percent (classes that it says); "
        f"{result['date'][:10]}, torch {result['torch']}."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    command(__doc__, RESULTS, measure, table, (BEGIN, END), data=Path("data"))
