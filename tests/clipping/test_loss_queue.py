"""The ring buffer of recent cross entropies, compared with a deque, for every implementation of push."""

import math
from collections import deque

import pytest
import torch

from ogc.clipping.loss_queue import gather_ranks, push, push_by_scatter, push_by_slices
from ogc.given_label import H_MAX, H_MIN
from samples import random


class Ring:
    def __init__(self, size, push):
        self.queue, self.seen, self.push_ = torch.zeros(size + 1), torch.zeros((), dtype=torch.int64), push

    def push(self, H):
        self.push_(self.queue, self.seen, H)

    def contents(self):
        """Return the entries, oldest first."""
        size, seen = len(self.queue) - 1, int(self.seen)
        ring = self.queue[:-1]
        return (ring.roll(-(seen % size)) if seen >= size else ring[:seen]).tolist()


def draw(seed, size):
    """Yield batches of all sizes, some empty, some larger than the queue, with entries that must not be queued."""
    g = random(seed)
    for _ in range(30):
        n = int(torch.randint(0, (4, size, 2 * size + 2)[int(torch.randint(3, (), generator=g))], (), generator=g))
        H = torch.rand(n, generator=g) * 40 - 1
        H[torch.rand(n, generator=g) < 0.1] = math.nan
        H[torch.rand(n, generator=g) < 0.1] = math.inf
        yield H
    yield torch.full((3,), math.nan)
    yield torch.full((2 * size,), math.inf)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("push_", [push_by_slices, push_by_scatter, push])
def test_equals_a_deque(push_, seed):
    size = (4, 5, 16, 33)[seed % 4]
    ring, expected, seen = Ring(size, push_), deque(maxlen=size), 0
    for H in draw(seed, size):
        ring.push(H)
        kept = H[H.isfinite()].clamp(H_MIN, H_MAX).tolist()
        expected.extend(kept)
        seen += len(kept)
        assert ring.contents() == list(expected)
        assert ring.seen == seen


@pytest.mark.parametrize("seed", range(10))
def test_slices_and_scatter_fill_the_same_slots(seed):
    slices, scatter = Ring(16, push_by_slices), Ring(16, push_by_scatter)
    for H in draw(seed, 16):
        slices.push(H)
        scatter.push(H)
        assert torch.equal(slices.queue[:-1], scatter.queue[:-1])
        assert slices.seen == scatter.seen


@pytest.mark.parametrize("push_", [push_by_slices, push_by_scatter])
def test_values_are_clamped(push_):
    ring = Ring(4, push_)
    ring.push(torch.tensor([0.0, 1e4, 3e38, 3e38]))  # their sum overflows
    low, high = torch.tensor(H_MIN).item(), torch.tensor(H_MAX).item()
    assert ring.contents() == [low, high, high, high]


def test_single_process_gathers_nothing():
    H = torch.rand(3)
    assert gather_ranks(H, None) is H
    assert gather_ranks(H, False) is H
