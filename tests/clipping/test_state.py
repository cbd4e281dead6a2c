"""Saving, loading, copying and moving a criterion: everything that the next step depends on, and nothing else."""

import copy
import gc
import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from ogc import OGC, losses
from ogc.clipping import EMA, Fixed, Linear, backends
from samples import batch, clipping_ogc, noisy_batch, optimizer_with, same_bits, state_of


def save_and_load(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def run_steps(criterion: OGC, optimizer, steps: range) -> list[torch.Tensor]:
    values = []
    for step in steps:
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        values.append(criterion(*noisy_batch(24 + step % 5, seed=step)))
    return values


def assert_same_state(a: OGC, b: OGC) -> None:
    assert all(same_bits(buffer, other) for buffer, other in zip(a.buffers(), b.buffers(), strict=True))


@pytest.mark.parametrize(
    "arguments", [{}, {"epsilon0": 20.0}, {"threshold": EMA(0.9)}, {"threshold": Linear(9.0, steps=60)}], ids=str
)
@pytest.mark.parametrize("at", [3, 21, 27])
def test_save_between_updates_and_resume(at, arguments):
    optimizer = optimizer_with(0.1)
    make = lambda: OGC("fl", optimizer, every=8, queue_size=128, **arguments)  # noqa: E731
    criterion, loaded = make(), make()
    run_steps(criterion, optimizer, range(at))
    run_steps(loaded, optimizer, range(5))  # replaced by the loaded state
    loaded.load_state_dict(save_and_load(criterion.state_dict()))
    assert_same_state(criterion, loaded)
    for value, again in zip(*(run_steps(c, optimizer, range(at, 60)) for c in (criterion, loaded)), strict=True):
        assert torch.equal(value, again)
    assert_same_state(criterion, loaded)


RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "states.json").read_text())


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["rule"])
def test_state_of_an_older_version_is_resumed(recorded):
    """Resume states that commit ade1ded saved after 21 steps.

    The expected losses come from that commit, or from the current default rule. They were recorded on one
    processor. On others, float32 arithmetic differs in the last bits.
    """
    optimizer = optimizer_with(0.1)
    rule = {"threshold": EMA(0.9)} if recorded["rule"] == "ema" else {}
    criterion = OGC(optimizer=optimizer, every=8, queue_size=128, **recorded["arguments"], **rule)
    extra = recorded["state"]["_extra_state"]
    saved = {name: recorded["state"][name] for name, _ in criterion.named_buffers() if name != "thresholds"}
    tensors = {name: torch.tensor(values, dtype=getattr(criterion, name).dtype) for name, values in saved.items()}
    criterion.load_state_dict({**tensors, "_extra_state": extra})
    values = []
    for step in range(21, 61):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        logits, labels = noisy_batch(24 + step % 5, seed=step)
        labels[: step % 3] = -100
        values.append(float(criterion(logits, labels)))
    assert values == pytest.approx(recorded["losses"], rel=1e-4)
    assert criterion.solution.tolist() == pytest.approx(recorded["solution"], rel=1e-4, nan_ok=True)


def test_default_rule_waits_until_number_of_classes_is_known(monkeypatch):
    """The number of classes is not saved. Until a call reveals it, nothing is solved, not even by a kernel."""
    optimizer = optimizer_with(0.1)
    criterion, loaded = (OGC("ce", optimizer, every=64, queue_size=128) for _ in "ab")
    run_steps(criterion, optimizer, range(8))
    loaded.load_state_dict(criterion.state_dict())
    with monkeypatch.context() as patch:
        patch.setattr(backends, "kernels", lambda *_: pytest.fail("There should be nothing to launch."))
        loaded.update()
    assert_same_state(criterion, loaded)
    for each in (criterion, loaded):
        run_steps(each, optimizer, range(8, 9))
        each.update()
    assert not criterion.mixture.noisy_weight.isnan()
    assert_same_state(criterion, loaded)


