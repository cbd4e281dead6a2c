"""H = -log p(y): never in half precision, and NaN for invalid labels where values cannot be read."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from ogc.given_label import H_MAX, H_MIN, P_MIN, check_input, cross_entropy, pick_quietly
from samples import batch


def test_h_limits_match_p_min():
    assert math.exp(-H_MAX) == pytest.approx(P_MIN)
    assert math.exp(-H_MIN) == pytest.approx(1 - P_MIN)
    assert P_MIN == 1e-7


def test_equals_torch():
    logits, labels = batch(dtype=torch.float64)
    assert_close(cross_entropy(logits, labels, -100), F.cross_entropy(logits, labels, reduction="none"))


def test_is_not_clamped():
    logits = torch.tensor([[1000.0, 0.0], [0.0, -torch.inf], [50.0, 0.0]])
    H = cross_entropy(logits, torch.tensor([1, 1, 0]), -100)
    assert H.tolist() == [1000.0, math.inf, pytest.approx(0, abs=1e-20)]


def test_input_types():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert check_input(torch.zeros(2, 3, dtype=dtype), torch.tensor([0, 1]))[0].dtype == torch.float32
    logits, labels = check_input(torch.zeros(2, 3, dtype=torch.float64), torch.tensor([0, 1], dtype=torch.uint8))
    assert (logits.dtype, labels.dtype) == (torch.float64, torch.int64)


def test_pick_quietly_matches_cross_entropy_for_valid_labels():
    logits, labels = batch()
    labels[3] = -100
    log_p = F.log_softmax(logits, 1)
    assert torch.equal(pick_quietly(log_p, labels, -100), cross_entropy(logits, labels, -100))


def test_pick_quietly_returns_nan_for_labels_out_of_range():
    H = pick_quietly(torch.zeros(5, 3), torch.tensor([0, 3, -1, 255, 7]), 255)
    assert H.isnan().tolist() == [False, True, True, False, True]
    assert H[3] == 0


@pytest.mark.parametrize("ignore_index", [0, 2])
def test_ignored_labels_may_be_classes(ignore_index):
    logits, labels = batch()
    H = cross_entropy(logits, labels, ignore_index)
    assert (H[labels == ignore_index] == 0).all()
    assert torch.equal(H, pick_quietly(F.log_softmax(logits, 1), labels, ignore_index))


@pytest.mark.parametrize(
    ("logits", "labels", "single"),
    [
        ((8,), (8,), True),
        ((8, 1), (8,), True),
        ((8, 1), (8, 1), True),
        ((1, 1), (1,), True),
        ((4, 1, 3, 3), (4, 3, 3), True),
        ((4, 1, 3, 3), (4, 1, 3, 3), True),
        ((10,), (4,), False),
        ((8, 1), (3,), True),
        ((), (), False),
    ],
)
def test_single_logits_have_an_error_of_their_own(logits, labels, single):
    with pytest.raises(ValueError, match="two columns" if single else "N, C, d1"):
        check_input(torch.zeros(logits), torch.zeros(labels, dtype=torch.int64))
