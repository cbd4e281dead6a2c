"""An epoch's order and draws depend only on seed and epoch, and batches match the data."""

from dataclasses import replace

import pytest
import torch

from ogc.data.augment import IMAGENET, Cifar, Large, normalise
from ogc.training.feed import check, statistics
from small_runs import features, feed, images, on_disk


@pytest.mark.parametrize("augment", ["none", "cifar", "large"])
def test_plan_depends_only_on_seed_and_epoch(augment):
    data = images(70)
    one, other = (feed(data, augment=augment, size=8) for _ in range(2))
    torch.rand(5)  # other draws have no effect
    for epoch in (0, 5):
        first, second = one.plan(epoch), other.plan(epoch)
        assert torch.equal(first.order, second.order)
        assert all(torch.equal(a, b) for a, b in zip(first.draws, second.draws, strict=True))
        assert len(first.draws) == {"none": 0, "cifar": 4, "large": 9}[augment]
    assert not torch.equal(one.plan(0).order, one.plan(1).order)
    assert not torch.equal(one.plan(0).order, feed(data, augment=augment, size=8, seed=4).plan(0).order)


def test_batches_are_full_and_samples_do_not_repeat():
    one = feed(images(70))
    order = one.plan(2).order
    assert order.shape == (4, 16)
    assert order.unique().numel() == 64


def test_few_samples_form_one_batch():
    one = feed(images(9))
    assert (one.batch, one.steps) == (9, 1)
    with pytest.raises(ValueError, match="`data` should be at least 2 samples"):
        feed(images(1))


@pytest.mark.parametrize("augment", ["none", "cifar", "large"])
def test_batches_with_each_augmentation(augment):
    data = images(40)
    one = feed(data, augment=augment, size=6)
    plan = one.plan(0)
    index, draws = plan.order[1], tuple(part[1] for part in plan.draws)
    inputs = one(index, draws)
    assert inputs.shape == (16, *one.shape)
    if augment == "none":
        assert torch.equal(inputs, normalise(data.inputs[index], *statistics(data.inputs)))
    assert one.shape == ((3, 6, 6) if augment == "large" else (3, 8, 8))
    assert isinstance(one.augment, {"none": type(None), "cifar": Cifar, "large": Large}[augment])


def test_features_are_unchanged():
    data = features(40)
    one = feed(data)
    index = one.plan(0).order[0]
    assert torch.equal(one(index, ()), data.inputs[index])


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (features(40), {"augment": "cifar"}, "`augment` should be none with features"),
        (features(40), {"size": 32}, "`size` should be none with features"),
        (images(40), {"augment": "large"}, "`size` should be given with augment = large"),
        (replace(images(40), inputs=images(40).inputs[:, :1]), {"augment": "large", "size": 8}, "of 1 channels"),
        (replace(images(40), inputs=images(40).inputs.flatten(1)), {}, "`data` should be images"),
        (on_disk(images(40)), {"augment": "cifar"}, "`augment` should be large or none for images that are read"),
        (images(9), {"parts": 2}, "`batch_size` should be a multiple of 2 .* and no more than there are samples"),
    ],
)
def test_invalid_options_are_rejected(data, changes, message):
    with pytest.raises(ValueError, match=message):
        check(data, **{"batch_size": 16, "augment": "none", "size": None} | changes)


def test_mean_and_std_are_tensors_on_the_device(monkeypatch):
    one, seen = feed(images(40)), []
    monkeypatch.setattr("ogc.training.feed.normalise", lambda inputs, *scale: seen.extend(scale))
    one.plain(images(4).inputs)
    assert all(part is known for part, known in zip(seen, one.scale, strict=True))
    assert all(isinstance(part, torch.Tensor) for part in seen)


def test_images_on_disk_are_read_with_their_batch():
    data = images(40)
    one, in_memory = feed(on_disk(data), augment="large", size=6), feed(data, augment="large", size=6)
    one.inputs.reads = 0
    plan = one.plan(0)
    assert one.inputs.reads == 0
    inputs = one(plan.order[0], tuple(part[0] for part in plan.draws))
    assert one.inputs.reads == 16
    assert one.statistics == IMAGENET
    assert torch.equal(plan.order, in_memory.plan(0).order)
    assert inputs.shape == (16, 3, 6, 6)


def test_runs_on_the_same_images_share_the_augmentation():
    data = images(40)
    one = feed(data, augment="cifar")
    shared = feed(data, augment="cifar", seed=9, batch_size=8, like=one)
    assert shared.augment is one.augment
    assert feed(data, augment="none", like=one).augment is None
    assert feed(images(40), augment="cifar", like=one).augment is not one.augment


def test_statistics_match_the_pixels():
    pixels = images(40).inputs
    mean, std = statistics(pixels)
    scaled = pixels.double().transpose(0, 1).flatten(1) / 255
    assert torch.allclose(torch.tensor(mean).double(), scaled.mean(1), atol=6e-5)
    assert torch.allclose(torch.tensor(std).double(), scaled.std(1, correction=0), atol=6e-5)
    assert statistics(torch.full((2, 3, 4, 4), 7, dtype=torch.uint8)).std == (1e-4, 1e-4, 1e-4)
    assert statistics(features(4).inputs) is None
