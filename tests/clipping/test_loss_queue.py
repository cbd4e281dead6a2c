"""The ring buffer of recent cross entropies, compared with a deque, for every implementation of push."""

import math
from collections import deque

import pytest
import torch

from ogc.clipping.loss_queue import gather_labels, gather_ranks, push, push_by_scatter, push_on_cpu
from ogc.given_label import H_MAX, H_MIN
from samples import random


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
    yield torch.tensor([0.0, 1e4, 3e38, 3e38])  # their sum overflows


@pytest.mark.parametrize("seed", range(25))
def test_equals_a_deque(seed):
    """Both implementations fill the same slots, and so does one push of everything."""
    size = (4, 5, 16, 33)[seed % 4]
    rings = {
        each: (torch.zeros(size + 1), torch.zeros((), dtype=torch.int64)) for each in (push_on_cpu, push_by_scatter)
    }
    expected, seen, pushed = deque(maxlen=size), 0, []
    for H in draw(seed, size):
        pushed.append(H)
        kept = H[H.isfinite()].clamp(H_MIN, H_MAX).tolist()
        expected.extend(kept)
        seen += len(kept)
        at_once = torch.zeros(size + 1), torch.zeros((), dtype=torch.int64)
        push(*at_once, torch.cat(pushed))
        for each, ring in rings.items():
            each(*ring, H)
        for queue, count in (*rings.values(), at_once):
            assert count == seen
            contents = queue[:-1].roll(-(seen % size)) if seen >= size else queue[:seen]
            assert contents.tolist() == list(expected)


def test_single_process_gathers_nothing():
    H, labels = torch.rand(3), torch.arange(3)
    for group in (None, False):
        assert gather_ranks(H, group) is H
        assert gather_labels(labels, group) is labels
