"""Errors and exit codes of all commands: one message on stderr, and one of these codes.

1: a file is missing or broken, a library is missing, or a run failed. 2: a bad argument.
3: ``ogc bench`` reached ``--max-minutes`` with runs left. 128 + N: stopped by signal N, so 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

FAILED, USAGE, UNFINISHED, SIGNALLED = 1, 2, 3, 128
FAILURES = {  # exceptions about files and runs; other ``ValueError``s are about arguments
    "ogc.audit.files": "AuditError",
    "ogc.benchmark.cluster": "RunFailed",
    "ogc.noise.files": "LabelFileError",
    "ogc.training.run_folder": "CheckpointError",
    "ogc.training.run": "NonFinite",
    "torch": "OutOfMemoryError",
}


FIXES = {  # of the operating system's errors
    FileExistsError: "A folder is needed there. Choose another, or move the file away.",
    NotADirectoryError: "A folder is needed there. Choose another, or move the file away.",
    IsADirectoryError: "A file is needed there, not a folder.",
    PermissionError: "Change its permissions, or choose another path.",
    FileNotFoundError: "Check the path.",
}


class DataError(ValueError):
    """A fault of the data, such as a broken file or a missing column, not of an argument."""


def is_first_process() -> bool:
    """Return True except in the other processes of torchrun, which print and write nothing."""
    return os.environ.get("RANK", "0") == "0"


def fail(message: str, code: int, *, every_rank: bool = False) -> typer.Exit:
    """Print the message to stderr and return the exception to raise.

    :param every_rank: print it in every process of torchrun, not only in the first one.
    """
    if is_first_process() or every_rank:
        typer.echo(message if is_first_process() else f"Process {os.environ['RANK']}: {message}", err=True)
    return typer.Exit(code)


@contextmanager
def data_errors() -> Iterator[None]:
    """Turn every ``ValueError`` into a ``DataError``."""
    try:
        yield
    except ValueError as error:
        raise DataError(str(error)) from None


@contextmanager
def reported(
    stopped: str = "Stopped.", out_of_memory: str = "use --device cpu", reworded: Callable[[str], str] = str
) -> Iterator[None]:
    """Turn errors that a user can act on into a message and an exit code; other errors pass.

    :param stopped: printed after Ctrl-C, unless the exception has its own message.
    :param out_of_memory: how to use less GPU memory.
    :param reworded: rewrites the messages of Python for the command line.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        raise fail(str(stop) or stopped, SIGNALLED + getattr(stop, "signal", signal.SIGINT)) from None
    except OSError as error:
        fix = f" {FIXES[type(error)]}" if type(error) in FIXES else ""
        message = f"Cannot use {error.filename}: {error.strerror}.{fix}" if error.filename else str(error)
        raise fail(message, FAILED, every_rank=True) from None
    except ImportError as error:
        raise fail(str(error), FAILED, every_rank=True) from None
    except (RuntimeError, ValueError) as error:
        if _is(error, "torch"):
            raise fail(f"Out of GPU memory. To fix this: {out_of_memory}.", FAILED, every_rank=True) from None
        if isinstance(error, DataError) or any(_is(error, module) for module in FAILURES):
            raise fail(reworded(str(error)), FAILED) from None
        if isinstance(error, RuntimeError):
            raise
        raise fail(reworded(str(error)), USAGE) from None


def _is(error: Exception, module: str) -> bool:
    """Return True if ``error`` is the module's entry in ``FAILURES``. Does not import the module."""
    return isinstance(error, getattr(sys.modules.get(module), FAILURES[module], ()))