def test_saves_as_part_of_a_larger_module():
    model, copy_ = (
        torch.nn.ModuleDict({"criterion": OGC("ce", follow_lr=False, every=1, queue_size=64)}) for _ in "ab"
    )
    model["criterion"](*noisy_batch(64, seed=0))
    copy_.load_state_dict(save_and_load(model.state_dict()))
    assert_same_state(model["criterion"], copy_["criterion"])
    assert copy_["criterion"]._step == 1


def test_state_dict_keys():
    assert set(OGC("ce").state_dict()) == {
        "queue",
        "seen",
        "steps",
        "degenerate",
        "unreliable",
        "solution",
        "highest_lr",
        "by_class",
        "thresholds",
        "history",
        "_extra_state",
    }


@pytest.mark.parametrize(
    ("other", "found", "own"),
    [
        (OGC("ce", queue_size=64), "'queue_size': 64", "'queue_size': 128"),
        (OGC("fl", queue_size=128), "'name': 'Focal', 'gamma': 0.5", "'name': 'CrossEntropy'"),
    ],
    ids=["size", "loss"],
)
def test_state_of_another_ogc_is_rejected(other, found, own):
    assert_rejected(OGC("ce", follow_lr=False, every=1, queue_size=128), other, found, own)


def test_state_with_another_loss_parameter_is_rejected():
    assert_rejected(
        OGC(losses.Focal(gamma=2.0), follow_lr=False, every=1, queue_size=128),
        OGC("fl", queue_size=128),
        "'gamma': 0.5",
        "'gamma': 2.0",
    )


def test_schedule_with_other_parameters_is_rejected():
    state = OGC("ce", threshold=Linear(10.0, steps=100)).state_dict()
    OGC("ce", threshold=Linear(10.0, steps=100)).load_state_dict(state)
    for other in (Linear(5.0, steps=100), Linear(10.0, steps=10), Fixed(2.0), None):
        with pytest.raises(ValueError, match=r"saved with .*'Linear\(beta=10\.0, steps=100\.0\)'"):
            OGC("ce", threshold=other).load_state_dict(state)


@pytest.mark.parametrize(
    ("saved", "loading"),
    [
        (Linear(10, steps=100), Linear(10.0, steps=100)),
        (Linear(10.0, steps=100.0), Linear(10.0, steps=100)),
        (Fixed(2), Fixed(2.0)),
        (Fixed(np.float64(2)), Fixed(torch.tensor(2.0))),
        (EMA(0), EMA(0.0)),
    ],
    ids=str,
)
def test_equal_schedules_load_each_other(saved, loading):
    state = save_and_load(OGC("ce", threshold=saved).state_dict())
    OGC("ce", threshold=loading).load_state_dict(state)


def test_state_of_an_older_version_names_only_the_class_of_its_schedule():
    state = OGC("ce", threshold=EMA(0.9)).state_dict()
    state["_extra_state"]["threshold"] = "EMA"
    OGC("ce", threshold=EMA(0.9)).load_state_dict(state)
    for other in (Linear(10.0, steps=100), None):
        with pytest.raises(ValueError, match="belongs to another OGC"):
            OGC("ce", threshold=other).load_state_dict(state)


def test_schedule_that_is_a_function_is_compared_by_name():
    def halved(step, tau):
        return tau / 2

    state = OGC("ce", threshold=halved).state_dict()
    OGC("ce", threshold=halved).load_state_dict(state)
    with pytest.raises(ValueError, match="belongs to another OGC"):
        OGC("ce", threshold=lambda step, tau: tau).load_state_dict(state)


