"""The plain version of norm, residual and ReLU. The fused one is tested in tests/gpu."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from ogc.models import NormAct


def pair() -> tuple[NormAct, nn.BatchNorm2d]:
    module, plain = NormAct(5, eps=1e-3, momentum=0.2), nn.BatchNorm2d(5, eps=1e-3, momentum=0.2)
    nn.init.normal_(plain.weight)
    nn.init.normal_(plain.bias)
    module.load_state_dict(plain.state_dict())
    return module, plain


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("act", [True, False])
@pytest.mark.parametrize("with_residual", [True, False])
def test_matches_batch_norm_residual_relu(training, act, with_residual):
    module, plain = (each.train(training) for each in pair())
    for _ in range(3):
        x = torch.randn(4, 5, 3, 3) * 2 + 1
        residual = torch.randn_like(x) if with_residual else None
        expected = plain(x) + (0 if residual is None else residual)
        assert torch.equal(module(x, residual, act=act), F.relu(expected) if act else expected)
    assert torch.equal(module.running_mean, plain.running_mean)
    assert torch.equal(module.running_var, plain.running_var)


def test_state_dict():
    """Plain dicts (as from safetensors) and the state of torch's batch norm can be loaded."""
    module, plain = pair()
    module(torch.randn(4, 5, 3, 3))
    state = dict(module.state_dict())
    assert list(state) == ["weight", "bias", "running_mean", "running_var"]
    other = nn.Sequential(NormAct(5))
    other.load_state_dict({f"0.{name}": value for name, value in state.items()})
    assert all(torch.equal(value, other.state_dict()[f"0.{name}"]) for name, value in state.items())
    other.load_state_dict({f"0.{name}": value for name, value in plain.state_dict().items()})
    with pytest.raises(RuntimeError, match="running_mean"):
        other.load_state_dict({"0.weight": state["weight"], "0.bias": state["bias"], "0.running_var": state["bias"]})
    module.reset_running_stats()
    assert torch.equal(torch.stack([module.running_mean, module.running_var]), torch.tensor([[0.0] * 5, [1.0] * 5]))


def test_half_precision_uses_float32_statistics():
    module, _ = pair()
    x = (torch.randn(8, 5, 4, 4) + 3).bfloat16()
    assert module(x).dtype == torch.bfloat16
    assert_close(module.running_mean, 0.2 * x.float().mean((0, 2, 3)))


def test_gradients():
    module = pair()[0].double()
    x, residual = (torch.randn(2, 5, 3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(module, (x, residual))
    assert torch.autograd.gradgradcheck(module, (x, residual))
