"""Ctrl-C and SIGTERM: finish the step, save, and print the command that resumes."""

from __future__ import annotations

import math
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from .method import own_loss

IN_PYTHON = "ogc.training.train(jobs, resume=True)"


def resume_command(methods: Mapping[Path, str], *, from_python: bool = False) -> str:
    """Return the command that resumes runs, by folder and method. A loss from a file has to be named, one per command.

    >>> resume_command({Path("a"): "ce", Path("b"): "ce", Path("c"): "my.py:Mine+ogc"})
    'ogc train --resume a --resume b && ogc train --resume c --method my.py:Mine+ogc'

    :param from_python: the data or a network came from Python, so no command can resume.
    """
    if from_python:
        return IN_PYTHON
    commands: dict[str, list[str]] = {}
    for folder, method in methods.items():
        loss = "" if own_loss(method) is None else method
        commands.setdefault(loss, []).extend(("--resume", str(folder)))
    return " && ".join(
        shlex.join(["ogc", "train", *words, *(["--method", loss] if loss else [])]) for loss, words in commands.items()
    )


class Interrupted(KeyboardInterrupt):
    """Raised when a signal stopped training. The state is saved in the folders.

    :param methods: methods of the runs, by folder.
    :param trouble: an earlier error of one of the runs.
    :param from_python: as in :func:`resume_command`.
    """

    def __init__(
        self,
        signal_number: int,
        methods: Mapping[Path, str],
        trouble: Exception | None = None,
        *,
        from_python: bool = False,
    ) -> None:
        self.signal, self.folders = signal.Signals(signal_number), list(methods)
        again = f"Resume with: {resume_command(methods, from_python=from_python)}"
        resume = again if methods else "Nothing was saved: there is no run folder."
        before = "" if trouble is None else f"{trouble} "
        super().__init__(f"{before}Stopped by {self.signal.name}. {resume}")


class Stop:
    """A request to stop.

    :param deadline: on the monotonic clock.
    """

    def __init__(self, deadline: float = math.inf) -> None:
        self.received, self.deadline = 0, deadline

    @property
    def signal(self) -> int:
        """The signal received, ``SIGALRM`` once the deadline has passed, or 0."""
        return self.received or (signal.SIGALRM if time.monotonic() >= self.deadline else 0)

    @signal.setter
    def signal(self, number: int) -> None:
        self.received = number

    def __bool__(self) -> bool:
        return self.signal != 0


@contextmanager
def stopping(deadline: float = math.inf) -> Iterator[Stop]:
    """Record the first signal instead of ending the process. A second one ends it. Works in the main thread only."""
    stop = Stop(deadline)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def record(number: int, frame: FrameType | None) -> None:
        stop.signal = number
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, record)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
