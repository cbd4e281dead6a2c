"""Values and gradients of all eleven losses with the paper's parameters for CIFAR-10 and CIFAR-100."""

import json
from pathlib import Path

import pytest
import torch

from asserts import value_and_gradient
from ogc.losses import LOSSES

CASES = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())
ROWS = [(case, name) for case in CASES for name in case["losses"]]


@pytest.mark.parametrize(("case", "name"), ROWS, ids=[f"{case['num_classes']}-{name}" for case, name in ROWS])
def test_golden(case, name):
    expected = case["losses"][name]
    logits = torch.tensor(case["logits"], dtype=torch.float64)
    value, gradient = value_and_gradient(LOSSES[name](**expected["params"]), logits, torch.tensor(case["labels"]))
    assert value.item() == pytest.approx(expected["value"], rel=1e-6)
    assert gradient.norm().item() == pytest.approx(expected["grad_norm"], rel=1e-6)
    assert gradient[0].tolist() == pytest.approx(expected["grad_first"], rel=1e-6)


def test_every_loss_has_golden_values():
    assert all(case["losses"].keys() == LOSSES.keys() for case in CASES)
