"""``ogc demo``: digits with half of their labels wrong, one small network trained with CE and with CE+OGC."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from .._files import write_whole
from ..drawing import png
from .pictures import pictures
from .progress import table, train_all
from .training import METHODS, History, Settings, run

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["METHODS", "PASTE", "History", "Settings", "Stopped", "demo", "run"]

PASTE = """\
    from ogc import OGC
    criterion = OGC("ce", optimizer)          # was: nn.CrossEntropyLoss()
    loss = criterion(model(inputs), labels)"""


class Stopped(KeyboardInterrupt):
    """Ctrl-C. The message names the files that were written."""


def demo(out: Path, settings: Settings, console: Console) -> list[History]:
    """Train, print the table, and write the pictures and result.json to ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    written: list[str] = []
    try:
        console.print(
            f"Handwritten digits, {settings.noise_rate:.0%} of the training labels replaced at random. "
            f"The same network is trained for {settings.epochs} epochs with CE, then with CE+OGC.\n"
        )
        histories = train_all(settings, console)
        console.print()
        console.print(table(histories, dash="\u2014" if console.encoding.startswith("utf") else "-"))
        for name, picture in pictures(histories, settings).items():
            write_whole(out / name, png(picture))
            written.append(name)
        write_whole(out / "result.json", json.dumps(result(histories, settings), indent=1).encode())
        written.append("result.json")
    except KeyboardInterrupt:
        kept = f"{', '.join(written)} written to {out}" if written else f"nothing was written to {out}"
        raise Stopped(f"Stopped before the end: {kept}.") from None
    console.print(
        f"\nPictures: {out / 'demo.png'} (and {', '.join(written[1:-1])})\nNumbers:  {out / 'result.json'}\n\n"
        f"In your own training loop:\n\n{PASTE}\n",
        markup=False,
        soft_wrap=True,
    )
    console.print("Next: see README.md for other losses and options, and docs/method.md for the equations.")
    return histories


def result(histories: Sequence[History], settings: Settings) -> dict[str, Any]:
    """Return the measurements and their provenance, for JSON."""
    return {
        "settings": asdict(settings) | {"milestones": settings.milestones},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {platform.system()}, one thread",
        "versions": {"ogc": __version__, "python": platform.python_version()}
        | {name: version(name) for name in ("torch", "numpy", "scikit-learn")},
        "runs": [
            {
                "method": history.method,
                "seed": history.seed,
                "seconds": round(history.seconds, 2),
                "true_noise": history.true_noise,
                "labels_sha256": history.labels_sha256,
                "mixture": history.mixture and {k: float(v) for k, v in history.mixture._asdict().items()},
                "epochs": [asdict(epoch) for epoch in history.epochs],
            }
            for history in histories
        ],
    }
