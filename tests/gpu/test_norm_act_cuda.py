"""The fused norm, residual and ReLU against float64. Without a GPU, TRITON_INTERPRET=1 runs the small shapes."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from ogc.kernels import HAVE_TRITON, fused_norm
from ogc.models import NormAct, build_network

CUDA = torch.cuda.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CUDA and os.environ.get("TRITON_INTERPRET") != "1", reason="needs a CUDA device"),
    pytest.mark.skipif(not HAVE_TRITON, reason="needs Triton"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
DEVICE = "cuda" if CUDA else "cpu"
REAL = [(128, 64, 32, 32), (128, 128, 16, 16), (128, 256, 8, 8), (128, 512, 4, 4)]
ODD = [(3, 19, 7, 5), (2, 70, 9, 1), (37, 5, 3, 3), (2, 1, 1, 1)]
SHAPES = REAL + ODD if CUDA else ODD
# The interpreter truncates where a GPU rounds.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2**-8 if CUDA else 2**-7, torch.float16: 2**-11}


def norm(channels):
    generator = torch.Generator().manual_seed(1)
    module = NormAct(channels)
    for parameter, around in ((module.weight, 1.0), (module.bias, 0.0)):
        parameter.data = around + 0.3 * torch.randn(channels, generator=generator)
    for buffer in (module.running_mean, module.running_var):
        buffer.copy_(torch.rand(channels, generator=generator))
    return module.to(DEVICE)


def batch(shape, dtype=torch.float32, offset=1.0):
    """x, the residual and the gradient of the result."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator) + offset for offset in (offset, 0.0, 0.5)]
    return [tensor.to(DEVICE, dtype, memory_format=torch.channels_last) for tensor in tensors]


def norm_of(module):
    weights, running = (module.weight, module.bias), (module.running_mean, module.running_var)
    return fused_norm.Norm(*weights, *running, module.momentum, module.eps, module.training)


def serves(module, x, residual):
    return fused_norm.serves(x, residual, norm_of(module))


def fused(module, x, residual, *, act=True):
    assert not CUDA or serves(module, x, residual)
    return fused_norm.norm_act(x, residual, norm_of(module), act=act)[0]


def both_paths(module, x, residual, *, act=True):
    return torch.stack(fused_norm.norm_act(x, residual, norm_of(module), act=act))


def run(call, module, x, residual, dy, act=True):
    """The output, running statistics and gradients of a training step."""
    leaves = {"x": x.detach().requires_grad_(), "weight": module.weight, "bias": module.bias}
    if residual is not None:
        leaves["residual"] = residual = residual.detach().requires_grad_()
    y = call(module, leaves["x"], residual, act=act)
    gradients = torch.autograd.grad(y, list(leaves.values()), dy)
    left = {f"d{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}
    return {"y": y.detach(), "mean": module.running_mean.clone(), "var": module.running_var.clone(), **left}


def check(shape, dtype, act, residual, offset, atol):
    x, other, dy = batch(shape, dtype, offset)
    doubles = x.double(), other.double() if residual else None
    # A value within rounding of zero may fall on either side of it, so its gradient is set to zero.
    dy = dy.where(norm(shape[1]).double()(*doubles, act=False).abs() > 100 * atol, 0)
    found = run(fused, norm(shape[1]), x, other if residual else None, dy, act)
    expected = run(NormAct.forward, norm(shape[1]).double(), *doubles, dy.double(), act)
    assert all(found[name].is_contiguous(memory_format=torch.channels_last) for name in ("y", "dx"))
    for name, value in expected.items():
        elementwise = name in ("y", "dx", "dresidual")
        assert found[name].dtype == (dtype if elementwise else torch.float32)
        rtol = ROUNDING[dtype] if elementwise else ROUNDING[torch.float32]
        size = max(1.0, float(value.abs().max()))
        assert_close(found[name].double(), value, rtol=rtol, atol=atol * size, msg=lambda text, n=name: f"{n}: {text}")
    if residual:
        assert torch.equal(found["dresidual"].double(), expected["dresidual"])


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("act", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_matches_plain(shape, residual, act, dtype):
    check(shape, dtype, act, residual, offset=1.0, atol=1e-5)


def test_variance_is_accurate_for_a_mean_far_from_zero():
    """E[x^2] - E[x]^2 would be off by a few per cent here."""
    check(SHAPES[0], torch.float32, act=True, residual=True, offset=1000.0, atol=2e-4)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, *([torch.bfloat16] if CUDA else [])])
