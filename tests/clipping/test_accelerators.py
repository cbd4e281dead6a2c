"""OGC on accelerators without custom kernels: the queue is not read at every step, and float64 may be missing (MPS).

No such device is needed. The first test runs the accelerator path on the CPU; the others use the meta device.
"""

import pytest
import torch

from ogc import OGC, given_label
from ogc.clipping import loss_queue
from ogc.clipping import state as state_module
from ogc.clipping.state import State
from samples import noisy_batch, optimizer_with, same_bits


@pytest.mark.parametrize("rule", [{}, {"epsilon": 0.5}, {"epsilon0": 20.0}], ids=str)
def test_updates_on_copies_match_updates_in_place(rule, monkeypatch):
    """Buffers treated as remote: steps push without reading, and updates work on copies."""
    optimizer, copies = optimizer_with(0.1), []

    def to_cpu(state):
        copies.append(state)
        return State(*(buffer.clone() for buffer in state))

    settings = {"every": 8, "queue_size": 64, **rule}
    remote, plain = OGC("ce", optimizer, **settings), OGC("ce", optimizer, **settings)
    for step in range(40):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        logits, labels = noisy_batch(24, seed=step)
        labels[: step % 3] = -100
        expected = plain(logits, labels)
        with monkeypatch.context() as patch:
            patch.setattr(State, "to_cpu", to_cpu)
            patch.setattr("ogc.clipping.backends.cuda.push", loss_queue.push_by_scatter)
            assert torch.equal(remote(logits, labels), expected)
            remote.flush()
        for name, buffer in plain.named_buffers():
            other = remote.get_buffer(name)
            assert same_bits(*(b[:-1] if name == "queue" else b for b in (buffer, other))), (step, name)
    assert plain.p0 > 1e-3
    assert len(copies) == (40 if rule == {} else 5)  # the default rule updates eight times as often at first


@pytest.fixture
def no_float64(monkeypatch):
    """Pretend that the meta device has no float64."""

    def widest_float(device):
        return torch.float32 if device.type == "meta" else torch.float64

    monkeypatch.setattr(state_module, "widest_float", widest_float)


def test_float64_buffers_stay_on_cpu_if_device_lacks_float64(no_float64):
    criterion = OGC("ce", follow_lr=False, epsilon=2.0, every=1, queue_size=64)
    criterion(*noisy_batch(64, seed=0))
    before = {name: buffer.clone() for name, buffer in criterion.named_buffers()}
    criterion.to("meta")
    for name, buffer in criterion.named_buffers():
        assert buffer.dtype == before[name].dtype
        assert buffer.device.type == ("cpu" if buffer.dtype == torch.float64 else "meta"), name
        assert buffer.is_meta or same_bits(buffer, before[name])
    assert criterion.p0 == before["solution"][0]


def test_step_creates_no_float64_on_device_without_it(no_float64, monkeypatch):
    """Run everything but the update on the meta device. Any float64 there is an error."""
    monkeypatch.setattr("ogc.clipping.default_rule.widest_float", state_module.widest_float)
    monkeypatch.setattr("ogc.clipping.ogc.widest_float", state_module.widest_float)
    to, double = torch.Tensor.to, torch.Tensor.double

    def checked(convert):
        def call(tensor, *args, **kwargs):
            result = convert(tensor, *args, **kwargs)
            assert not (result.is_meta and result.dtype == torch.float64), "float64 on a device that has none"
            return result

        return call

    monkeypatch.setattr(torch.Tensor, "to", checked(to))
    monkeypatch.setattr(torch.Tensor, "double", checked(double))
    criterion = OGC("ce", follow_lr=False, every=800)  # no update at the first step
    logits, labels = torch.zeros(8, 10, device="meta", requires_grad=True), torch.zeros(8, dtype=torch.long).to("meta")
    loss = criterion(logits, labels)
    assert (loss.device.type, loss.dtype) == ("meta", torch.float32)
    loss.backward()
    assert logits.grad.dtype == torch.float32
    assert criterion.noise_probability(logits, labels).dtype == torch.float32


def test_mps_has_no_float64():
    assert given_label.widest_float(torch.device("mps")) == torch.float32
    assert {given_label.widest_float(torch.device(name)) for name in ("cpu", "cuda", "xpu")} == {torch.float64}
