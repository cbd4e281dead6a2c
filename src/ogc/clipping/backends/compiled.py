"""OGC under ``torch.compile``: the loss is traced, the update of the state is one opaque operator, ``ogc::observe``.

The operator declares which buffers it writes. It looks up the step number and the learning rate, which only the host
knows, by the key of the criterion, so that neither of them is compiled into a graph or guarded on.
"""

from __future__ import annotations

import itertools
import math
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...given_label import check_input, pick_quietly
from ..state import State
from . import cuda

if TYPE_CHECKING:
    from ..ogc import OGC

_keys = itertools.count()
criteria: weakref.WeakValueDictionary[int, OGC] = weakref.WeakValueDictionary()


def new_key(criterion: OGC) -> Tensor:
    """Return a key by which the operator finds the criterion. It is a tensor, because graphs are guarded on ints."""
    key = next(_keys)
    criteria[key] = criterion
    return torch.tensor(key)


def traced_loss(criterion: OGC, logits: Tensor, labels: Tensor, learns: bool) -> Tensor:
    """Trace a step: the operator for Algorithm 1, lines 4 to 12, then the loss, line 13."""
    checked, labels = check_input(logits, labels)
    if learns:
        observe(logits.detach(), labels, *criterion.state(), criterion.key)
    return criterion.reduce(criterion.per_sample(checked, labels), labels, checked.shape[1])


@torch.no_grad()
def _observe(logits: Tensor, labels: Tensor, *state_and_key: Any) -> None:
    """Run Algorithm 1, lines 4 to 12, and write the buffers passed in.

    H is computed as in eager mode, not traced, so that a compiled run queues the same bits as an eager one.
    """
    *buffers, key = state_and_key
    criterion, state = criteria[int(key)], State(*buffers)
    rule = cuda.step_rule(criterion, logits, labels)
    if rule is not None:
        cuda.run_step(criterion, rule, state, logits, labels, with_loss=False)
        return
    log_p = F.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=1)
    H = pick_quietly(log_p, labels, criterion.ignore_index)
    H = torch.where(labels == criterion.ignore_index, math.nan, H)
    criterion.learn(H, labels, logits.shape[1], state)


# mode="reduce-overhead" would otherwise record the learning rate of the first step in its CUDA graph
_UNSAFE_IN_CUDA_GRAPHS: dict[str, Any] = (
    {"tags": [torch.Tag.cudagraph_unsafe]} if hasattr(torch.Tag, "cudagraph_unsafe") else {}
)
_buffers = ", ".join(f"Tensor(a{i}!) {name}" for i, name in enumerate(State._fields))
observe = torch.library.custom_op(
    "ogc::observe",
    _observe,
    mutates_args=State._fields,
    schema=f"(Tensor logits, Tensor labels, {_buffers}, Tensor key) -> ()",
    **_UNSAFE_IN_CUDA_GRAPHS,
)
observe.register_fake(lambda *args: None)
