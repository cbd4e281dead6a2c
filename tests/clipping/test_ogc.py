"""OGC step by step: comparison with the NumPy reference, the learning rate, warnings, errors."""

import inspect
import math
import warnings

import pytest
import torch
from torch.testing import assert_close

import reference
import samples
from asserts import rejects, value_and_gradient
from ogc import OGC, losses
from ogc.clipping import EMA, Fixed, noisy_to_clean_ratio
from ogc.given_label import P_MIN, cross_entropy
from ogc.integrations import never_fitted
from ogc.losses import clipped
from samples import batch, clipping_ogc, feed, noisy_batch, optimizer_with, queue_of, rare_batch, same_bits, state_of

BASES = {
    "ce": (losses.CrossEntropy(), reference.ce()),
    "fl": (losses.Focal(), reference.fl(gamma=0.5)),
    "gce": (losses.GCE(q=0.7), reference.gce(q=0.7)),
}

# --- comparison with the reference -----------------------------------------------------------------------------------


def compare_with_reference(name: str, rule: str, *, every: int, queue_size: int, N: int, steps: int) -> None:
    """Simulate training: warm-up, cosine, uneven batches, classes learned late, and a phase of clean labels."""
    base, numpy_loss = BASES[name]
    optimizer = optimizer_with(0.0)
    sizes = {"every": every, "queue_size": queue_size}
    criterion = OGC(base, optimizer, **sizes) if rule == "default" else OGC(base, optimizer, epsilon=2.0, **sizes)
    numpy_ogc = reference.ReferenceDefault(numpy_loss, **sizes) if rule == "default" else None
    numpy_ogc = numpy_ogc or reference.ReferenceOGC(numpy_loss, epsilon=2.0, **sizes)
    updates = set()
    for step in range(steps):
        lr = 0.1 * min(step / 20, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = lr
        n = N if step % 10 < 9 else N // 3 + step % 7
        rate = 0.0 if steps // 2 <= step < 3 * steps // 4 else 0.4
        logits, labels = noisy_batch(n, seed=step, rate=rate, margin=2 + 5 * step / steps)
        if step < steps // 4:
            logits[labels < 3] = 0.0  # three classes that are not learned yet
            logits[torch.arange(n), labels] -= 0.1  # slightly worse than a guess
        value = criterion(logits.requires_grad_(), labels)
        expected, _ = numpy_ogc.step(logits.detach().double().numpy(), labels.tolist(), lr)
        assert criterion.p0.item() == pytest.approx(numpy_ogc.p0, abs=1e-5), step
        assert criterion.tau.item() == pytest.approx(numpy_ogc.tau, rel=1e-4), step
        assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-6), step
        updates.add(criterion.p0.item())
    assert criterion.degenerate == numpy_ogc.degenerate_fits
    mixture = torch.tensor(numpy_ogc.mixture, dtype=torch.float64)
    assert_close(torch.stack(criterion.mixture), mixture, rtol=1e-5, atol=1e-6)
    assert len(updates) > 4
    if isinstance(numpy_ogc, reference.ReferenceDefault):
        early = "better than a guess" if name == "gce" else "better than a guess, limited"  # GCE is not steep enough
        assert numpy_ogc.cases >= {early, "a class is given up", "edge"}


@pytest.mark.parametrize("rule", ["default", "epsilon"])
@pytest.mark.parametrize("name", BASES)
def test_100_steps_equal_the_reference(name, rule):
    compare_with_reference(name, rule, every=8, queue_size=512, N=64, steps=100)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["default", "epsilon"])
@pytest.mark.parametrize("name", BASES)
def test_200_steps_equal_the_reference_at_the_default_size(name, rule):
    compare_with_reference(name, rule, every=32, queue_size=4096, N=128, steps=200)


def test_rare_class_equals_the_reference():
    """The factor of the class falls, even before anything is clipped, and rises when the class is learned."""
    criterion = OGC("ce", optimizer := optimizer_with(0.1), every=8, queue_size=512)
    numpy_ogc = reference.ReferenceDefault(reference.ce(), every=8, queue_size=512)
    assert criterion.optimizer is optimizer
    factors = []
    for step in range(64):
        logits, labels = rare_batch(step)
        value = criterion(logits, labels)
        expected, _ = numpy_ogc.step(logits.double().numpy(), labels.tolist(), 0.1)
        assert value.item() == pytest.approx(expected, rel=1e-5), step
        factors.append(float(criterion.thresholds[0, 1] / criterion.p0))
        assert factors[-1] == pytest.approx(numpy_ogc.factors.get(1, 1.0), rel=1e-9), step
        assert criterion.thresholds[0, 0] == criterion.p0, step
        if step == 8:
            assert criterion.p0 == P_MIN
            assert factors[-1] < 0.8
    assert min(factors) < 0.3 < 0.7 < factors[-1]


