"""OGC step by step: comparison with the NumPy reference, rules for epsilon, degenerate queues, errors."""

import inspect
import math
import re
import warnings

import pytest
import torch
from torch.testing import assert_close

import reference
from asserts import value_and_gradient
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
    assert_close(
        torch.stack(criterion.mixture), torch.tensor(numpy_ogc.mixture, dtype=torch.float64), rtol=1e-5, atol=1e-6
    )
    assert len(updates) > 4
    if isinstance(numpy_ogc, reference.ReferenceDefault):
        early = "better than a guess" if name == "gce" else "better than a guess, limited"  # GCE is not steep enough
        assert numpy_ogc.cases >= {early, "a class is given up", "edge"}


@pytest.mark.parametrize("rule", ["default", "epsilon"])
@pytest.mark.parametrize("name", BASES)
def test_100_steps_equal_the_reference(name, rule):
    compare_with_reference(name, rule, every=8, queue_size=512, N=64, steps=100)


def test_rare_class_equals_the_reference():
    """The factor of the class falls, even before anything is clipped, and rises when the class is learned."""
    optimizer = optimizer_with(0.1)
    criterion = OGC("ce", optimizer, every=8, queue_size=512)
    numpy_ogc = reference.ReferenceDefault(reference.ce(), every=8, queue_size=512)
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


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["default", "epsilon"])
@pytest.mark.parametrize("name", BASES)
def test_200_steps_equal_the_reference_at_the_default_size(name, rule):
    compare_with_reference(name, rule, every=32, queue_size=4096, N=128, steps=200)


def test_defaults():
    criterion = OGC("ce")
    assert (criterion.every, criterion.queue_size, criterion.follow_lr, criterion.rule) == (32, 4096, True, "default")
    assert OGC("ce", epsilon=1.0).rule == "epsilon"
    assert OGC("ce", epsilon0=20).rule == "paper"
    assert OGC("ce", threshold=EMA()).rule == "threshold"
    with pytest.raises(ValueError, match=r"^Parameter `epsilon` should be omitted with epsilon0"):
        OGC("ce", epsilon=1.0, epsilon0=20)
    assert criterion.queue.shape == (4097,)


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
    assert torch.equal(value, expected)


@pytest.mark.parametrize("name", BASES)
def test_gradient_with_respect_to_p_is_at_most_tau(name):
    criterion = clipping_ogc(name, reduction="sum")
    logits, labels = batch(200, dtype=torch.float64, spread=4)
    _, gradient = value_and_gradient(criterion, logits, labels)
    p = logits.softmax(1)[torch.arange(200), labels]
    with_respect_to_p = gradient[torch.arange(200), labels] / (p * (1 - p))  # dp/dlogit_y = p (1 - p)
    assert (with_respect_to_p <= 0).all()
    assert (with_respect_to_p.abs() <= criterion.tau * (1 + 1e-9)).all()


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
    criterion = OGC("ce", follow_lr=False, every=1, queue_size=64)
    logits, labels = noisy_batch(200, seed=0)
    criterion(logits, labels)
    other = OGC("ce", follow_lr=False, every=1, queue_size=64)
    other(logits[-64:], labels[-64:])
    assert_close(criterion.solution, other.solution, rtol=1e-9, atol=0)


def test_samples_of_weight_zero_are_queued():
    weight = torch.zeros(10)
    criterion = OGC("ce", follow_lr=False, queue_size=64, weight=weight)
    criterion(*batch(32))
    assert criterion.seen == 32


def test_update_solves_immediately():
    criterion = OGC("ce", follow_lr=False, queue_size=64)
    criterion.update()
    assert criterion.p0 == P_MIN  # not full
    criterion(*noisy_batch(64, seed=0))
    assert criterion.p0 == P_MIN  # not due
    criterion.update()
    assert criterion.p0 > P_MIN
    assert criterion.steps == 1