def test_gradients_of_both_paths_are_added(residual, dtype):
    """Bit for bit the same as passing their sum as one gradient."""
    x, shortcut, dy = batch((4, 24, 5, 7), dtype)
    other, shortcut = dy.flip(0).contiguous(memory_format=torch.channels_last), shortcut if residual else None
    given = run(both_paths, norm(24), x, shortcut, torch.stack([dy, other]))
    for name, value in run(fused, norm(24), x, shortcut, dy + other).items():
        assert torch.equal(given[name][0] if name == "y" else given[name], value), name


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_evaluation(shape, residual):
    x, other, _ = batch(shape)
    module = norm(shape[1]).eval()
    with torch.no_grad():
        found = fused(module, x, other if residual else None)
    expected = norm(shape[1]).double().eval()(x.double(), other.double() if residual else None)
    assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in norm(shape[1]).state_dict().items())


def test_nan_is_not_hidden():
    x, other, _ = batch(SHAPES[0])
    x[0, 0, 0, 0] = torch.nan
    y = fused(norm(SHAPES[0][1]), x, other)
    assert y[:, 0].isnan().all()
    assert y[:, 1:].isfinite().all()


def test_gradient_of_any_layout():
    """The gradient of a mean over the image is an expanded tensor."""
    x, _, _ = batch(SHAPES[0])
    one, two = x.clone().requires_grad_(), x.double().requires_grad_()
    fused(norm(SHAPES[0][1]), one, None).mean((2, 3)).square().sum().backward()
    norm(SHAPES[0][1]).double()(two).mean((2, 3)).square().sum().backward()
    assert_close(one.grad.double(), two.grad, rtol=1e-4, atol=1e-5)


def test_second_derivative_is_refused():
    x, _, dy = batch(SHAPES[0])
    x.requires_grad_()
    (dx,) = torch.autograd.grad(fused(norm(SHAPES[0][1]), x, None), x, dy.requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


def test_results_are_deterministic():
    x, other, dy = batch(SHAPES[0], torch.bfloat16)
    one, two = (run(fused, norm(SHAPES[0][1]), x, other, dy) for _ in range(2))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


@needs_cuda
@pytest.mark.parametrize("shape", SHAPES[:5])
def test_graph_replays_are_bit_identical(shape):
    x, other, dy = batch(shape, torch.bfloat16)
    expected = run(fused, norm(shape[1]), x, other, dy)
    module, graph, stream = norm(shape[1]), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(fused, module, x, other, dy)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        captured = run(fused, module, x, other, dy)
    for _ in range(3):
        module.load_state_dict(norm(shape[1]).state_dict())
        for value in captured.values():
            value.fill_(torch.nan)
        graph.replay()
        assert all(torch.equal(value, captured[name]) for name, value in expected.items())


@needs_cuda
def test_no_synchronisation():
    x, other, dy = batch(SHAPES[0], torch.bfloat16)
    module = norm(SHAPES[0][1])
    run(fused, module, x, other, dy)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        run(fused, module, x, other, dy)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_supported_inputs():
    module, (x, other, _) = norm(64), batch(SHAPES[0])
    assert serves(module, x, None)
    assert serves(module, x, other)
    for wrong, residual in (
        (x.contiguous(), None),
        (x, other.contiguous()),
        (x, other.bfloat16()),
        (x.double(), None),
        (x[:1, :, :1, :1], None),
    ):
        assert not serves(module, wrong, residual)
    assert not serves(norm(64).bfloat16(), x.bfloat16(), None)
    assert not serves(module.eval(), x, None)
    with torch.no_grad():
        assert serves(module, x, None)


@needs_cuda
def test_gradients_of_a_network_match():
    """Only the channels-last layout is fused."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(32, 3, 32, 32, generator=generator).cuda()
    labels = torch.randint(10, (32,), generator=generator).cuda()
    torch.manual_seed(0)
    network = build_network("resnet18-cifar", inputs=(3, 32, 32), classes=10).cuda().double()
    state, results = network.state_dict(), []
    for dtype, layout in ((torch.float32, torch.channels_last), (torch.float64, torch.contiguous_format)):
        network.load_state_dict(state)
        network.to(dtype=dtype, memory_format=layout)
        with torch.backends.cudnn.flags(allow_tf32=False):
            loss = F.cross_entropy(network(images.to(dtype=dtype, memory_format=layout)), labels)
            gradients = torch.autograd.grad(loss, list(network.parameters()))
        results.append((loss.double(), torch.cat([gradient.double().flatten() for gradient in gradients])))
    (loss, found), (expected_loss, expected) = results
    assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    assert (found - expected).norm() < 5e-3 * expected.norm(), "a few ReLUs fall on the other side"
