import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from ogc.noise import confusion_matrix, instance_dependent, labels_sha256
from ogc.noise.instance import _flip_rates, _project

C = 10


def some_images(n, seed=0, shape=(3, 8, 8)):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, C, n)


def one_at_a_time(images, labels, rate, num_classes, seed):
    """The definition, by loops; the same random numbers."""
    rng = np.random.default_rng(seed)
    q = _flip_rates(rng.random(len(labels)), rate)
    draws = rng.random(len(labels))
    W = [generator.standard_normal((images[0].size, num_classes)) for generator in rng.spawn(num_classes)]
    given = []
    for image, y, q_i, draw in zip(images, labels, q, draws, strict=True):
        scores = image.reshape(-1).astype(np.float64) @ W[y]
        scores[y] = -np.inf
        p = q_i * np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        p[y] = 1 - q_i
        given.append(next(j for j in range(num_classes) if draw < p[: j + 1].sum() or j == num_classes - 1))
    return np.array(given)


@pytest.mark.parametrize("shape", [(3, 8, 8), (1,), (17,)])
def test_equals_the_definition_by_loops(shape):
    images, labels = some_images(400, shape=shape)
    fast = instance_dependent(images, labels, 0.4, num_classes=C, seed=3)
    assert (fast == one_at_a_time(images, labels, 0.4, C, seed=3)).all()


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.6])
def test_rate_within_4_sigma(rate):
    images, labels = some_images(20_000, shape=(12,))
    given = instance_dependent(images, labels, rate, num_classes=C, seed=1)
    expected = _flip_rates((np.arange(20_000) + 0.5) / 20_000, rate).mean()  # near rate, but for the cut
    assert abs(expected - rate) < 0.006
    assert abs((given != labels).mean() - expected) < 4 * np.sqrt(rate * (1 - rate) / 20_000)


def test_flip_rates_are_a_normal_cut_to_0_1():
    u = (np.arange(100_000) + 0.5) / 100_000
    q = _flip_rates(u, 0.4)
    assert abs(q.mean() - 0.4) < 1e-4
    assert abs(q.std() - 0.1) < 1e-3
    for rate in (0.0, 0.05, 1.0):
        drawn = rate + 0.1 * np.random.default_rng(0).standard_normal(400_000)
        drawn = drawn[(drawn >= 0) & (drawn <= 1)]
        q = _flip_rates(u, rate)
        assert 0 <= q.min() <= q.max() <= 1
        assert abs(q.mean() - drawn.mean()) < 1e-3
        assert abs(q.std() - drawn.std()) < 1e-3


def test_the_same_image_is_taken_for_the_same_class():
    images = np.repeat(some_images(C)[0], 300, axis=0)
    labels = np.arange(C).repeat(300)
    table = confusion_matrix(labels, instance_dependent(images, labels, 0.4, num_classes=C), num_classes=C)
    for c in range(C):
        wrong = np.delete(table[c], c)
        assert wrong.max() > 0.95 * wrong.sum()  # scores are in the thousands: the softmax is a single class


def test_the_projection_is_exact():
    """So the order of summation, and with it the device, cannot matter."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (5, 3072), dtype=np.uint8))
    W = rng.standard_normal((3072, C))
    order = rng.permutation(3072)
    scores = _project(pixels, torch.arange(5), W)
    assert (scores == _project(pixels[:, order], torch.arange(5), W[order])).all()
    units = np.round(W * 2.0**29).astype(object)
    in_integers = pixels.numpy().astype(object) @ units
    assert (scores == in_integers.astype(float) / 2.0**29).all()
    assert abs(scores - pixels.double().numpy() @ W).max() < 1e-3


def test_tensors_and_arrays_in_any_shape_give_the_same():
    images, labels = some_images(300)
    given = instance_dependent(images, labels, 0.4, num_classes=C)
    assert (given == instance_dependent(torch.from_numpy(images), labels, 0.4, num_classes=C)).all()
    assert (given == instance_dependent(images.reshape(300, -1), labels, 0.4, num_classes=C)).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_gives_the_same():
    images, labels = some_images(20_000, shape=(3, 32, 32))
    on_cpu = instance_dependent(images, labels, 0.4, num_classes=C)
    on_gpu = instance_dependent(torch.from_numpy(images).cuda(), labels, 0.4, num_classes=C)
    assert (on_cpu == on_gpu).all()


def test_another_class_does_not_move_a_classs_projection():
    images, labels = some_images(500)
    shifted = np.where(labels == 0, 1, labels)
    first = instance_dependent(images, labels, 0.4, num_classes=C)
    second = instance_dependent(images, shifted, 0.4, num_classes=C)
    assert (first == second)[labels != 0].all()


def test_seeds_types_and_input_untouched():
    images, labels = some_images(500)
    labels = labels.astype(np.uint8)
    before = images.copy(), labels.copy()
    given = instance_dependent(images, labels, 0.4, num_classes=C, seed=2)
    assert given.dtype == np.uint8
    assert (given == instance_dependent(images, labels, 0.4, num_classes=C, seed=2)).all()
    assert (given != instance_dependent(images, labels, 0.4, num_classes=C, seed=3)).any()
    assert (images == before[0]).all()
    assert (labels == before[1]).all()


def test_a_seed_gives_the_same_labels_in_another_process_and_on_every_machine():
    code = (
        "import numpy as np; from ogc.noise import *; images = (np.arange(500 * 20) % 251).astype(np.uint8)\n"
        "labels = np.arange(500) % 10\n"
        "print(labels_sha256(instance_dependent(images.reshape(500, 20), labels, 0.4, num_classes=10, seed=7)))\n"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    images = (np.arange(500 * 20) % 251).astype(np.uint8).reshape(500, 20)
    here = labels_sha256(instance_dependent(images, np.arange(500) % 10, 0.4, num_classes=10, seed=7))
    assert there == here == "8a96191aef7893b0bec7668e5f3174c1d49e0a613a58e57813c8ccecf98618c6"


def test_no_images():
    empty = instance_dependent(np.zeros((0, 3, 8, 8), np.uint8), np.zeros(0, np.int64), 0.4, num_classes=C)
    assert empty.shape == (0,)


@pytest.mark.parametrize(
    ("images", "rate", "message"),
    [
        (np.zeros((3, 4), np.uint8), 0.4, "`images` should be 2 in number, like the labels. Found `images = 3`"),
        (np.zeros((2, 4), np.float32), 0.4, "`images` should be raw pixels, uint8. Found `images = torch.float32`"),
        (np.zeros((2, 4), np.uint8), -0.1, r"`rate` should be in \[0, 1\]"),
    ],
)
def test_errors(images, rate, message):
    with pytest.raises(ValueError, match=message):
        instance_dependent(images, np.array([0, 1]), rate, num_classes=C)


@pytest.mark.slow
def test_fifty_thousand_images_take_seconds():
    images, labels = some_images(50_000, shape=(3, 32, 32))
    began = time.perf_counter()
    instance_dependent(images, labels, 0.4, num_classes=C)
    assert time.perf_counter() - began < 10
