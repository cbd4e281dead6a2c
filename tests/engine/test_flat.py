"""The network's tensors are views of flat memory, each weight is in it once, and gradients match its order."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from ogc.engine.flat import Flat
from ogc.kernels import sgd
from ogc.models import build_network
from ogc.training.run import Run
from small_runs import CLASSES, job


def small_run(precision: str = "bf16") -> Run:
    network = build_network("resnet20-cifar", inputs=(3, 8, 8), classes=CLASSES)
    return Run(job(net=network, precision=precision, average=0.99), device=torch.device("cpu"))


@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_network_tensors_are_views_of_flat_memory(precision: str) -> None:
    run = small_run(precision)
    inputs = torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    before = {name: value.clone() for name, value in run.network.state_dict().items()}
    optimizer = run.optimizer.state_dict()["param_groups"]
    run.network.eval()
    expected = run.network(inputs)

    flat = Flat(run)
    assert all(torch.equal(value, before[name]) for name, value in run.network.state_dict().items())
    assert run.optimizer.state_dict()["param_groups"] == optimizer
    assert flat.n_low == (flat.short.numel() if precision == "bf16" else 0)
    with torch.no_grad():
        flat.weight.mul_(2)
        flat.stats.add_(1)
        assert flat.average is not None
        flat.average.zero_()
    for name, value in run.network.named_parameters():
        assert torch.equal(value, 2 * before[name]), "the network's weights are views"
        assert run.average is not None
        assert not run.average[name].any(), "and so are the averages"
        assert not run.optimizer.state[value]["momentum_buffer"].any()
    for name, buffer in run.network.named_buffers():
        assert torch.equal(buffer, before[name] + 1)
    with torch.no_grad():
        flat.weight.div_(2)
        flat.stats.sub_(1)
    weights = flat.network_weights(flat.weight, flat.weight[: flat.n_low]) | flat.network_buffers(flat.stats)
    assert torch.equal(functional_call(run.network, weights, (inputs,)), expected)


def test_blocks_cover_every_weight_once() -> None:
    flat = Flat(small_run())
    touched = torch.zeros_like(flat.weight)
    for parameter, start, at, count in flat.blocks.tolist():
        assert (start % sgd.ALIGNED, at % sgd.ALIGNED, count % sgd.ALIGNED) == (0, 0, 0)
        assert at == flat.offsets[parameter] + start
        assert (at < flat.n_low) == (at + count <= flat.n_low), "a block is all low or all high"
        touched[at : at + count] += 1
    assert (touched == 1).all()


def test_gradients_match_the_order_of_memory() -> None:
    flat = Flat(small_run())
    gradients = [torch.randn(value.shape) for value in flat.params]
    ordered = flat.in_memory_order(gradients)
    for i, (gradient, part) in enumerate(zip(gradients, ordered, strict=True)):
        assert part.numel() % sgd.ALIGNED == 0
        memory = torch.as_strided(part, (part.numel(),), (1,))
        padded = F.pad(memory, (flat.offsets[i], flat.weight.numel() - flat.offsets[i] - memory.numel()))
        assert torch.equal(flat.view(padded, i), gradient)
