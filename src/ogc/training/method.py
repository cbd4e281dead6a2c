"""Methods by name: a loss (``gce``), a loss clipped by OGC (``ce+ogc``) or with another schedule of tau (``ce+ema``).

A custom loss is ``my_loss.py:MyLoss``. If it is a ``Pointwise``, it can be clipped: ``my_loss.py:MyLoss+ogc``.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from .._files import first_line
from .._require import did_you_mean, require
from ..clipping import EMA, OGC, Linear
from ..clipping.default_rule import SAMPLES_NEEDED
from ..losses import CLIPPABLE, LOSSES, Loss
from .own_loss import OwnLoss, try_out

if TYPE_CHECKING:
    from .recipe import Recipe

Value = bool | int | float
Parameters = dict[str, Value]

RULES = {"ogc": OGC, "linear": Linear, "ema": EMA}  # schedules of tau
METHODS = (*LOSSES, *(f"{base}+{rule}" for rule in RULES for base in CLIPPABLE if base != "sce" or rule == "ogc"))

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

IMAGE_EPSILON = 2.0
"""OGC's epsilon on images, for any learning rate: that of the paper's rule at the start of training on CIFAR-10."""
PARAMETERS: dict[str, dict[str, Parameters]] = {  # by the name of a recipe for images
    **PAPER,
    "folder": {},
    "folder-large": {},
    "cifar10-plus": PAPER["cifar10"],
    "cifar100-plus": PAPER["cifar100"],
    "cifar10-default": PAPER["cifar10"] | {"ce+ogc": {}, "fl+ogc": {"gamma": 0.5}},
}


class Method(NamedTuple):
    """A method with its settings."""

    name: str
    settings: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Method:
        """Parse a method as it is typed.

        >>> Method.parse("gce:q=0.9")
        Method(name='gce', settings={'q': '0.9'})
        """
        name, *rest = text.strip().split(":")
        while rest and "=" not in rest[0]:  # my_loss.py:MyLoss
            name = f"{name}:{rest.pop(0)}"
        pairs = [part.partition("=") for part in rest]
        require(
            bool(name) and all(all(pair) for pair in pairs),
            "method",
            "METHOD or METHOD:KEY=VALUE, as in gce:q=0.9",
            text,
        )
        keys = [key for key, _, _ in pairs]
        require(
            len({"method", *keys}) == 1 + len(keys),
            "method",
            "METHOD:KEY=VALUE with each KEY once, and without method",
            text,
        )
        return cls(name, {key: value for key, _, value in pairs})

    @property
    def label(self) -> str:
        """A name for folders."""
        return "-".join([Path(self.name).name, *(f"{key}-{value}" for key, value in self.settings.items())])


def criterion(
    recipe: Recipe,
    *,
    classes: int,
    optimizer: torch.optim.Optimizer | None,
    total_steps: int,
    samples: int | None = None,
) -> Loss:
    """Build the loss of a recipe.

    :param total_steps: length of training, for ``+linear``.
    :param samples: size of the training set. The queue of OGC's default rule spans at most one pass over them.
    """
    require(classes >= 2, "classes", "at least 2", classes)
    if (own := own_loss(recipe.method)) is not None:
        own.load(recipe.method_sha256)
    parameters = dict(recipe.parameters)
    if samples is not None and by_default(recipe.method, parameters):
        parameters["queue_size"] = min(int(parameters["queue_size"]), max(samples, SAMPLES_NEEDED))
    loss = build(recipe.method, parameters, optimizer=optimizer, total_steps=total_steps)
    if own is not None and not isinstance(loss, OGC):
        try_out(loss, str(own), classes)
    return loss


def by_default(method: str, parameters: Mapping[str, Value]) -> bool:
    """Return True if OGC moves tau by its default rule."""
    return split(method)[2] == "ogc" and not parameters.keys() & {"epsilon", "epsilon0"}


def for_rare_classes(method: str, parameters: Mapping[str, Value]) -> str:
    """Say how to train instead if a rare class was not learned."""
    if method == "ce":
        return "for more epochs"
    if by_default(method, parameters):
        return "for more epochs or with --method ce"
    return "with --method ce" if split(method)[2] else "with --method ce or ce+ogc"


def build(
    method: str,
    parameters: Mapping[str, Value],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    total_steps: int = 1,
) -> Loss:
    """Build the loss of a method. The constructors check the values."""
    check(method, parameters)
    name, _, rule = split(method)
    own = _defaults(_base(name))
    inner: dict[str, Any] = {key: value for key, value in parameters.items() if key in own}
    rest: dict[str, Any] = {key: value for key, value in parameters.items() if key not in own}
    try:
        base: Any = _base(name)(**inner)
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError) or own_loss(method) is None:
            raise
        hint = " Give its parameters default values." if " required " in str(error) else ""
        raise ValueError(f"{name} cannot be constructed: {first_line(error, with_type=True)}{hint}") from error
    if rule == "ogc":
        return OGC(base, optimizer, **rest)
    if rule == "linear":
        return OGC(base, follow_lr=False, threshold=Linear(**rest, steps=total_steps))
    if rule == "ema":
        return OGC(base, follow_lr=False, threshold=EMA(**rest))
    return cast(Loss, base)


def check(method: str, parameters: Iterable[str] = ()) -> None:
    """Raise ``ValueError`` for an unknown method or parameter, and suggest a similar name."""
    name, plus, rule = split(method)
    if (own_loss(method) is None and name not in LOSSES) or (plus and rule not in RULES):
        near = f" Did you mean ce+{method}?" if method in RULES else did_you_mean(method, METHODS)
        if re.search(r":\w+=[^:/]*$", method):
            near = " Give settings of a method by themselves, as in --set q=0.7."
        raise ValueError(f"There is no method named {method!r}.{near} Choose from {', '.join(METHODS)}.")
    taken = takes(method)
    for parameter in parameters:
        if parameter not in taken:
            raise ValueError(
                f"The method {method} has no parameter {parameter!r}.{did_you_mean(parameter, taken)} "
                f"It takes {', '.join(taken) or 'none'}."
            )


def takes(method: str) -> dict[str, Value | None]:
    """Return the parameters of a method and their defaults."""
    name, _, rule = split(method)
    base, more = dict(_defaults(_base(name))), dict(_defaults(RULES[rule])) if rule else {}
    if clash := base.keys() & more.keys():
        raise ValueError(
            f"The method {method} is not supported: its loss and its rule both have a parameter `{min(clash)}`."
        )
    return base | more


def complete(method: str, given: Mapping[str, Value], name: str) -> Parameters:
    """Complete the given parameters with those in ``PARAMETERS`` for the recipe ``name``, and with defaults.

    ``epsilon`` and ``epsilon0`` exclude each other. Only the one in force is kept.
    """
    check(method, given)
    require(not given.keys() >= {"epsilon", "epsilon0"}, "epsilon", "omitted with epsilon0", given.get("epsilon"))
    known, (base, _, rule) = PARAMETERS.get(name, {}), split(method)
    on_images = {"epsilon": IMAGE_EPSILON} if rule == "ogc" and name in PARAMETERS else {}
    usual = known.get(method, known.get(base, {}) | on_images)
    whole: dict[str, Value | None] = {**takes(method), **usual, **given}
    if "epsilon" in given:
        whole["epsilon0"] = None
    elif whole.get("epsilon0") is not None:
        whole["epsilon"] = None
    return {key: value for key, value in whole.items() if value is not None}


def split(method: str) -> tuple[str, str, str]:
    """Split a method into loss, "+" and rule. The path of a file may contain a "+".

    >>> split("c++/mine.py:MyLoss+ogc")
    ('c++/mine.py:MyLoss', '+', 'ogc')
    """
    path, dot, rest = method.rpartition(".py:")
    name, plus, rule = rest.partition("+")
    return f"{path}{dot}{name}", plus, rule


def own_loss(method: str) -> OwnLoss | None:
    """Return the file and the class of a custom loss; ``None`` for a built-in one."""
    return OwnLoss.parse(split(method)[0])


def allow_loss(method: str) -> None:
    """Let the file of a loss, ``my_loss.py:MyLoss``, run in this process. Other methods need no permission."""
    if (own := own_loss(method)) is not None:
        own.allow()


def confirmed(method: str, sha256: str | None, named: str | None, *, of: Path) -> str:
    """Return ``named``, the method as the caller gave it, if it is the recorded ``method`` of the run in ``of``.

    The paths of the two may differ. The file that runs is the one that the caller named.
    """
    recorded = own_loss(method)
    assert recorded is not None
    if named is None:
        raise ValueError(
            f"{of} was trained with a loss from a file, {str(recorded.path)!r}. Code that a folder names runs only if "
            f"you name it, too. If you trust the file, add --method {shlex.quote(method)}."
        )
    own = own_loss(named)
    if own is None or (own.name, split(named)[1:]) != (recorded.name, split(method)[1:]):
        raise ValueError(f"Parameter `method` should be that of {of}, {method}. Found `method = {named!r}`.")
    own.load(sha256 or "")
    return with_absolute_path(named)


def with_absolute_path(method: str) -> str:
    """Make the path of a custom loss absolute."""
    own = own_loss(method)
    return method if own is None else "".join([str(own._replace(path=own.path.absolute())), *split(method)[1:]])


def _base(name: str) -> Callable[..., object]:
    """Return the class of a loss."""
    own = OwnLoss.parse(name)
    return LOSSES[name] if own is None else own.load()


@lru_cache(maxsize=64)  # a table of results needs those of hundreds of recipes
def _defaults(part: Callable[..., object]) -> Mapping[str, Value | None]:
    """Return the constructor arguments that are numbers, with their defaults."""
    excluded = ("ignore_index", "steps")
    found = {a.name: a.default for a in inspect.signature(part).parameters.values() if a.name not in excluded}
    rules = ("epsilon", "epsilon0")
    return {name: value for name, value in found.items() if name in rules or isinstance(value, bool | int | float)}
