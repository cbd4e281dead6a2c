"""Ctrl-C and SIGTERM: finish the step, save, and print the command that resumes."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Raised when a signal stopped training. The state is saved in ``folders``.

    :param trouble: an earlier error of one of the runs.
    :param losses: losses from files, which must be named to resume.
    :param from_python: the data or a network came from Python, so no command can resume.
    """

    def __init__(
        self,
        signal_number: int,
        folders: Sequence[Path],
        trouble: Exception | None = None,
        losses: Sequence[str] = (),
        *,
        from_python: bool = False,
    ) -> None:
        self.signal, self.folders = signal.Signals(signal_number), list(folders)
        options = [("--resume", str(folder)) for folder in folders] + [("--method", loss) for loss in losses]
        command = " ".join(["ogc train", *(f"{name} {shlex.quote(value)}" for name, value in options)])
        again = "ogc.training.train(jobs, resume=True)" if from_python else command
        resume = f"Resume with: {again}" if folders else "Nothing was saved: there is no run folder."
        before = "" if trouble is None else f"{trouble} "
        super().__init__(f"{before}Stopped by {self.signal.name}. {resume}")


class Stop:
    """A request to stop: the signal received, or 0."""

    signal: int = 0

    def __bool__(self) -> bool:
        return self.signal != 0


@contextmanager
def stopping() -> Iterator[Stop]:
    """Record the first signal instead of ending the process. A second one ends it. Works in the main thread only."""
    stop = Stop()
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
