"""Data and criteria shared by several tests."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ogc import OGC
from ogc.clipping import Fixed
from ogc.given_label import P_MIN
from ogc.losses import LOSSES, Loss

C = 10

Make = Callable[..., Loss]
"""A criterion's constructor: keyword arguments -> criterion."""


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(
    N: int = 32, *, seed: int = 0, dtype: torch.dtype = torch.float32, spread: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Logits (N, C) and labels (N,), unrelated."""
    g = random(seed)
    return (spread * torch.randn(N, C, generator=g, dtype=torch.float64)).to(dtype), torch.randint(C, (N,), generator=g)


def noisy_batch(N: int, *, seed: int, rate: float = 0.4, margin: float = 5.0) -> tuple[Tensor, Tensor]:
    """Logits that predict the true label, and given labels that are wrong at ``rate``. Their H is bimodal."""
    g = random(seed)
    true = torch.randint(C, (N,), generator=g)
    logits = torch.randn(N, C, generator=g)
    logits[torch.arange(N), true] += margin
    wrong = torch.rand(N, generator=g) < rate
    return logits, torch.where(wrong, (true + torch.randint(1, C, (N,), generator=g)) % C, true)


def rare_batch(step: int) -> tuple[Tensor, Tensor]:
    """Two classes. Class 1 has 4 of 64 samples, or none, and is not predicted before step 40."""
    labels = (torch.arange(64) >= (60 if step % 3 else 64)).long()
    logits = 0.1 * torch.randn(64, 2, generator=random(step))
    logits[:, 0] += min(step / 15, 4.0)
    return torch.where(((labels == 1) & (step >= 40))[:, None], logits.flip(1), logits), labels


def queue_of(shape: str, size: int = 512, *, seed: int = 0) -> Tensor:
    """H of a queue of the given shape: (size,)."""
    queues = {
        "constant": torch.full((size,), 1.5),
        "two spikes": torch.tensor([0.1, 9.0]).repeat_interleave(size // 2),
        "one outlier": torch.cat([torch.full((size - 1,), 0.5), torch.tensor([14.0])]),
        "one cluster": (3 + torch.randn(size, generator=random(seed))).clamp(min=0.1),
        "two clusters": torch.cat(
            [
                0.3 + 0.2 * torch.randn(size // 2, generator=random(seed)),
                4 + torch.randn(size - size // 2, generator=random(seed)),
            ]
        ).abs(),
    }
    return queues[shape]


def logits_with(H: Tensor) -> tuple[Tensor, Tensor]:
    """Two-class logits whose given label, 0, has the cross entropy H > 0: (N,) -> (N, 2), (N,)."""
    H = H.double()
    return torch.stack([-H, torch.log(-torch.expm1(-H))], 1), torch.zeros(len(H), dtype=torch.long)


def feed(criterion: OGC, H: Tensor) -> None:
    """One training step whose cross entropies are H."""
    criterion(*logits_with(H))


def feed_all(criterion: OGC, logits: Tensor, labels: Tensor) -> None:
    """Train on the labels that are not ignored until the queue is full."""
    logits, labels = (t[labels != criterion.ignore_index] for t in (logits, labels))
    while criterion.seen < criterion.queue_size:
        criterion(logits, labels)


def clipping_ogc(base: str, **arguments: Any) -> OGC:
    """An OGC past its first update, whose p0 lies among the p of `batch`, in evaluation mode so that it stays there."""
    epsilon = {"ce": 2.0, "fl": 2.0, "gce": 0.4}[base]
    criterion = OGC(base, **{"follow_lr": False, "epsilon": epsilon, "every": 1, "queue_size": 64} | arguments)
    feed_all(criterion, *noisy_batch(64, seed=1))
    assert P_MIN < criterion.p0 < 0.6, criterion
    return criterion.eval()  # type: ignore[no-any-return]


def fixed_ogc(base: str, tau: float, **arguments: Any) -> OGC:
    """An OGC with a constant tau, after its first step."""
    criterion = OGC(base, threshold=Fixed(tau), **arguments)
    criterion(*batch(4))
    return criterion.eval()  # type: ignore[no-any-return]


CRITERIA: dict[str, Make] = dict(LOSSES) | {
    f"{base}+ogc": lambda base=base, **arguments: clipping_ogc(base, **arguments) for base in ("ce", "fl", "gce")
}
"""Every method of the paper, by name, with its default parameters."""


def state_of(criterion: OGC) -> dict[str, Tensor]:
    """A copy of the buffers."""
    return {name: buffer.clone() for name, buffer in criterion.named_buffers()}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return True if equal. NaN equals NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(nan=-1.0), b.nan_to_num(nan=-1.0))


def optimizer_with(lr: float) -> torch.optim.SGD:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