# --- epsilon ---------------------------------------------------------------------------------------------------------


def ratio(criterion: OGC) -> float:
    """r(tau) - 1: the epsilon of the last update."""
    assert criterion.p0 > P_MIN
    return float(noisy_to_clean_ratio(criterion.base, criterion.mixture, criterion.tau)) - 1


def ogc_with_full_queue(optimizer=None, **arguments) -> OGC:
    """Return an OGC with a full queue that updates at every step. Ignored labels leave the queue unchanged."""
    criterion = OGC("ce", optimizer, every=1, queue_size=256, **arguments)
    criterion(*noisy_batch(256, seed=0, margin=7))
    return criterion


def step(criterion: OGC) -> None:
    criterion(torch.zeros(1, 10), torch.tensor([-100]))


def test_epsilon_is_relative_to_the_highest_lr_so_far():
    optimizer = optimizer_with(0.02)
    criterion = ogc_with_full_queue(optimizer, epsilon=2.0)
    assert ratio(criterion) == pytest.approx(2.0)
    for lr, epsilon in ((0.01, 1.0), (0.04, 2.0), (0.01, 0.5), (1e-5, 5e-4)):
        optimizer.param_groups[0]["lr"] = lr
        step(criterion)
        assert ratio(criterion) == pytest.approx(epsilon, rel=1e-6), lr


def test_highest_lr_is_tracked_between_updates():
    optimizer = optimizer_with(0.1)
    criterion = OGC("ce", optimizer, epsilon=2.0, every=2, queue_size=256)
    criterion(*noisy_batch(256, seed=0))
    optimizer.param_groups[0]["lr"] = 0.05
    step(criterion)
    assert ratio(criterion) == pytest.approx(1.0)


def test_epsilon0_is_the_papers_rule():
    optimizer = optimizer_with(0.1)
    criterion = ogc_with_full_queue(optimizer, epsilon0=20)
    assert ratio(criterion) == pytest.approx(2.0)
    for lr in (0.01, 0.001, 0.05):
        optimizer.param_groups[0]["lr"] = lr
        step(criterion)
        assert ratio(criterion) == pytest.approx(20 * lr, rel=1e-6)


def test_without_follow_lr_epsilon_is_constant():
    optimizer = optimizer_with(0.1)
    criterion = ogc_with_full_queue(optimizer, follow_lr=False, epsilon=0.7)
    optimizer.param_groups[0]["lr"] = 0.001
    step(criterion)
    assert ratio(criterion) == pytest.approx(0.7)
    assert ratio(ogc_with_full_queue(follow_lr=False, epsilon=0.7)) == pytest.approx(0.7)


def test_lr_of_zero_keeps_tau():
    optimizer = optimizer_with(0.0)
    for arguments in ({}, {"epsilon0": 20}):
        optimizer.param_groups[0]["lr"] = 0.0
        criterion = ogc_with_full_queue(optimizer, **arguments)
        assert criterion.p0 == P_MIN  # warm-up
        optimizer.param_groups[0]["lr"] = 0.1
        step(criterion)
        before = criterion.solution.clone()
        assert criterion.p0 > P_MIN
        optimizer.param_groups[0]["lr"] = 0.0
        step(criterion)
        assert torch.equal(criterion.solution, before)
        assert criterion.degenerate == 0


def test_lr_may_be_a_tensor():
    optimizer = optimizer_with(0.1)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    criterion = ogc_with_full_queue(optimizer, epsilon=2.0)
    optimizer.param_groups[0]["lr"].fill_(0.05)
    step(criterion)
    assert ratio(criterion) == pytest.approx(1.0, rel=1e-6)


MISSING = (
    r"^OGC follows the learning rate of an optimizer, but no optimizer is attached, or it was deleted\. Pass it, as in "
    r'OGC\("ce", optimizer\), or call criterion\.attach\(optimizer\)\. To ignore the learning rate, pass '
    r"follow_lr=False\.$"
)


