import numpy as np
import pytest
import torch
from scipy import stats

from ogc.noise import confusion_matrix, instance_dependent, labels_sha256
from ogc.noise.instance import _flip_rates, _project

C = 10


def some_images(n, seed=0, shape=(3, 8, 8)):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, C, n)


def reference(images, labels, rate, num_classes, seed):
    """Draw labels with loops, in the released generator's order of random calls, with SciPy's truncated normal."""
    stream = np.random.RandomState(seed)
    normal = stats.truncnorm((0 - rate) / 0.1, (1 - rate) / 0.1, loc=rate, scale=0.1)
    q = normal.rvs(len(labels), random_state=stream)
    W = stream.randn(num_classes, images[0].size, num_classes)
    given = []
    for image, y, q_i in zip(images, labels, q, strict=True):
        scores = channels_last(image).astype(np.float64) @ W[y]
        scores[y] = -np.inf
        p = q_i * np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        p[y] = 1 - q_i
        given.append(stream.choice(num_classes, p=p))
    return np.array(given)


def channels_last(image):
    """Flatten an image row by row, with the channels of each pixel next to each other."""
    if image.ndim != 3 or len(image) != 3:
        return image.reshape(-1)
    _, height, width = image.shape
    return np.array([image[c, i, j] for i in range(height) for j in range(width) for c in range(3)])


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("rate", [0.1, 0.4])
@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 8, 8), (8, 8, 3), (1,), (17,)])
def test_equals_the_loop_reference(shape, rate, seed):
    images, labels = some_images(400, shape=shape)
    labels[labels == 4] = 5  # a class without samples still draws random numbers
    fast = instance_dependent(images, labels, rate, num_classes=C, seed=seed)
    assert (fast == reference(images, labels, rate, C, seed=seed)).all()


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.4, 0.9, 1.0])
def test_flip_rates_equal_scipy(rate):
    expected = stats.truncnorm((0 - rate) / 0.1, (1 - rate) / 0.1, loc=rate, scale=0.1).rvs(
        10_000, random_state=np.random.RandomState(5)
    )
    found = _flip_rates(np.random.RandomState(5).random_sample(10_000), rate)
    assert abs(found - expected).max() < 1e-12


def test_same_image_gets_the_same_wrong_label():
    images = np.repeat(some_images(C)[0], 300, axis=0)
    labels = np.arange(C).repeat(300)
    table = confusion_matrix(labels, instance_dependent(images, labels, 0.4, num_classes=C), num_classes=C)
    for c in range(C):
        wrong = np.delete(table[c], c)
        assert wrong.max() > 0.95 * wrong.sum()  # scores are in the thousands: the softmax is a single class


def test_projection_is_exact():
    """The order of summation, and with it the device, has no effect."""
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


def test_tensors_arrays_and_channel_orders_agree():
    images, labels = some_images(300)
    given = instance_dependent(images, labels, 0.4, num_classes=C)
    last = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    for same in (torch.from_numpy(images), last, last.reshape(300, -1)):
        assert (given == instance_dependent(same, labels, 0.4, num_classes=C)).all()
    assert (given != instance_dependent(images.reshape(300, -1), labels, 0.4, num_classes=C)).any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_equals_cpu():
    images, labels = some_images(20_000, shape=(3, 32, 32))
    on_cpu = instance_dependent(images, labels, 0.4, num_classes=C)
    on_gpu = instance_dependent(torch.from_numpy(images).cuda(), labels, 0.4, num_classes=C)
    assert (on_cpu == on_gpu).all()


def test_seed_dtype_and_unmodified_input():
    images, labels = some_images(500)
    labels = labels.astype(np.uint8)
    before = images.copy(), labels.copy()
    given = instance_dependent(images, labels, 0.4, num_classes=C, seed=2)
    assert given.dtype == np.uint8
    assert (given != instance_dependent(images, labels, 0.4, num_classes=C, seed=3)).any()
    assert (images == before[0]).all()
    assert (labels == before[1]).all()
    assert instance_dependent(images[:0], labels[:0], 0.4, num_classes=C).shape == (0,)


def test_seed_is_reproducible_across_processes_and_machines():
    images = (np.arange(500 * 20) % 251).astype(np.uint8).reshape(500, 20)
    given = instance_dependent(images, np.arange(500) % 10, 0.4, num_classes=10, seed=7)
    assert labels_sha256(given) == "cd41b82610b357ce51535044136fbfd824bfff21a9d66b3c29628b49af5cec2b"


@pytest.mark.parametrize(
    ("images", "rate", "found"),
    [
        (np.zeros((3, 4), np.uint8), 0.4, "images = 3"),
        (np.zeros((2, 4), np.float32), 0.4, "images = torch.float32"),
        (np.zeros((2, 4), np.uint8), -0.1, "rate = -0.1"),
    ],
)
def test_invalid_arguments(images, rate, found):
    with pytest.raises(ValueError, match=f"`{found}"):
        instance_dependent(images, np.array([0, 1]), rate, num_classes=C)