# --- the steps of the algorithm --------------------------------------------------------------------------------------


def test_unclipped_until_the_queue_is_full():
    criterion, unclipped = OGC("ce", follow_lr=False, every=2, queue_size=64), losses.CrossEntropy()
    for step in range(3):
        data = noisy_batch(20, seed=step)
        assert_close(value_and_gradient(criterion, *data), value_and_gradient(unclipped, *data))
        assert criterion.p0 == P_MIN
    criterion(*noisy_batch(20, seed=3))
    assert criterion.p0 > P_MIN


def test_loss_is_computed_with_the_new_tau():
    criterion = OGC("ce", follow_lr=False, every=1, queue_size=64, reduction="none")
    logits, labels = noisy_batch(64, seed=0)
    value = criterion(logits, labels)
    expected = clipped(criterion.base, cross_entropy(logits, labels, -100), float(criterion.p0), float(criterion.tau))
    assert_close(value, expected, rtol=1e-6, atol=1e-6)


def test_ignored_and_non_finite_entropies_are_not_queued():
    criterion = OGC("ce", follow_lr=False, queue_size=8)
    logits = torch.zeros(4, 3)
    logits[2, 1] = -torch.inf
    criterion(logits, torch.tensor([0, -100, 1, 2]))
    assert criterion.seen == 2
    assert_close(criterion.queue[:3], torch.tensor([math.log(3), math.log(3), 0.0]))
    criterion(logits, torch.full((4,), -100))
    criterion(logits[:0], torch.zeros(0, dtype=torch.long))
    assert (int(criterion.seen), int(criterion.steps)) == (2, 3)


def test_batch_larger_than_queue():
    criterion, other = (OGC("ce", follow_lr=False, every=1, queue_size=64) for _ in "ab")
    logits, labels = noisy_batch(200, seed=0)
    criterion(logits, labels)
    other(logits[-64:], labels[-64:])
    assert_close(criterion.solution, other.solution, rtol=1e-9, atol=0)


def test_update_solves_immediately():
    criterion = OGC("ce", follow_lr=False, queue_size=64)
    criterion.update()
    assert criterion.p0 == P_MIN  # not full
    criterion(*noisy_batch(64, seed=0))
    assert criterion.p0 == P_MIN  # not due
    criterion.update()
    assert criterion.p0 > P_MIN
    assert criterion.steps == 1


# --- the learning rate -----------------------------------------------------------------------------------------------


def excess(criterion: OGC) -> float:
    """r(tau) - 1: the epsilon of the last update."""
    assert criterion.p0 > P_MIN
    return float(noisy_to_clean_ratio(criterion.base, criterion.mixture, criterion.tau)) - 1


def step(criterion: OGC) -> None:
    """Take a step that updates tau and leaves the queue unchanged."""
    criterion(torch.zeros(1, 10), torch.tensor([-100]))


@pytest.mark.parametrize("kind", [float, torch.tensor])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"epsilon": 2.0}, (2.0, 1.0, 2.0, 0.5, 5e-4)),  # relative to the highest lr so far
        ({"epsilon0": 20}, (0.4, 0.2, 0.8, 0.2, 2e-4)),
        ({"epsilon": 0.7, "follow_lr": False}, (0.7,) * 5),
    ],
)
def test_epsilon_follows_the_learning_rate(rule, expected, kind):
    criterion = OGC("ce", optimizer := optimizer_with(0.02), every=1, queue_size=256, **rule)
    criterion(*noisy_batch(256, seed=0, margin=7))
    for lr, epsilon in zip((0.02, 0.01, 0.04, 0.01, 1e-5), expected, strict=True):
        optimizer.param_groups[0]["lr"] = kind(lr)
        step(criterion)
        assert excess(criterion) == pytest.approx(epsilon, rel=1e-6), lr


@pytest.mark.parametrize("rule", [{}, {"epsilon": 2.0}, {"epsilon0": 20.0}], ids=str)
@pytest.mark.parametrize("lr", [0.0, math.nan])
def test_a_learning_rate_of_zero_or_nan_keeps_tau(lr, rule):
    criterion = OGC("ce", optimizer := optimizer_with(lr), every=1, queue_size=256, **rule)
    criterion(*noisy_batch(300, seed=0))
    assert criterion.p0 == P_MIN  # warm-up
    optimizer.param_groups[0]["lr"] = 0.1
    step(criterion)
    before = criterion.solution.clone()
    assert criterion.p0 > P_MIN
    optimizer.param_groups[0]["lr"] = lr
    step(criterion)
    assert torch.equal(criterion.solution, before)
    assert criterion.highest_lr == 0.1
    assert criterion.degenerate == 0


