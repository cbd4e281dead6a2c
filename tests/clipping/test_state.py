"""Saving, loading, copying and moving a criterion: everything that the next step depends on, and nothing else.

A criterion counts batches late on a CPU. No reader of its state may notice.
"""

import copy
import gc
import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ogc import OGC, losses
from ogc.clipping import EMA, Fixed, Linear, Relative
from ogc.clipping.backends.compiled import criteria
from samples import batch, clipping_ogc, noisy_batch, optimizer_with, same_bits, state_of

RULES = [{}, {"epsilon": 2.0}, {"epsilon0": 20.0}, {"threshold": EMA(0.9)}, {"threshold": Linear(9.0, steps=60)}]
every_rule = pytest.mark.parametrize("arguments", RULES, ids=str)


def save_and_load(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def run_steps(criterion: OGC, optimizer, steps: range) -> list[torch.Tensor]:
    values = []
    for step in steps:
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        logits, labels = noisy_batch(24 + step % 5, seed=step)
        labels[: step % 3] = -100
        values.append(criterion(logits, labels))
    return values


def assert_same_state(a: OGC, b: OGC) -> None:
    assert all(same_bits(buffer, b.get_buffer(name)) for name, buffer in a.named_buffers())


def assert_same_steps(a: OGC, b: OGC, optimizer, steps: range) -> None:
    values, others = (run_steps(criterion, optimizer, steps) for criterion in (a, b))
    assert all(map(torch.equal, values, others))
    assert_same_state(a, b)


# --- saving and loading ----------------------------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize("at", [3, 21, 27])
def test_save_between_updates_and_resume(at, arguments):
    optimizer = optimizer_with(0.1)
    criterion, loaded = (OGC("fl", optimizer, every=8, queue_size=128, **arguments) for _ in "ab")
    run_steps(criterion, optimizer, range(at))
    run_steps(loaded, optimizer, range(5))  # replaced by the loaded state
    loaded.load_state_dict(save_and_load(criterion.state_dict()))
    assert_same_state(criterion, loaded)
    assert_same_steps(criterion, loaded, optimizer, range(at, 60))


RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "states.json").read_text())


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["rule"])
def test_recorded_state_is_resumed(recorded):
    """The states were saved after 21 steps, on one processor. On others, float32 differs in the last bits."""
    optimizer = optimizer_with(0.1)
    rule = {"threshold": EMA(0.9)} if recorded["rule"] == "ema" else {}
    criterion = OGC(optimizer=optimizer, every=8, queue_size=128, **recorded["arguments"], **rule)
    saved = {name: torch.tensor(recorded["state"][name], dtype=v.dtype) for name, v in criterion.named_buffers()}
    criterion.load_state_dict({**saved, "_extra_state": recorded["state"]["_extra_state"]})
    values = [float(value) for value in run_steps(criterion, optimizer, range(21, 61))]
    assert values == pytest.approx(recorded["losses"], rel=1e-4)
    assert criterion.solution.tolist() == pytest.approx(recorded["solution"], rel=1e-4, nan_ok=True)


def test_default_rule_waits_until_the_number_of_classes_is_known():
    """It is not saved."""
    optimizer = optimizer_with(0.1)
    criterion, loaded = (OGC("ce", optimizer, every=64, queue_size=128) for _ in "ab")
    run_steps(criterion, optimizer, range(8))
    loaded.load_state_dict(criterion.state_dict())
    loaded.update()
    assert_same_state(criterion, loaded)
    for each in (criterion, loaded):
        run_steps(each, optimizer, range(8, 9))
        each.update()
    assert not criterion.mixture.noisy_weight.isnan()
    assert_same_state(criterion, loaded)


def test_state_dict_keys():
    model = nn.ModuleDict({"criterion": OGC("ce", follow_lr=False)})
    names = "queue seen steps degenerate unreliable solution highest_lr rule_state thresholds history _extra_state"
    assert set(model.state_dict()) == {f"criterion.{name}" for name in names.split()}
    model.load_state_dict(save_and_load(model.state_dict()))


