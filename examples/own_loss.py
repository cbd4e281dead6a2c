"""Train your own loss with and without OGC, on digits with half of the labels wrong.

pip install ".[cli]"
python examples/own_loss.py            # half a minute on a CPU, offline
python examples/own_loss.py --smoke    # a smoke test of a few seconds
"""

import argparse

import torch
from torch import Tensor, nn

from ogc import OGC
from ogc.data import load_digits
from ogc.losses import Pointwise
from ogc.models import mlp
from ogc.noise import symmetric


class Insistent(Pointwise):
    """H + H^2 / 2 with H = -log p, steeper than CE where p is small.

    OGC can clip it, because it depends only on p and its slope falls as p rises.
    """

    def value(self, p: Tensor) -> Tensor:
        H = -torch.log(p)
        return H + H**2 / 2

    def slope(self, p: Tensor) -> Tensor:  # optional; by default, autograd derives it from value
        return (1 - torch.log(p)) / p


def test_accuracy(method: str, epochs: int) -> float:
    digits, others = load_digits()
    given = torch.from_numpy(symmetric(digits.true.numpy(), 0.5, num_classes=10))
    torch.manual_seed(0)
    model = mlp(64, 10, hidden=(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion: nn.Module = OGC(Insistent(), optimizer) if method.endswith("OGC") else Insistent()
    for _ in range(epochs):
        for batch in torch.randperm(len(given)).split(128):
            loss = criterion(model(digits.inputs[batch]), given[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(method, criterion)
    with torch.no_grad():
        right = model(others["test"].inputs).argmax(1) == others["test"].true
    return right.float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="run a smoke test of a few seconds")
    smoke = parser.parse_args().smoke
    for method in ("Insistent", "Insistent+OGC"):
        print(f"{method}: test accuracy {test_accuracy(method, epochs=5 if smoke else 60):.1%}\n")
    if smoke:
        print("--smoke is too short for a comparison.")
    print("To compare it with other losses under four kinds of noise:")
    print("  ogc bench run digits --method examples/own_loss.py:Insistent+ogc --methods ce,ce+ogc --out runs/bench")
    print("  ogc tables digits --results runs/bench")