def test_missing_optimizer_raises_at_first_update():
    criterion = OGC("ce", every=24, queue_size=4)  # every third step at first
    criterion(*batch())
    criterion(*batch())
    with pytest.raises(RuntimeError, match=MISSING):
        criterion(*batch())


def test_optimizer_is_held_by_weak_reference():
    optimizer = optimizer_with(0.1)
    criterion = OGC("ce", optimizer, every=1, queue_size=4)
    criterion(*batch())
    del optimizer
    with pytest.raises(RuntimeError, match=MISSING):
        criterion(*batch())


def test_attach_after_construction():
    criterion, optimizer = OGC("ce", epsilon=2.0, every=1, queue_size=256), optimizer_with(0.1)
    assert criterion.attach(optimizer) is criterion
    criterion(*noisy_batch(256, seed=0))
    assert ratio(criterion) == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"^Parameter `optimizer` should be an optimizer with param_groups"):
        criterion.attach(torch.nn.Linear(1, 1))


# --- properties ------------------------------------------------------------------------------------------------------


def test_properties_return_copies():
    criterion = clipping_ogc("ce").train()
    p0, tau, mixture = criterion.p0, criterion.tau, criterion.mixture
    before = [float(number) for number in (p0, tau, *mixture)]
    criterion(*noisy_batch(64, seed=9, margin=3))
    assert [float(number) for number in (p0, tau, *mixture)] == before
    assert float(criterion.p0) != before[0]
    state = state_of(criterion)
    for number in (criterion.p0, criterion.tau, *criterion.mixture):
        assert number.dim() == 0
        number.fill_(0.5)
    assert all(same_bits(buffer, state[name]) for name, buffer in criterion.named_buffers())


def test_noise_probability():
    criterion = OGC("ce", follow_lr=False, every=1, queue_size=256)
    logits, labels = noisy_batch(256, seed=0, margin=7)
    labels_with_gaps = torch.where(torch.arange(256) % 4 == 0, -100, labels)
    assert criterion.noise_probability(logits, labels).isnan().all()  # before the first fit
    criterion(logits, labels)
    probability = criterion.noise_probability(logits, labels_with_gaps)
    assert (probability.isnan() == (labels_with_gaps == -100)).all()
    known = ~probability.isnan()
    H = cross_entropy(logits, labels, -100)
    order = H[known].argsort()
    assert (probability[known][order].diff() >= -1e-6).all()
    assert ((probability[known] >= 0) & (probability[known] <= 1)).all()
    wrong = logits.argmax(1) != labels
    assert (probability[known] > 0.5).eq(wrong[known]).float().mean() > 0.95
    assert criterion.steps == 1


def test_noise_probability_keeps_shape_and_type():
    criterion = clipping_ogc("ce")
    logits, labels = batch(60, dtype=torch.bfloat16)
    dense = criterion.noise_probability(logits.view(3, 4, 5, 10).movedim(3, 1), labels.view(3, 4, 5))
    assert (dense.shape, dense.dtype) == ((3, 4, 5), torch.float32)
    assert_close(dense.flatten(), criterion.noise_probability(logits, labels))
    assert criterion.noise_probability(logits.double(), labels).dtype == torch.float64


def test_repr():
    criterion = OGC("fl", follow_lr=False)
    assert "tau=" in repr(criterion)
    assert "share of noisy samples" not in repr(criterion)
    criterion = OGC("ce", follow_lr=False, every=1, queue_size=64)
    for seed in range(5):
        criterion(*noisy_batch(64, seed=seed))
    assert f"tau={float(criterion.tau):.4g}, p0={float(criterion.p0):.4g}" in repr(criterion)
    shares = [f"{float(share):.0%}" for share in criterion.history[1, :3]]
    assert f"share of noisy samples: {shares[0]} at step 1, {shares[1]} at step 3, {shares[2]} at step 5" in repr(
        criterion
    )
    assert "CrossEntropy()" in repr(criterion)
    assert "threshold=Fixed(tau=3.0)" in repr(OGC("ce", threshold=Fixed(3.0)))


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