def assert_rejected(criterion, other, found, own):
    criterion(*noisy_batch(128, seed=0))
    before = state_of(criterion)
    with pytest.raises(
        ValueError, match=r"^This state belongs to another OGC: it was saved with .*; this one has .*"
    ) as error:
        criterion.load_state_dict(other.state_dict())
    message = str(error.value)
    assert message.index(found) < message.index("; this one has") < message.index(own)
    assert all(same_bits(buffer, before[name]) for name, buffer in criterion.named_buffers())


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))], ids=["deepcopy", "pickle"])
def test_copies_are_independent_and_have_no_optimizer(copier):
    optimizer = optimizer_with(0.1)
    criterion = OGC("ce", optimizer, every=2, queue_size=64)
    run_steps(criterion, optimizer, range(5))
    before = state_of(criterion)
    copied = copier(criterion)
    assert_same_state(criterion, copied)
    assert copied._key != criterion._key
    with pytest.raises(RuntimeError, match="no optimizer is attached"):
        copied(*batch())
    assert all(same_bits(buffer, before[name]) for name, buffer in criterion.named_buffers())
    copied = copier(criterion).attach(optimizer)
    for value, again in zip(*(run_steps(c, optimizer, range(5, 15)) for c in (criterion, copied)), strict=True):
        assert torch.equal(value, again)
    assert_same_state(criterion, copied)


@pytest.mark.parametrize(
    "move", [lambda c: c.half(), lambda c: c.double(), lambda c: c.to(torch.bfloat16), lambda c: c.float()]
)
def test_buffers_keep_their_dtypes(move):
    criterion = clipping_ogc("ce", weight=torch.linspace(0.1, 1, 10))
    before = state_of(criterion)
    assert move(criterion) is criterion
    assert all(same_bits(buffer, before[name]) for name, buffer in criterion.named_buffers())
    criterion.train()(*batch())


def test_half_precision_model_keeps_criterion_dtypes():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), clipping_ogc("ce")).half()
    assert model[0].weight.dtype == torch.float16
    assert model[1].solution.dtype == torch.float64


def test_deleted_criteria_leave_the_operator_table():
    """The operator's table holds weak references."""
    from ogc.clipping.backends.compiled import criteria

    criterion = OGC("ce")
    key = int(criterion._key)
    assert key in criteria
    del criterion
    gc.collect()
    assert key not in criteria


def test_two_criteria_share_no_state():
    first, second = (OGC("ce", follow_lr=False, every=1, queue_size=64) for _ in range(2))
    first(*noisy_batch(64, seed=0))
    assert second.seen == 0
    assert_close(second.queue, torch.zeros(65))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_default_dtype_has_no_effect(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        criterion = OGC("ce", follow_lr=False, every=2, queue_size=16)
        for _ in range(4):
            criterion(torch.randn(8, 3, requires_grad=True), torch.randint(3, (8,))).backward()
    finally:
        torch.set_default_dtype(before)
    assert criterion.queue.dtype == torch.float32
    assert not criterion.mixture.noisy_weight.isnan()


def test_step_counter_is_a_buffer():
    """A copy made buffer by buffer, without load_state_dict, updates when the original does."""
    original, copied = (OGC("ce", follow_lr=False, every=4, queue_size=16) for _ in range(2))
    batches = [(torch.randn(8, 3), torch.randint(3, (8,))) for _ in range(4)]
    for logits, labels in batches[:3]:
        original(logits, labels)
    for name, buffer in copied.named_buffers():
        buffer.copy_(original.get_buffer(name))
    original(*batches[3])
    copied(*batches[3])
    assert not original.mixture.noisy_weight.isnan()
    assert torch.equal(copied.solution, original.solution)


def test_loss_parameters_under_another_name_are_compared():
    class Power(losses.Pointwise):
        def __init__(self, *, exponent):
            super().__init__()
            self._k = exponent

        def value(self, p):
            return (1 - p) ** self._k / self._k

    state = OGC(Power(exponent=2.0), follow_lr=False).state_dict()
    with pytest.raises(ValueError, match="belongs to another OGC"):
        OGC(Power(exponent=3.0), follow_lr=False).load_state_dict(state)
