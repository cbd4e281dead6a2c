"""Consoles, notes and progress bars for commands. This module imports neither torch nor rich."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is given, without highlighting."""
    from rich.console import Console

    return Console(highlight=False, stderr=stderr)


def say(console: Console, message: str) -> None:
    """Print a message as it is: no markup, and no line breaks inside paths and commands."""
    console.print(message, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def warnings_as_notes(console: Console) -> Iterator[None]:
    """Print each warning as one line that starts with ``Note:``."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say(console, f"Note: {message}")
        yield


@contextmanager
def progress_bar(*columns: ProgressColumn) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a callback that takes the work done and the total. On a terminal, the bar appears at its first call."""
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    console = make_console(stderr=True)
    shown = (BarColumn(), *columns, TimeRemainingColumn())
    bar = Progress(*shown, console=console, transient=True, disable=not console.is_terminal)

    def update(done: int, total: int | None) -> None:
        if not bar.task_ids:
            bar.add_task("")
            bar.start()
        bar.update(bar.task_ids[0], completed=done, total=total)

    try:
        yield update
    finally:
        bar.stop()


def download_bar() -> AbstractContextManager[Callable[[int, int | None], None]]:
    """Return a progress bar in bytes."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    return progress_bar(DownloadColumn(), TransferSpeedColumn())
