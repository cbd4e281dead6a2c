"""Batch norm, residual and ReLU as one module, which the fused kernels compute with fewer passes over memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NormAct(nn.BatchNorm2d):
    """relu(bn(x) + residual): (N, C, H, W), (N, C, H, W) or None -> (N, C, H, W).

    The state is that of :class:`torch.nn.BatchNorm2d` without ``num_batches_tracked``, which is not needed with a fixed
    momentum and would cost one kernel per layer and step. For channels-last input on CUDA, see
    :mod:`ogc.models.fused_norm`.

    >>> NormAct(2)(torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1).expand(2, 2, 1, 1)).flatten().tolist()
    [0.0, 0.0, 0.9999949932098389, 0.9999949932098389]
    """

    def __init__(self, channels: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(channels, eps=eps, momentum=momentum)
        self.register_buffer("num_batches_tracked", None)

    def forward(self, x: Tensor, residual: Tensor | None = None, *, act: bool = True) -> Tensor:
        """:param act: False leaves out the ReLU."""
        return self.fork(x, residual, act=act)[0]

    def fork(self, x: Tensor, residual: Tensor | None = None, *, act: bool = True) -> tuple[Tensor, Tensor]:
        """Return the result twice, for two paths. Their gradients are added here, which saves a pass over memory."""
        if x.is_cuda and not torch.compiler.is_compiling():
            from . import fused_norm

            if fused_norm.serves(self, x, residual):
                return fused_norm.norm_act(self, x, residual, act=act)
        momentum = self.momentum or 0.0
        y = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, momentum, self.eps
        )
        y = y if residual is None else y + residual
        y = F.relu(y) if act else y
        return y, y

    def reset_running_stats(self) -> None:
        """Set the running mean to 0 and the running variance to 1."""
        assert self.running_mean is not None
        assert self.running_var is not None
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        # BatchNorm2d would add num_batches_tracked to a plain dict. The one in checkpoints of other ResNets is ignored.
        wanted = {key: value for key, value in state_dict.items() if key != prefix + "num_batches_tracked"}
        nn.Module._load_from_state_dict(self, wanted, prefix, *rest)