def test_two_spikes_are_a_good_fit():
    criterion = OGC("ce", follow_lr=False, epsilon=2.0, every=1, queue_size=512)
    feed(criterion, queue_of("two spikes"))
    assert criterion.degenerate == 0
    assert criterion.p0 > P_MIN
    assert_close(
        torch.stack([criterion.mixture.clean_mean, criterion.mixture.noisy_mean]), torch.tensor([0.1, 9.0]).double()
    )


def test_warns_if_the_first_parameter_group_is_frozen():
    groups = [{"params": torch.nn.Linear(2, 2).parameters(), "lr": lr} for lr in (0.0, 0.1)]
    optimizer = torch.optim.SGD(groups)
    criterion = OGC("ce", optimizer, epsilon=2.0, every=1, queue_size=512)
    clusters = queue_of("two clusters")
    for _ in range(31):
        feed(criterion, clusters)
    with pytest.warns(UserWarning, match=r"first parameter group, which has always been 0"):
        feed(criterion, clusters)
    assert "first parameter group" in never_fitted(criterion)
    optimizer.param_groups[1]["lr"] = 0.0  # a warm-up of all groups
    assert "first parameter group" not in never_fitted(criterion)


@pytest.mark.parametrize("rule", [{}, {"epsilon": 2.0}, {"epsilon0": 20.0}])
def test_a_learning_rate_of_nan_does_not_move_tau(rule):
    optimizer = optimizer_with(0.1)
    criterion = OGC("ce", optimizer, every=1, queue_size=256, **rule)
    criterion(*noisy_batch(300, seed=0))
    tau = float(criterion.tau)
    optimizer.param_groups[0]["lr"] = math.nan
    criterion(*noisy_batch(300, seed=1))
    assert (float(criterion.tau), float(criterion.highest_lr)) == (tau, pytest.approx(0.1))


def test_a_class_in_place_of_a_loss_is_refused():
    with pytest.raises(ValueError, match=r"^OGC needs a loss, not its class\. To fix this, pass GCE\(\)\.$"):
        OGC(losses.GCE)
    with pytest.raises(ValueError, match=r"^OGC needs a pointwise loss.* Found CrossEntropyLoss\.$"):
        OGC(torch.nn.CrossEntropyLoss)


def test_nan_from_a_schedule_keeps_the_last_tau():
    criterion = OGC("ce", threshold=lambda step, tau: math.nan if int(step) == 2 else 3.0)
    for _ in range(3):
        assert math.isfinite(float(criterion(*noisy_batch(64, seed=0))))
        assert float(criterion.tau) == 3.0


@pytest.mark.parametrize("rule", [{}, {"epsilon": 2.0}, {"epsilon0": 20.0}])
def test_a_tensor_learning_rate_of_nan_does_not_spoil_the_highest_one(rule, monkeypatch):
    """An accelerator's tensor is not read; here one on the CPU takes its place. See also tests/gpu/test_cuda.py."""
    lr = torch.tensor(0.1)
    criterion = OGC("ce", optimizer_with(0.1), every=1, queue_size=256, **rule)
    monkeypatch.setattr(criterion, "_lr", lambda: lr)
    criterion(*noisy_batch(300, seed=0))
    tau = float(criterion.tau)
    lr.fill_(math.nan)
    criterion(*noisy_batch(300, seed=1))
    assert (float(criterion.tau), float(criterion.highest_lr)) == (tau, pytest.approx(0.1))
    lr.fill_(0.01)
    criterion(*noisy_batch(300, seed=2))
    assert float(criterion.tau) != tau


