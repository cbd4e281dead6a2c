"""Every criterion meets every contract of asserts.py."""

import pytest
import torch
from torch.testing import assert_close

import asserts
from ogc import OGC
from ogc.losses import LOSSES, CrossEntropy
from samples import CRITERIA, batch


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("contract", asserts.CONTRACTS, ids=lambda contract: contract.__name__)
def test_contract(contract, name):
    contract(CRITERIA[name])


@pytest.mark.parametrize(
    "make", [CrossEntropy, lambda **arguments: OGC("ce", follow_lr=False, **arguments)], ids=["ce", "fresh ogc"]
)
def test_is_cross_entropy(make):
    asserts.is_cross_entropy(make)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", [name for name in CRITERIA if name not in LOSSES])
def test_traces(name):
    asserts.traces(CRITERIA[name])


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize(("backend", "dtype"), [("inductor", torch.float32), ("aot_eager", torch.bfloat16)])
def test_compiled_losses_equal_eager_ones(backend, dtype):
    """All eleven losses are in one graph, so that the compiler runs once. clipping/test_compiled.py covers OGC."""
    criteria = [make() for make in LOSSES.values()]

    def all_losses(logits, labels):
        return torch.stack([criterion(logits, labels) for criterion in criteria])

    logits, labels = batch(dtype=dtype)
    labels[::5] = -100
    compiled = torch.compile(all_losses, fullgraph=True, backend=backend)
    value, gradient = asserts.value_and_gradient(compiled, logits, labels)
    expected, expected_gradient = asserts.value_and_gradient(all_losses, logits, labels)
    assert_close(value, expected, rtol=1e-6, atol=1e-6)
    assert_close(gradient, expected_gradient)
