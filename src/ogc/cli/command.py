"""Commands as functions of one dataclass, whose fields are the options."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

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
            with reported(stopped, out_of_memory):
                function(options(**values))

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
    """Return the options that differ from their defaults, by their names on the command line."""
    hints = get_type_hints(type(options), include_extras=True)
    changed = [name for name, default in defaults(type(options)).items() if getattr(options, name) != default]
    declared = {name: hints[name].__metadata__[0].default for name in changed}  # where typer keeps "--set"
    return [(text if isinstance(text, str) else name).lstrip("-").replace("_", "-") for name, text in declared.items()]
