"""``ogc::observe``: a step's books as one operator, opaque to ``torch.compile``, that declares which buffers it writes.

Whatever only the host knows (the clock, the learning rate) is looked up inside it by the criterion's key, so none of it
is baked into a graph or guarded on.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Protocol

import torch
from torch import Tensor

from .books import State


class Observer(Protocol):
    """Who keeps the books."""

    def _observe(self, logits: Tensor, labels: Tensor, state: State) -> Any: ...


_keys = itertools.count()
observers: weakref.WeakValueDictionary[int, Observer] = weakref.WeakValueDictionary()


def key_of(observer: Observer) -> Tensor:
    """A new key, by which the operator finds the observer while that lives: a tensor, since an int is guarded on."""
    key = next(_keys)
    observers[key] = observer
    return torch.tensor(key)


@torch.no_grad()
def _observe(logits: Tensor, labels: Tensor, *state_and_key: Any) -> None:
    *state, key = state_and_key
    observers[int(key)]._observe(logits, labels, State(*state))


# mode="reduce-overhead" would bake the learning rate of the first step into its graph
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