def test_rejects_a_loss_with_trainable_parameters():
    class Learned(losses.GCE):
        def __init__(self):
            super().__init__(q=0.7)
            self.scale = torch.nn.Parameter(torch.tensor(1.0))

    message = (
        "OGC does not train the parameters of its base loss. Found trainable parameters in Learned: scale. "
        "To fix this, call loss.requires_grad_(False)."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        OGC(Learned())
    loss = Learned()
    OGC(loss.requires_grad_(False))


def test_warns_once_if_nothing_is_clipped_despite_noise():
    criterion = OGC("ce", follow_lr=False, epsilon=1e4, every=1, queue_size=512)
    clusters = queue_of("two clusters")
    for _ in range(31):
        feed(criterion, clusters)
    with pytest.warns(
        UserWarning, match=r"^OGC: nothing has been clipped in 32 steps, although 50% .* Leave out epsilon"
    ):
        feed(criterion, clusters)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feed(criterion, clusters)


def test_warns_once_if_normals_are_hard_to_tell_apart():
    criterion = OGC("ce", follow_lr=False, every=1, queue_size=256)
    cluster = queue_of("one cluster", 256)
    for _ in range(31):
        feed(criterion, cluster)
    assert criterion.unreliable == 31
    with pytest.warns(
        UserWarning, match=r"^OGC: for 32 updates the clean and the noisy normal .* hard to tell apart"
    ) as seen:
        feed(criterion, cluster)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(40):
            feed(criterion, cluster)


def test_good_fit_resets_the_unreliable_count():
    criterion = OGC("ce", follow_lr=False, every=1, queue_size=512)
    for _ in range(3):
        for _ in range(20):
            feed(criterion, queue_of("one cluster"))
        assert criterion.unreliable == 20
        feed(criterion, queue_of("two clusters"))
        assert criterion.unreliable == 0


# --- invalid arguments and input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "name", "rule"),
    [
        ({"epsilon": 0.0}, "epsilon", "above 0"),
        ({"epsilon": -1.0}, "epsilon", "above 0"),
        ({"epsilon": math.nan}, "epsilon", "above 0"),
        ({"epsilon0": 0.0}, "epsilon0", "above 0"),
        ({"epsilon0": 20, "follow_lr": False}, "follow_lr", "True with epsilon0, which is multiplied by lr"),
        ({"threshold": 2.0}, "threshold", "Fixed, Linear, EMA or a function"),
        ({"threshold": Fixed(2.0), "epsilon": 2}, "epsilon", "omitted with threshold, which sets tau"),
        ({"threshold": Fixed(2.0), "epsilon0": 20}, "epsilon0", "omitted with threshold, which sets tau"),
        ({"every": 0}, "every", "an integer of at least 1"),
        ({"every": 1.5}, "every", "an integer of at least 1"),
        ({"queue_size": 3}, "queue_size", "an integer of at least 4"),
        ({"reduction": "average"}, "reduction", "one of none, mean, sum"),
        ({"process_group": True}, "process_group", "a process group, None or False"),
        ({"optimizer": 0.1}, "optimizer", "an optimizer with param_groups"),
    ],
    ids=str,
)
def test_constructor_rejects_invalid_arguments(arguments, name, rule):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        OGC("ce", **arguments)
    assert str(error.value) == f"Parameter `{name}` should be {rule}. Found `{name} = {arguments[name]!r}`."


def test_invalid_input_leaves_state_unchanged():
    criterion = OGC("ce", follow_lr=False, queue_size=64)
    criterion(*batch(4))
    before = state_of(criterion)
    logits, labels = batch(4)
    nan, label = logits.clone(), labels.clone()
    nan[2, 3], label[1] = torch.nan, 10
    for wrong in ((nan, labels), (logits, label), (logits, labels.float()), (logits, labels[:2])):
        with pytest.raises(ValueError):  # noqa: PT011  # asserts.py checks the messages
            criterion(*wrong)
        with pytest.raises(ValueError):  # noqa: PT011
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
