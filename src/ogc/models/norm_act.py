"""Batch norm, residual and ReLU as one module, which the fused kernels compute with fewer passes over memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import fused_norm


class NormAct(nn.BatchNorm2d):
    """relu(bn(x) + residual): (N, C, H, W), (N, C, H, W) or None -> (N, C, H, W).

    The state is that of :class:`torch.nn.BatchNorm2d` without ``num_batches_tracked``, which is not needed with a fixed
    momentum and would cost one kernel per layer and step. Channels-last input on CUDA takes
    :mod:`ogc.kernels.fused_norm`.

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
        mean, var, momentum = self.running_mean, self.running_var, self.momentum or 0.0
        assert mean is not None
        assert var is not None
        if x.is_cuda and not torch.compiler.is_compiling():
            norm = fused_norm.Norm(self.weight, self.bias, mean, var, momentum, self.eps, self.training)
            if fused_norm.serves(x, residual, norm):
                return fused_norm.norm_act(x, residual, norm, act=act)
        y = F.batch_norm(x, mean, var, self.weight, self.bias, self.training, momentum, self.eps)
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
