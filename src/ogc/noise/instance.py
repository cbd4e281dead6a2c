"""Noise that depends on the image: part-dependent label noise.

*Part-dependent Label Noise: Towards Instance-dependent Label Noise*, Xia et al., NeurIPS 2020,
https://arxiv.org/abs/2006.07836, algorithm 2 of its appendix, in the form in which the released code draws it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._require import require
from .transition import _check

Label = TypeVar("Label", bound=np.integer[Any])

RATE_STD = 0.1
BATCH_VALUES = 2**22  # pixels projected at once: 32 MiB in float64


def instance_dependent(
    images: Tensor | NDArray[np.uint8], labels: NDArray[Label], rate: float, *, num_classes: int, seed: int = 0
) -> NDArray[Label]:
    """Given labels; a wrong one is a class that the image itself makes likely: (N, ...), (N,) -> (N,).

    For image x of true class y:

        q ~ normal(rate, 0.1), cut to [0, 1]          how likely its label is wrong
        P(given = j) = q softmax_j(x W_y), j != y     W_y: (features, C), standard normal, one for each true class
        P(given = y) = 1 - q

    As in the released generator, x are raw pixels from 0 to 255, so x W_y is in the thousands: the softmax is nearly
    always a single class, and an image has one wrong class that it can be taken for. *Cut* means that values outside
    [0, 1] are drawn again, so near its ends the mean of q is not ``rate``: 0.08 for a rate of 0.

    What differs: the random numbers, hence the labels, and the projection, which is float64 here. ``images`` are uint8
    and may be on any device. Random numbers are drawn on the CPU and the projection is exact, so labels do not depend
    on the device.
    """
    _check(labels, rate, num_classes, seed)
    require(len(images) == len(labels), "images", f"{len(labels)} in number, like the labels", len(images))
    pixels = torch.as_tensor(images).flatten(1) if len(labels) else torch.empty(0, 1, dtype=torch.uint8)
    require(pixels.dtype == torch.uint8, "images", "raw pixels, uint8", pixels.dtype)

    rng = np.random.default_rng(seed)
    q = _flip_rates(rng.random(len(labels)), rate)
    draws = rng.random(len(labels))
    given = labels.copy()
    for y, of_class in enumerate(rng.spawn(num_classes)):  # a generator each, so that no class moves another's noise
        where = np.flatnonzero(labels == y)
        if not len(where):
            continue
        W = of_class.standard_normal((pixels.shape[1], num_classes))
        scores = _project(pixels, torch.from_numpy(where), W)
        scores[:, y] = -np.inf
        p = np.exp(scores - scores.max(1, keepdims=True))
        p *= q[where, None] / p.sum(1, keepdims=True)
        p[:, y] = 1 - q[where]
        up_to = p.cumsum(1)
        up_to /= up_to[:, -1:]
        given[where] = (draws[where, None] >= up_to).sum(1)
    return given


def _flip_rates(u: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """Draws of normal(rate, RATE_STD) given that it is in [0, 1], from draws of uniform(0, 1): (N,) -> (N,)."""
    low, high = torch.special.ndtr(torch.tensor([0 - rate, 1 - rate], dtype=torch.float64) / RATE_STD).tolist()
    z: NDArray[np.float64] = torch.special.ndtri(torch.from_numpy(low + (high - low) * u)).numpy()
    return np.clip(rate + RATE_STD * z, 0, 1)


def _project(pixels: Tensor, where: Tensor, W: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores x W of some images, on the images' device: (N, F), (n,), (F, C) -> (n, C).

    W is rounded to multiples of a power of two so small (2^-29 for CIFAR), and yet so large, that every product with a
    pixel and every sum of F of them has less than 53 bits. Then float64 is exact, and the order of summation, which
    differs between devices, does not matter.
    """
    features = pixels.shape[1]
    unit = 2.0 ** -(53 - 8 - 3 - int(features).bit_length() - 1)  # pixels < 2^8, |W| < 2^3
    exact = torch.from_numpy(np.clip(np.round(W / unit) * unit, -8, 8)).to(pixels.device)
    batches = where.to(pixels.device).split(max(1, BATCH_VALUES // features))  # type: ignore[no-untyped-call]
    scores: NDArray[np.float64] = torch.cat([pixels[batch].double() @ exact for batch in batches]).cpu().numpy()
    return scores
