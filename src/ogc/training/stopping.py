"""Ctrl-C and SIGTERM: finish the step, save, and say how to go on."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Training was stopped from outside; what was trained is saved in ``folders``.

    :param trouble: that a run had had before.
    :param losses: losses from files, which have to be named to resume.
    """

    def __init__(
        self,
        signal_number: int,
        folders: Sequence[Path],
        trouble: Exception | None = None,
        losses: Sequence[str] = (),
    ) -> None:
        self.signal, self.folders = signal.Signals(signal_number), list(folders)
        options = [("--resume", str(folder)) for folder in folders] + [("--method", loss) for loss in losses]
        command = " ".join(["ogc train", *(f"{name} {shlex.quote(value)}" for name, value in options)])
        go_on = f"Go on with: {command}" if folders else "Nothing was saved: there is no run folder."
        before = "" if trouble is None else f"{trouble} "
        super().__init__(f"{before}Stopped by {self.signal.name}. {go_on}")


class Stop:
    """Whether somebody wants us to stop, and by which signal."""

    signal: int = 0

    def __bool__(self) -> bool:
        return self.signal != 0


@contextmanager
def stopping() -> Iterator[Stop]:
    """Note the first signal instead of dying of it; a second one is obeyed at once. In the main thread alone."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        stop.signal = number
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
