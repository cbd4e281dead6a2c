"""Recipes: all settings of a training run except the data and the machine."""

from __future__ import annotations

import contextlib
import math
import tomllib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from .._require import counted, did_you_mean, require, require_known
from ..clipping.default_rule import SAMPLES_NEEDED, Default
from ..models import TIMM, check_network
from ..noise.by_kind import Kind
from . import method as methods


class Checked(BaseModel):
    """A frozen model whose errors are one sentence: the parameter, the rule, the value found."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    if not TYPE_CHECKING:  # pydantic's own signature has the fields

        def __init__(self, **values: object) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ValueError(_sentence(error, list(type(self).model_fields))) from None


def _sentence(error: ValidationError, fields: list[str]) -> str:
    """Return the first error in the form of ``require``."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    path = [part for part in first["loc"] if part != "constrained-int"]  # the name of a type in a union
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]
    if first["type"] == "extra_forbidden":
        return f"There is no parameter {name!r}.{did_you_mean(name, fields)} Choose from {', '.join(fields)}."
    if first["type"] == "missing":
        return f"Parameter `{name}` should be given."
    rule = first["msg"].removeprefix("Input should be ").partition(", unable")[0].replace("'", "")
    rule += " or auto" if len(path) < len(first["loc"]) else ""
    near = did_you_mean(str(first["input"]), rule.split()) if first["type"] == "literal_error" else ""
    return f"Parameter `{name}` should be {rule}. Found `{name} = {first['input']!r}`.{near}"


def _none(value: object) -> object:
    return None if isinstance(value, str) and value.lower() == "none" else value


def _listed(value: object) -> object:
    """Parse a list from the command line: "30,60" or "none"."""
    if not isinstance(value, str):
        return value
    return [] if _none(value) is None else [part.strip() for part in value.split(",") if part.strip()]


