"""The command line, ``ogc``. Importing this package imports neither typer nor torch."""

import os
import signal
import sys
from importlib.util import find_spec
from types import FrameType

NEEDED = (
    "typer",
    "rich",
    "matplotlib",
    "numpy",
    "pandas",
    "sklearn",
    "PIL",
    "pydantic",
    "safetensors",
)  # the extra `cli`


def main() -> None:
    """Run ``ogc`` or ``python -m ogc``."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(f'The command line needs {", ".join(missing)}. To fix this: pip install "torch-ogc[cli]"')
    try:
        from .app import build

        build()(prog_name="ogc")
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt``, or exit during an import: libraries may swallow the exception there."""
    while (above := frame) is not None:
        if above.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(130)
        frame = above.f_back
    raise KeyboardInterrupt
