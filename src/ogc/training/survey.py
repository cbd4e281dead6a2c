"""What a network says of its own training samples, without augmentation, averaged over its training.

A network learns right labels before wrong ones, and may have learnt both in the end. So it is asked at moments spread
over all of training, and not only after it. ``ogc.audit`` finds wrong labels by the answers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..given_label import margin
from .evaluate import EvaluationSet

LARGEST = 2**28  # numbers of probabilities, at most: 1 GiB


def due(epoch: int, *, epochs: int, surveys: int) -> bool:
    """Whether there is one after so many epochs: they are evenly spread, and the last one is at the end.

    >>> [epoch for epoch in range(1, 151) if due(epoch, epochs=150, surveys=5)]
    [30, 60, 90, 120, 150]
    """
    return epoch * surveys // epochs > (epoch - 1) * surveys // epochs


class Survey:
    """Sums over the surveys so far, on the device.

    :ivar count: of surveys, () int64.
    :ivar H: cross entropies of the given labels, (N,).
    :ivar margin: log p(given) - log p(likeliest other class), (N,).
    :ivar probabilities: (N, C).
    """

    NAMES = ("count", "H", "margin", "probabilities")

    def __init__(self, data: EvaluationSet, given: Tensor, classes: int) -> None:
        device = data.feed.device
        self.data, self.given = data, given.to(device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self.H, self.margin = (torch.zeros(data.samples, device=device) for _ in range(2))
        self.probabilities = torch.zeros(data.samples, classes, device=device)

    @torch.no_grad()
    def ask(self, network: nn.Module, weights: Mapping[str, Tensor], bits: str) -> None:
        """One more, of the network with these weights. Reads nothing back from the device."""
        for where, logits in self.data.logits(network, weights, bits):
            log_p = logits.float().log_softmax(1)
            given = self.given[where]
            self.H[where] -= log_p.gather(1, given[:, None])[:, 0]
            self.margin[where] += margin(log_p, given)
            self.probabilities[where] += log_p.exp()
        self.count += 1

    def state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.NAMES}

    def means(self) -> dict[str, Tensor]:
        """Of H, margin and probabilities."""
        return {name: value / self.count for name, value in self.state().items() if name != "count"}