class Power(losses.Pointwise):
    """Its parameter is not in its hyperparameters."""

    def __init__(self, *, exponent):
        super().__init__()
        self._k = exponent

    def value(self, p):
        return (1 - p) ** self._k / self._k


def halved(step, tau):
    return tau / 2


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ({"queue_size": 128}, {"queue_size": 64}),
        ({"base": "ce"}, {"base": "fl"}),
        ({"base": losses.Focal(gamma=2.0)}, {"base": "fl"}),
        ({"base": Power(exponent=2.0)}, {"base": Power(exponent=3.0)}),
        ({}, {"epsilon": 2.0}),
        ({}, {"threshold": Linear(10.0, steps=100)}),
        ({"threshold": Linear(5.0, steps=100)}, {"threshold": Linear(10.0, steps=100)}),
        ({"threshold": Linear(10.0, steps=10)}, {"threshold": Linear(10.0, steps=100)}),
        ({"threshold": Fixed(2.0)}, {"threshold": EMA(0.9)}),
        ({"threshold": halved}, {"threshold": lambda step, tau: tau}),
    ],
)
def test_state_of_another_ogc_is_rejected(own, other):
    criterion = OGC(**{"base": "ce", "follow_lr": False, **own})
    criterion(*noisy_batch(128, seed=0))
    before = state_of(criterion)
    with pytest.raises(ValueError, match="another OGC"):
        criterion.load_state_dict(OGC(**{"base": "ce", "follow_lr": False, **other}).state_dict())
    assert all(same_bits(buffer, before[name]) for name, buffer in criterion.named_buffers())


@pytest.mark.parametrize(
    ("saved", "loading"),
    [
        (Linear(10, steps=100), Linear(10.0, steps=100.0)),
        (Fixed(np.float64(2)), Fixed(torch.tensor(2.0))),
        (EMA(0), EMA(0.0)),
        (halved, halved),
    ],
)
def test_equal_schedules_load_each_other(saved, loading):
    OGC("ce", threshold=loading).load_state_dict(save_and_load(OGC("ce", threshold=saved).state_dict()))


# --- late counting is invisible --------------------------------------------------------------------------------------


def copied_buffer_by_buffer(criterion: OGC, optimizer) -> OGC:
    copied = OGC("ce", optimizer, every=32, queue_size=128)
    for name, buffer in copied.named_buffers():
        buffer.copy_(criterion.get_buffer(name))
    return copied


READERS = {
    "state_dict": lambda c: list(c.state_dict().values())[:-1],
    "state_dict of a parent": lambda c: list(nn.ModuleList([c]).state_dict().values())[:-1],
    "buffers": lambda c: list(c.buffers()),
    "buffers of a parent": lambda c: list(nn.ModuleList([c]).buffers()),
    "get_buffer": lambda c: [c.get_buffer(name) for name, _ in OGC("ce").named_buffers()],
    "attributes": lambda c: [getattr(c, name) for name, _ in OGC("ce").named_buffers()],
    "deepcopy": lambda c: list(copy.deepcopy(c).buffers()),
    "copy": lambda c: list(copy.copy(c).buffers()),
    "pickle": lambda c: list(pickle.loads(pickle.dumps(c)).buffers()),
    "to": lambda c: list(c.to("cpu")._buffers.values())[1:],
    "repr": lambda c: (repr(c), list(c._buffers.values())[1:])[1],
    "update": lambda c: (c.update(), list(c._buffers.values())[1:])[1],
}


