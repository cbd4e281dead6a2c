"""Methods by name: a loss (``gce``), one that OGC clips (``ce+ogc``), or one with tau moved by hand (``ce+ema``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from .._near import meant
from .._require import require
from ..clipping import EMA, OGC, Linear
from ..losses import LOSSES, Loss

if TYPE_CHECKING:
    from .recipe import Recipe

Value = bool | int | float
Parameters = dict[str, Value]

RULES = {"ogc": OGC, "linear": Linear, "ema": EMA}  # what moves tau
CLIPPED = ("ce", "fl", "gce", "sce", "taylor_ce", "js")  # what OGC accepts
METHODS = (
    *LOSSES,
    *(
        f"{base}+{rule}"
        for rule in RULES
        for base in CLIPPED
        if (base, rule) not in {("sce", "linear"), ("sce", "ema")}
    ),
)

PAPER: dict[str, dict[str, Parameters]] = {  # the paper's table "param", and its text for gce+ogc
    "cifar10": {
        "fl": {"gamma": 0.5},
        "gce": {"q": 0.9},
        "sce": {"alpha": 0.1, "beta": 1.0},
        "phuber_ce": {"tau": 2.0},
        "taylor_ce": {"t": 2},
        "nce_rce": {"alpha": 1.0, "beta": 0.1},
        "js": {"pi1": 0.9},
        "lc_ce": {"tau": 0.1},
        "nce_nnce": {"alpha": 1.0, "beta": 1.0},
        "ce+ogc": {"epsilon0": 20.0},
        "fl+ogc": {"gamma": 0.5, "epsilon0": 20.0},
        "gce+ogc": {"q": 0.7, "epsilon0": 20.0},
        "ce+linear": {"beta": 10.0},
        "ce+ema": {"alpha": 0.9999},
    },
    "cifar100": {
        "fl": {"gamma": 0.5},
        "gce": {"q": 0.6},
        "sce": {"alpha": 0.1, "beta": 1.0},
        "phuber_ce": {"tau": 10.0},
        "taylor_ce": {"t": 16},
        "nce_rce": {"alpha": 50.0, "beta": 0.1},
        "js": {"pi1": 0.5},
        "lc_ce": {"tau": 0.1},
        "nce_nnce": {"alpha": 100.0, "beta": 5.0},
        "ce+ogc": {"epsilon0": 20.0},
        "fl+ogc": {"gamma": 0.5, "epsilon0": 20.0},
    },
    "webvision": {
        "gce": {"q": 0.7},
        "sce": {"alpha": 0.5, "beta": 1.0},
        "phuber_ce": {"tau": 30.0},
        "nce_rce": {"alpha": 50.0, "beta": 0.1},
        "lc_ce": {"tau": 1.2},
        "ce+ogc": {"epsilon0": 250.0},
        "fl+ogc": {"gamma": 0.5, "epsilon0": 350.0},
    },
}


def criterion(recipe: Recipe, *, classes: int, optimizer: torch.optim.Optimizer | None, total_steps: int) -> Loss:
    """The recipe's loss. ``total_steps`` is the length of training, which ``+linear`` needs."""
    require(classes >= 2, "classes", "at least 2", classes)
    return build(recipe.method, recipe.parameters, optimizer=optimizer, total_steps=total_steps)


def build(
    method: str,
    parameters: Mapping[str, Value],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    total_steps: int = 1,
) -> Loss:
    """The loss of a method; a bad value is refused by the part that it belongs to."""
    check(method, parameters)
    name, _, rule = method.partition("+")
    own = _defaults(LOSSES[name])
    inner: dict[str, Any] = {key: value for key, value in parameters.items() if key in own}
    rest: dict[str, Any] = {key: value for key, value in parameters.items() if key not in own}
    base: Any = LOSSES[name](**inner)
    if rule == "ogc":
        return OGC(base, optimizer, **rest)
    if rule == "linear":
        return OGC(base, follow_lr=False, threshold=Linear(**rest, steps=total_steps))
    if rule == "ema":
        return OGC(base, follow_lr=False, threshold=EMA(**rest))
    return cast(Loss, base)


def check(method: str, parameters: Iterable[str] = ()) -> None:
    """Refuse a method that is not there and a parameter that it does not take, naming what may have been meant."""
    name, plus, rule = method.partition("+")
    if name not in LOSSES or (rule not in RULES if plus else False):
        raise ValueError(
            f"There is no method named {method!r}.{meant(method, METHODS)} There are {', '.join(METHODS)}."
        )
    taken = takes(method)
    for parameter in parameters:
        if parameter not in taken:
            raise ValueError(
                f"The method {method} has no parameter {parameter!r}.{meant(parameter, taken)} "
                f"It takes {', '.join(taken) or 'none'}."
            )


def takes(method: str) -> dict[str, Value | None]:
    """The parameters of a method and their defaults."""
    name, _, rule = method.partition("+")
    base, more = _defaults(LOSSES[name]), _defaults(RULES[rule]) if rule else {}
    if clash := base.keys() & more.keys():
        raise ValueError(f"The method {method} cannot be: both of its parts have a parameter `{min(clash)}`.")
    return base | more


def complete(method: str, given: Mapping[str, Value], data: str) -> Parameters:
    """The parameters as given, else the paper's for this data set, else the loss's own.

    ``epsilon`` and ``epsilon0`` are two rules for one thing: only the one of them that is in force is kept.
    """
    check(method, given)
    require(not given.keys() >= {"epsilon", "epsilon0"}, "epsilon", "left out with epsilon0", given.get("epsilon"))
    known = PAPER.get(data, {})
    paper = known.get(method, known.get(method.partition("+")[0], {}))
    whole: dict[str, Value | None] = {**takes(method), **paper, **given}
    if "epsilon" in given:
        whole["epsilon0"] = None
    elif whole.get("epsilon0") is not None:
        whole["epsilon"] = None
    return {name: value for name, value in whole.items() if value is not None}


def _defaults(part: Callable[..., object]) -> dict[str, Value | None]:
    """The numbers among the arguments of a constructor."""
    apart = ("ignore_index", "steps")
    found = {a.name: a.default for a in inspect.signature(part).parameters.values() if a.name not in apart}
    return {name: value for name, value in found.items() if name == "epsilon0" or isinstance(value, bool | int | float)}
