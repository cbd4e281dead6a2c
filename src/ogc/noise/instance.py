"""Noise that depends on the image: part-dependent label noise.

*Part-dependent Label Noise: Towards Instance-dependent Label Noise*, Xia et al., NeurIPS 2020,
https://arxiv.org/abs/2006.07836, algorithm 2 of its appendix, in the form and with the random stream of the code that
the authors of the OGC paper released.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._require import require
from .transition import check_labels

Label = TypeVar("Label", bound=np.integer[Any])

RATE_STD = 0.1
BATCH_VALUES = 2**22  # pixels projected at once: 32 MiB in float64


def instance_dependent(
    images: Tensor | NDArray[np.uint8], labels: NDArray[Label], rate: float, *, num_classes: int, seed: int = 0
) -> NDArray[Label]:
    """Draw given labels whose errors depend on the image: (N, ...), (N,) -> (N,).

    For image x of true class y:

        q ~ normal(rate, 0.1), truncated to [0, 1]    probability that the label is wrong
        P(given = j) = q softmax_j(x W_y), j != y     softmax over j != y only
                                                      W_y: (features, C), standard normal, one per true class
        P(given = y) = 1 - q

    With seed 0, on CIFAR-10 and CIFAR-100, these are the labels of the released generator with seed 0. Both use NumPy's
    legacy stream in the same order: N uniforms for q, then W for all classes in order, then one uniform per sample.

    x are raw pixels, so x W_y is in the thousands: the softmax is nearly always a single class, mostly the one that W_y
    happens to favour, and the noise differs from seed to seed. Truncation makes the mean of q 0.08 for a rate of 0.

    :param images: uint8, on any device. (N, 3, H, W) is read in the authors' order, channels last; every other shape in
        the order in which it is stored. The labels do not depend on the device.
    """
    labels = check_labels(labels, rate, num_classes, seed)
    require(len(images) == len(labels), "images", f"{len(labels)} images, one per label", len(images))
    pixels = _flat(torch.as_tensor(images))
    require(pixels.dtype == torch.uint8, "images", "raw pixels, uint8", pixels.dtype)

    rng = np.random.RandomState(seed)  # the order of the calls below decides the labels
    q = _flip_rates(rng.random_sample(len(labels)), rate)
    up_to = np.empty((len(labels), num_classes))  # cumulative P(given), up to and including each class
    for y in range(num_classes):
        W = rng.standard_normal((pixels.shape[1], num_classes))  # drawn for empty classes as well
        where = np.flatnonzero(labels == y)
        if not len(where):
            continue
        scores = _project(pixels, torch.from_numpy(where), W)
        scores[:, y] = -np.inf
        p = np.exp(scores - scores.max(1, keepdims=True))
        p *= q[where, None] / p.sum(1, keepdims=True)
        p[:, y] = 1 - q[where]
        up_to[where] = p.cumsum(1)
    up_to /= up_to[:, -1:]
    given: NDArray[Label] = (rng.random_sample((len(labels), 1)) >= up_to).sum(1).astype(labels.dtype)
    return given


def _flip_rates(u: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """Turn uniform draws into draws of normal(rate, RATE_STD) truncated to [0, 1]: (N,) -> (N,).

    The inverse CDF, as in SciPy's ``truncnorm.rvs``.
    """
    low, high = torch.special.ndtr(torch.tensor([0 - rate, 1 - rate], dtype=torch.float64) / RATE_STD).tolist()
    z: NDArray[np.float64] = torch.special.ndtri(torch.from_numpy(low + (high - low) * u)).numpy()
    return np.clip(rate + RATE_STD * z, 0, 1)


def _flat(images: Tensor) -> Tensor:
    """Flatten images, channels last if they are RGB: (N, 3, H, W) -> (N, H * W * 3), (N, ...) -> (N, F)."""
    if images.ndim == 4 and images.shape[1] == 3:
        images = images.permute(0, 2, 3, 1)
    return images.reshape(len(images), images[:1].numel() or 1)


def _project(pixels: Tensor, where: Tensor, W: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the scores x W of some images on their device: (N, F), (n,), (F, C) -> (n, C).

    W is rounded to multiples of a power of two (2^-29 for CIFAR) that leaves every product with a pixel and every sum
    of F of them below 53 bits. float64 is then exact, and the order of summation, which differs between devices, does
    not matter.
    """
    features = pixels.shape[1]
    unit = 2.0 ** -(53 - 8 - 3 - int(features).bit_length() - 1)  # pixels < 2^8, |W| < 2^3
    exact = torch.from_numpy(np.clip(np.round(W / unit) * unit, -8, 8)).to(pixels.device)
    batches = where.to(pixels.device).split(max(1, BATCH_VALUES // features))  # type: ignore[no-untyped-call]
    scores: NDArray[np.float64] = torch.cat([pixels[batch].double() @ exact for batch in batches]).cpu().numpy()
    return scores
