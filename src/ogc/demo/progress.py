"""Progress bars of the demo, one per method, and the table at the end."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..drawing import percent
from .training import METHODS, Epoch, History, Settings, run

if TYPE_CHECKING:
    from rich.console import Console


def train_all(settings: Settings, console: Console) -> list[History]:
    """Train every method with every seed, with one progress bar per method, or plain lines without a terminal."""
    live = console.is_terminal and not console.is_dumb_terminal
    with _bars(console, settings, live) as update:
        return [
            run(method, seed, settings, lambda number, epoch, m=method, s=seed: update(m, s, number, epoch))  # type: ignore[misc]
            for method in METHODS
            for seed in settings.seeds
        ]


@contextmanager
def _bars(console: Console, settings: Settings, live: bool) -> Iterator[Callable[[str, int, int, Epoch], None]]:
    """Yield a function to call after every epoch."""
    from rich.progress import BarColumn, Progress, TextColumn

    def facts(epoch: Epoch | None) -> str:
        if epoch is None:
            return "waiting"
        tau = "-" if epoch.tau is None else f"{epoch.tau:.2f}"
        return f"test {100 * epoch.test_accuracy:5.1f} %  memorised {100 * epoch.memorised:5.1f} %  tau {tau}"

    def title(method: str, seed: int) -> str:
        return f"{method:6}" + (f" seed {seed}" if len(settings.seeds) > 1 else "")

    def print_line(method: str, seed: int, number: int, epoch: Epoch) -> None:
        if number in {*settings.milestones, settings.epochs}:
            console.print(f"{title(method, seed)}  epoch {number:3}/{settings.epochs}  {facts(epoch)}", soft_wrap=True)

    if not live:
        yield print_line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("epoch {task.fields[number]:3}"),
        TextColumn("{task.fields[facts]}"),
    )
    with Progress(*columns, console=console) as progress:
        total = settings.epochs * len(settings.seeds)
        bars = {
            m: progress.add_task(title(m, settings.seeds[0]), total=total, number=0, facts=facts(None)) for m in METHODS
        }

        def move(method: str, seed: int, number: int, epoch: Epoch) -> None:
            progress.update(bars[method], advance=1, description=title(method, seed), number=number, facts=facts(epoch))

        yield move


def table(histories: Sequence[History], *, dash: str = "-") -> Any:
    """Build the table of results: one row per method, mean and standard deviation over the seeds."""
    from rich.table import Table

    n = len({history.seed for history in histories})
    shown = Table(
        title=f"n = {n} seeds, mean +- standard deviation" if n > 1 else None,
        caption="The best epoch is selected on the test set, so it is optimistic.",
        title_justify="left",
        caption_justify="left",
    )
    headings = (
        "test accuracy\nat the end, %",
        "best epoch,\n%",
        "wrong labels\nmemorised, %",
        "in noisy normal /\nwrong labels, %",
    )
    shown.add_column("")
    for heading in headings:
        shown.add_column(heading, justify="right", no_wrap=True)
    for method in METHODS:
        runs = [history for history in histories if history.method == method]
        estimates = [h.last.noisy_weight for h in runs if h.last.noisy_weight is not None]
        true = statistics.fmean(h.true_noise for h in runs)
        shown.add_row(
            method,
            percent([h.last.test_accuracy for h in runs]),
            percent([h.best_accuracy for h in runs]),
            percent([h.last.memorised for h in runs]),
            f"{percent(estimates)} / {100 * true:.1f}" if estimates else dash,
        )
    return shown
