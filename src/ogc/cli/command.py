"""Commands as functions of one dataclass, whose fields are the options."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, get_type_hints

from typer.models import OptionInfo, ParameterInfo

from .errors import reported

T = TypeVar("T")


def command(*, stopped: str = "Stopped.", out_of_memory: str = "use --device cpu") -> Callable[..., Any]:
    """Make a typer command of a function ``f(options: T)``, where ``T`` is a dataclass of ``Annotated`` fields.

    The parameters are as in :func:`ogc.cli.errors.reported`.
    """

    def decorate(function: Callable[[T], None]) -> Callable[..., None]:
        options = get_type_hints(function)["options"]
        hints = get_type_hints(options, include_extras=True)

        def call(**values: object) -> None:
            chosen = options(**values)
            with reported(stopped, out_of_memory, partial(as_typed, chosen)):
                function(chosen)

        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
            for name, default in defaults(options).items()
        ]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = hints
        call.__name__, call.__doc__ = function.__name__, function.__doc__
        return call

    return decorate


def defaults(options: type) -> dict[str, Any]:
    """Return the default of each field; ``inspect.Parameter.empty`` where it has none."""
    found = {}
    for field in dataclasses.fields(options):
        if field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
        else:
            found[field.name] = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
    return found


def given(options: object) -> list[str]:
    """Return the arguments and options that differ from their defaults, by their names on the command line."""
    return list(_given(options))


def as_typed(options: object, message: str) -> str:
    """Rewrite an error message of Python if it is about an option given in the command: `val = 2` -> `--val 2`."""
    found = re.match(r"Parameter `([\w-]+)`", message)
    name = "" if found is None else found[1].replace("_", "-")
    if found is None or not isinstance(_given(options).get(name), OptionInfo):
        return message
    message = message.replace(found[0], f"Parameter `--{name}`", 1)
    return message.replace(f"Found `{found[1]} = ", f"Found `--{name} ", 1)


def _given(options: object) -> dict[str, ParameterInfo]:
    """Return how typer declares the fields that differ from their defaults, by their names on the command line."""
    hints = get_type_hints(type(options), include_extras=True)
    changed = [name for name, default in defaults(type(options)).items() if getattr(options, name) != default]
    found = {}
    for name in changed:
        info = hints[name].__metadata__[0]
        text = info.default if isinstance(info.default, str) else name  # where typer keeps "--set"
        found[text.lstrip("-").replace("_", "-")] = info
    return found
