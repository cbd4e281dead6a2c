"""The losses that OGC can clip."""

from __future__ import annotations

from ..losses import CLIPPABLE, Pointwise, loss_class


def clippable_loss(base: Pointwise | str) -> Pointwise:
    """Return the base loss, or raise ``ValueError`` if OGC cannot clip it."""
    loss = loss_class(base)() if isinstance(base, str) else base
    name = (loss if isinstance(loss, type) else type(loss)).__name__
    if isinstance(loss, type) and issubclass(loss, Pointwise):
        raise ValueError(f"OGC needs a loss, not its class. To fix this, pass {name}().")
    if not isinstance(loss, Pointwise):
        raise ValueError(
            "OGC needs a pointwise loss, one that depends on the given label's probability alone: "
            f"{', '.join(CLIPPABLE)}, or a subclass of ogc.losses.Pointwise. Found {name}."
        )
    trainable = [parameter for parameter, value in loss.named_parameters() if value.requires_grad]
    if trainable:
        raise ValueError(
            f"The base loss of OGC should have no trainable parameters. Found {', '.join(trainable)} in {name}. "
            "To fix this, call loss.requires_grad_(False)."
        )
    return loss.require_plain("OGC")
