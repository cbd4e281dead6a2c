"""LogitClip around any loss."""

import re

import pytest
import torch
from torch.testing import assert_close

from ogc import OGC, losses
from ogc.losses import LogitClip
from samples import batch


def shrunk(logits, tau):
    return logits / logits.norm(dim=1, keepdim=True).clamp(min=tau) * tau


@pytest.mark.parametrize("base", [losses.GCE(), losses.NCEPlusRCE(), losses.JSDivergence()], ids=repr)
def test_wraps_other_base_losses(base):
    logits, labels = batch()
    assert_close(LogitClip(base, tau=2.0)(logits, labels), type(base)()(shrunk(logits, 2.0), labels))


def test_logits_of_small_norm_are_not_clipped():
    logits, labels = batch(spread=0.01)
    assert_close(LogitClip(tau=1.0)(logits, labels), losses.CrossEntropy()(logits, labels))


def test_masked_classes_stay_masked():
    logits, labels = batch()
    labels[:] = 0
    logits[:, 7:] = -torch.inf
    assert_close(LogitClip(tau=0.5)(logits, labels), LogitClip(tau=0.5)(logits[:, :7], labels))


def test_ignore_index_reaches_the_base():
    logits, labels = batch()
    labels[::2] = 255
    assert_close(
        LogitClip(losses.GCE(), ignore_index=255)(logits, labels), LogitClip(losses.GCE())(logits[1::2], labels[1::2])
    )


@pytest.mark.parametrize("arguments", [{"weight": torch.ones(10)}, {"ignore_index": 0}, {"reduction": "sum"}], ids=str)
@pytest.mark.parametrize("wrapper", [LogitClip, OGC])
def test_arguments_of_the_inner_loss_are_rejected(wrapper, arguments):
    name = wrapper.__name__
    rule = f"Give `weight`, `ignore_index` and `reduction` to {name}, not to the loss inside it."
    message = rf"^{re.escape(rule)} Found `GCE\(q=0\.9, .*\)`\.$"
    with pytest.raises(ValueError, match=message):
        wrapper(losses.GCE(**arguments))
