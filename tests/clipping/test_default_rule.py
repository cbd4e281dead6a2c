"""The parts of the default rule, and a short training run on a small binary dataset."""

import math

import pytest
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

from ogc import OGC
from ogc.clipping.default_rule import (
    better_than_guess,
    count_classes,
    f_star,
    follow,
    gives_up_a_class,
    p_star,
    period,
    recent,
)
from ogc.clipping.loss_queue import newest, push
from ogc.clipping.mixture import Mixture
from ogc.given_label import P_MIN
from ogc.noise import symmetric
from samples import noisy_batch


def mixture(clean: float, noisy: float) -> Mixture:
    return Mixture(clean, 0.1, noisy, 0.5, 0.3)  # type: ignore[arg-type]  # floats, as on the CPU


@pytest.mark.parametrize(
    ("clean", "noisy", "p_ratio", "gives_up", "expected"),
    [
        (0.2, 2.0, 0.3, False, 0.1),  # better than a random guess: hard rather than mislabelled, so no edge
        (0.2, 2.0, P_MIN, False, P_MIN),
        (0.2, 5.0, 0.3, False, math.exp(-0.2)),  # the edge of the clean samples
        (0.2, 5.0, 0.9, False, 0.9),  # the paper's bound, where it is tighter
        (0.2, 5.0, 0.3, True, 0.3),  # no edge while a class is not learned
        (0.2, 2.0, 0.03, True, 0.03),
        (0.2, 2.0, 0.3, True, 0.1),
        (0.2, 2.4, 0.01, False, math.exp(2 * 2.4 - 3 * math.log(10))),  # slightly worse than a random guess
        (0.0, 9.0, 0.3, False, 1 - P_MIN),
    ],
)
def test_p_star(clean, noisy, p_ratio, gives_up, expected):
    assert p_star(mixture(clean, noisy), p_ratio, 10, gives_up) == pytest.approx(expected)


def test_p0_smoothing_is_exponential_in_steps():
    p0 = 0.0
    for _ in range(4):
        p0 = follow(p0, 1.0, steps=4)
    assert p0 == pytest.approx(follow(0.0, 1.0, steps=16))
    assert p0 == pytest.approx(1 - math.exp(-1))


def test_updates_are_more_frequent_at_first():
    assert [period(step, 32) for step in (1, 1024, 1025)] == [4, 4, 32]
    assert period(1, 4) == 1


def test_only_recent_samples_are_fitted():
    assert [recent(seen, 4096) for seen in (100, 300, 2000, 8000, 10**6)] == [100, 256, 500, 2000, 4096]
    queue, seen = torch.zeros(11), torch.zeros((), dtype=torch.int64)
    for value in range(1, 18):
        push(queue, seen, torch.tensor([value / 4]))
    for count in (1, 4, 7, 8, 10):
        assert sorted(newest(queue, 17, count).tolist()) == [value / 4 for value in range(18 - count, 18)]


def test_samples_are_counted_per_class():
    counts = torch.zeros(2, 64, dtype=torch.int64)
    H = torch.tensor([0.1, 0.2, 5.0, 5.0, math.nan, 0.1])
    count_classes(counts, H, torch.tensor([0, 0, 0, 1, 1, -100]), 3)
    assert counts[:, :3].tolist() == [[4, 1, 0], [3, 0, 0]]  # an ignored label is NaN in the queue; here it is class 0
    assert better_than_guess(counts, 3) == {0: 0.75, 1: 0.0}
    assert better_than_guess(counts, 65) == {}  # too many classes to tell


def test_class_is_given_up_if_fewer_than_a_third_are_better_than_a_guess():
    assert gives_up_a_class({0: 0.75, 1: 0.0})
    assert not gives_up_a_class({0: 0.75, 1: 1 / 3})
    assert gives_up_a_class({})  # no samples to tell from


def test_factor_falls_below_one_if_fewer_than_a_third_are_better_than_a_guess():
    assert [f_star(share) for share in (0.0, 1 / 6, 1 / 3, 1.0)] == [0, 0.5, 1, 1]
    assert follow(1.0, f_star(0.5), steps=4) == 1  # exactly


def test_class_that_is_given_up_is_clipped_less():
    """Class 0 is always predicted, and class 1 never. Both labels of the last call have the same H."""
    criterion = OGC("ce", follow_lr=False, every=8)
    logits, labels = torch.tensor([[2.0, -2.0]]).repeat(64, 1), torch.arange(64) // 56
    for _ in range(64):
        criterion(logits, labels)
    wrong = torch.tensor([[-4.0, 4.0], [4.0, -4.0]], requires_grad=True)
    criterion(wrong, torch.tensor([0, 1])).backward()
    of_0, of_1 = wrong.grad.abs().sum(1)
    assert of_1 > 10 * of_0


def test_ignored_samples_are_not_counted():
    criterion = OGC("ce", follow_lr=False, ignore_index=3, every=800)
    logits, labels = noisy_batch(64, seed=0)
    criterion(logits, labels)
    assert criterion.by_class[0].sum() == (labels != 3).sum()
    assert criterion.by_class[0, 3] == 0


@pytest.mark.parametrize("num_classes", [2, 64, 65, 300])
def test_any_number_of_classes(num_classes):
    criterion = OGC("ce", follow_lr=False, every=8)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        labels = torch.randint(num_classes, (64,), generator=generator)
        logits = 2 * torch.randn(64, num_classes, generator=generator)
        logits[torch.arange(40), labels[:40]] += 9.0
        criterion(logits, labels)
    assert 0.1 < criterion.p0 < 1
    criterion(logits, labels)  # every update resets the counts
    assert criterion.by_class.sum() == 0


def train(name: str, seed: int, epochs: int = 60) -> float:
    """Return the test accuracy after training on two classes with 30 % wrong labels."""
    X, y = load_breast_cancer(return_X_y=True)
    inputs = torch.from_numpy((X - X.mean(0)) / X.std(0)).float()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    true, given = torch.from_numpy(y), torch.from_numpy(symmetric(y, 0.3, num_classes=2, seed=seed))
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    criterion = nn.CrossEntropyLoss() if name == "ce" else OGC("ce", optimizer)
    held_out, rows = order[:170], order[170:]
    for _ in range(epochs):
        for batch in rows.split(64):
            optimizer.zero_grad()
            criterion(model(inputs[batch]), given[batch]).backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        return float((model(inputs[held_out]).argmax(1) == true[held_out]).double().mean())


def test_beats_cross_entropy_on_small_binary_dataset():
    """The defaults work on data that they were not tuned on."""
    ce, ogc = (sum(train(name, seed) for seed in range(2)) / 2 for name in ("ce", "ogc"))
    assert ogc > ce + 0.08, (ce, ogc)