ALIASES = {  # names of these settings in other libraries, for error messages
    "batch": "batch_size",
    "learning_rate": "lr",
    "loss": "method",
    "model": "network",
    "wd": "weight_decay",
}
SMALLEST_BATCH, LARGEST_BATCH, FEWEST_STEPS = 16, 64, 6  # of batch_size = auto; steps per epoch
ParseNone = BeforeValidator(_none)
Count = Annotated[int, Field(ge=1)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(_listed)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Recipe(Checked):
    """Settings of a training run. Numbers may be given as strings, and ``None`` as "none".

    >>> RECIPES["cifar10"].lr_at(epoch=49)
    0.1
    """

    name: str  # of the recipe or its data set; the method's parameters are looked up by it
    network: str  # one of ogc.models.NETWORKS, timm:NAME, or auto: resnet18-cifar on a GPU, resnet20-cifar elsewhere
    hidden: Counts = ()  # widths of the mlp's layers
    method: str = "ce+ogc"
    method_sha256: str | None = None  # checksum of the file of a custom loss when the recipe was made
    parameters: methods.Parameters = {}  # of the method; by default the paper's for ``name``, or those of the loss
    noise: Annotated[str | None, ParseNone] = None  # added to the training labels: KIND:RATE or human:KIND
    noise_seed: Seed = 0
    seed: Seed = 0  # of the initial weights, the batches and the augmentation
    epochs: Count
    batch_size: Annotated[int, Field(ge=2)] | Literal["auto"]  # auto: 16 to 64, for six steps per epoch or more
    accumulate: Count = 1  # number of micro-batches per batch, to save memory
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: Positive
    momentum: Share = 0.9  # of SGD
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0)]
    schedule: Literal["steps", "cosine", "constant"]
    milestones: Counts = ()  # epochs after which lr is multiplied by ``factor``
    factor: Annotated[float, Field(gt=0, le=1)] = 0.1
    clip_norm: Annotated[Positive | None, ParseNone] = None  # of the gradient of all weights
    average: Annotated[Annotated[float, Field(gt=0, lt=1)] | None, ParseNone] = 0.999  # decay of the averaged weights
    precision: Literal["auto", "float32", "bf16"] = "auto"  # auto: bf16 on CUDA devices that support it
    augment: Literal["none", "cifar", "large"] = "none"
    size: Annotated[Count | None, ParseNone] = None  # side of the images; None keeps theirs
    report_epochs: Count = 10  # last epochs whose mean accuracy is reported; by default at most a third of all
    report: Literal["raw", "averaged"] = "raw"  # the weights whose accuracy is reported in tables of results
    surveys: Annotated[int, Field(ge=0)] = 10  # number of surveys of the training samples, for an audit

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Fill in all parameters of the method, and report_epochs, so that they are recorded."""
        if not isinstance(values, Mapping):
            return values
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):  # reported with the other fields
            values = {"report_epochs": _last_epochs(int(values["epochs"])), **values}
        method, given = values.get("method", "ce+ogc"), values.get("parameters", {})
        require(isinstance(method, str), "method", "a name", method)
        require(isinstance(given, Mapping), "parameters", "numbers by name", given)
        own = methods.own_loss(method)
        if own is not None and values.get("method_sha256") is not None:  # recorded: reading a recipe must not run code
            return values
        given = {name: _number(name, value) for name, value in given.items()}
        whole = methods.complete(method, given, str(values.get("name")))
        methods.build(method, whole)
        sha256 = None if own is None else own.sha256()
        return {**values, "method": methods.with_absolute_path(method), "method_sha256": sha256, "parameters": whole}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.network != "auto" and not self.network.startswith(TIMM):  # timm need not be installed here
            check_network(self.network)
        if self.noise is not None:
            Kind.parse(self.noise)
        steps = self.schedule == "steps"
        require(steps or not self.milestones, "milestones", "left out unless schedule = steps", self.milestones)
        increasing = all(first < second for first, second in pairwise((*self.milestones, self.epochs)))
        require(increasing, "milestones", f"increasing, and below epochs = {self.epochs}", self.milestones)
        sgd = self.optimizer == "sgd" and self.momentum > 0
        require(sgd or not self.nesterov, "nesterov", "false without SGD and a momentum above 0", self.nesterov)
        smallest, of = self.batch_size, f"batch_size = {self.batch_size}"
        if smallest == "auto":
            smallest, of = SMALLEST_BATCH, f"{SMALLEST_BATCH} with {of}"
        require(smallest % self.accumulate == 0, "accumulate", f"a divisor of {of}", self.accumulate)
        large = self.augment == "large"
        require(not large or self.size is not None, "size", "given with augment = large", self.size)
        averaged = self.report == "averaged"
        require(not averaged or self.average is not None, "average", "given with report = averaged", self.average)
        return self

    @property
    def data(self) -> str:
        """Name of the data set that the recipe is for: ``cifar10`` for ``cifar10-plus``."""
        return self.name.partition("-")[0] if self.name in RECIPES else self.name

    @property
    def batch(self) -> int:
        """The batch size, once ``auto`` is resolved."""
        assert isinstance(self.batch_size, int)
        return self.batch_size

    def lr_at(self, epoch: int, share: float = 0.0) -> float:
        """Return the learning rate after ``epoch`` epochs and this share of the next one."""
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * (epoch + share) / self.epochs)) / 2
        return self.lr * self.factor ** sum(milestone <= epoch for milestone in self.milestones)

    def show(self) -> str:
        """Format the recipe, one line per field."""
        lines: list[tuple[str, object]] = []
        for name, value in self:
            if name == "parameters":
                lines += [(f"  {parameter}", number) for parameter, number in self.parameters.items()]
            elif name != "method_sha256" or value is not None:
                lines.append((name, value))
        return "\n".join(f"{name:<14}{shown(value)}".rstrip() for name, value in lines)


def override(recipe: Recipe, changes: Mapping[str, object]) -> Recipe:
    """Return the recipe with some fields changed. Parameters of the method are given like fields.

    Unless given, milestones move in proportion to the epochs and are removed with another schedule, and parameters
    return to their defaults with another method.
    """
    values: dict[str, Any] = {name: value for name, value in recipe if name not in ("parameters", "milestones")}
    if recipe.report_epochs == _last_epochs(recipe.epochs):
        del values["report_epochs"]
    fields = {name: value for name, value in changes.items() if name in Recipe.model_fields}
    method = methods.with_absolute_path(str(fields.get("method", recipe.method)))
    if method != recipe.method:
        methods.check(method)
        fields["method"] = method
    given = {name: value for name, value in changes.items() if name not in fields}
    if unknown := [name for name in given if name not in methods.takes(method)]:
        there = [*Recipe.model_fields, *methods.takes(method)]
        alias = ALIASES.get(unknown[0])
        near = f" Did you mean {alias}?" if alias else did_you_mean(unknown[0], there)
        if unknown[0] in methods.takes("ce+ogc"):
            near = " It belongs to methods with OGC, such as ce+ogc."
        raise ValueError(f"There is no parameter {unknown[0]!r}.{near} Choose from {', '.join(there)}.")
    listed = fields.pop("parameters", {})
    require(isinstance(listed, Mapping), "parameters", "numbers by name", listed)
    given = {**listed, **given}  # type: ignore[dict-item]
    same = method == recipe.method and fields.get("name", recipe.name) == recipe.name
    kept = dict(recipe.parameters) if same else {}
    if given or not same:
        values.pop("method_sha256")  # use the file as it is now
    for one, other in (("epsilon", "epsilon0"), ("epsilon0", "epsilon")):
        if one in given:
            kept.pop(other, None)
    changed = Recipe(**{**values, **fields, "parameters": kept | given})
    if "milestones" in fields or changed.schedule != "steps":
        return changed
    moved = (round(milestone * changed.epochs / recipe.epochs) for milestone in recipe.milestones)
    inner = dict.fromkeys(milestone for milestone in moved if 0 < milestone < changed.epochs)  # no duplicates
    return changed.model_copy(update={"milestones": tuple(inner)})


def batch_for_samples(samples: int) -> int:
    """Return the batch size of ``auto``: with few samples, larger batches leave too few steps to learn anything.

    >>> [batch_for_samples(samples) for samples in (100, 200, 400, 1000)]
    [16, 32, 64, 64]
    """
    fitting: int = 2 ** max(0, (samples // FEWEST_STEPS).bit_length() - 1)
    return min(LARGEST_BATCH, max(SMALLEST_BATCH, fitting))


def _last_epochs(epochs: int) -> int:
    """Return the default of report_epochs: ten as in the paper, but not the first two thirds of a short run."""
    return min(10, max(1, epochs // 3))


def never_clips(recipe: Recipe, *, samples: int, batch: int, steps: int) -> str | None:
    """Explain why OGC would never move tau in such a run; ``None`` if it would, or if the method is not OGC.

    :param steps: steps per epoch, of ``batch`` samples each.
    """
    if methods.split(recipe.method)[2] != "ogc":
        return None
    queue, every = (int(recipe.parameters[name]) for name in ("queue_size", "every"))
    if methods.by_default(recipe.method, recipe.parameters):
        queue, every = min(queue, SAMPLES_NEEDED), Default().period(1, every)
    total = recipe.epochs * steps
    calls = total * recipe.accumulate
    if every * math.ceil(queue * recipe.accumulate / (batch * every)) <= calls:
        return None
    enough = max(4, min(samples, total * batch // 4))
    better = {"queue_size": min(queue, 2 ** (enough.bit_length() - 1)), "every": min(every, max(1, calls // 8))}
    typed = " ".join(f"--set {name}={value}" for name, value in better.items() if value != recipe.parameters[name])
    often = "every step" if every == 1 else f"every {every} steps"
    return (
        f"{recipe.method} clips nothing in {counted(total, 'step')} of {batch:,} samples: tau moves {often}, "
        f"once {queue:,} samples are queued. To fix this, add {typed}, or train for more epochs."
    )


def by_name(name: str) -> Recipe:
    """Return one of RECIPES. An unknown name raises an error that lists similar ones."""
    require_known("recipe named", name, RECIPES)
    return RECIPES[name]


def from_toml(path: str | Path) -> Recipe:
    """Read a recipe: ``base = "cifar10"``, then the changes, with ``[parameters]`` for those of the method."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no recipe file {path}. Check its path, or choose from {', '.join(RECIPES)}.")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        base = values.pop("base", None)
        return Recipe(**values) if base is None else override(by_name(str(base)), values)
    except ValueError as error:  # includes TOMLDecodeError and UnicodeDecodeError
        raise ValueError(f"{path}: {error}") from None