def test_missing_optimizer_raises_at_the_first_update():
    criterion = OGC("ce", every=24, queue_size=4)  # every third step at first
    criterion(*batch())
    criterion(*batch())
    with pytest.raises(RuntimeError, match=r"criterion\.attach\(optimizer\).* follow_lr=False"):
        criterion(*batch())


def test_optimizer_is_held_by_weak_reference():
    criterion = OGC("ce", optimizer := optimizer_with(0.1), every=1, queue_size=4)
    criterion(*batch())
    del optimizer
    assert criterion.optimizer is None
    with pytest.raises(RuntimeError, match="optimizer"):
        criterion(*batch())


def test_attach_after_construction():
    criterion, optimizer = OGC("ce", epsilon=2.0, every=1, queue_size=256), optimizer_with(0.1)
    assert criterion.attach(optimizer) is criterion
    criterion(*noisy_batch(256, seed=0))
    assert excess(criterion) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="`optimizer`"):
        criterion.attach(torch.nn.Linear(1, 1))


# --- results ---------------------------------------------------------------------------------------------------------


def test_results_are_copies():
    criterion = clipping_ogc("ce").train()
    results = criterion.p0, criterion.tau, *criterion.mixture
    before = [float(number) for number in results]
    criterion(*noisy_batch(64, seed=9, margin=3))
    assert [float(number) for number in results] == before
    assert float(criterion.p0) != before[0]
    state = state_of(criterion)
    for number in (criterion.p0, criterion.tau, *criterion.mixture):
        assert number.dim() == 0
        number.fill_(0.5)
    assert all(same_bits(buffer, state[name]) for name, buffer in criterion.named_buffers())


def test_noise_probability():
    criterion = OGC("ce", follow_lr=False, every=1, queue_size=256)
    logits, labels = noisy_batch(256, seed=0, margin=7)
    with_gaps = torch.where(torch.arange(256) % 4 == 0, -100, labels)
    assert criterion.noise_probability(logits, labels).isnan().all()  # before the first fit
    criterion(logits, labels)
    probability = criterion.noise_probability(logits, with_gaps)
    assert (probability.isnan() == (with_gaps == -100)).all()
    known = ~probability.isnan()
    order = cross_entropy(logits, labels, -100)[known].argsort()
    assert (probability[known][order].diff() >= -1e-6).all()
    wrong = logits.argmax(1) != labels
    assert (probability[known] > 0.5).eq(wrong[known]).float().mean() > 0.95
    assert criterion.steps == 1
    dense = criterion.noise_probability(logits.view(4, 8, 8, 10).movedim(3, 1).bfloat16(), labels.view(4, 8, 8))
    assert (dense.shape, dense.dtype) == ((4, 8, 8), torch.float32)
    assert criterion.noise_probability(logits.double(), labels).dtype == torch.float64


def test_repr_shows_the_rule_and_the_past():
    assert "share of noisy samples" not in repr(OGC("fl", follow_lr=False))
    criterion = OGC("ce", follow_lr=False, every=1, queue_size=64)
    for seed in range(5):
        criterion(*noisy_batch(64, seed=seed))
    assert f"tau={float(criterion.tau):.4g}, p0={float(criterion.p0):.4g}" in repr(criterion)
    assert f"{float(criterion.history[1, 1]):.0%} at step 3" in repr(criterion)
    assert "Fixed(tau=3.0)" in repr(OGC("ce", threshold=Fixed(3.0)))


# --- degenerate queues and warnings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", ["constant", "one outlier"])
def test_degenerate_queue_keeps_tau_and_is_counted(queue):
    criterion = OGC("ce", follow_lr=False, every=1, queue_size=512)
    feed(criterion, queue_of("two clusters"))
    before = criterion.solution.clone()
    assert criterion.p0 > P_MIN
    for count in (1, 2):
        feed(criterion, queue_of(queue))
        assert criterion.degenerate == count
        assert torch.equal(criterion.solution, before)


def frozen_first_group() -> torch.optim.Optimizer:
    groups = [{"params": torch.nn.Linear(2, 2).parameters(), "lr": lr} for lr in (0.0, 0.1)]
    return torch.optim.SGD(groups)


