"""The records of a training step, in one launch: H and the prediction of each sample, the loss, averaged statistics."""

from __future__ import annotations

from torch import Tensor

from ._triton import tl, triton

if triton is not None:

    @triton.jit
    def _record_step(
        logits, rows, loss, H, predicted, losses, position, at, stats, average_stats, rates, batch, stats_size,
        C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_STATS: tl.constexpr, AVERAGES: tl.constexpr,
    ):  # fmt: skip
        """Program i < batch records sample i. The last one records the loss and averages the running statistics."""
        i = tl.program_id(0)
        if i < batch:
            c = tl.arange(0, BLOCK_C)
            x = tl.load(logits + i * C + c, mask=c < C, other=float("-inf")).to(tl.float32)
            index, label = tl.load(rows + i), tl.load(rows + batch + i)
            top = tl.max(x, 0)
            own = tl.sum(tl.where(c == label, x, 0.0), 0)
            tl.store(H + index, (top - own) + tl.log(tl.sum(tl.exp(x - top), 0)))
            tl.store(predicted + index, tl.argmax(x, 0).to(tl.int64))
        else:
            now = tl.load(at)
            tl.store(losses + now, tl.load(loss))
            if AVERAGES:
                keep = tl.load(rates + 2 * tl.load(position) + 1)
                for start in range(0, stats_size, BLOCK_STATS):
                    j = start + tl.arange(0, BLOCK_STATS)
                    old = tl.load(average_stats + j, mask=j < stats_size)
                    new = tl.load(stats + j, mask=j < stats_size)
                    tl.store(average_stats + j, old + (1 - keep) * (new - old), mask=j < stats_size)


def record_step(
    *, logits: Tensor, rows: Tensor, loss: Tensor, H: Tensor, predicted: Tensor, losses: Tensor, position: Tensor,
    at: Tensor, stats: Tensor, average_stats: Tensor | None, rates: Tensor,
) -> None:  # fmt: skip
    """Record H and the prediction of each sample and the loss, and average the running statistics, in one launch.

    :param rows: indices and labels of the samples, (2, batch).
    """
    batch, classes = logits.shape
    _record_step[(batch + 1,)](
        logits, rows, loss, H, predicted, losses, position, at, stats,
        stats if average_stats is None else average_stats, rates, batch, stats.numel(),
        C=classes, BLOCK_C=triton.next_power_of_2(classes), BLOCK_STATS=1024,
        AVERAGES=average_stats is not None and stats.numel() > 0, num_warps=4,
    )  # fmt: skip