def _number(name: str, value: object) -> methods.Value:
    """Convert a parameter of a method to a number."""
    if isinstance(value, str):
        text = value.strip().lower()
        if text in ("true", "false"):
            return text == "true"
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(text)
    if not isinstance(value, bool | int | float):
        raise ValueError(f"Parameter `{name}` should be a number. Found `{name} = {value!r}`.")
    return value


def shown(value: object) -> str:
    """Format a value as ``--set`` accepts it."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


_CIFAR = Recipe(  # the paper's protocol
    name="cifar10",
    network="resnet18-cifar",
    epochs=150,
    batch_size=128,
    lr=0.1,
    weight_decay=5e-4,
    schedule="steps",
    milestones=(50, 100),
    clip_norm=5.0,
    average=None,
    augment="cifar",
)
_FOLDER = Recipe(  # small images
    name="folder",
    network="auto",
    epochs=20,
    batch_size="auto",
    lr=0.05,
    weight_decay=5e-4,
    schedule="cosine",
    clip_norm=5.0,
    augment="cifar",
    size=32,
)
_TABLE = Recipe(
    name="table",
    network="mlp",
    hidden=(256, 256),
    epochs=30,
    batch_size=128,
    lr=0.05,
    weight_decay=5e-4,
    schedule="cosine",
    clip_norm=5.0,
)
_WEBVISION = {"network": "resnet18", "epochs": 120, "milestones": (40, 80), "nesterov": True, "report_epochs": 1}
_LARGE = {"augment": "large", "size": 224}
_PLUS = {"method": "ce+ogc", "epochs": 100, "milestones": (50,), "average": 0.999, "report": "averaged"}

RECIPES: dict[str, Recipe] = {  # by data set, or data set and variant
    "cifar10": _CIFAR,
    "cifar100": override(_CIFAR, {"name": "cifar100", "network": "resnet34-cifar"}),
    "webvision": override(_CIFAR, {"name": "webvision", **_WEBVISION, **_LARGE}),
    "digits": Recipe(  # also used by the demo
        name="digits",
        network="mlp",
        hidden=(512, 512),
        epochs=120,
        batch_size=128,
        lr=0.1,
        weight_decay=5e-4,
        schedule="steps",
        milestones=(40, 80),
    ),
    "folder": _FOLDER,
    "folder-large": override(_FOLDER, {"name": "folder-large", "network": "resnet18", "epochs": 60, **_LARGE}),
    "table": _TABLE,
    "arrays": override(_TABLE, {"name": "arrays"}),
}
RECIPES |= {  # not in the paper: two thirds of the epochs, one drop in the learning rate, averaged weights
    f"{name}-plus": override(RECIPES[name], {"name": f"{name}-plus", **_PLUS}) for name in ("cifar10", "cifar100")
}
RECIPES["cifar10-default"] = override(_CIFAR, {"name": "cifar10-default"})  # the paper's recipe with OGC's default rule
