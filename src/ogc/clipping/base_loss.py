"""The losses that OGC can clip."""

from __future__ import annotations

import torch
from torch import Tensor

from ..losses import CLIPPABLE, Pointwise, loss_class


def clippable_loss(base: Pointwise | str) -> Pointwise:
    """Return the base loss, or raise ``ValueError`` if it is not a pointwise loss without parameters to train."""
    loss = loss_class(base)() if isinstance(base, str) else base
    if not isinstance(loss, Pointwise):
        found = f"the class {loss.__name__}" if isinstance(loss, type) else type(loss).__name__
        raise ValueError(
            f"OGC needs a loss of p(y) alone: {', '.join(CLIPPABLE)}, or an instance of a subclass of "
            f"ogc.losses.Pointwise. Found {found}."
        )
    if trainable := [name for name, value in loss.named_parameters() if value.requires_grad]:
        raise ValueError(
            f"The base loss of OGC should have no trainable parameters. Found {', '.join(trainable)} in "
            f"{type(loss).__name__}. To fix this, call loss.requires_grad_(False)."
        )
    return loss.require_plain("OGC")


def check_slope(base: Pointwise, p: Tensor, slope: Tensor) -> None:
    """Raise ValueError if the slope does not fall strictly as p rises, or if it is not the derivative of ``value``."""
    name, at, value = type(base).__name__, base.at(-torch.log(p)), base.value(p)
    for formula, found in (("value(p)", value), ("at(H)", at), ("slope(p)", slope)):
        if found.shape != p.shape:
            raise ValueError(
                f"`{name}.{formula}` should return one number per sample, of shape {tuple(p.shape)}. Found "
                f"{tuple(found.shape)}."
            )
    stuck = slope.diff() <= 0
    if bool(stuck.any()) or not bool(((slope > 0) & slope.isfinite()).all()):
        where = f"fall near p = {float(p[int(stuck.int().argmax())]):.3g}" if bool(stuck.any()) else "stay above 0"
        raise ValueError(
            f"OGC needs a loss whose gradient falls strictly as p rises. That of {name}({base.extra_repr()}) does not "
            f"{where}. A loss with a constant gradient, such as MAE, needs no clipping."
        )
    _require_equal(f"{name}.at(H)", at, "value(p) at H = -log p", value, p)
    _require_equal(f"{name}.slope(p)", slope, "|d value/dp|", Pointwise.slope(base, p), p)


def _require_equal(name: str, found: Tensor, rule: str, expected: Tensor, p: Tensor) -> None:
    if not torch.allclose(found, expected, rtol=1e-4):
        worst = int(((found - expected).abs() / (1e-8 + 1e-4 * expected.abs())).argmax())
        raise ValueError(
            f"`{name}` should be {rule}, which at p = {float(p[worst]):.3g} is {float(expected[worst]):.6g}. "
            f"Found {float(found[worst]):.6g}."
        )
