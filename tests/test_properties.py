"""Property-based tests of losses, queues and OGC: no input gives NaN, and every guarantee holds.

One round of `make fuzz` draws more than 10,000 examples. `make test` draws an eighth, the same ones every time.
"""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from ogc import OGC, losses
from ogc.clipping import Relative, fit_mixture, noisy_to_clean_ratio, solve_threshold
from ogc.clipping.fit import fit_queue
from ogc.clipping.loss_queue import push, push_by_scatter
from ogc.given_label import H_MAX, H_MIN, P_MIN
from ogc.losses import clipped, clipped_with_derivative
from samples import CRITERIA, logits_with, same_bits, state_of

pytestmark = [pytest.mark.slow, pytest.mark.hypothesis]


def examples(number):
    """Draw ``number`` examples with a fresh seed, an eighth of them if the seed is fixed."""
    return settings(max_examples=number // 8 if settings().derandomize else number)


Q = 16
BASES = {"ce": losses.CrossEntropy(), "fl": losses.Focal(), "gce": losses.GCE(q=0.7)}
UNBOUNDED = {"ce", "fl", "sce", "lc_ce"}
"""+inf where the given label's logit is -inf."""

# --- strategies ------------------------------------------------------------------------------------------------------

logit = st.sampled_from([0.0, 1.0, -1.0, 1e4, -1e4, 88.0, -104.0, -math.inf]) | st.floats(-30, 30, width=16)


@st.composite
def batches(draw, labels_ignored=True) -> tuple[Tensor, Tensor]:
    """Draw logits, some huge or -inf (but no complete row), and labels, some or all of them ignored."""
    N, C = draw(st.integers(1, 6)), draw(st.integers(2, 5))
    rows = torch.tensor(draw(st.lists(logit, min_size=N * C, max_size=N * C))).view(N, C)
    rows[(rows == -math.inf).all(1)] = 0
    lowest = -1 if labels_ignored else 0
    labels = torch.tensor(draw(st.lists(st.integers(lowest, C - 1), min_size=N, max_size=N)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
    return rows.to(dtype), torch.where(labels == -1, -100, labels)


entropy = st.floats(0, 40, width=32) | st.sampled_from([0.0, 1e-12, H_MAX, 1e4])
any_entropy = entropy | st.sampled_from([math.nan, math.inf])


@st.composite
def queues(draw, size=Q) -> Tensor:
    """Draw a full queue, as left by pushing: arbitrary, (nearly) constant, two spikes, one outlier, two clusters."""
    kind = draw(
        st.sampled_from(["anything", "constant", "two spikes", "one outlier", "two clusters", "nearly constant"])
    )
    a, b = draw(entropy), draw(entropy)
    if kind == "anything":
        H = torch.tensor(draw(st.lists(any_entropy, min_size=size, max_size=2 * size)))
    elif kind == "constant":
        H = torch.full((size,), a)
    elif kind == "two spikes":
        cut = draw(st.integers(1, size - 1))
        H = torch.cat([torch.full((cut,), a), torch.full((size - cut,), b)])
    elif kind == "one outlier":
        H = torch.cat([torch.full((size - 1,), a), torch.tensor([b])])
    elif kind == "two clusters":
        g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
        cut, width = draw(st.integers(1, size - 1)), draw(st.floats(0, 3))
        H = torch.cat([a + torch.randn(cut, generator=g), b + width * torch.randn(size - cut, generator=g)]).abs()
    else:
        H = a + torch.linspace(0, draw(st.sampled_from([1e-7, 1e-6, 1e-5, 1e-3])), size)
    queue, seen = torch.zeros(size + 1), torch.zeros((), dtype=torch.int64)
    while seen < size:
        push(queue, seen, H)
        H = torch.cat([H, torch.tensor([a])])
    return queue[:-1]


epsilons = st.sampled_from([1e-6, 1e-3, 0.02, 0.2, 2.0, 35.0, 1e6]) | st.floats(1e-4, 10)


def copied(state: dict) -> dict:
    return {name: v.clone() if isinstance(v, Tensor) else v for name, v in state.items()}


@pytest.fixture(scope="module")
def started():
    """One OGC per base loss, with its initial state. Loading that is cheaper than making a new OGC."""
    settings = {"follow_lr": False, "every": 2, "queue_size": Q, "reduction": "sum"}
    made = {name: OGC(base, epsilon=1.0, **settings) for name, base in BASES.items()}
    made["default rule"] = OGC("gce", **settings)
    return {name: (criterion, copied(criterion.state_dict())) for name, criterion in made.items()}


def restart(criterion: OGC, state: dict) -> OGC:
    criterion.load_state_dict(state)
    return criterion.train()


# --- every loss, any logits ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def criteria():
    return {name: {r: make(reduction=r) for r in ("none", "mean", "sum")} for name, make in CRITERIA.items()}


@pytest.mark.parametrize("name", CRITERIA)
def test_no_logits_give_nan(name, criteria):
    @examples(400)
    @given(batches(), st.sampled_from(["none", "mean", "sum"]))
    @example((torch.tensor([[0.0, -math.inf]]), torch.tensor([1])), "mean")
    @example((torch.tensor([[0.0, -math.inf]]), torch.tensor([0])), "mean")
    @example((torch.tensor([[-1e4, 1e4, -math.inf]]), torch.tensor([0])), "mean")
    @example((torch.tensor([[1e4, 1e4]]), torch.tensor([0])), "mean")
    @example((torch.tensor([[1e4, 0.0]]), torch.tensor([-100])), "mean")
    def check(drawn, reduction):
        logits, labels = drawn
        leaf = logits.clone().requires_grad_()
        value = criteria[name][reduction](leaf, labels)
        assert not value.isnan().any()
        masked = (labels >= 0) & (logits.gather(1, labels.clamp(min=0)[:, None])[:, 0] == -math.inf)
        if name not in UNBOUNDED or not masked.any():
            assert value.isfinite().all()
        value.sum().backward()
        assert leaf.grad.isfinite().all()
        assert (leaf.grad[labels < 0] == 0).all()
        if (labels < 0).all():
            assert (value == 0).all()

    check()


# --- any queue -------------------------------------------------------------------------------------------------------


@examples(2000)
@given(queues())
def test_every_queue_has_a_mixture(queue):
    mixture = fit_mixture(queue)
    assert all(number.isfinite() for number in mixture)
    assert mixture.clean_mean <= mixture.noisy_mean
    assert H_MIN - 1e-6 <= mixture.clean_mean
    assert mixture.noisy_mean <= H_MAX + 1e-6
    assert min(mixture.clean_var, mixture.noisy_var) > 0.9e-3
    assert 0 <= mixture.noisy_weight <= 1 + 1e-9
    probability = mixture.noise_probability(torch.linspace(0, 20, 201, dtype=torch.float64))
    assert ((probability >= 0) & (probability <= 1)).all()
    assert (probability.diff() >= -1e-9).all()


@pytest.mark.parametrize("name", BASES)
def test_every_queue_has_a_threshold(name, started):
    base, slopes = BASES[name], started[name][0].slopes

    @examples(800)
    @given(queues(), epsilons)
    def check(queue, epsilon):
        fit = fit_queue(queue)
        if fit.is_degenerate:
            return
        mixture, (p0, tau) = fit_mixture(queue), slopes.solve(fit.clean, fit.noisy, 1 + epsilon)
        assert 0 < tau < math.inf
        assert P_MIN * (1 - 1e-9) <= p0 <= 1 - P_MIN + 1e-12
        if p0 == P_MIN:
            assert noisy_to_clean_ratio(base, mixture, math.inf) <= (1 + epsilon) * (1 + 1e-6)
        else:
            assert float(noisy_to_clean_ratio(base, mixture, tau)) == pytest.approx(1 + epsilon, rel=1e-6)

    check()


@pytest.mark.parametrize("name", BASES)
def test_gradient_with_respect_to_p_is_at_most_tau(name, started):
    """Both with autograd through the clipped loss and with the hand-written slope."""
    base, slopes = BASES[name], started[name][0].slopes

    @examples(400)
    @given(queues(), epsilons, st.lists(st.floats(1e-6, 17), min_size=1, max_size=8))
    def check(queue, epsilon, entropies):
        fit = fit_queue(queue)
        if fit.is_degenerate:
            return
        p0, tau = slopes.solve(fit.clean, fit.noisy, 1 + epsilon)
        H = torch.tensor([*entropies, -math.log(p0)], dtype=torch.float64)
        p = torch.exp(-H)
        assert (clipped_with_derivative(base, H, p0, tau)[1] <= p * tau).all()
        leaf = H.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(clipped(base, leaf, p0, tau).sum(), leaf)
        assert (gradient <= p * tau * (1 + 1e-6)).all()

    check()


@examples(100)
@given(queue=queues(), epsilon=epsilons)
def test_public_functions_equal_ogc(queue, epsilon, started):
    criterion, _ = started["ce"]
    fit = fit_queue(queue)
    p0, _ = criterion.slopes.solve(fit.clean, fit.noisy, 1 + epsilon)
    assert_close(solve_threshold(criterion.base, fit_mixture(queue), 1 + epsilon).item(), p0, rtol=1e-9, atol=0)


@examples(600)
@given(queues(), st.permutations(range(Q)))
def test_order_of_the_queue_does_not_matter(queue, order):
    fit, again = fit_queue(queue), fit_queue(queue[list(order)])
    assert again.is_degenerate == fit.is_degenerate
    assert fit.is_degenerate or again.numbers == pytest.approx(fit.numbers, rel=1e-6, abs=1e-6)


@examples(600)
@given(st.lists(st.lists(any_entropy, max_size=40), max_size=6), st.integers(4, 16))
def test_push_and_push_by_scatter_agree(pushes, size):
    queue, seen = torch.zeros(size + 1), torch.zeros((), dtype=torch.int64)
    other, other_seen = queue.clone(), seen.clone()
    kept = []
    for H in pushes:
        push(queue, seen, torch.tensor(H))
        push_by_scatter(other, other_seen, torch.tensor(H))
        kept += [h for h in H if math.isfinite(h)]
    assert torch.equal(queue[:-1], other[:-1])
    assert seen == other_seen == len(kept)
    assert queue.isfinite().all()
    last = torch.tensor(kept[-size:]).clamp(H_MIN, H_MAX)
    expected = last if len(kept) < size else last.roll(len(kept) % size)
    assert torch.equal(queue[: len(last)], expected)


# --- OGC, step by step -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:OGC. for:UserWarning")
@pytest.mark.parametrize("name", BASES)
def test_steps_are_finite_and_clip_to_the_target_ratio(name, started):
    @examples(500)
    @given(
        st.lists(queues() | st.lists(entropy, min_size=1, max_size=3 * Q).map(torch.tensor), min_size=1, max_size=5),
        epsilons,
    )
    def check(steps, epsilon):
        criterion = restart(*started[name])
        criterion.rule = Relative(epsilon, follow_lr=False)
        for H in steps:
            degenerate = int(criterion.degenerate)
            logits, labels = logits_with(H.clamp(min=1e-12))
            logits.requires_grad_()
            value = criterion(logits, labels)
            (gradient,) = torch.autograd.grad(value, logits)
            assert value.isfinite()
            assert gradient.isfinite().all()
            p0, tau = criterion.p0.item(), criterion.tau.item()
            assert 0 < tau < math.inf
            assert P_MIN * (1 - 1e-9) <= p0 <= 1 - P_MIN + 1e-12
            p = torch.softmax(logits.detach(), 1)
            assert (gradient[:, 0].abs() <= tau * (1 + 1e-6) * p[:, 0] * p[:, 1] + 1e-12).all()
            updated = criterion.seen >= Q and criterion.steps % 2 == 0 and criterion.degenerate == degenerate
            if updated and p0 > P_MIN:
                ratio = noisy_to_clean_ratio(criterion.base, criterion.mixture, tau)
                assert float(ratio) == pytest.approx(1 + epsilon, rel=1e-6)
            if updated and p0 == P_MIN:
                assert noisy_to_clean_ratio(criterion.base, criterion.mixture, math.inf) <= (1 + epsilon) * (1 + 1e-6)

    check()


@pytest.mark.filterwarnings("ignore:OGC. for:UserWarning")
def test_training_on_any_batches_stays_finite(started):
    """Gradients, queue and solution contain no NaN or infinity."""

    @examples(500)
    @given(st.lists(batches(), min_size=1, max_size=8))
    def check(drawn):
        criterion = restart(*started["fl"])
        criterion.rule = Relative(0.5, follow_lr=False)
        for logits, labels in drawn:
            leaf = logits.clone().requires_grad_()
            criterion(leaf, labels).backward()
            assert leaf.grad.isfinite().all()
            assert criterion.queue.isfinite().all()
            assert criterion.solution[:2].isfinite().all()

    check()


@pytest.mark.filterwarnings("ignore:OGC. for:UserWarning")
@examples(500)
@given(queue=queues(), drawn=batches())
def test_evaluation_changes_nothing(queue, drawn, started):
    criterion = restart(*started["ce"])
    criterion(*logits_with(queue.clamp(min=1e-12)))
    criterion.update()
    before = state_of(criterion)
    with torch.no_grad():
        first = criterion(*drawn)
    criterion.noise_probability(*drawn)
    criterion.eval()
    leaf = drawn[0].clone().requires_grad_()
    criterion(leaf, drawn[1]).backward()
    assert torch.equal(criterion(*drawn), first)
    assert all(same_bits(buffer, before[name]) for name, buffer in criterion.named_buffers())


@pytest.mark.filterwarnings("ignore:OGC. for:UserWarning")
@examples(300)
@given(steps=st.lists(queues(), min_size=2, max_size=6), data=st.data())
def test_save_anywhere_and_resume(steps, data, started):
    """The result is bit-identical to an uninterrupted run."""
    cut = data.draw(st.integers(1, len(steps) - 1))
    criterion, state = started["default rule"]
    restart(criterion, state)
    uninterrupted = [criterion(*logits_with(H.clamp(min=1e-12))) for H in steps]
    end = state_of(criterion)
    restart(criterion, state)
    resumed = [criterion(*logits_with(H.clamp(min=1e-12))) for H in steps[:cut]]
    saved = copied(criterion.state_dict())
    criterion(*logits_with(torch.rand(5) + 1))  # an unrelated step in between
    restart(criterion, saved)
    resumed += [criterion(*logits_with(H.clamp(min=1e-12))) for H in steps[cut:]]
    assert torch.equal(torch.stack(resumed), torch.stack(uninterrupted))
    assert all(same_bits(buffer, end[name]) for name, buffer in criterion.named_buffers())
