"""The paper's labels. ``golden/labels.json`` holds their checksums, computed by ``labels_sha256``.

The labels come from the authors' generator, run on the official files. Drawing them again requires CIFAR: set OGC_CIFAR
to a folder that ``ogc.data.load_cifar10`` and ``load_cifar100`` accept.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from ogc.data import load_cifar10, load_cifar100
from ogc.noise import labels_sha256
from ogc.noise.by_kind import Kind, Truth

TESTS = Path(__file__).parents[1]
CHECKSUMS = json.loads((TESTS / "golden" / "labels.json").read_text())
LABELS = TESTS.parents[1] / "shared" / "golden" / "labels.npz"  # next to a maintainer's clone
CIFAR = os.environ.get("OGC_CIFAR")

with_cifar = pytest.mark.skipif(CIFAR is None, reason="needs OGC_CIFAR, a folder of CIFAR-10 and CIFAR-100")


@pytest.fixture(scope="module")
def images():
    return {"cifar10": load_cifar10(CIFAR)[0], "cifar100": load_cifar100(CIFAR)[0]}


def draw(key, images, device="cpu"):
    name, kind, rate = key.split("-")
    train = images[name]
    truth = Truth(name, train.given.numpy(), train.num_classes, images=train.inputs.to(device))
    return Kind(kind, float(rate)).make(truth, seed=0)[0]


@with_cifar
@pytest.mark.parametrize("key", CHECKSUMS)
def test_reproduces_the_papers_labels(key, images):
    given = draw(key, images)
    if LABELS.exists():
        different = int((given != np.load(LABELS)[key]).sum())
        assert different == 0, f"{different} of 50,000 labels differ"
    assert labels_sha256(given) == CHECKSUMS[key]


@with_cifar
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("key", [key for key in CHECKSUMS if "instance" in key])
def test_gpu_reproduces_the_papers_labels(key, images):
    assert labels_sha256(draw(key, images, "cuda")) == CHECKSUMS[key]


@pytest.mark.skipif(not LABELS.exists(), reason="needs shared/golden/labels.npz next to the clone")
def test_checksums_match_the_labels():
    with np.load(LABELS) as labels:
        assert {key: labels_sha256(labels[key]) for key in labels} == CHECKSUMS
