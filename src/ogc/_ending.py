"""How a command ends that cannot go on: one sentence, and the exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def end(sentence: str, code: int, *, alike: bool = True) -> typer.Exit:
    """Say the sentence, and return what to raise.

    :param alike: whether all of torchrun's processes have it to say; then the first one does.
    """
    import typer

    rank = os.environ.get("RANK", "0")
    if rank == "0" or not alike:
        typer.echo(sentence if rank == "0" else f"Process {rank}: {sentence}", err=True)
    return typer.Exit(code)


@contextmanager
def one_sentence(
    *, stopped: str = "", way_out: str = "try --device cpu", failures: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """What a user can do something about: 2 for a bad value, 1 for files and for what failed, 128 + signal.

    :param stopped: what to say at Ctrl-C, if that brings no sentence of its own.
    :param way_out: of too little memory on the GPU.
    :param failures: errors besides those of files that are no bad values.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        sentence = str(stop) or stopped
        if not sentence:
            raise
        raise end(sentence, 128 + getattr(stop, "signal", signal.SIGINT)) from None
    except failures as error:
        raise end(str(error), 1) from None
    except RuntimeError as error:
        torch = sys.modules.get("torch")  # not imported for this
        if not isinstance(error, getattr(torch, "OutOfMemoryError", ())):
            raise
        raise end(f"The GPU's memory is not enough: {way_out}.", 1, alike=False) from None
    except ImportError as error:
        raise end(str(error), 1, alike=False) from None
    except OSError as error:
        sentence = f"Cannot use {error.filename}: {error.strerror}." if error.filename else str(error)
        raise end(sentence, 1, alike=False) from None
    except ValueError as error:
        raise end(str(error), 2) from None
