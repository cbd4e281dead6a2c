"""The key of a run: its name without the seed. It is the same in every table, and the result file is named after it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import PurePath

from ..training import method as methods
from ..training.recipe import RECIPES, Recipe, by_name, override

# recipe fields that key_of does not add as "NAME-VALUE"
NOT_IN_KEY = ("name", "method", "method_sha256", "parameters", "noise", "seed", "average", "precision", "surveys")


def key_of(recipe: Recipe, *, alone: bool = False) -> str:
    """Join data, method, noise and every setting that is not the paper's into a name.

    Averaging, precision and surveys are left out: the first and the last do not affect the raw weights, and the
    precision depends on the device.

    >>> key_of(override(RECIPES["cifar10"], {"noise": "symmetric:0.8", "queue_size": 256}))
    'cifar10-ce_ogc-symmetric-0.8-queue_size-256'
    """
    like = "ce+ogc" if recipe.method.endswith("+ogc") else "ce"  # for a custom loss, whose defaults are not known
    usual = _usual(recipe.name, recipe.method if recipe.method in methods.METHODS else like, recipe.epochs)
    parts: list[object] = [recipe.name, PurePath(recipe.method).name.replace("+", "_")]
    parts += [] if recipe.method_sha256 is None else [recipe.method_sha256[:8]]
    parts += [] if recipe.noise is None else [recipe.noise]
    parts += [] if recipe.epochs == RECIPES[recipe.name].epochs else ["epochs", recipe.epochs]
    left_out = NOT_IN_KEY if recipe.report == "raw" else tuple(name for name in NOT_IN_KEY if name != "average")
    for name, value in recipe:
        if name not in left_out and value != getattr(usual, name):
            parts += [name, _signed(str(value)) if isinstance(value, float) else value]
    for name, number in sorted(recipe.parameters.items()):
        if number != usual.parameters.get(name):
            parts += [name, str(number).lower() if isinstance(number, bool) else _signed(f"{number:.12g}")]
    parts += ["alone"] if alone else []
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", str(part)).strip("-") for part in parts)


def _signed(number: str) -> str:
    """Write the sign of a number in letters, because a dash separates the parts of a key.

    >>> _signed("-0.5"), _signed("1e+16"), _signed("1e-16")
    ('minus-0.5', '1e16', '1e-16')
    """
    return re.sub("^-", "minus-", number).replace("e+", "e")


@cache
def _usual(dataset: str, method: str, epochs: int) -> Recipe:
    return override(by_name(dataset), {"method": method, "epochs": epochs})