@pytest.mark.parametrize(
    ("queue", "arguments", "reason"),
    [
        ("two clusters", {"follow_lr": False, "epsilon": 1e4}, "nothing has been clipped .* Lower epsilon"),
        ("one cluster", {"follow_lr": False}, "hard to tell apart"),
        ("two clusters", {"optimizer": None, "epsilon": 2.0}, "first parameter group"),
    ],
)
def test_warns_once_at_the_line_of_the_call(queue, arguments, reason):
    if "optimizer" in arguments:
        arguments = arguments | {"optimizer": (optimizer := frozen_first_group())}
        assert optimizer.param_groups[0]["lr"] == 0
    criterion, quiet = (OGC("ce", every=1, queue_size=512, **arguments) for _ in "ab")
    quiet.warns = False
    for _ in range(31):
        feed(criterion, queue_of(queue))
    with pytest.warns(UserWarning, match=reason) as seen:
        feed(criterion, queue_of(queue))
    assert [warning.filename for warning in seen] == [samples.__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(32):
            feed(criterion, queue_of(queue))
            feed(quiet, queue_of(queue))


def test_frozen_first_group_explains_that_nothing_was_fitted():
    criterion = OGC("ce", optimizer := frozen_first_group(), epsilon=2.0, every=1, queue_size=512)
    feed(criterion, queue_of("two clusters"))
    assert "first parameter group" in never_fitted(criterion)
    optimizer.param_groups[1]["lr"] = 0.0  # a warm-up of all groups
    assert "first parameter group" not in never_fitted(criterion)


def test_good_fit_resets_the_unreliable_count():
    criterion = OGC("ce", follow_lr=False, every=1, queue_size=512)
    for _ in range(2):
        for _ in range(20):
            feed(criterion, queue_of("one cluster"))
        assert criterion.unreliable == 20
        feed(criterion, queue_of("two clusters"))
        assert criterion.unreliable == 0


# --- invalid arguments and input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "others"),
    [
        ("epsilon", 0.0, {}),
        ("epsilon", math.nan, {}),
        ("epsilon", 2.0, {"epsilon0": 20.0}),
        ("epsilon", 2.0, {"threshold": Fixed(2.0)}),
        ("epsilon0", 0.0, {}),
        ("epsilon0", 20.0, {"threshold": Fixed(2.0)}),
        ("follow_lr", False, {"epsilon0": 20.0}),
        ("threshold", 2.0, {}),
        ("every", 0, {}),
        ("every", 1.5, {}),
        ("queue_size", 3, {}),
        ("reduction", "average", {}),
        ("process_group", True, {}),
        ("optimizer", 0.1, {}),
    ],
)
def test_constructor_rejects_invalid_arguments(name, value, others):
    rejects(lambda **argument: OGC("ce", **argument, **others), name, type(value) if name == "optimizer" else value)


class Learned(losses.GCE):
    def __init__(self):
        super().__init__(q=0.7)
        self.scale = torch.nn.Parameter(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("base", "found"),
    [
        (losses.GCE, "GCE"),
        (torch.nn.CrossEntropyLoss, "CrossEntropyLoss"),
        (Learned(), "scale"),
        ("lc_ce", "LogitClip"),
    ],
)
def test_unsuitable_base_losses_are_rejected(base, found):
    with pytest.raises(ValueError, match=found):
        OGC(base)


def test_frozen_parameters_of_the_base_are_accepted():
    OGC(Learned().requires_grad_(False))


def test_invalid_input_leaves_state_unchanged():
    criterion = OGC("ce", follow_lr=False, queue_size=64)
    criterion(*batch(4))
    before = state_of(criterion)
    logits, labels = batch(4)
    nan, label = logits.clone(), labels.clone()
    nan[2, 3], label[1] = torch.nan, 10
    for wrong in ((nan, labels), (logits, label), (logits, labels.float()), (logits, labels[:2])):
        with pytest.raises(ValueError, match="Found"):
            criterion(*wrong)
        with pytest.raises(ValueError, match="Found"):
            criterion.noise_probability(*wrong)
    assert all(same_bits(buffer, before[name]) for name, buffer in criterion.named_buffers())


def test_every_argument_changes_the_output():
    """The output is the losses of a few steps with a falling learning rate."""

    def output(**arguments):
        optimizers = {"optimizer": optimizer_with(0.1)}
        arguments = {"base": "ce", "every": 8, "queue_size": 64} | optimizers | arguments
        criterion, values = OGC(**arguments), []
        for step in range(8):
            optimizers["optimizer"].param_groups[0]["lr"] = 0.1 / (1 + step)
            values.append(criterion(*noisy_batch(32, seed=step, margin=9.0)).sum())
        return torch.stack(values)

    other = {
        "base": "fl",
        "optimizer": optimizer_with(0.01),
        "epsilon": 1.0,
        "epsilon0": 5.0,
        "follow_lr": False,
        "threshold": EMA(),
        "every": 16,
        "queue_size": 128,
        "weight": torch.linspace(0.1, 2, 10),
        "ignore_index": 3,
        "reduction": "sum",
    }
    assert inspect.signature(OGC).parameters.keys() - other.keys() == {"process_group"}  # see test_distributed.py
    same = output()
    assert torch.equal(output(), same)
    for name, value in other.items():
        assert not torch.equal(output(**{name: value}), same), name