@pytest.mark.parametrize("reader", READERS)
def test_waiting_batches_are_counted_before_the_state_is_read(reader):
    """``flushed`` counts every batch at once, because another reader looks after each step."""
    optimizer = optimizer_with(0.1)
    waiting, flushed = (OGC("ce", optimizer, every=32, queue_size=128) for _ in "ab")
    for step in range(7):  # the default rule updates at every fourth
        run_steps(waiting, optimizer, range(step, step + 1))
        run_steps(flushed, optimizer, range(step, step + 1))
        flushed.flush()
    assert waiting._buffers["seen"] < flushed.seen
    if reader == "update":
        flushed.update()
    read = READERS[reader](waiting)
    assert len(read) == 10
    assert all(map(same_bits, read, flushed.buffers()))
    assert_same_steps(waiting, flushed, optimizer, range(7, 40))


def test_labels_may_be_overwritten_while_they_wait():
    waiting, flushed = (OGC("ce", follow_lr=False, every=800) for _ in "ab")
    labels = torch.zeros(32, dtype=torch.long)
    for step in range(5):
        logits, given = noisy_batch(32, seed=step)
        labels.copy_(given)
        waiting(logits, labels)
        flushed(logits, given.clone())
        flushed.flush()
    assert_same_state(waiting, flushed)


def test_what_waits_is_bounded_and_survives_another_number_of_classes():
    criterion = OGC("ce", follow_lr=False, every=8000, queue_size=64)
    for step in range(9):
        criterion(*noisy_batch(32, seed=step))
        assert criterion._backlog.samples <= 96
    criterion(torch.zeros(5, 3), torch.arange(5) % 3)
    assert (criterion.seen, criterion.rule_state[0].sum()) == (9 * 32 + 5, 9 * 32 + 5)


# --- copies and devices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))], ids=["deepcopy", "pickle"])
def test_copies_are_independent_and_have_no_optimizer(copier):
    criterion = OGC("ce", optimizer := optimizer_with(0.1), every=2, queue_size=64)
    run_steps(criterion, optimizer, range(5))
    before = state_of(criterion)
    copied = copier(criterion)
    assert_same_state(criterion, copied)
    with pytest.raises(RuntimeError, match="optimizer"):
        copied(*batch())
    assert all(same_bits(buffer, before[name]) for name, buffer in criterion.named_buffers())
    assert_same_steps(criterion, copier(criterion).attach(optimizer), optimizer, range(5, 15))


def test_copying_buffer_by_buffer_is_enough():
    criterion = OGC("ce", optimizer := optimizer_with(0.1), every=32, queue_size=128)
    run_steps(criterion, optimizer, range(6))
    assert_same_steps(criterion, copied_buffer_by_buffer(criterion, optimizer), optimizer, range(6, 20))


def test_rule_may_change_between_steps():
    criterion = OGC("ce", optimizer := optimizer_with(0.1), every=4, queue_size=64)
    run_steps(criterion, optimizer, range(6))
    criterion.set_rule(Relative(2.0))
    assert criterion.rule_state.numel() == 0
    run_steps(criterion, optimizer, range(6, 12))
    assert set(criterion.thresholds[0].tolist()) == {float(criterion.p0)}


@pytest.mark.parametrize(
    "move", [lambda c: c.half(), lambda c: c.double(), lambda c: c.to(torch.bfloat16), lambda c: c.float()]
)
def test_buffers_keep_their_dtypes(move):
    criterion = clipping_ogc("ce", weight=torch.linspace(0.1, 1, 10))
    before = state_of(criterion)
    assert move(criterion) is criterion
    model = nn.Sequential(nn.Linear(2, 2), criterion).half()
    assert model[0].weight.dtype == torch.float16
    assert all(same_bits(buffer, before[name]) for name, buffer in criterion.named_buffers())
    criterion.train()(*batch())


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


def test_criteria_share_nothing_and_leave_the_operators_table_when_deleted():
    first, second = (OGC("ce", follow_lr=False, every=1, queue_size=64) for _ in "ab")
    first(*noisy_batch(64, seed=0))
    assert (int(second.seen), float(second.queue.sum())) == (0, 0.0)
    key = int(first.key)
    assert criteria[key] is first
    assert copy.deepcopy(first).key != first.key
    del first
    gc.collect()
    assert key not in criteria
