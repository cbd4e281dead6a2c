"""Ctrl-C and SIGTERM: finish the step, save, and say how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Training was stopped from outside; what was trained is saved in ``folders``."""

    def __init__(self, signal_number: int, folders: list[Path]) -> None:
        self.signal, self.folders = signal.Signals(signal_number), folders
        go_on = " ".join(f"Go on with: ogc train --resume {folder}" for folder in folders)
        super().__init__(f"Stopped by {self.signal.name}. {go_on or 'Nothing was saved: there is no run folder.'}")


class Stop:
    """Whether somebody wants us to stop."""

    signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


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

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
